"""Loop programs and schedules print as text that reads back as what they are."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import turret
from tests.core.ir.product_lab import PROGRAMS, difference, products
from turret.errors import StageError, TextError
from turret.hooks.text.notation import SHOWN_ELEMENTS
from turret.ir import Definition, Extern, LoopProgram, Number, Ref, Schedule, TensorDecl, Var, call, constant, load
from turret.ir.text import parse
from turret.testing.corpus.chooser import DrawnChooser
from turret.testing.loops.programs import draw_loops

CPU = torch.device("cpu")


@st.composite
def loop_programs(draw) -> LoopProgram:
    chooser = DrawnChooser(lambda low, high: draw(st.integers(low, high)))
    return draw_loops(chooser, draw(st.booleans())).program()


def _scheduled(program: LoopProgram) -> Schedule:
    """Its schedule; the drawn programs that no kernel is written for are left out."""
    try:
        return turret.schedule(program)
    except StageError as error:
        assume("UnsupportedError" not in str(error))
        raise


@settings(max_examples=80)
@given(loop_programs())
def test_a_loop_program_reads_back_as_it_was(program):
    again = parse(str(program))
    assert difference(program, again) == "" and str(again) == str(program)


@settings(max_examples=25)
@given(loop_programs())
def test_a_schedule_reads_back_as_it_was(program):
    schedule = _scheduled(program)
    again = parse(str(schedule))
    assert difference(schedule, again) == "" and str(again) == str(schedule)


@settings(max_examples=10)
@given(loop_programs())
def test_a_stage_makes_the_same_of_a_program_and_of_its_text(program):
    assert str(_scheduled(parse(str(program)))) == str(_scheduled(program))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_compiling_a_program_makes_reads_back_as_it_was(name, fresh):
    for product in products(name, LoopProgram, Schedule):
        again = parse(str(product))
        assert difference(product, again) == "" and str(again) == str(product)


def test_steps_that_are_statements_of_the_program_stay_the_same_objects(fresh):
    (schedule,) = (parse(str(s)) for s in products("sections", Schedule))
    calls = [step for step in schedule.steps if isinstance(step, Extern)]
    assert calls and all(any(step is s for s in schedule.program.statements) for step in calls)


@functools.cache
def _texts() -> list[str]:
    return [str(p) for name in ("symbols", "scatter", "sections") for p in products(name, LoopProgram, Schedule)]


@settings(max_examples=300)
@given(st.data())
def test_a_text_that_was_changed_reads_as_something_or_is_an_error_that_names_a_line(data):
    text = data.draw(st.sampled_from(_texts()))
    at, length = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 3))
    put = data.draw(st.sampled_from(["", "(", "]", "i0", "9", '"', ",", "\n", "%", "<"]))
    try:
        parse(text[:at] + put + text[at + length :])
    except TextError as error:
        assert "line " in str(error) or "expected the text" in str(error)


PROGRAM = """\
loop program p:
  size n: positive = SizeSource(input=1, dimension=None)
  input x: float32[4]
  input number
  y: float32[4]  [i0<4] = add(x[i0], 1.0:float32)
  z: float32[4]  = aten::sort.default(%y)
  return %y, n
"""


@pytest.mark.parametrize(
    ("given", "put", "line", "says"),
    [
        ("add(", "ad(", 5, "given 'ad', expected an op of the loop IR: neg, abs"),
        ("add(", "mean<", 5, "given 'mean', expected a reduction or a scan, one of: sum, prod"),
        ("add(", "scan.any<", 5, "given 'scan.any', expected a reduction or a scan, one of: sum, prod"),
        (
            "[i0<4] = add(x[i0], 1.0:float32)",
            "= %x with [i0<4] [i0] put x[i0]",
            5,
            "given 'put', expected how ",
        ),
        ("y: float32[4]  [i0<4]", "_  [i0<4]", 5, "expected a statement with one declared result before it"),
        ("x[i0]", "w[i0]", 5, "given 'w', expected a tensor, one of: x"),
        ("x[i0]", "x[i1]", 5, "given 'i1', expected a number or one of: i0, n"),
        (", 1.0:float32", "", 5, "expected 2 arguments of add before it"),
        ("1.0:float32", "1.0:float33", 5, "given 'float33', expected a dtype, one of: "),
        ("float32)", "float32) +", 5, "given '+', expected the end of the line"),
        ("sort.default", "sorted", 6, "given 'aten::sorted', expected an operator that is registered"),
        ("%y)", "%y)  {reasons: 1}", 6, "Extern has no field reasons; expected some of args, kwargs, location"),
        ("positive", "odd", 2, "given 'odd', expected what is known of the size, one of: positive"),
        ("return", "retrun", 7, "given '%'"),
    ],
)
def test_an_error_names_the_line_what_was_given_and_what_was_expected(given, put, line, says):
    parse(PROGRAM)
    with pytest.raises(TextError) as caught:
        parse(PROGRAM.replace(given, put, 1))
    assert str(caught.value).startswith(f"line {line}: ") and says in str(caught.value)
    assert put.strip() in str(caught.value)


def test_a_text_of_something_else_is_refused():
    for text in ("", "# nothing", "plan p on cpu:", "schedule s:"):
        with pytest.raises(TextError, match="expected the text of a loop program"):
            parse(text)


def test_comments_and_empty_lines_say_nothing():
    assert (
        difference(parse(PROGRAM), parse("# mine\n\n" + PROGRAM.replace("  input n", "  -- a number\n\n  input n")))
        == ""
    )


def test_names_that_are_no_identifiers_are_quoted():
    decl, odd = TensorDecl("x y", (4,), (1,), torch.float32, CPU), TensorDecl("1", (4,), (1,), torch.float32, CPU)
    i = Var("i0", 4)
    made = Definition(odd, (i,), call("neg", load("x y", (i,), torch.float32)))
    program = LoopProgram("a program", (decl,), (made,), (Ref("1"), "text", None, True, 2.5))
    assert '"1": float32[4]  [i0<4] = neg("x y"[i0])' in str(program)
    assert difference(program, parse(str(program))) == ""


def test_a_constant_of_many_elements_is_refused_by_its_name():
    values = torch.arange(SHOWN_ELEMENTS + 1)
    program = LoopProgram("p", (), (), (Ref("many"),), constants={"many": values})
    with pytest.raises(TextError, match=r"line 2: .*the elements of the constant many, which were too many"):
        parse(str(program))
    few = LoopProgram("p", (), (), (Ref("few"),), constants={"few": values[:6].view(2, 3).t().expand(2, 3, 2)})
    assert difference(few, parse(str(few))) == ""


def test_a_condition_on_sizes_reads_back():
    text = """\
loop program p:
  size n: integer = SizeSource(input=0, dimension=None)
  size m: nonnegative
  input number
  m = Piecewise((1, StrictGreaterThan(n, 3)), (0, True))
  return m
"""
    (statement,) = parse(text).statements
    assert isinstance(statement, Number) and statement.value.subs(parse(text).outputs[0], 4) == statement.value
    (symbol,) = statement.value.free_symbols
    assert statement.value.subs(symbol, 4) == 1 and statement.value.subs(symbol, 3) == 0
    assert str(parse(text)) == text.strip()


def test_expressions_that_are_read_are_those_that_are_built():
    one = parse(PROGRAM.replace("add(x[i0], 1.0:float32)", "1.0:float32"))
    assert one.statements[0].expr is constant(1, torch.float32)
