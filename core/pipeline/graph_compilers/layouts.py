"""What a compiled graph is handed and has to give back: layouts of tensors, over sizes read from its inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeGuard

import attrs
import torch
from torch import fx

from turret.errors import FakeImplementationError, PluginError
from turret.graph.op_traits import output_nodes
from turret.hooks.size_source import SizeSource
from turret.plan import SizeText, size_text
from turret.plan.sizes import Sizes, compile_sizes, source_reader
from turret.storage.codec import record


@record
@attrs.frozen
class TensorLayout:
    """One tensor as the trace has it; ``None`` for sizes that no input tells, which are taken as they come.

    A stride that no input tells is that of a contiguous tensor where ``contiguous``.
    """

    dtype: torch.dtype
    device: str
    shape: tuple[SizeText | None, ...]
    stride: tuple[SizeText, ...] | None
    contiguous: bool = False


@record
@attrs.frozen(eq=False)
class Interface:
    """Inputs and outputs of one graph: a layout for each strided tensor, None for anything else."""

    inputs: tuple[TensorLayout | None, ...]
    outputs: tuple[TensorLayout | None, ...]
    symbols: dict[str, SizeSource]


def interface_of(
    module: fx.GraphModule, strides: Sequence[tuple[Any, ...] | None], any_stride: bool = False
) -> Interface:
    """The interface of an ATen graph whose outputs have ``strides`` (None: those of the trace).

    ``any_stride``: outputs may be laid out in any way.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    values = [node.meta.get("val") for node in placeholders]
    symbols = _symbols(values)
    found = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in output_nodes(module.graph)]
    outputs = [
        _layout(v, v.stride() if s is None else s, symbols) if _is_strided(v) else None
        for v, s in zip(found, strides, strict=True)
    ]
    if any_stride:
        outputs = [None if o is None else attrs.evolve(o, stride=None, contiguous=False) for o in outputs]
    inputs = [_layout(v, v.stride(), symbols) if _is_strided(v) else None for v in values]
    used = {name for layout in (*inputs, *outputs) if layout is not None for name in _names(layout)}
    return Interface(tuple(inputs), tuple(outputs), {n: s for n, s in symbols.items() if n in used})


def _is_strided(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _symbols(values: Sequence[Any]) -> dict[str, SizeSource]:
    """Where each size symbol is read: an input that is the number, or a tensor's size or stride."""
    found: dict[str, SizeSource] = {}
    for number, value in enumerate(values):
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            found[value.node.expr.name] = SizeSource(number, None)
    for number, value in enumerate(values):
        if _is_strided(value):
            sizes = [(s, SizeSource(number, d)) for d, s in enumerate(value.shape)]
            sizes += [(s, SizeSource(number, d, "stride")) for d, s in enumerate(value.stride())]
            for size, source in sizes:
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    found.setdefault(size.node.expr.name, source)
    return found


def _layout(value: torch.Tensor, stride: Sequence[Any], symbols: dict[str, SizeSource]) -> TensorLayout:
    from turret.ir.index import size_of_inputs  # brings sympy, which a warm start does without

    def texts(sizes: Sequence[Any]) -> list[SizeText | None]:
        written = [s if isinstance(s, int) else size_text(size_of_inputs(s)) for s in sizes]
        return [t if isinstance(t, int) or _words(t) <= symbols.keys() else None for t in written]

    strides = texts(stride)
    known = None not in strides
    return TensorLayout(
        value.dtype,
        str(value.device),
        tuple(texts(value.shape)),
        tuple(strides) if known else None,  # type: ignore[arg-type]
        not known and _is_dense(value),
    )


def _is_dense(value: torch.Tensor) -> bool:
    """Whether strides are those of a contiguous tensor, as they are written: sizes may depend on data."""
    from turret.ir.index import size_of_inputs

    step: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if size_of_inputs(stride) != size_of_inputs(step):
            return False
        step = step * size
    return True


_FUNCTIONS = frozenset({"min", "max", "abs", "int", "float", "round", "math", "floor", "ceil", "trunc", "if", "else"})


def _words(text: SizeText) -> set[str]:
    return set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", str(text))) - _FUNCTIONS


def _names(layout: TensorLayout) -> set[str]:
    return set().union(*(_words(t) for t in (*layout.shape, *(layout.stride or ())) if isinstance(t, str)))


Fit = Callable[[torch.Tensor, Sizes], torch.Tensor]


def fitter(layout: TensorLayout, what: str, error: type[Exception]) -> Fit:
    """``fit(tensor, sizes)``: the tensor in the layout, a copy where its strides are others; ``error`` for another
    dtype, device or shape."""
    dtype, dimensions = layout.dtype, len(layout.shape)
    device = torch.device(layout.device)
    shape_of, stride_of = _compiled(layout)

    def refuse(value: Any, shape: Sequence[int]) -> NoReturn:
        raise error(f"{what} is {_described(value)}; expected {dtype} of shape {tuple(shape)} on {device}")

    def fit(value: Any, sizes: Sizes) -> torch.Tensor:
        shape = shape_of(sizes)
        if not isinstance(value, torch.Tensor) or value.dtype != dtype or value.device.type != device.type:
            refuse(value, shape)
        if value.dim() != dimensions or (
            value.shape != shape and any(a not in (b, -1) for a, b in zip(shape, value.shape, strict=True))
        ):
            refuse(value, shape)
        if stride_of is None:
            return value.contiguous() if layout.contiguous else value
        stride = stride_of(sizes)
        given = value.stride()
        if given == stride or not value.numel():
            return value
        if all(a == b or size == 1 for a, b, size in zip(given, stride, value.shape, strict=True)):
            return value
        return copied(value, stride)

    return fit


def _compiled(layout: TensorLayout) -> tuple[Callable[[Sizes], Any], Callable[[Sizes], Any] | None]:
    """Functions of the sizes that give shape (-1 where any will do) and strides (None where all will do)."""
    shape = compile_sizes([-1 if s is None else s for s in layout.shape])
    return shape, None if layout.stride is None else compile_sizes(layout.stride)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
    return f"a {type(value).__name__}"


def copied(value: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy in other strides; along a dimension of stride 0, whose elements are equal, memory holds one of them."""
    repeated = [n for n, (size, step) in enumerate(zip(value.shape, stride, strict=True)) if step == 0 and size > 1]
    shape, source = value.shape, value
    for dimension in repeated:
        source = source.narrow(dimension, 0, 1)
    made = torch.empty_strided(source.shape, stride, dtype=value.dtype, device=value.device).copy_(source)
    return made.expand(shape) if repeated else made


def sizes_of(interface: Interface) -> Callable[[Sequence[Any]], Sizes]:
    """A function of a graph's inputs that gives the sizes its layouts are written over."""
    readers = tuple((name, s.input, source_reader(s)) for name, s in interface.symbols.items())
    if not readers:
        empty: Sizes = {}
        return lambda args: empty
    return lambda args: {name: read(args[position]) for name, position, read in readers}


def input_fitter(interface: Interface, which: Sequence[int]) -> Callable[[list[Any], Sizes], None] | None:
    """A function that lays the inputs ``which`` out as the trace has them, in place; None where there is none.

    What eager's calls give may be laid out in another way than their fake implementations say.
    """
    fits = [
        (n, fitter(layout, f"input {n}, which a call gave eagerly,", FakeImplementationError))
        for n in which
        if (layout := interface.inputs[n]) is not None
    ]
    if not fits:
        return None

    def fit_inputs(args: list[Any], sizes: Sizes) -> None:
        for number, fit in fits:
            args[number] = fit(args[number], sizes)

    return fit_inputs


def output_fitter(interface: Interface, whose: str) -> Callable[[Any, Sizes], list[Any]]:
    """A function that checks what a compiled graph returned, and lays it out as the stages around it expect."""
    fits = [
        None if layout is None else fitter(layout, f"output {n} of {whose}", PluginError)
        for n, layout in enumerate(interface.outputs)
    ]

    def fit_outputs(results: Any, sizes: Sizes) -> list[Any]:
        if not isinstance(results, (tuple, list)) or len(results) != len(fits):
            raise PluginError(f"{whose} returned {_shown(results)}; expected a tuple or list of {len(fits)}")
        return [r if fit is None else fit(r, sizes) for r, fit in zip(results, fits, strict=True)]

    return fit_outputs


def _shown(results: Any) -> str:
    kind = type(results).__name__
    return f"a {kind} of {len(results)}" if isinstance(results, (tuple, list)) else f"a {kind}"
