"""What a code generator from outside has to say of its language: here one that writes Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from turret.ir import (
    Expr,
    Index,
    Kernel,
    Store,
    TensorDecl,
    Var,
    call,
    check_index,
    constant,
    index_value,
    load,
)
from turret.ir.emit.emitter import ExprFacts, Mask, TextEmitter
from turret.ir.emit.scopes import Scope
from turret.ir.nest import flat_load, map_roots, nest_of

F32, I64 = torch.float32, torch.int64
ROW, COLUMN = Var("i0", 3), Var("i1", 4)
SCALARS = {"mul": "{} * {}", "exp": "exp({})", "ge": "{} >= {}", "gt": "{} > {}", "logical_and": "{} and {}"}


class Loop(Scope):
    """A loop of Python; the outermost block has none."""

    def __init__(self, parent: Loop | None = None, variable: Var | None = None) -> None:
        super().__init__(parent)
        self.header = "" if variable is None else f"for {variable.name} in range({variable.extent}):"
        if variable is not None:
            self.variables[variable] = variable.name

    def close(self) -> None:
        self.parent.lines += [self.header, *(f"    {line}" for line in self.lines)]


class Pointwise(ExprFacts):
    def level(self, expr: Expr) -> int:
        return 0

    def is_along_row(self, expr: Expr) -> bool:
        return False


class PythonEmitter(TextEmitter):
    def size(self, value: Any) -> str:
        return str(value)

    def constant(self, expr: Expr) -> str:
        return repr(expr.payload)

    def term(self, atom: Any, coefficient: Any, scope: Loop, mask: Mask) -> str:
        text = scope.variable(atom) if isinstance(atom, Var) else self.value(atom.expr, scope, mask)
        return f"{text} * {coefficient}"

    def assignment(self, name: str, text: str, dtype: torch.dtype) -> str:
        return f"{name} = {text}"

    @staticmethod
    def is_plain(text: str) -> bool:
        return text.isidentifier()

    def scalar(self, expr: Expr, scope: Loop, mask: Mask) -> str:
        return SCALARS[expr.op].format(*(self.value(arg, scope, mask) for arg in expr.args))

    def write_load(self, expr: Expr, scope: Loop, mask: Mask) -> str:
        mask = self.mask_of_access(expr.coords[0], scope, mask)
        text = f"{self.pointer(expr.tensor)}[{self.index(expr.coords[0], scope, mask)}]"
        return text if mask is None else f"{text} if {self.value(mask, scope)} else 0"

    def write_index(self, expr: Expr, scope: Loop, mask: Mask) -> str:
        return self.index(expr.payload, scope, mask)

    def write_masked(self, expr: Expr, scope: Loop, mask: Mask) -> str:
        condition, inside, outside = expr.args
        wanted = self.value(inside, scope, self.both(mask, condition))
        return f"{wanted} if {self.value(condition, scope, mask)} else {self.value(outside, scope)}"

    def write_check_index(self, expr: Expr, scope: Loop, mask: Mask) -> str:
        return self.value(expr.args[0], scope, mask)


def python_of(expr: Expr, tensors: dict[str, TensorDecl]) -> tuple[str, PythonEmitter]:
    """The text that stores ``expr`` at each row and column of ``out``."""
    kernel = Kernel("k", (ROW, COLUMN), (), (Store("out", (ROW.index, COLUMN.index), expr),))
    nest = nest_of(kernel, tensors)
    nest = map_roots(nest, lambda node: flat_load(node, tensors) if node.op == "load" else None)
    base = Loop()
    emitter = PythonEmitter(base, Pointwise(tensors))
    outer = Loop(base, ROW)
    inner = Loop(outer, COLUMN)
    (store,) = nest.stores
    value = emitter.value(store.expr, inner)
    inner.line(f"{emitter.pointer(store.tensor)}[{emitter.index(store.offset, inner)}] = {value}")
    inner.close()
    outer.close()
    return "\n".join(base.lines), emitter


def declare(name: str, value: torch.Tensor) -> TensorDecl:
    return TensorDecl(name, tuple(value.shape), tuple(value.stride()), value.dtype, value.device)


def run(expr: Expr, inputs: dict[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
    """The text, and what it stores."""
    tensors = {**inputs, "out": torch.zeros(3, 4)}
    text, emitter = python_of(expr, {name: declare(name, value) for name, value in tensors.items()})
    memory = {emitter.pointer(name): value.reshape(-1).tolist() for name, value in tensors.items()}
    exec(text, {"exp": math.exp, **memory})
    return text, torch.tensor(memory[emitter.pointer("out")]).reshape(3, 4)


def test_a_value_is_written_once_in_the_outermost_block_that_can_compute_it() -> None:
    x, y, z = torch.randn(3, 4), torch.randn(3), torch.randn(())
    scale = call("mul", call("exp", load("y", (ROW,), F32)), call("exp", load("z", (), F32)))
    value = call("mul", call("mul", load("x", (ROW, COLUMN), F32), scale), scale)
    text, found = run(value, {"x": x, "y": y, "z": z})
    torch.testing.assert_close(found, x * (y.exp() * z.exp())[:, None] ** 2)
    depths = [len(line) - len(line.lstrip()) for line in text.splitlines() if "exp(" in line]
    assert sorted(depths) == [0, 4]


@pytest.mark.parametrize("chosen", [False, True])
def test_a_condition_guards_what_may_lie_outside_alone(chosen: bool) -> None:
    x, at = torch.randn(3, 4), torch.tensor([7, 2, 0, 1])
    inside = call("ge", index_value(COLUMN), constant(1, I64))
    place = Index.of_value(check_index(load("at", (COLUMN,), I64), 4)) if chosen else COLUMN.index - 1
    value = call("masked", inside, call("exp", load("x", (ROW, place), F32)), constant(0, F32))
    text, found = run(value, {"x": x, "at": at})
    want = torch.zeros(3, 4)
    want[:, 1:] = (x[:, at[1:]] if chosen else x[:, :-1]).exp()
    torch.testing.assert_close(found, want)
    assert sum(" if " in line for line in text.splitlines()) == 2


def test_an_inner_condition_is_asked_where_the_outer_one_holds() -> None:
    x = torch.randn(3, 4)
    inside = call("ge", index_value(COLUMN), constant(1, I64))
    before = load("x", (ROW, COLUMN.index - 1), F32)
    positive = call("gt", before, constant(0.0, F32))
    value = call("masked", inside, call("masked", positive, before, constant(0, F32)), constant(-1, F32))
    want = torch.full((3, 4), -1.0)
    want[:, 1:] = x[:, :-1].relu()
    torch.testing.assert_close(run(value, {"x": x})[1], want)
