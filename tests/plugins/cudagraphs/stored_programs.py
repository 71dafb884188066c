"""Programs that are recorded on acme, in a process whose cache folder another one may have filled.

    TURRET_CACHE_DIR=folder python -m tests.plugins.cudagraphs.stored_programs

Prints what became of each program's graphs, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import torch
import torch.nn.functional as F

import turret
from tests.plugins.devices.acme_world import World, _device, rand
from turret.api import cudagraphs


class Watch:
    """Counts compilations."""

    cache_key = "watch"

    def __init__(self) -> None:
        self.compiled = 0

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        self.compiled += event.kind == "stage_started" and event.stage == "codegen"


@attrs.frozen
class Program:
    """A function, what makes its inputs, and options."""

    run: Callable[..., Any]
    make: Callable[[], list[torch.Tensor]]
    options: dict[str, Any] = attrs.field(factory=dict)


def programs() -> dict[str, Program]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).to("acme")
    weight, scale = (torch.nn.Parameter(rand(8, 8)) for _ in range(2))

    def cut(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ weight.detach(), -1).cpu().to(x.device).cumsum(0) + x.sin()

    def cut_and_trained(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ weight)
        return torch.bmm(hidden[None], scale[None])[0].sin() @ scale

    def written(x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return torch.cumsum(x, 0) + 1

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x @ weight, 0.5) * 2

    grad, plain = (lambda: [rand(5, 8, grad=True)]), (lambda: [rand(5, 8)])
    return {
        "trained": Program(model, grad),
        "trained in the pool": Program(model, grad, {"cudagraph_outputs": "pool"}),
        "trained before trees": Program(model, grad, {"cudagraph_trees": False}),
        "trained unasked": Program(model, grad, {"cudagraphs": False, "cudagraph_after_calls": 1}),
        "cut": Program(cut, plain),
        "cut in training": Program(cut_and_trained, grad, {"cudagraph_split_ops": ("aten::bmm",)}),
        "written": Program(written, plain),
        "drawn": Program(drawn, grad),
        "of any size": Program(lambda x: torch.softmax(x * 3, -1) - x.sum(0), plain),
    }


def steps(program: Program, run: Callable[..., Any]) -> list[torch.Tensor]:
    """What some steps give: outputs, inputs afterwards, gradients."""
    torch.manual_seed(3)
    seen = []
    for _ in range(5):
        inputs = program.make()
        made = run(*inputs)
        if made.requires_grad:
            made.square().sum().backward()
        seen += [t.detach().cpu() for t in (made, *inputs)]
        seen += [x.grad.cpu() for x in inputs if x.grad is not None]
    return seen


def main() -> None:
    native, told = _device(), {}
    World(native)
    for name, program in programs().items():
        world, watch = World(native), Watch()
        options = {"cudagraphs": True, "cache": True, **program.options}
        compiled = world.compile(program.run, watch, **options)
        expected, found = steps(program, program.run), steps(program, compiled)
        if name != "drawn":  # not the numbers that acme's library draws
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        functions = [_facts(f) for f in cudagraphs.report().functions]
        sums = [t.double().abs().sum().item() for t in found]
        told[name] = {"compiled": watch.compiled, "functions": functions, "sums": sums}
    print(json.dumps(told))


def _facts(told: cudagraphs.FunctionReport) -> list[Any]:
    """What has to be the same whoever compiled the graph."""
    decisions = [" ".join(decision.split()[:3]) for decision in told.decisions]
    counts = [told.warm_ups, told.recordings, told.replays, told.any_size, told.bytes_copied, told.patched_nodes]
    return [told.role, told.skipped, *counts, list(told.rerecordings), dict(told.plain_calls), decisions]


if __name__ == "__main__":
    main()
