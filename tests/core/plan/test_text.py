"""Plans print as text that reads back as what they are, but for the source."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.ir.product_lab import PROGRAMS, difference, products
from turret.errors import TextError
from turret.graph.obstacles import Obstacle
from turret.hooks.size_source import Binding, SizeSource
from turret.plan import (
    Allocate,
    Call,
    Compute,
    Copy,
    Free,
    Launch,
    Plan,
    Section,
    SizeRef,
    Slot,
    SlotRef,
    View,
)
from turret.plan.text import parse_plan
from turret.storage.libraries import Library

NAMES = st.sampled_from(["x", "y_1", "a.b", "graph3.forward", "two words", 'a "quote"', "_", "free", "plan", "1"])
NUMBERS = st.integers(0, 40)
SIZES = st.one_of(NUMBERS, st.sampled_from(["s0", "2*s0 + 1", "max(1, s0//2)"]))
FEW = {"max_size": 3}


def _tuples(items: st.SearchStrategy) -> st.SearchStrategy[tuple]:
    return st.lists(items, **FEW).map(tuple)


AT = st.integers(0, 1)
SLOT = st.builds(
    Slot, NAMES, _tuples(SIZES), _tuples(SIZES), st.sampled_from(["float32", "bool"]),
    st.sampled_from(["cpu", "xpu:1"]),
    st.sampled_from(["input", "constant", "arena", "own", "call", "view", "elsewhere"]), NUMBERS,
)  # fmt: skip
PLAIN = st.one_of(
    st.builds(SlotRef, AT), st.builds(SizeRef, st.just("s0*2")), NUMBERS, NAMES, st.floats(allow_nan=False), st.none(),
    st.booleans(), st.complex_numbers(allow_nan=False, allow_infinity=False),
)  # fmt: skip
BINDING = st.builds(Binding, st.sampled_from(["u0", "zuf1"]), NUMBERS, st.one_of(st.none(), NUMBERS), st.booleans())
OBSTACLE = st.builds(Obstacle, NAMES, NAMES, NAMES)


def _plans(*branch: st.SearchStrategy[Plan]) -> st.SearchStrategy[Plan]:
    """Plans of any fields, whose calls may take a ``branch``; what they would do is of no concern."""
    keywords = st.dictionaries(st.sampled_from(["dim", "alpha"]), st.one_of(PLAIN, _tuples(PLAIN)), **FEW)
    call = st.builds(
        Call, st.sampled_from(["aten::mm.out", "my_ops::f.default"]), _tuples(st.one_of(PLAIN, *branch)), keywords,
        outputs=_tuples(st.one_of(st.none(), AT)), into=st.one_of(st.none(), AT), sequence=st.booleans(),
        origins=_tuples(NAMES), symbol_bindings=_tuples(BINDING),
    )  # fmt: skip
    launch = st.builds(
        Launch, st.sampled_from(["segment0", "f"]), _tuples(AT), _tuples(NAMES), _tuples(NAMES), _tuples(AT)
    )
    steps = st.one_of(
        st.builds(Allocate, AT), launch, call, st.builds(Compute, st.just("u0"), st.just("s0 + 1")),
        st.builds(View, AT, AT, SIZES), st.builds(Copy, AT, AT), st.builds(Free, st.tuples(AT)),
    )  # fmt: skip
    return st.builds(
        Plan, NAMES, st.sampled_from(["cpu", "cuda:0"]), st.tuples(SLOT, SLOT), _tuples(st.one_of(st.none(), AT)),
        _tuples(steps), _tuples(st.one_of(PLAIN, _tuples(PLAIN))), _tuples(st.sampled_from(["s0", "u0"])),
        st.dictionaries(st.just("s0"), st.builds(SizeSource, NUMBERS, st.none())), arena_bytes=NUMBERS,
        library=st.one_of(st.none(), st.builds(Library, st.just("abc"), st.just("kernels.so"))),
        scratch_bytes=SIZES, arena_spans=_tuples(st.tuples(NUMBERS, NUMBERS)), check_bounds=st.booleans(),
        arch=st.sampled_from(["", "sm_90"]), static_inputs=_tuples(NUMBERS),
        sections=_tuples(st.builds(Section, NUMBERS, NUMBERS, _tuples(OBSTACLE), _tuples(st.just("s0")))),
        kernel_slots=st.one_of(st.none(), NUMBERS), visible_outputs=st.one_of(st.none(), NUMBERS),
    )  # fmt: skip


@settings(max_examples=80)
@given(_plans(_plans()))
def test_a_plan_reads_back_as_it_was(plan):
    again = parse_plan(str(plan))
    assert difference(plan, again) == "" and str(again) == str(plan)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plans_of_a_program_read_back_but_for_their_source(name, fresh):
    for plan in products(name, Plan):
        again = parse_plan(str(plan))
        assert difference(_without_source(plan), again) == "" and str(again) == str(plan)


def _without_source(plan: Plan) -> Plan:
    """A plan as its text has it: neither its source nor those of its branches."""
    steps = [
        attrs.evolve(s, args=tuple(_without_source(a) if isinstance(a, Plan) else a for a in s.args))
        if isinstance(s, Call)
        else s
        for s in plan.steps
    ]
    return attrs.evolve(plan, source="", steps=tuple(steps))


PLAN = """\
plan p on cpu:
  inputs: (0,)
  slot 0 x: float32[4] stride [1], input 0
  slot 1 y: float32[4] stride [1], own
  allocate y
  launch segment0 (k0)  {slots: (0, 1)}
  return %y
"""


@pytest.mark.parametrize(
    ("given", "put", "says"),
    [
        ("allocate y", "allocate z", "line 5: given 'z', expected a slot, one of: x, y"),
        ("own", "somewhere", "line 4: given 'somewhere', expected where the slot lies, one of: input, constant"),
        ("slot 1", "slot 2", "line 4: given '2', expected the number of the slot, 1"),
        ("launch", "lunch", "line 6: given 'lunch', expected a line of a plan, one of: slot, constant"),
        ("{slots", "{slot", "line 6: Launch has no field slot; expected some of function, origins"),
        ("inputs", "input", "line 2: given 'input', expected a field of a plan"),
        ("on cpu", "on nowhere", "line 1: RuntimeError: "),
        ("  return %y\n", "", "line 1: the plan p has no line of its outputs"),
        ("return %y", "return plan q", "line 7: given the end of the line, expected the text of the plan 'q' behind"),
        ("return %y", "return %y\nplan q on cpu:", "line 8: given 'plan q on cpu:', expected the end of the text"),
    ],
)
def test_an_error_names_the_line_what_was_given_and_what_was_expected(given, put, says):
    parse_plan(PLAN)
    with pytest.raises(TextError) as caught:
        parse_plan(PLAN.replace(given, put, 1))
    assert says in str(caught.value)
