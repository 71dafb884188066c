"""Ops on lists of tensors: taken apart, they compute what eager does, and none of them is left in the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import turret
from turret.plugins.joint.ops.tensor_lists import rule_of_lists

OPTIONS = {"on_error": "raise", "cache": False}
_SHAPES = ((3, 2), (4,), (), (0, 2))


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(shape, generator=generator) + 0.1).to(dtype) for shape in _SHAPES]


class Calls:
    """A plugin that notes the ops of the joint graphs."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and event.stage == "joint":
            self.found |= {str(n.target) for n in event.product.module.graph.nodes if n.op == "call_function"}


def _overloads() -> list[Any]:
    """The ops that are taken apart."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.partition(".")
        if base.startswith("aten::_foreach_"):
            op = getattr(getattr(torch.ops.aten, base.removeprefix("aten::")), overload or "default")
            if rule_of_lists(op) is not None and "out" not in overload:
                found.append(op)
    return sorted(found, key=str)


def _arguments(op: Any, dtype: torch.dtype) -> list[Any]:
    """A value for each argument without default, by its type."""
    made: list[Any] = []
    for number, argument in enumerate(a for a in op._schema.arguments if not a.has_default_value()):
        kind = str(argument.type)
        made.append(
            {
                "List[Tensor]": lambda n=number: tensors(n, dtype),
                "List[number]": lambda: [0.5, 1.5, 2.0, 3.0],
                "number": lambda: 2.0,
                "Tensor": lambda: torch.tensor(1.5),
            }[kind]()
        )
    return made


_OPS = _overloads()


def test_most_ops_on_lists_are_taken_apart():
    assert len(_OPS) > 120


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.thorough
def test_ops_on_lists_do_what_eager_does(part, dtype):
    ops = _OPS[part::8]

    def program(given: list[list[Any]]) -> list[Any]:
        found = []
        for op, arguments in zip(ops, given, strict=True):
            result = op(*arguments)
            found.append(arguments[0] if result is None else result)
        return found

    def values() -> list[list[Any]]:
        given = [_arguments(op, dtype) for op in ops]
        for op, arguments in zip(ops, given, strict=True):
            if op is torch.ops.aten._foreach_max.default:
                arguments[0] = arguments[0][:3]  # the last one has no elements, of which there is no largest
        return given

    calls = Calls()
    compiled = turret.compile(program, options=OPTIONS, plugins=[calls])
    mine, theirs = values(), values()
    found, expected = compiled(mine), program(theirs)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    for op, one, other in zip(ops, found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, msg=lambda m, op=op: f"{op}: {m}", **tolerance)
        assert [v.dtype for v in one] == [v.dtype for v in other], op
    assert not any("_foreach_" in name for name in calls.found), calls.found


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_steps_do_what_eager_does(name, dtype):
    options = {
        "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        "Adam": {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1},
        "AdamW": {"lr": 0.1, "maximize": True},
        "Adagrad": {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1},
    }[name]
    mine, theirs = ([torch.nn.Parameter(v) for v in tensors(0, dtype)] for _ in range(2))
    optimizer, plain = (getattr(torch.optim, name)(held, fused=True, **options) for held in (mine, theirs))
    calls = Calls()
    step = turret.compile(optimizer.step, options=OPTIONS, plugins=[calls])
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for number in range(3):
        for held in (mine, theirs):
            for parameter, gradient in zip(held, tensors(number + 1, dtype), strict=True):
                parameter.grad = gradient - 0.5
        step()
        plain.step()
        torch.testing.assert_close(mine, theirs, **tolerance)
        torch.testing.assert_close(optimizer.state_dict(), plain.state_dict(), **tolerance)
    assert not any("_fused_" in each for each in calls.found), calls.found
