"""On a device that records and keeps no arenas: plans run in sections, and what is to be recorded can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.core.plan.section_lab import OPS, Sectioned
from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.hooks.devices import HOST
from turret.plan.capture import capture_obstacles
from turret.plan.sections import PlanSection
from turret.testing.comparison.checker import Mismatch, assert_same, check
from turret.testing.corpus.builder import Features
from turret.testing.corpus.strategies import programs

FEATURES = Features(max_steps=6, complex=False, device="acme")


class Recorded(Sectioned):
    """Records each section that is to be recorded, once, before it runs as it is."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.recordings = world, 0

    def function(self, section: PlanSection) -> Callable:
        run = super().function(section)
        on_host = torch.device(section.plan.device) == HOST
        obstacles = capture_obstacles(section.plan)
        if not section.captured or on_host or any("has nothing to record" in obstacle for obstacle in obstacles):
            return run
        assert not obstacles, obstacles

        def call(values: list) -> list:
            if self.recordings < 8:
                self.world.graphs.record(0, lambda: run([*values]))
                self.recordings += 1
            return run(values)

        return call


def compiled(world: World, watch: Sectioned, function: Callable, split: Any = (), **options: Any) -> Callable:
    return world.compile(function, watch, cudagraphs=True, cudagraph_split_ops=tuple(split), **options)


@on_acme
@given(programs(FEATURES), st.lists(st.sampled_from(OPS), max_size=40), st.booleans())
@settings(max_examples=20)
def test_programs_cut_at_any_ops_do_what_eager_does(world: World, program: Any, split: list, data: bool) -> None:
    """And what the program does that is not cut, refusals and strides included: eager's are those of a fallback here,
    which copies to the host.
    """
    turret.reset()
    options = {"capture_scalar_outputs": data, "capture_dynamic_output_shape_ops": data}
    whole = world.compile(program.function(), **options)
    cut = compiled(world, Recorded(world), program.function(), split, **options)
    called = [program.calling(function) for function in (whole, cut)]
    assert_same(*called, program.build_inputs, backward=program.backward, calls=program.calls)
    try:
        check(program, lambda _: cut)
    except Mismatch as mismatch:
        if any(d.what != "stride" and "UnsupportedError" not in d.got for d in mismatch.differences):
            raise


@on_acme
def test_copies_between_devices_are_cut_around(world: World) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x)
        on_host = y.sum().cpu()
        return torch.softmax(y, -1), on_host

    watch, x = Recorded(world), rand(8, 8)
    found = compiled(world, watch, program)(x)
    for one, other in zip(found, program(x), strict=True):
        assert one.device == other.device
        torch.testing.assert_close(one.cpu(), other.cpu())
    (sections,) = watch.sections
    assert [s.captured for s in sections] == [True, False] and watch.recordings == 1
    assert "copies between acme:0 and cpu" in str(sections[1].obstacles[0])
    assert "on_host = y.sum().cpu()" in str(sections[1].obstacles[0])


@on_acme
def test_constants_of_the_host_are_no_obstacle_to_those_that_do_not_read_them(world: World) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1), torch.searchsorted(torch.tensor([-1.0, 0.0, 0.7]), x)

    watch, x = Recorded(world), rand(8, 8)
    for one, other in zip(compiled(world, watch, program)(x), program(x), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())
    assert [s.captured for s in watch.sections[0]] == [True, False] and watch.recordings == 1


@on_acme
def test_work_of_the_host_in_between_is_cut_around(world: World) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        factor = (x * 2).sum().cpu().sqrt().abs()
        return torch.tanh(x) * factor.to("acme") + 1

    watch, x = Recorded(world), rand(4, 4).abs()
    torch.testing.assert_close(compiled(world, watch, program)(x).cpu(), program(x).cpu())
    (sections,) = watch.sections
    assert [s.captured for s in sections] == [True, False, True]


@on_acme
def test_memory_of_a_section_is_returned_at_its_border(world: World) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.sort(torch.mm(torch.mm(x, x).relu() / 16, x) / 16)[0]
        return x

    watch, x = Recorded(world), rand(16, 16)
    torch.testing.assert_close(compiled(world, watch, program, ["aten::sort"])(x).cpu(), program(x.cpu()))
    (sections,) = watch.sections
    assert [s.captured for s in sections] == [True, False] * 3
    assert all((s.plan.arena_bytes > 0) == s.captured for s in sections)
