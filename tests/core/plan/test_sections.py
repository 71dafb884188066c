"""Plans run section by section do what whole plans do, and sections say what they need, write and find in place."""

from __future__ import annotations

import gc
import weakref

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.core.plan.section_lab import OPS, Recording, Sectioned, compiler, stages
from turret.graph.obstacles import Obstacle
from turret.hooks.size_source import Binding, SizeSource
from turret.plan import Allocate, Call, Copy, Launch, Plan, Section, SizeRef, Slot, SlotRef, View
from turret.plan.executor import load
from turret.plan.sections import joined, sections_of, written_inputs
from turret.storage import codec
from turret.testing.comparison.checker import check
from turret.testing.corpus.builder import Features
from turret.testing.corpus.strategies import programs

DATA = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}


@given(programs(Features(max_steps=6)), st.lists(st.sampled_from(OPS), max_size=len(OPS)), st.booleans())
@settings(max_examples=10)
def test_programs_cut_at_any_ops_do_what_eager_does(program, split, data):
    turret.reset()
    check(program, compiler(split, Sectioned(), **(DATA if data else {})))


def layered(x, w):
    y = torch.relu(x @ w)
    z, _ = torch.sort(y + 1)
    return (z * 2).sum(0), torch.tanh(y)


def inputs():
    return torch.randn(8, 16), torch.randn(16, 16)


def run_both(plan, *args):
    sections = sections_of(plan)
    run = joined(plan, sections, [load(section.plan) for section in sections])
    whole, parts = load(plan)([*args]), run([*args])
    for one, other in zip(whole, parts, strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one, rtol=0, atol=0)
            assert one.stride() == other.stride()
    return sections


def test_a_plan_is_cut_at_the_op_that_the_user_names():
    _, plan = stages(layered, *inputs(), split=["aten::sort"])
    sections = run_both(plan, *inputs())
    assert [s.captured for s in sections] == [True, False, True]
    (obstacle,) = sections[1].obstacles
    assert "aten::sort is named in cudagraph_split_ops" in str(obstacle)
    assert "test_sections.py:" in str(obstacle) and "z, _ = torch.sort(y + 1)" in str(obstacle)


def test_sections_take_what_earlier_ones_give():
    _, plan = stages(layered, *inputs(), split=["aten::sort"])
    first, cut, last = sections_of(plan)
    assert first.takes == ("x", "w") and set(cut.takes) <= set(first.gives)
    assert set(last.takes) <= set(first.gives) | set(cut.gives)
    assert not set(first.gives) & {n for n, s in zip(plan.slots, plan.slots, strict=True) if s.storage == "arena"}


def test_an_arena_is_no_larger_than_its_section_needs():
    def program(x):
        y = torch.sort(x.view(-1) * 2)[0]
        for _ in range(3):
            y = torch.mm(y.view(32, 32), y.view(32, 32)).relu()
        return y.sum(), torch.sort(y)[0] + 1

    _, plan = stages(program, torch.randn(32, 32), split=["aten::sort"])
    sections = run_both(plan, torch.randn(32, 32) / 32)
    sizes = [section.plan.arena_bytes for section in sections]
    assert max(sizes) == plan.arena_bytes > 0 and min(sizes) == 0
    for section in sections:
        slots = section.plan.slots
        assert all(slots[n].storage != "arena" for n in section.plan.inputs if n is not None)
        assert all(slots[o.slot].storage != "arena" for o in section.plan.outputs if isinstance(o, SlotRef))


def test_sizes_are_numbers_that_a_section_takes_and_those_alone_that_it_mentions():
    def program(x, y):
        return torch.sort(x * 2)[0] + 1, torch.sort(y.sin())[0].cos()

    given = torch.randn(5, 6), torch.randn(7, 3)
    _, plan = stages(program, *given, split=["aten::sort"], dynamic=True)
    sections = run_both(plan, torch.randn(9, 4), torch.randn(2, 8))
    for section in sections:
        numbers = [n for n, slot in zip(section.takes, section.plan.inputs, strict=True) if slot is None]
        assert sorted(numbers) == sorted(section.plan.size_sources)
        assert all(s.dimension is None and s.kind in ("size", "float") for s in section.plan.size_sources.values())
    assert len(plan.size_sources) == 4


def test_recorded_sections_take_floats_that_depend_on_data_and_no_whole_numbers():
    def program(x):
        y = x.sin() + 1
        found = torch.nonzero(y > 0.5)
        return (y * 3).cos(), found.sum(0), x * y.sum().item()

    _, plan = stages(program, torch.randn(20), **DATA)
    sections = run_both(plan, torch.randn(20))
    data = {symbol for section in sections for step in section.plan.steps if isinstance(step, Call)
            for symbol in (b.symbol for b in step.symbol_bindings)}  # fmt: skip
    assert data
    for section in sections:
        if section.captured:
            taken = data & {*section.takes, *section.gives}
            assert all(section.plan.size_sources[symbol].kind == "float" for symbol in taken)


def test_inputs_that_steps_write_to_are_known_through_views():
    slots = tuple(Slot(n, (4,), (1,), "float32", "cpu", p, k) for k, (n, p) in
                  enumerate([("x", "input"), ("y", "input"), ("v", "view"), ("z", "input")]))  # fmt: skip
    steps = (View(2, 0, 0), Copy(2, 1), Call("aten::relu_.default", (SlotRef(3),), {}, (None,)))
    plan = Plan("p", "cpu", slots, (0, 1, 3), steps, (SlotRef(1),))
    assert written_inputs(plan) == (0, 2)
    (section,) = sections_of(plan)
    assert [section.takes[n] for n in section.written] == ["x", "z"]


def test_a_plan_that_is_one_section_is_run_by_its_function_alone():
    _, plan = stages(lambda x: x.sin() + 1, torch.randn(4))
    (section,) = sections_of(plan)
    assert not plan.sections and section.captured
    function = load(section.plan)
    assert joined(plan, (section,), [function]) is function


def test_values_go_with_the_last_section_that_needs_them():
    _, plan = stages(lambda x: torch.sort(torch.sort(x * 2)[0] + 1)[0].sum(), torch.randn(64), split=["aten::sort"])
    sections, alive = sections_of(plan), []

    def watched(section, function):
        def call(values):
            gc.collect()
            alive.append(sum(ref() is not None for ref in seen))
            results = function(values)
            assert not values
            seen.extend(weakref.ref(r) for r in results)
            return results

        return call

    seen: list = []
    run = joined(plan, sections, [watched(s, load(s.plan)) for s in sections])
    run([torch.randn(64)])
    assert max(alive) <= 1 and len(alive) == 5


def test_what_a_section_raises_comes_out():
    _, plan = stages(layered, *inputs(), split=["aten::sort"])
    sections = sections_of(plan)

    def fails(values):
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        joined(plan, sections, [load(sections[0].plan), fails, load(sections[2].plan)])([*inputs()])


def test_numbers_that_the_host_computes_are_not_part_of_a_recording():
    def program(x):
        y = torch.sort(x * 2)[0]
        return torch.nn.functional.interpolate(y[None, None], scale_factor=1.5), y.sum()

    _, plan = stages(program, torch.randn(8, 6), split=["aten::sort"], dynamic=True)
    for section in run_both(plan, torch.randn(10, 4)):
        if section.captured:
            assert not any(type(step).__name__ == "Compute" for step in section.plan.steps)


def test_branches_of_control_flow_are_not_cut():
    def program(x):
        return torch.cond((x * 2).sum() > 0, lambda x: torch.sort(x.sin() + 1)[0] * 2, torch.cos, (x + 1,)) * 3

    _, plan = stages(program, torch.randn(6), split=["aten::sort"])
    sections = run_both(plan, torch.rand(6))
    assert [s.captured for s in sections] == [True, False, True]
    assert plan.branches and not any(branch.sections for branch in plan.branches)


@pytest.mark.parametrize(("text", "first", "last"), [(512, 512, 512), ("max(0, 4*u0)", "max(0, 4*0)", "max(0, 4*u0)")])
def test_scratch_memory_lies_where_kernels_look_for_it(text, first, last):
    slots = (
        Slot("x", (8,), (1,), "float32", "cpu", "input", 0),
        Slot("a", (8,), (1,), "float32", "cpu", "arena", 0),
        Slot("y", ("u0",), (1,), "float32", "cpu", "call"),
        Slot("z", (8,), (1,), "float32", "cpu", "own"),
    )
    gives = Call("aten::nonzero.default", (SlotRef(0),), {}, (2,), symbol_bindings=(Binding("u0", 0, 0),))
    steps = (Launch("segment0", (0, 1)), gives, Allocate(3), Launch("segment1", (2, 3)))
    waits = (Obstacle("aten::nonzero", "waits"),)
    marks = (Section(0, 0), Section(1, 1, waits), Section(2, 3, (Obstacle("k", "of data"),), ("u0",)))
    plan = Plan("p", "cpu", slots, (0,), steps, (SlotRef(3),), ("u0",), arena_bytes=64, scratch_bytes=text,
                sections=marks, arena_spans=((0, 0), (2, 3)))  # fmt: skip
    begin, call, end = (section.plan for section in sections_of(plan))
    assert (begin.scratch_bytes, call.scratch_bytes, end.scratch_bytes) == (first, 0, last)
    assert begin.scratch_offset == end.scratch_offset == plan.scratch_offset and call.arena_bytes == 0
    assert (begin.arena_spans, call.arena_spans, end.arena_spans) == (((0, 0),), (), ((0, 1),))


def test_plans_with_sections_are_stored_and_read():
    _, plan = stages(layered, *inputs(), split=["aten::sort"])
    again = codec.loads(codec.dumps(attrs.evolve(plan, static_inputs=(1,))))
    assert again.sections == plan.sections and again.static_inputs == (1,) and str(again).count("-- recorded") == 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.scale


@pytest.mark.parametrize("on", [False, True])
def test_parameters_and_buffers_are_static_and_what_is_saved_of_them(on, fresh, tmp_path):
    seen = {}

    class Look:
        cache_key = "look"

        @turret.hookimpl(before="turret.plugins.cudagraphs")
        def turret_wrap_runtime(self, function, role):
            seen[role] = function.plan
            return lambda args: function(args)  # which nobody records

    def run():
        seen.clear()
        turret.reset()
        options = {"cudagraphs": on, "cache_dir": str(tmp_path)}
        x = torch.randn(3, 6, requires_grad=True)
        turret.compile(Net(), plugins=[Look(), Recording()], options=options)(x).sum().backward()
        return {role: [plan.slots[plan.inputs[n]].shape for n in plan.static_inputs] for role, plan in seen.items()}

    found = run()
    assert sorted(found["forward"]) == [(6,), (6,), (6, 6)]
    assert sorted(found["backward"]) == [(6,), (6, 6)]  # the scale and the weight; the bias is not read
    assert run() == found
    assert "(static)" in str(seen["forward"])


def test_a_view_of_a_static_input_is_static_in_the_sections_after():
    slots = (
        Slot("w", (4, 4), (4, 1), "float32", "cpu", "input", 0),
        Slot("x", (4, 4), (4, 1), "float32", "cpu", "input", 1),
        Slot("t", (4, 4), (1, 4), "float32", "cpu", "view"),
        Slot("y", (4, 4), (4, 1), "float32", "cpu", "call"),
        Slot("z", (4, 4), (4, 1), "float32", "cpu", "call"),
    )
    steps = (
        View(2, 0, 0),
        Call("aten::mm.default", (SlotRef(1), SlotRef(2)), {}, (3,)),
        Call("aten::mm.default", (SlotRef(3), SlotRef(2)), {}, (4,)),
    )
    marks = (Section(0, 1), Section(2, 2, (Obstacle("aten::mm", "is named"),)))
    plan = Plan("p", "cpu", slots, (0, 1), steps, (SlotRef(4), 7), static_inputs=(0,), sections=marks)
    first, second = run_both(plan, torch.randn(4, 4), torch.randn(4, 4))
    assert [first.takes[n] for n in first.plan.static_inputs] == ["w"]
    assert [second.takes[n] for n in second.plan.static_inputs] == ["t"]


def test_outputs_that_are_sizes_are_computed_from_the_inputs():
    slots = (Slot("x", ("s0",), (1,), "float32", "cpu", "input"), Slot("y", ("s0",), (1,), "float32", "cpu", "own"))
    plan = Plan("p", "cpu", slots, (0,), (Allocate(1),), (SizeRef("2*s0"), None, SlotRef(0)), ("s0",),
                {"s0": SizeSource(0, 0)})  # fmt: skip
    sections = sections_of(plan)
    x = torch.randn(5)
    number, nothing, same = joined(plan, sections, [load(s.plan) for s in sections])([x])
    assert (number, nothing) == (10, None) and same is x
