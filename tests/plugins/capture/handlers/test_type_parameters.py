"""Type parameters that compiled code makes are new ones of each call, and say of themselves what Python's say."""

from __future__ import annotations

import sys
import typing

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, check

X = torch.ones(2)
TOLD = "__name__ __module__ __bound__ __constraints__ __covariant__ __contravariant__ __infer_variance__ __default__".split()
MAKERS = {
    "plain": lambda: typing.TypeVar("T"),
    "bound": lambda: typing.TypeVar("T", bound=int),
    "constrained": lambda: typing.TypeVar("T", int, str),
    "covariant": lambda: typing.TypeVar("T", covariant=True),
    "parameters": lambda: typing.ParamSpec("P"),
    "several": lambda: typing.TypeVarTuple("Ts"),
    "by keyword": lambda: typing.TypeVar(name="T"),
}
WRITTEN_IN_C = pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are objects of Python's")


def told(parameter):
    return [type(parameter), repr(parameter), *(getattr(parameter, name, "none") for name in TOLD)]


@WRITTEN_IN_C
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_new_type_parameter_is_like_eager_s(make):
    def program(x):
        made = make()
        return x + 1, made, [getattr(made, name, "none") for name in TOLD], made == made, made is make()

    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        result, made, *others = observed(X)
        _, expected, *rest = program(X)
        assert torch.equal(result, X + 1) and told(made) == told(expected) and others == rest
    assert observed(X)[1] is not made and len(observed.graphs) == 1


@WRITTEN_IN_C
def test_a_refused_type_parameter_raises_as_in_eager():
    def program(x):
        try:
            typing.TypeVar("T", int)
        except TypeError as error:
            return x + 1, str(error)

    check(program, X)


GENERIC = """
def program(x):
    def twice[T, *Ts, **P](value: T, *others) -> T:
        return value * 2
    kinds = [type(p).__name__ + p.__name__ + p.__module__ for p in twice.__type_params__]
    return twice(x), kinds, twice
"""


@WRITTEN_IN_C
def test_a_generic_function_is_followed_and_keeps_its_parameters():
    scope = {"__name__": __name__}
    exec(compile(GENERIC, "<program>", "exec", dont_inherit=True), scope)  # annotations are not texts
    observed = Observed(scope["program"], fullgraph=True)
    result, kinds, made = observed(X)
    _, same, other = scope["program"](X)
    assert torch.equal(result, X * 2) and kinds == same
    assert list(map(told, made.__type_params__)) == list(map(told, other.__type_params__))
    assert made.__annotations__["value"] is made.__type_params__[0]


Number = typing.NewType("Number", int)


def test_a_call_of_a_new_type_gives_its_argument():
    def program(x):
        return x * Number(3) + typing.NewType("Other", float)(2.0)

    check(program, X)
