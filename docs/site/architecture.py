"""The picture of the architecture, drawn from the hook specifications.

    python docs/site/architecture.py    # writes docs/architecture.svg

All that it shows is read off the specifications: the order of the hooks, what each takes and returns, at which phases
it runs.  A first-result hook that takes or returns a product is a stage, in the middle; beside it stand the smaller
hooks that are asked for it (left) and those that rewrite what it made (right).  Hooks without a ``context`` belong to
no stage.
"""

from __future__ import annotations

import inspect
import re
from html import escape
from pathlib import Path
from typing import get_args

import attrs

from turret import ir, plan
from turret.hooks import hookspecs, products
from turret.hooks.registration.plugin_order import IN_TURN

PICTURE = Path(__file__).resolve().parents[1] / "architecture.svg"
WIDTH, STAGE, SIDE, ROW, GAP = 960, 250, 270, 44, 40
MIDDLE, LEFT, RIGHT = (WIDTH - STAGE) // 2, 10, WIDTH - SIDE - 10
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1a1c1e; }
  .name { font: 600 13px ui-monospace, monospace; }
  .small { font-size: 11px; fill: #5a6068; }
  rect { fill: #f3f5f7; stroke: #8a929c; }
  .stage rect { fill: #dbe7fb; stroke: #2f62b5; }
  path { stroke: #8a929c; fill: none; stroke-width: 1.5; marker-end: url(#tip); }
  marker path { fill: #8a929c; stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e3e6ea; }
    .small { fill: #a5adb8; }
    rect { fill: #2a2f36; }
    .stage rect { fill: #22375c; stroke: #7da6ec; }
  }
"""


@attrs.frozen
class Hook:
    """One specification: its name, and the types of its arguments and result, as they are written."""

    name: str
    arguments: dict[str, str]
    result: str
    is_first_result: bool

    @property
    def is_general(self) -> bool:
        """Whether it is asked for no graph in particular."""
        return "context" not in self.arguments

    @property
    def makes(self) -> str:
        """The product that it returns; the empty text where it returns none."""
        return next(iter(products_in(self.result)), "")

    @property
    def is_stage(self) -> bool:
        """Whether graphs go through it: first results that are products, or what runs."""
        taken = products_in(" ".join(self.arguments.values()))
        runs = self.result.startswith("Callable") and "saved" not in self.arguments
        return self.is_first_result and not self.is_general and (bool(self.makes and taken) or runs)

    @property
    def way(self) -> str:
        """How plugins are asked."""
        return "in turn" if self.name in IN_TURN else "first result" if self.is_first_result else "all"

    @property
    def phases(self) -> tuple[str, ...]:
        return get_args(getattr(products, self.arguments.get("phase", ""), None))


def products_in(annotation: str) -> list[str]:
    """The classes of products that an annotation names."""
    homes = (products, ir, plan)
    return [n for n in re.findall(r"\b[A-Z]\w+", annotation) if any(_is_product(getattr(h, n, None)) for h in homes)]


def _is_product(value: object) -> bool:
    return isinstance(value, type) and attrs.has(value) and "__str__" in vars(value) and value is not products.Target


def hooks() -> list[Hook]:
    """All hooks, in the order of their specifications."""
    found = []
    for name, function in vars(hookspecs).items():
        if name.startswith("turret_"):
            signature = inspect.signature(function)
            arguments = {n: str(p.annotation) for n, p in signature.parameters.items()}
            result = str(signature.return_annotation).removesuffix(" | None")
            found.append(Hook(name, arguments, result, bool(function.turret_spec["firstresult"])))
    return found


@attrs.frozen
class Side:
    """A smaller hook beside a stage, and when or how it is asked there."""

    hook: Hook
    note: str


def beside(found: list[Hook]) -> dict[str, list[Side]]:
    """The smaller hooks of each stage: where its phases are, where its table is taken, else the stage before it."""
    stages = [hook for hook in found if hook.is_stage]
    sides: dict[str, list[Side]] = {stage.name: [] for stage in stages}
    last = ""
    for hook in found:
        if hook.is_stage:
            last = hook.name
        elif hook.phases:
            for stage in stages:
                here = [phase for phase in hook.phases if is_phase_of(stage, phase)]
                if here:
                    sides[stage.name].append(Side(hook, f"{hook.way}: {', '.join(here)}"))
        elif not hook.is_general:
            table = hook.name.removeprefix("turret_")
            home = next((stage.name for stage in stages if table in stage.arguments), last)
            sides[home].append(Side(hook, hook.way))
    return sides


def is_phase_of(stage: Hook, phase: str) -> bool:
    """Whether a phase has the name of the stage, or of one of the graphs in what it makes."""
    fields = attrs.fields_dict(getattr(products, stage.makes)) if hasattr(products, stage.makes) else {}
    return phase in fields or phase.startswith(stage.name.removeprefix("turret_"))


def box(hook: Hook, note: str, x: int, y: int, width: int) -> str:
    """A hook as a box: its name and a note below."""
    kind = "stage" if hook.is_stage else "hook"
    return (
        f'<g class="{kind}"><rect x="{x}" y="{y}" width="{width}" height="{ROW}" rx="6"/>'
        f'<text class="name" x="{x + width // 2}" y="{y + 19}" text-anchor="middle">{hook.name}</text>'
        f'<text class="small" x="{x + width // 2}" y="{y + 35}" text-anchor="middle">{escape(note)}</text></g>'
    )


def draw_stage(stage: Hook, sides: list[Side], y: int) -> tuple[list[str], int]:
    """A stage at a height, with what stands beside it and what it hands on; and the height of the next one."""
    parts = [box(stage, stage.way, MIDDLE, y, STAGE)]
    rows = {LEFT: 0, RIGHT: 0}
    for side in sides:
        x = RIGHT if side.hook.name in IN_TURN else LEFT
        top = y + rows[x] * (ROW + 8)
        rows[x] += 1
        start, end = (MIDDLE + STAGE, x - 2) if x == RIGHT else (x + SIDE, MIDDLE - 2)
        parts.append(box(side.hook, side.note, x, top, SIDE))
        parts.append(f'<path d="M{start} {y + ROW // 2} L{end} {top + ROW // 2}"/>')
    bottom = y + ROW + GAP + max(max(rows.values()) - 1, 0) * (ROW + 8)
    parts.append(f'<path d="M{WIDTH // 2} {y + ROW} V{bottom - 2}"/>')
    made = stage.makes or handed_on(stage)
    if made:
        parts.append(f'<text class="small" x="{WIDTH // 2 + 10}" y="{y + ROW + 24}">{escape(made)}</text>')
    return parts, bottom


def handed_on(stage: Hook) -> str:
    """What a stage that returns a callable hands on: what its callback takes."""
    callbacks = [products_in(text) for text in stage.arguments.values() if text.startswith("Callable")]
    return next((name for names in callbacks for name in names), "")


def draw() -> str:
    """The picture as SVG."""
    found = hooks()
    sides = beside(found)
    parts = [f'<text x="{WIDTH // 2}" y="20" text-anchor="middle">a call of a compiled function</text>']
    parts.append(f'<path d="M{WIDTH // 2} 28 V{28 + GAP - 2}"/>')
    y = 28 + GAP
    for stage in (hook for hook in found if hook.is_stage):
        drawn, y = draw_stage(stage, sides[stage.name], y)
        parts += drawn
    parts.append(f'<text x="{WIDTH // 2}" y="{y + 14}" text-anchor="middle">what user code calls</text>')
    y += 44
    parts.append(f'<text class="small" x="{LEFT}" y="{y}">for all stages</text>')
    general = [hook for hook in found if hook.is_general]
    for number, hook in enumerate(general):
        x = LEFT + number * (WIDTH - SIDE - 2 * LEFT) // max(len(general) - 1, 1)
        parts.append(box(hook, hook.way, x, y + 8, SIDE))
    body = "\n".join(parts)
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + ROW + 18}" role="img" '
        'aria-label="The hooks of Turret, in the order in which a graph goes through them">\n'
        f'<style>{STYLE}</style>\n<defs>{tip}<path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw())
