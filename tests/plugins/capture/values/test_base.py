"""What values and handlers are written against is what there is."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from turret.plugins.capture.facts.policy import History, Policy
from turret.plugins.capture.interpreter.tracer import FrameTracer
from turret.plugins.capture.rebuilding.rebuild import FrameRebuilder
from turret.plugins.capture.values import base


def members(protocol: type) -> tuple[set[str], set[str]]:
    """Names of a protocol's attributes and of its methods."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(protocol))).body
    assert isinstance(tree, ast.ClassDef)
    attributes = {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return attributes, {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


@pytest.fixture(scope="module")
def made() -> dict[type, object]:
    tracer = FrameTracer(Policy(None, History()))
    return {base.Tracer: tracer, base.Recorder: tracer.recorder, base.Rebuilder: FrameRebuilder(tracer)}


@pytest.mark.parametrize("protocol", [base.Tracer, base.Recorder, base.Rebuilder])
def test_the_interface_that_values_see_is_met_by_what_they_get(protocol, made):
    attributes, methods = members(protocol)
    assert attributes and methods
    assert {n for n in attributes | methods if not hasattr(made[protocol], n)} == set()
    for name in methods - {"trusted"}:  # a function that is no method
        asked = inspect.signature(getattr(protocol, name)).parameters
        there = inspect.signature(getattr(type(made[protocol]), name)).parameters
        assert list(asked) == list(there), name
        assert [p.kind for p in asked.values()] == [p.kind for p in there.values()], name
        assert [p.default for p in asked.values()] == [p.default for p in there.values()], name
