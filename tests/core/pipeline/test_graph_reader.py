"""Captured and joint graphs print as text that reads back as what they are, and from which stages make the same."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import turret
from turret.errors import TextError, TurretError
from turret.pipeline.graph_reader import parse
from turret.testing import program_of_seed


def _drawn(seed):
    """The graphs of a drawn program; those that no single graph stands for are left out."""
    program = program_of_seed(seed)
    try:
        captured = turret.captured_graph(program.function(), *program.build_inputs().args)
        return captured, turret.joint_graph(captured)
    except TurretError:
        assume(False)


def _read(product):
    """The product of its text; those that are printed and not read say so."""
    try:
        return parse(str(product))
    except TextError as error:
        assert "printed and not read" in str(error), error
        assume(False)


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_captured_and_joint_graphs_read_back_and_stages_make_the_same_of_them(seed):
    captured, joint = _drawn(seed)
    again = _read(captured)
    assert str(again) == str(captured) and str(turret.joint_graph(again)) == str(joint)
    again = _read(joint)
    assert str(again) == str(joint) and again.signature == joint.signature
    assert str(turret.partition(again)) == str(turret.partition(joint))


GRAPH = """\
graph g:
  x: float32[2, 3]  = input  {requires_grad: True}
  y = torch.nn.functional.relu(%x, inplace=False)
  rows: float32[1, 3]  = operator.getitem(%y, (slice(1, None, None), ...))
  total: float32[]  = .sum(%rows)
  return (%total, 2, None)
"""


def test_a_graph_is_written_by_hand_and_runs():
    captured = parse(GRAPH)
    x = torch.randn(2, 3)
    total, two, none = captured.module(x)
    assert torch.equal(total, x.relu()[1:].sum()) and (two, none) == (2, None)
    joint = parse(str(turret.joint_graph(captured)))
    assert joint.signature.training
    assert "return %" in str(turret.lower(turret.partition(joint), "backward"))


def test_modes_and_positions_of_inputs_are_in_the_text():
    captured = parse(GRAPH.replace("g:\n", "g:\n  with {static_inputs: (0,), grad_enabled: False, tangents: (0,)}\n"))
    assert captured.static_inputs == {0} and not captured.grad_enabled and captured.tangents == (0,)
    assert "with {static_inputs: (0,), grad_enabled: False, tangents: (0,)}" in str(captured)


@pytest.mark.parametrize(
    ("given", "put", "line", "says"),
    [
        ("[1, 3]", "[3, 1]", 4, "given float32[3, 1], expected float32[1, 3], which the call gives"),
        ("functional.relu", "functional.rely", 3, "expected a function by its path"),
        ("(%rows)", "(%row)", 5, "given %row, expected a node of a line before, one of: x, y, rows"),
        ("requires_grad", "requires_grads", 2, "expected some of original_aten"),
        ("float32[2, 3]", "float32[s0, 3]", 2, "given 's0', expected a number"),
        ("= .sum(%rows)", "= attribute weight", 5, "given 'weight', expected a constant of a line before"),
        ("  return (%total, 2, None)\n", "", 5, "the graph ends here"),
    ],
)  # fmt: skip
def test_an_error_names_the_line_what_was_given_and_what_was_expected(given, put, line, says):
    with pytest.raises(TextError, match=rf"^line {line}: .*{re.escape(says)}"):
        parse(GRAPH.replace(given, put, 1))


def test_small_tensors_that_a_graph_holds_are_in_the_text():
    joint = turret.joint_graph(lambda x: x + torch.tensor([1.0, 2.0]), torch.ones(2))
    assert "constant _tensor_constant0: float32[2] = [1.0, 2.0]" in str(joint)
    again = parse(str(joint))
    assert str(again) == str(joint) and torch.equal(again.module(torch.ones(2))[0], torch.tensor([2.0, 3.0]))


def test_inputs_in_one_memory_say_so_and_are_not_read():
    x = torch.ones(4)
    text = str(turret.captured_graph(lambda a, b: a + b, x[:2], x[1:3]))
    assert 'shares_memory_of: "' in text and "offset: 1" in text
    with pytest.raises(TextError, match=r"others \(shares_memory_of\) are printed and not read"):
        parse(text)


def test_other_products_are_read_as_before():
    assert str(parse("loop program p:\n  return 1")) == "loop program p:\n  return 1"
