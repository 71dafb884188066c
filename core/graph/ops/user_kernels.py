"""Launches of the program's own Triton kernels as ops: which tensors a launch writes to is part of the schema.

Each form of launch (a kernel, which of its arguments are tensors, numbers or constants) is an op of its own, defined
when a graph first holds one.  Autograd knows nothing of it, as of the launch itself.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

_library = torch.library.Library("turret_kernels", "FRAGMENT")
_number = itertools.count()
_defined: dict[Any, list[tuple[Launch, Any]]] = {}
"""By the id of a kernel, which an op keeps alive, the forms of launch that there are ops for."""


@attrs.frozen
class Launch:
    """One form of launch.

    ``tensors`` and ``numbers``: names of arguments of the op, the latter with the types of a schema; ``written``: those
    of tensors that may be written to; ``constants``: the other arguments and the options of the launch.  ``grid``: what
    computes the grid from a launch's arguments; None where it is the op's last argument.
    """

    kernel: Any = attrs.field(eq=id)
    tensors: tuple[str, ...]
    written: frozenset[str]
    numbers: tuple[tuple[str, str], ...]
    constants: dict[str, Any]
    grid: Any = None

    def __call__(self, *given: Any) -> None:
        grid = self.grid
        if grid is None:
            *given, grid = given  # type: ignore[assignment]
            grid = tuple(grid)
        names = (*self.tensors, *(name for name, _ in self.numbers))
        self.kernel[grid](**dict(zip(names, given, strict=True)), **self.constants)


def launch_op(launch: Launch) -> Any:
    """The op of a form of launch: its arguments are the tensors, the numbers and, unless it is computed, the grid."""
    forms = _defined.setdefault(id(launch.kernel), [])
    for known, op in forms:
        if known == launch:
            return op
    name = f"launch_{next(_number)}"
    arguments = [
        f"Tensor({chr(97 + n)}!) {argument}_" if argument in launch.written else f"Tensor {argument}_"
        for n, argument in enumerate(launch.tensors)
    ]
    arguments += [f"{kind} {argument}_" for argument, kind in launch.numbers]
    if launch.grid is None:
        arguments.append("SymInt[] launch_grid")
    _library.define(f"{name}({', '.join(arguments)}) -> ()")
    _library.impl(name, launch, "CompositeExplicitAutograd")
    _library.impl(name, _nothing, "Meta")
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    op = getattr(torch.ops.turret_kernels, name).default
    forms.append((launch, op))
    return op


def _nothing(*given: Any) -> None:
    """What a launch does to tensors without memory."""


# Which arguments a kernel writes to.


def python_function(kernel: Any) -> Any:
    """The Python function of a kernel, whatever tunes it."""
    while not isinstance(kernel, types.FunctionType):
        kernel = kernel.fn
    return kernel


def written_arguments(kernel: Any) -> frozenset[str]:
    """Names of a kernel's arguments that it may write through, by its source; all of them where that says nothing."""
    function = python_function(kernel)
    names = tuple(inspect.signature(function).parameters)
    return frozenset(name for n, name in enumerate(names) if n in _written(function, ()))


def _written(function: types.FunctionType, callers: tuple[types.FunctionType, ...]) -> frozenset[int]:
    """Positions of arguments that a kernel, or a function that one calls, may write through."""
    names = list(inspect.signature(function).parameters)
    everything = frozenset(range(len(names)))
    if function in callers:
        return everything
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return everything
    if not _defines(tree, function.__name__, names):
        return everything
    comes_from = _origins(tree, names)
    found: set[str] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        for written in _written_by_call(call, function, (*callers, function)):
            found |= {origin for name in _names(written) for origin in comes_from.get(name, ())}
    return frozenset(n for n, name in enumerate(names) if name in found)


def _defines(tree: ast.Module, name: str, arguments: list[str]) -> bool:
    """Whether a source is that of the function: what Python finds may be other text of the same file name."""
    match tree.body:
        case [ast.FunctionDef(name=found, args=given)]:
            return found == name and [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)] == arguments
    return False


def _origins(tree: ast.AST, arguments: Sequence[str]) -> Mapping[str, set[str]]:
    """For each variable the arguments that an address in it may come from."""
    comes_from: dict[str, set[str]] = {name: {name} for name in arguments}
    steps = [(t, v) for node in ast.walk(tree) for targets, v in _assignments(node) for t in targets]
    changed = True
    while changed:
        changed = False
        for target, value in steps:
            origins = {origin for name in _addresses(value) for origin in comes_from.get(name, ())}
            for name in _names(target):
                known = comes_from.setdefault(name, set())
                changed |= not origins <= known
                known |= origins
    return comes_from


def _assignments(node: ast.AST) -> Iterator[tuple[list[ast.AST], ast.AST]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield list(targets), value
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield [target], value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield [target], value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield [target], value
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield [target], value


def _names(node: ast.AST) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _addresses(node: ast.AST) -> Iterator[str]:
    """Names in an expression, but for those whose addresses it only loads from: what is loaded is no address."""
    if isinstance(node, ast.Name):
        yield node.id
    if isinstance(node, ast.Call) and _called(node) == "load":
        return
    for part in ast.iter_child_nodes(node):
        yield from _addresses(part)


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _written_by_call(
    call: ast.Call, function: types.FunctionType, callers: tuple[types.FunctionType, ...]
) -> Iterator[ast.AST]:
    """Expressions in a call through whose addresses it may write."""
    name, given = _called(call), [*call.args, *(k.value for k in call.keywords)]
    if "asm" in name:
        yield from given
    elif name.endswith("store") or name.startswith("atomic"):
        yield from given[:1]
        if isinstance(call.func, ast.Attribute):
            yield call.func.value  # of a descriptor
    elif name not in _READERS and not _is_of_triton(call.func, function):
        called = function.__globals__.get(name)
        by_position = not call.keywords and not any(isinstance(v, ast.Starred) for v in call.args)
        followed = by_position and hasattr(called, "fn")
        positions = _written(python_function(called), callers) if followed else range(len(given))
        yield from (v for n, v in enumerate(given) if n in positions)


_READERS = frozenset({"load", "range", "static_range", "program_id", "num_programs", "arange", "zeros", "full", "cdiv"})


def _is_of_triton(called: ast.AST, function: types.FunctionType) -> bool:
    """Whether what is called is of Triton's language, or a method of its values: these write by their names alone."""
    root = called
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return True
    found = function.__globals__.get(root.id)
    if root is called:
        return getattr(found, "__module__", "").startswith("triton.") and not hasattr(found, "fn")
    return found is None or getattr(found, "__name__", "").startswith("triton")
