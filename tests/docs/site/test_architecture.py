"""The picture of the architecture is what the hook specifications say now."""

from __future__ import annotations

import runpy
from pathlib import Path

import attrs
import pytest

from turret.hooks import hookspecs

ROOT = Path(__file__).parents[3]
HOOKS = [name for name in vars(hookspecs) if name.startswith("turret_")]


@pytest.fixture(scope="module")
def drawing() -> dict:
    return runpy.run_path(str(ROOT / "docs/site/architecture.py"))


def test_the_picture_in_docs_is_the_one_drawn_now(drawing):
    assert drawing["PICTURE"].read_text() == drawing["draw"](), "python docs/site/architecture.py"


@pytest.mark.parametrize("hook", HOOKS)
def test_the_picture_names_every_hook(drawing, hook):
    assert f">{hook}</text>" in drawing["draw"]()


def test_stages_stand_in_the_order_of_their_specifications(drawing):
    stages = [hook.name for hook in drawing["hooks"]() if hook.is_stage]
    assert stages == [name for name in HOOKS if name in stages]
    assert {"turret_capture", "turret_joint", "turret_schedule", "turret_codegen", "turret_runtime"} <= set(stages)


def test_each_phase_of_a_hook_has_its_stage(drawing):
    found = drawing["hooks"]()
    phases = [phase for hook in found for phase in hook.phases]
    notes = " ".join(side.note for sides in drawing["beside"](found).values() for side in sides)
    assert phases
    assert [phase for phase in phases if phase not in notes] == []


def test_two_hooks_on_one_side_of_a_stage_do_not_overlap(drawing):
    found = drawing["hooks"]()
    stage = next(hook for hook in found if hook.is_stage)
    sides = [drawing["Side"](attrs.evolve(stage, name=f"turret_{n}"), "all") for n in range(2)]
    parts, bottom = drawing["draw_stage"](stage, sides, 100)
    tops = [y for y in (100, 100 + drawing["ROW"] + 8) if any(f'x="10" y="{y}"' in part for part in parts)]
    assert len(tops) == 2
    assert bottom > tops[-1] + drawing["ROW"]
