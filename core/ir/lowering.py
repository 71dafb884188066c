"""Lowering: what a lowering function is handed, and how tensors look to it.

A lowering is a function ``(builder, *args, **kwargs)`` with the arguments of its op: tensors come as
``TensorValue``, sizes as ints or sympy expressions.  It defines its results through the builder and returns
them (one ``TensorValue``, or a tuple for an op with several results).  It runs once for each call of its op::

    def softplus(b, x, beta=1, threshold=20):
        return b.pointwise(lambda v: call("log1p", call("exp", v)), x)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import sympy
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.dtypes import HALF, compute_dtype
from turret.graph.op_set import is_compiled_dtype, template_kind
from turret.ir import (
    Binding,
    Definition,
    Expr,
    Extern,
    Index,
    Ref,
    Scatter,
    Size,
    Statement,
    StridedView,
    Template,
    TensorDecl,
    Var,
    cast,
    constant,
    keep_checks,
    load,
    size,
    size_value,
)
from turret.ir.program import ScatterMode


@attrs.frozen(eq=False, slots=False)
class TensorValue:
    """A tensor of the program, or a view of one: element ``variables`` of it is ``base[coords]``."""

    base: TensorDecl
    shape: tuple[Size, ...]
    variables: tuple[Var, ...]
    coords: tuple[Index, ...]

    @classmethod
    def of(cls, decl: TensorDecl) -> TensorValue:
        """The whole of a declared tensor."""
        variables = loop_variables(decl.shape)
        return cls(decl, decl.shape, variables, tuple(v.index for v in variables))

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        return self.base.device

    @functools.cached_property
    def is_whole(self) -> bool:
        """True where this is ``base`` itself, not a view."""
        return self.shape == self.base.shape and all(
            c is v.index for c, v in zip(self.coords, self.variables, strict=True)
        )

    def load(self, index: Sequence[Index | Var | int]) -> Expr:
        """The element at ``index`` (one entry a dimension)."""
        if self.is_whole and len(index) == len(self.shape):
            return load(self.base.name, index, self.dtype)
        mapping = dict(zip(self.variables, map(Index.wrap, index), strict=True))
        return load(self.base.name, [c.substitute(mapping) for c in self.coords], self.dtype)

    def load_broadcast(self, index: Sequence[Index | Var | int]) -> Expr:
        """The element that broadcasting to a shape of ``len(index)`` dimensions puts at ``index``."""
        own = list(index)[len(index) - len(self.shape) :]
        return self.load([0 if extent == 1 else i for i, extent in zip(own, self.shape, strict=True)])

    def view(self, shape: Sequence[Size], coords: Callable[[tuple[Index, ...]], Sequence[Any]]) -> TensorValue:
        """A view of this: ``coords`` maps an index into ``shape`` to an index into this tensor."""
        variables = loop_variables(shape)
        inner = [Index.wrap(c) for c in coords(tuple(v.index for v in variables))]
        mapping = dict(zip(self.variables, inner, strict=True))
        return TensorValue(self.base, tuple(shape), variables, tuple(c.substitute(mapping) for c in self.coords))

    def strides(self) -> tuple[tuple[Size, ...], Size] | None:
        """Strides and offset, in elements of ``base``'s memory, or None where no strides express the view."""
        if self.is_whole:
            return self.base.stride, 0
        linear = Index.constant(0)
        for coord, stride in zip(self.coords, self.base.stride, strict=True):
            linear = linear + coord * stride
        if not linear.is_affine:
            return None
        steps = [linear.coefficient(v) for v in self.variables]
        over = 1  # what steps over all that follows
        for dim in reversed(range(len(steps))):
            if self.shape[dim] == 1:  # no index is left to say; ops that look at strides expect those of ``unsqueeze``
                steps[dim] = over
            else:
                over = self.shape[dim] * steps[dim]
        return tuple(steps), linear.const


def sizes(values: Sequence[Any]) -> tuple[Size, ...]:
    """Normal form of a shape or of strides."""
    return tuple([v if type(v) is int else size(v) for v in values])


@functools.lru_cache(maxsize=4096)
def _loop_variables(shape: tuple[Size, ...], prefix: str) -> tuple[Var, ...]:
    return tuple([Var(f"{prefix}{k}", extent) for k, extent in enumerate(shape)])


def loop_variables(shape: Sequence[Size], prefix: str = "i") -> tuple[Var, ...]:
    """One loop variable for each dimension, named by position."""
    return _loop_variables(tuple(shape), prefix)


def dense_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides."""
    strides: list[Size] = []
    step: Size = 1
    for extent in reversed(shape):
        strides.append(step)
        step = size(step * (1 if extent == 0 else extent))
    return tuple(reversed(strides))


def lie_alike(shape: Sequence[Any], one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether elements lie alike by either strides; of a tensor without any, only where the strides are the same."""
    empty = any(extent == 0 for extent in shape)
    return all(a == b or (extent == 1 and not empty) for extent, a, b in zip(shape, one, other, strict=True))


Number: TypeAlias = int | float | bool | sympy.Expr


class Builder:
    """Collects the statements of a loop program; ``node`` is the FX node being lowered.

    ``eagerly``: that node was placed eagerly, so that it and the copies which it needs are calls, not kernels.
    """

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.names: set[str] = set()
        self._node: fx.Node | None = None
        self.views: dict[Any, TensorDecl] = {}
        self.reason = ""
        self.eagerly = False

    # ------------------------------------------------ the node being lowered

    def fallback(self, reason: str) -> Any:
        """What a lowering returns that leaves this call to ATen's kernel, because of ``reason``."""
        self.reason = reason
        return NotImplemented

    @property
    def node(self) -> fx.Node:
        """The node being lowered; ``LookupError`` before the first."""
        if self._node is None:
            raise LookupError("no node is being lowered; set Builder.node to the one that statements come from")
        return self._node

    @node.setter
    def node(self, node: fx.Node | None) -> None:
        self._node = node

    @property
    def result(self) -> Any:
        """The fake value of the node being lowered."""
        return self.node.meta["val"]

    def result_part(self, number: int) -> torch.Tensor:
        """One fake tensor of an op with several results."""
        part: torch.Tensor = self.result[number]
        return part

    def result_shape(self, number: int | None = None) -> tuple[Size, ...]:
        """Shape of the node's result, or of one of several."""
        fake = self.result if number is None else self.result_part(number)
        return sizes(fake.shape)

    def origins(self) -> tuple[str, ...]:
        return () if self._node is None else (self._node.name,)

    def source(self) -> str:
        """The user's line that the node came from, where known."""
        trace = (None if self._node is None else self._node.meta.get("stack_trace")) or ""
        # Python marks the part of the line that ran with a line of carets below it.
        lines = [line.strip() for line in trace.splitlines() if line.strip(" ^~")]
        return lines[-1] if lines else ""

    def location(self) -> str:
        """File and number of that line, where known."""
        trace = (None if self._node is None else self._node.meta.get("stack_trace")) or ""
        found = _PLACE.findall(trace)
        return "{}:{}".format(*found[-1]) if found else ""

    # ------------------------------------------------ definitions

    def unique(self, stem: str) -> str:
        name, count = stem, 0
        while name in self.names:
            count += 1
            name = f"{stem}_v{count}"
        self.names.add(name)
        return name

    def declare(self, fake: torch.Tensor, stem: str | None = None) -> TensorDecl:
        """A new tensor with the shape, strides, dtype and device of a fake one."""
        return TensorDecl(
            self.unique(stem or self.node.name),
            sizes(fake.shape),
            sizes(fake.stride()),
            fake.dtype,
            fake.device,
        )

    def define(
        self, fake: torch.Tensor, body: Callable[[tuple[Index, ...]], Expr], stem: str | None = None
    ) -> TensorValue:
        """Define a tensor like ``fake`` whose element at ``index`` is ``body(index)``, cast to its dtype."""
        decl = self.declare(fake, stem)
        return self.define_decl(decl, body)

    def define_decl(self, decl: TensorDecl, body: Callable[[tuple[Index, ...]], Expr]) -> TensorValue:
        """Like ``define``, for a declaration made by the caller."""
        variables = loop_variables(decl.shape)
        index = tuple(v.index for v in variables)
        expr = constant(0, decl.dtype) if 0 in decl.shape else cast(body(index), decl.dtype)
        self.statements.append(Definition(decl, variables, expr, self.origins(), self.source()))
        return TensorValue.of(decl)

    def number(self, value: Number, dtype: torch.dtype) -> Expr:
        """A Python number or a size as a value of ``dtype``."""
        if isinstance(value, sympy.Expr):
            return size_value(value, dtype)
        return constant(value, dtype)

    def operand(self, value: TensorValue | Number, index: Sequence[Index], dtype: torch.dtype) -> Expr:
        """An argument of a pointwise op at ``index`` of the result, as ``dtype``."""
        if isinstance(value, TensorValue):
            return cast(value.load_broadcast(index), dtype)
        return self.number(value, dtype)

    def promoted_operand(self, value: TensorValue | Number, index: Sequence[Index], dtype: torch.dtype) -> Expr:
        """An argument rounded to the ``dtype`` that operands promote to, in the one it is computed in."""
        if dtype not in HALF:
            return self.operand(value, index, dtype)
        inner = compute_dtype(dtype)
        if isinstance(value, TensorValue):
            loaded = value.load_broadcast(index)
            return cast(loaded, inner) if loaded.dtype == torch.bool else rounded(loaded, dtype)
        if isinstance(value, sympy.Expr):
            return cast(size_value(value, dtype), inner)
        return constant(constant(value, dtype).payload, inner)

    def pointwise(
        self, function: Callable[..., Expr], *operands: TensorValue | Number, dtype: torch.dtype | None = None
    ) -> TensorValue:
        """Define the node's result element by element.

        Operands are broadcast and promoted to ``dtype`` (the result's, where not given), half types rounded to it
        and then computed in float32.  ``function`` takes and returns expressions, and what it returns is cast to
        the result's dtype.
        """
        fake = self.result
        common = fake.dtype if dtype is None else dtype
        return self.define(fake, lambda index: function(*(self.promoted_operand(o, index, common) for o in operands)))

    def scatter(
        self,
        fake: torch.Tensor,
        initial: TensorValue,
        loops: Sequence[Size],
        coords: Callable[[tuple[Index, ...]], Sequence[Index]],
        value: Callable[[tuple[Index, ...]], Expr],
        mode: ScatterMode,
        condition: Callable[[tuple[Index, ...]], Expr] | None = None,
    ) -> TensorValue:
        """Define a tensor like ``fake``: ``initial`` (same dtype and sizes) with elements combined into it.

        At every ``index`` of ``loops`` where ``condition(index)`` holds, ``value(index)``, cast to the dtype, is
        combined by ``mode`` into the element at ``coords(index)``, which must lie inside.
        """
        decl = self.declare(fake)
        if 0 in loops:
            return self.define_decl(decl, initial.load)
        variables = loop_variables(loops)
        index = tuple(v.index for v in variables)
        where = tuple(coords(index))
        if initial.shape != decl.shape:  # sizes of two names, as ``max(0, n)`` and an ``n`` that is never negative
            initial = initial.view(decl.shape, lambda at: at)
        # An address does not depend on where it lies along a dimension of size 1 that has no stride.
        lost = [place for place, stride in zip(where, decl.stride, strict=True) if stride == 0]
        statement = Scatter(
            decl,
            self.in_memory(initial),
            variables,
            where,
            cast(keep_checks(value(index), lost), decl.dtype),
            mode,
            None if condition is None else condition(index),
            self.origins(),
            self.source(),
        )
        self.statements.append(statement)
        return TensorValue.of(decl)

    # ------------------------------------------------ memory

    def in_memory(self, value: TensorValue) -> str:
        """Name of a tensor that holds ``value`` in memory: its base, a strided view of it, or a copy."""
        if value.is_whole:
            return value.base.name
        layout = value.strides()
        if layout is None:
            return self.copy(value, dense_strides(value.shape)).base.name
        strides, offset = layout
        return self._strided_view(value, strides, offset).name

    def laid_out(self, value: TensorValue, strides: tuple[Size, ...]) -> TensorValue:
        """``value`` with strides by which its elements lie where they do: other ones where the size is 1."""
        layout = value.strides()
        if layout is None or layout[0] == strides or not lie_alike(value.shape, layout[0], strides):
            return value
        return TensorValue.of(self._strided_view(value, strides, layout[1]))

    def _strided_view(self, value: TensorValue, strides: tuple[Size, ...], offset: Size) -> TensorDecl:
        key = (value.base.name, value.shape, strides, offset)
        if key not in self.views:
            name = self.unique(f"{value.base.name}_view")
            decl = self.views[key] = TensorDecl(name, value.shape, strides, value.dtype, value.device)
            self.statements.append(StridedView(decl, value.base.name, offset))
        return self.views[key]

    def copy(self, value: TensorValue, strides: tuple[Size, ...]) -> TensorValue:
        """Define a copy of ``value`` with given strides.

        Along a dimension of stride 0, whose elements are equal, memory holds one of them and the rest is a view.
        """
        repeated = [extent != 1 and stride == 0 for extent, stride in zip(value.shape, strides, strict=True)]
        if any(repeated):
            return self._copy_of_repeated(value, strides, repeated)
        name = self.unique(f"{value.base.name}_copy")
        decl = TensorDecl(name, value.shape, strides, value.dtype, value.device)
        if is_compiled_dtype(value.dtype) and not self.eagerly:
            return self.define_decl(decl, value.load)
        if value.strides() is None:
            raise UnsupportedError(f"a {value.dtype} view of {value.base} that no strides express")
        reason = "a copy for a call that runs eagerly" if self.eagerly else f"no kernels for {value.dtype}"
        reference = (Ref(self.in_memory(value)),)
        clone = Extern(torch.ops.aten.clone.default, reference, {}, (decl,), reason=reason)
        self.statements.append(clone)
        return TensorValue.of(decl)

    def _copy_of_repeated(self, value: TensorValue, strides: tuple[Size, ...], repeated: Sequence[bool]) -> TensorValue:
        def first(index: tuple[Index, ...]) -> list[Index | int]:
            return [0 if again else i for i, again in zip(index, repeated, strict=True)]

        compact = [1 if again else extent for extent, again in zip(value.shape, repeated, strict=True)]
        whole = self.copy(value.view(compact, first), strides)
        name = self.unique(f"{whole.base.name}_view")
        decl = TensorDecl(name, value.shape, strides, value.dtype, value.device)
        self.statements.append(StridedView(decl, whole.base.name, 0))
        return TensorValue.of(decl)

    def extern(
        self,
        op: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        fakes: Any,
        reason: str,
        symbol_bindings: tuple[Binding, ...] = (),
    ) -> Any:
        """Call an op on tensors in memory; returns its results as ``fakes`` is built.

        Numbers among them (the longest sequences of an attention) are those that the fakes tell; ``symbol_bindings``
        are those that depend on data."""
        arguments = tuple(self._argument(a) for a in args)
        named = {k: self._argument(v) for k, v in kwargs.items()}
        several = isinstance(fakes, list | tuple)
        parts = list(fakes) if several else [fakes]
        if any(not isinstance(p, _RESULTS) for p in parts):
            raise UnsupportedError(f"{op} returns {[type(p).__name__ for p in parts]}; tensors and sizes are handed on")
        outputs = tuple(self.declare(p) if isinstance(p, torch.Tensor) else None for p in parts)
        kind = None if self.eagerly else template_kind(op)
        statement = Extern if kind is None else functools.partial(Template, kind=kind)
        self.statements.append(
            statement(
                op=op,
                args=arguments,
                kwargs=named,
                outputs=outputs,
                returns_sequence=several,
                mutates=self._mutated(op, arguments, named),
                reason=reason,
                origins=self.origins(),
                source=self.source(),
                location=self.location(),
                symbol_bindings=symbol_bindings,
            )
        )
        values = [
            TensorValue.of(o) if o is not None else None if p is None else number_of(p)
            for o, p in zip(outputs, parts, strict=True)
        ]
        return values if several else values[0]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, TensorValue):
            return Ref(self.in_memory(value))
        if isinstance(value, list | tuple):
            return type(value)(self._argument(v) for v in value)
        return value

    def _mutated(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
        names = []
        schema = getattr(op, "_schema", None)
        for number, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                refs = value if isinstance(value, list | tuple) else [value]
                names += [ref.name for ref in refs if isinstance(ref, Ref)]
        return tuple(names)


_PLACE = re.compile(r'File "([^"]*)", line (\d+)')

_RESULTS = torch.Tensor | int | torch.SymInt | torch.SymFloat | torch.SymBool | None


def rounded(value: Expr, dtype: torch.dtype) -> Expr:
    """A value converted to a dtype that the program asked for, which rounds it, in the one that it is computed in."""
    return cast(cast(value, dtype, exact=True), compute_dtype(dtype))


def number_of(value: Any) -> Size:
    """A fake number as an expression over symbols: a size, or what a float or a bool is written as."""
    return value.node.expr if isinstance(value, torch.SymFloat | torch.SymBool) else size(value)


Lowering = Callable[..., Any]
