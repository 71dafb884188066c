"""Ops that need more than the general rules: copies, running statistics, changes of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.errors import UnsupportedError
from turret.graph.fakes.overlap import refused_by_eager
from turret.graph.fakes.sizes import same_sizes
from turret.graph.ops import live_memory  # noqa: F401  (defines ``turret::live``)
from turret.graph.ops.functional_ops import bound_arguments, functional_op
from turret.plugins.joint.storage import Tracked, ViewStep, keep_values
from turret.plugins.joint.tracer import JointTracer
from turret.plugins.joint.views import contiguous, reshape, steps_from_base
from turret.torch_compat.modes import fills_uninitialized_memory

aten = torch.ops.aten


def _copy(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``target.copy_(source)``: the target's value is the source's, in its dtype, on its device."""
    target, source = args[:2]
    if tracer.tracked(target).storage is tracer.tracked(source).storage and refused_by_eager(target, source):
        raise UnsupportedError(f"{func} writes to memory that another of its arguments shares in part")
    if any(map(free_unbacked_symbols, target.shape)) and same_sizes(source.shape, target.shape):
        torch.autograd.graph.increment_version(target)  # some versions of torch ask whether such a size is 1
    else:
        func(*args, **kwargs)
    value = source
    if source.device != target.device:
        with tracer.nested():
            value = aten._to_copy.default(source, device=target.device, dtype=target.dtype)
    tracer.assign(target, value)
    return target


def _batch_norm(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An op that writes to the running statistics, ``native_batch_norm`` without saying so.

    Decompositions are called here and not by way of the dispatcher, which takes the pure variants apart into the op
    that writes.
    """
    x, weight, bias, mean, variance, training, momentum, eps = args
    eager = tracer.eager_result(func, args, kwargs)
    arguments: tuple[Any, ...]
    if not training:
        op, arguments = (
            aten._native_batch_norm_legit_no_training.default,
            (x, weight, bias, mean, variance, momentum, eps),
        )
    elif mean is None:
        op, arguments = aten._native_batch_norm_legit.no_stats, (x, weight, bias, True, momentum, eps)
    else:
        op, arguments = aten._native_batch_norm_legit_functional.default, args
    with tracer.nested():
        results = tracer.table[op](*arguments) if op in tracer.table else NotImplemented
        if results is NotImplemented:
            if mean is not None:
                op, arguments = (
                    functional_op(aten._native_batch_norm_legit.default, _statistics_form(weight, bias)),
                    args,
                )
            results = op(*arguments)
    if not training:
        tracer.adopt(func, tuple(eager), tuple(results[:3]), set())
        return eager
    tracer.adopt(func, eager[0], results[0], set())
    for target, value in zip((mean, variance), results[3:], strict=False):
        tracer.assign(target, value)
    # Fake tensors have the statistics that are saved in the input's dtype; eager keeps those of half inputs in float32.
    return (eager[0], *results[1:3])


def _statistics_form(weight: Any, bias: Any) -> str:
    """The form of a batch norm's call, which writes to the last two of its tensors."""
    return "r" + "".join("n" if parameter is None else "r" for parameter in (weight, bias)) + "w0w1"


def _uninitialized(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``empty`` and its kin; with deterministic algorithms eager fills them."""
    made = tracer.ordinary(func, args, kwargs)
    if tracer.is_outermost and fills_memory():
        with tracer.nested():
            value = aten.full_like.default(made, filler(made.dtype))
        tracer.assign(made, value)
    return made


def fills_memory() -> bool:
    """Whether memory that a program asks for and does not set holds known values."""
    return torch.are_deterministic_algorithms_enabled() and fills_uninitialized_memory()


def filler(dtype: torch.dtype) -> bool | int | float:
    """What such memory holds: NaN, the largest integer, True."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def _resize(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``resize_``: a row-major view of the same memory; memory that is added holds zeros (eager: anything, or
    what is filled in with deterministic algorithms)."""
    target, size = args[0], list(args[1])
    tracked = tracer.tracked(target)
    if same_sizes(target.shape, size):
        return target
    count = 1
    for extent in size:
        count = count * extent
    if not all(isinstance(s, int) for s in (*size, *target.shape)) or not target.is_contiguous() or tracked.chain:
        raise UnsupportedError("resize_ of a view, of a tensor that is not contiguous, or to a dynamic size")
    old, before = target.numel(), (list(target.shape), list(target.stride()), 0)
    flat = tracer.apply(reshape, tracer.node(target), [old])
    keep_values(tracer.recorder.graph, target, tracer.alias)
    if tracked.storage.tensor is target:
        whole = tracked.storage.tensor = tracer.alias(target)
        tracer.remember(Tracked(whole, tracer.node(target), tracked.storage, (), tracked.diverged))
    func(*args, **kwargs)
    added = filler(target.dtype) if fills_memory() else 0
    with tracer.nested():
        handle = tracer.handle(flat)
        flat_new = (
            aten.slice.Tensor(handle, 0, 0, count)
            if count <= old
            else aten.constant_pad_nd(handle, [0, count - old], added)
        )
        made = tracer.node(reshape(flat_new, size))
    if count <= old:
        tracked.chain = (ViewStep(aten.as_strided.default, (size, list(target.stride()), 0)),)
    else:
        tracer.enlarge(tracked, made, ViewStep(aten.as_strided.default, before))
    tracer.set_value(tracked, made)
    tracked.layout_changes += 1
    tracked.key = False
    return target


def _resize_as(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``resize_as_``: ``resize_`` to another tensor's sizes, row-major."""
    if kwargs.get("memory_format") not in (None, torch.contiguous_format):
        raise UnsupportedError(f"{func} to a memory format is not supported in a compiled graph")
    return _resize(tracer, aten.resize_.default, (args[0], args[1].shape), {})


def _view_copy(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``view_copy``: row-major; it takes strides that ``view`` refuses."""
    with tracer.nested():
        return contiguous(reshape(args[0], args[1]))


def _as_strided_scatter(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``as_strided_scatter``: eager copies all of the tensor's memory, and writes to a place in that."""
    given = bound_arguments(func, args, kwargs)
    x, offset = given["self"], given["storage_offset"]
    tracked = tracer.tracked(x)
    if not tracked.chain and not tracked.diverged:
        return tracer.call(func, args, kwargs)
    eager = tracer.eager_result(func, args, kwargs)
    memory = ViewStep(aten.as_strided.default, (list(x.shape), list(x.stride()), x.storage_offset()))
    *before, shown = steps_from_base((*tracked.chain, memory), tracked.storage)
    start = shown.args[2] - x.storage_offset()
    with tracer.nested():
        flat = tracer.handle(tracer.through(tracked.storage, before))
        place = (x.storage_offset() if offset is None else offset) + start
        written = aten.as_strided_scatter.default(flat, given["src"], given["size"], given["stride"], place)
        tracer.adopt(func, eager, aten.clone.default(shown.op(written, *shown.args)), set())
    return eager


def _set(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``target.set_(source)``: the target leaves its memory and becomes an alias of the source."""
    target, source = args
    tracked, given = tracer.tracked(target), tracer.tracked(source)
    node = tracer.node(source)
    keep_values(tracer.recorder.graph, target, tracer.alias)
    func(*args, **kwargs)
    tracked.storage, tracked.chain, tracked.diverged = given.storage, given.chain, given.diverged
    tracked.node, tracked.version = node, given.version
    tracked.replaced, tracked.key = True, False
    return target


def _no_set(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    raise UnsupportedError(f"{func} is not supported in a compiled graph")


def _item(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``item()``: of a bool as of the int that it is, since numbers of a graph are ints and floats."""
    if args[0].dtype is not torch.bool:
        return tracer.call(func, args, kwargs)
    with tracer.nested():
        number = func(aten._to_copy.default(args[0], dtype=torch.int64))
    return number == 1


def _assert_scalar(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """A condition on numbers, or one that was known when the program was captured."""
    tracer.numbers.assume(*args)


def _live(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """What a backward of the user's is about to use; one inside the forward reads and writes as the forward does."""
    if tracer.late_memory is not None:
        tracer.late_memory.take(*args)


def _skip(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Checks that hold by construction in a graph of known dtypes and devices."""


SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.copy_.default: _copy,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm,
    aten.resize_.default: _resize,
    aten.view_copy.default: _view_copy,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.set_.source_Tensor: _set,
    aten.set_.default: _no_set,
    aten.set_.source_Storage: _no_set,
    aten.set_.source_Storage_storage_offset: _no_set,
    aten.set_.source_Tensor_storage_offset: _no_set,
    aten.resize_as_.default: _resize_as,
    aten._assert_tensor_metadata.default: _skip,
    aten._assert_scalar.default: _assert_scalar,
    torch.ops.turret.live.default: _live,
    aten._local_scalar_dense.default: _item,
    aten.empty.memory_format: _uninitialized,
    aten.empty_strided.default: _uninitialized,
    aten.empty_permuted.default: _uninitialized,
    aten.empty_like.default: _uninitialized,
    aten.new_empty.default: _uninitialized,
    aten.new_empty_strided.default: _uninitialized,
}
