"""The check of a level's invariants, run between passes; a failure is a bug of the stage before."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NoReturn

import torch

from turret.errors import VerificationError
from turret.graph.dtypes import HALF
from turret.ir.expr import OPS, STRUCTURAL, Expr, loads, walk
from turret.ir.index import Index, Var, provably_nonnegative
from turret.ir.memory_check import check_memory
from turret.ir.program import CopyInto, Definition, LoopProgram, Ref, Scatter, TensorDecl, defined, used
from turret.ir.schedule import Kernel, Schedule, Store


@singledispatch
def verify(product: Any) -> None:
    """Raise ``VerificationError`` where a loop program or a schedule breaks the invariants of its level."""
    raise TypeError(f"nothing known to verify about {type(product).__name__}")


def _fail(where: object, message: str) -> NoReturn:
    error = VerificationError(f"{message}\n  in {where}")
    error.where = where
    raise error


def _check_expr(root: Expr, tensors: dict[str, TensorDecl], allowed: frozenset[Var], where: object) -> None:
    _check_free(root.variables, allowed, where)
    for node in walk(root):
        if node.op not in OPS and node.op not in STRUCTURAL:
            _fail(where, f"unknown op {node.op!r}")
        if node.op == "load":
            _check_load(node, tensors, where)
        elif node.op == "group_of":
            _check_groups(node, tensors, where)
        elif node.op in OPS:
            _check_scalar(node, where)
        elif node.op == "reduce" and node.dtype in HALF and node.payload.kind not in ("min", "max"):
            _fail(where, f"{node.payload.kind} accumulates in {node.dtype}; cast to float32 first")


def _check_free(variables: frozenset[Var], allowed: frozenset[Var], where: object) -> None:
    if not variables <= allowed:
        _fail(where, f"free variables {sorted(v.name for v in variables - allowed)} are not loops of it")


def _check_load(node: Expr, tensors: dict[str, TensorDecl], where: object) -> None:
    decl = tensors.get(node.tensor)
    if decl is None:
        _fail(where, f"load of {node.tensor!r}, which is not defined before")
    elif len(node.coords) != len(decl.shape) or node.dtype != decl.dtype:
        _fail(where, f"load {node} as {node.dtype} does not fit {decl}")


def _check_groups(node: Expr, tensors: dict[str, TensorDecl], where: object) -> None:
    ends = tensors[node.args[0].tensor]
    if ends.dtype != torch.int32 or ends.shape != (node.payload,) or (node.payload > 1 and ends.stride != (1,)):
        _fail(where, f"the ends of {node.payload} groups are no contiguous int32 of that many: {ends}")


def _check_scalar(node: Expr, where: object) -> None:
    info = OPS[node.op]
    values = node.args[1:] if info.conditional else node.args
    if any(arg.dtype != values[0].dtype for arg in values):
        _fail(where, f"mixed dtypes {[str(a.dtype) for a in node.args]} in {node}")
    if info.conditional and node.args[0].dtype != torch.bool:
        _fail(where, f"the condition of {node} is not bool")
    if not info.takes(values[0].dtype):
        _fail(where, f"{node.op} wants {info.domain}, not {values[0].dtype}: {node}")


def _index_values(coords: tuple[Index, ...]) -> list[Expr]:
    return [value for coord in coords for value in coord.values]


@verify.register
def _(program: LoopProgram) -> None:
    tensors = {decl.name: decl for decl in program.inputs if decl is not None}
    for name, value in program.constants.items():
        tensors[name] = TensorDecl(name, tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
    for statement in program.statements:
        for name in used(statement):
            if name not in tensors:
                _fail(statement, f"use of {name!r}, which is not defined before")
        match statement:
            case Definition():
                _check_definition(statement, tensors)
            case Scatter():
                _check_scatter(statement, tensors)
            case CopyInto():
                _check_copy(statement, tensors)
        for decl in defined(statement):
            if decl.name in tensors:
                _fail(statement, f"{decl.name!r} is defined twice")
            tensors[decl.name] = decl
    for output in program.outputs:
        if isinstance(output, Ref) and output.name not in tensors:
            _fail(f"outputs of {program.name}", f"{output} is not defined")


def _check_definition(statement: Definition, tensors: dict[str, TensorDecl]) -> None:
    if tuple(v.extent for v in statement.variables) != statement.tensor.shape:
        _fail(statement, "the loops do not match the shape")
    _check_dtype(statement)
    _check_expr(statement.expr, tensors, frozenset(statement.variables), statement)


def _check_scatter(statement: Scatter, tensors: dict[str, TensorDecl]) -> None:
    allowed = frozenset(statement.variables)
    initial = tensors[statement.initial]
    if initial.shape != statement.tensor.shape or initial.dtype != statement.tensor.dtype:
        _fail(statement, f"initial {initial} does not fit {statement.tensor}")
    if len(statement.coords) != len(statement.tensor.shape):
        _fail(statement, f"{len(statement.coords)} coordinates for {statement.tensor}")
    for coord in statement.coords:
        _check_free(coord.variables, allowed, statement)
    condition = [] if statement.condition is None else [statement.condition]
    for root in (statement.expr, *_index_values(statement.coords), *condition):
        _check_expr(root, tensors, allowed, statement)
    _check_dtype(statement)


def _check_copy(statement: CopyInto, tensors: dict[str, TensorDecl]) -> None:
    target, source = tensors[statement.target], tensors[statement.source]
    if target.shape != source.shape or target.dtype != source.dtype:
        _fail(statement, f"{source} does not fit {target}")


def _check_dtype(statement: Definition | Scatter) -> None:
    if statement.expr.dtype != statement.tensor.dtype:
        _fail(statement, f"value is {statement.expr.dtype}, tensor is {statement.tensor.dtype}")


@verify.register
def _(schedule: Schedule) -> None:
    tensors = schedule.program.declarations()
    ready = {decl.name for decl in schedule.program.inputs if decl is not None} | set(schedule.program.constants)
    for step in schedule.steps:
        if isinstance(step, Kernel):
            for store in step.stores:
                _check_store(store, step, tensors, ready)
            ready |= {store.tensor for store in step.stores}
            continue
        for name in used(step):
            if name not in ready:
                _fail(step, f"uses {name!r} before any step has made it")
        ready |= {decl.name for decl in defined(step)}
    for output in schedule.program.outputs:
        if isinstance(output, Ref) and output.name not in ready:
            _fail(f"schedule of {schedule.program.name}", f"output {output} is never made")
    _check_sections(schedule)
    check_memory(schedule)


def _check_sections(schedule: Schedule) -> None:
    """Sections are all steps, in order."""
    covered = [number for section in schedule.sections for number in range(section.first, section.last + 1)]
    if schedule.sections and covered != list(range(len(schedule.steps))):
        spans = [(section.first, section.last) for section in schedule.sections]
        _fail(f"schedule of {schedule.program.name}", f"sections {spans} are not its {len(schedule.steps)} steps")


def _check_store(store: Store, kernel: Kernel, tensors: dict[str, TensorDecl], ready: set[str]) -> None:
    allowed = frozenset(kernel.outer) | frozenset(kernel.inner)
    decl = tensors.get(store.tensor)
    if decl is None or len(store.coords) != len(decl.shape):
        _fail(kernel, f"stores {store.tensor!r} at {len(store.coords)} coordinates; the program has {decl}")
    for coord in store.coords:
        _check_free(coord.variables, allowed, kernel)
    if store.mode is None and store.condition is None:
        _check_coordinates(store, kernel, decl)
    roots = [store.expr, *_index_values(store.coords)]
    roots += [] if store.condition is None else [store.condition]
    for root in roots:
        _check_expr(root, tensors, allowed, kernel)
        for node in loads(root):
            if node.tensor not in ready:
                _fail(kernel, f"reads {node.tensor!r} before any step has made it")
    if store.expr.dtype != decl.dtype:
        _fail(kernel, f"stores {store.expr.dtype} into {decl}")


def _check_coordinates(store: Store, kernel: Kernel, decl: TensorDecl) -> None:
    """What is stored everywhere, and is no update, lies within its tensor."""
    for coord, extent in zip(store.coords, decl.shape, strict=True):
        low, high = coord.bounds()
        below = isinstance(low, int) and low < 0
        if isinstance(high, int) and isinstance(extent, int):
            beyond = 0 < extent <= high
        else:  # bounds of anything but sums of loops may lie further apart than what they bound
            beyond = high is not None and coord.is_affine and provably_nonnegative(high - extent)
        if below or beyond:
            _fail(kernel, f"stores {store.tensor!r} at {coord}, which goes from {low} to {high} of {extent}")
