"""What fake tensors of some supported versions of torch get wrong, put right in one place.

Each entry says what it corrects and up to which version; it may go when that version is no longer supported.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs
import torch
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
    guard_or_false,
    guard_or_true,
)

from turret.graph.fakes.dtype_views import fake_view, is_view_of_another_dtype
from turret.graph.fakes.layouts import asks_for_layout, in_eagers_layout, tensors_in
from turret.graph.fakes.overlap import CHANGE_LAYOUTS, memory_refusal
from turret.graph.fakes.patterns import PatternMemo
from turret.graph.fakes.sizes import is_backed, same_size, same_sizes
from turret.graph.op_traits import is_random_op
from turret.graph.wrapper_tensors import is_wrapper
from turret.hooks.devices import uses_host_kernels
from turret.storage.fork_safety import compiling
from turret.torch_compat.autograd import forward_ad_level
from turret.torch_compat.dispatch import enable_python_dispatcher
from turret.torch_compat.fakes import FakeTensor, FakeTensorMode, NestedIntNode, Source
from turret.torch_compat.logs import FAKE_TENSOR_LOGGER
from turret.torch_compat.operators.checks import require
from turret.torch_compat.operators.layouts import suggest_memory_format
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, fake_functions_of_operators

aten = torch.ops.aten
Arguments = tuple[Any, ...]
Run = Callable[[Arguments, Mapping[str, Any]], Any]


def corrected(func: Any, run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """What ``func`` gives on fake tensors, where ``run(args, kwargs)`` is torch's own answer."""
    correction = _CORRECTIONS.get(func)
    return run(args, kwargs) if correction is None else correction(run, args, kwargs)


class CorrectedFakeTensorMode(FakeTensorMode):
    """A fake tensor mode whose ops give ``corrected`` results, asked for once a pattern of sizes (``patterns``).

    ``draws_on``: devices of what ops gave that draw random numbers, or may.  ``asked_generators``: whether there were
    such ops, or some that set what is drawn next.
    """

    supports_higher_order_operators = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.patterns = PatternMemo(self)
        self.draws_on: set[torch.device] = set()
        self.asked_generators = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nobody captures frames while ops run on fakes; the wrapper that keeps dynamo out costs 10 us an op."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[object] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        ask = functools.partial(super().__torch_dispatch__, func, types, args, named)
        if _is_higher_order(func):  # which has neither tags nor a schema
            return ask()
        if (refusal := memory_refusal(func, args, named)) is not None:
            raise RuntimeError(f"{refusal}, which eager refuses")
        out = self.patterns.run(func, args, named, ask) if self.cache_enabled else ask()
        if is_random_op(func):
            self.asked_generators = True
            self.draws_on.update(value.device for value in tensors_in(out))
        return out

    def dispatch(
        self, func: Any, types: Any, args: Sequence[object] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        run = super().dispatch
        if _is_higher_order(func):
            if types or func in fake_functions_of_operators():
                return run(func, types, args, kwargs)
            handler = func.python_key_table.get(FakeTensorMode)  # which torch looks up by the very class of a mode
            return NotImplemented if handler is None else handler(self, *args, **kwargs)
        if any(map(is_wrapper, types)):
            return run(func, types, args, kwargs)
        shape = args[0].shape if _writes_to_its_first(func) else None  # type: ignore[attr-defined]
        out = corrected(func, lambda given, named: run(func, types, given, named), tuple(args), kwargs)
        if shape is not None and not same_sizes(shape, args[0].shape):  # type: ignore[attr-defined]
            made = tuple(args[0].shape)  # type: ignore[attr-defined]
            raise RuntimeError(f"{func} of a tensor of shape {tuple(shape)} would give one of shape {made}")
        if not asks_for_layout(func):
            return out
        with self:
            return in_eagers_layout(func, args, kwargs, out)

    def _cached_dispatch_impl(self, func: Any, types: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        """A view out of torch's cache of fakes asks whether it is contiguous, which the call itself does not where that
        depends on data."""
        try:
            return super()._cached_dispatch_impl(func, types, args, kwargs)
        except GuardOnDataDependentSymNode:
            if not (isinstance(func, OpOverload) and func.is_view):
                raise
        return self._dispatch_impl(func, types, args, kwargs)

    def from_tensor(
        self,
        tensor: torch.Tensor,
        *,
        static_shapes: bool | None = None,
        source: Source | None = None,
        symbolic_context: Any = None,
        trace: bool = True,
    ) -> Any:
        """The fake twin of a tensor; of views of another dtype our own."""
        options: dict[str, Any] = {"static_shapes": static_shapes, "source": source, "trace": trace}
        memo = self.fake_tensor_converter
        if not is_view_of_another_dtype(tensor) or memo._get_memo(tensor) is not None:
            return super().from_tensor(tensor, symbolic_context=symbolic_context, **options)
        env = None if static_shapes or self.static_shapes or source is None else self.shape_env
        layout: Any = (tensor.shape, tensor.stride(), tensor.storage_offset())
        if env is not None:
            assert source is not None
            layout = env.create_symbolic_sizes_strides_storage_offset(tensor, source, symbolic_context=symbolic_context)
            options["source"] = _BaseOf(source)
        made = fake_view(tensor, self.from_tensor(tensor._base, **options), layout, env)  # type: ignore[arg-type]
        memo.set_tensor_memo(tensor, made)
        return made

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """A new ragged size of nested tensors, which only equals itself.  Torch's own imports ``torch._dynamo``.

        ``nt_tensor_id``: the number of one that is known outside.
        """
        if nt_tensor_id is None:
            nt_tensor_id = _OF_TRACES + self.nt_tensor_id_counter
            self.nt_tensor_id_counter += 1
        number = torch.SymInt(NestedIntNode(nt_tensor_id, 1))
        env = self.shape_env
        if env is None:
            return number
        source = _RaggedSize()
        return env.create_symintnode(env.create_symbol(number, source), hint=number, source=source)


def _is_higher_order(func: Any) -> bool:
    return isinstance(func, HigherOrderOperator)


@functools.cache
def _writes_to_its_first(func: Any) -> bool:
    """Whether an op writes to the elements of the tensor that it is given first, whose shape stays as it is."""
    arguments = func._schema.arguments
    is_written = bool(arguments) and arguments[0].is_write and str(arguments[0].type) == "Tensor"
    return is_written and func.namespace == "aten" and func not in CHANGE_LAYOUTS


class _NotOfTraces(logging.Filter):
    """Keeps torch from saying that an operation failed on fake tensors while Turret compiles: where the program fails,
    too, the user sees that alone; where it does not, Turret says what became of it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not compiling.is_here() or not record.getMessage().startswith("failed while attempting to run meta")


FAKE_TENSOR_LOGGER.addFilter(_NotOfTraces())

_OF_TRACES = 1 << 40
"""The first number of ragged sizes that traces make: no program makes as many nested tensors."""


@attrs.frozen
class _BaseOf(Source):
    """Says of a size that it is one of what a tensor is a view of."""

    view: Source

    @property
    def name(self) -> str:
        return f"{self.view.name}._base"


class _RaggedSize(Source):
    """Says of a ragged size that it is no size of an input."""

    @property
    def name(self) -> str:
        return "ragged"


def _counts(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """``unique``: the inverse and the counts are int64; up to torch 2.11 they have the dtype of the values."""
    values, *counts = run(args, kwargs)
    return (values, *(c if c.dtype == torch.int64 else torch.empty_like(c, dtype=torch.int64) for c in counts))


def _statistics(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Norms by the CPU's kernels, wherever: mean and rstd have the dtype of the parameters, if that is another.

    Some versions say the input's, and of devices other than the CPU all say float32.
    """
    result, *statistics = run(args, kwargs)
    x = args[0]
    if not uses_host_kernels(x.device):
        return (result, *statistics)
    others = [p.dtype for p in (*args, *kwargs.values()) if isinstance(p, torch.Tensor) and p.dtype != x.dtype]
    dtype = others[0] if others else x.dtype
    return (result, *(s if s.dtype == dtype else torch.empty_like(s, dtype=dtype) for s in statistics))


def _layer_norm(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """``layer_norm``: weight and bias have the normalized shape; up to torch 2.11 any that broadcast will do."""
    shape, parameters = list(args[1]), args[2:4]
    for parameter in parameters:
        if parameter is not None and list(parameter.shape) != shape:
            raise RuntimeError(f"layer_norm over {shape} takes parameters of that shape, not {list(parameter.shape)}")
    return _statistics(run, args, kwargs)


def _loss_backward(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Gradients of losses: of no elements there is no mean to divide by, and no version of torch looks at that."""
    x, reduction = args[1], args[3]
    return run(
        (*args[:3], _SUM if reduction == _MEAN and not guard_or_true(x.numel() != 0) else reduction, *args[4:]), kwargs
    )


def _margin_loss(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Losses by margins of one sample are numbers; no version of torch's fakes says so where they are not reduced."""
    made, dims = run(args, kwargs), args[1].dim()
    if isinstance(made, torch.Tensor):
        return made.new_empty(()) if dims == 0 else made
    loss, is_target = made
    return (loss.new_empty(()) if dims <= 1 else loss, is_target)


def _elementwise_gradient(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """A gradient that is elementwise of two tensors, which torch's fakes know for constant sizes alone."""
    symbolic = any(t._has_symbolic_sizes_strides for t in args[:2])
    return args[0] * args[1] if symbolic else run(args, kwargs)


def _gradient_of_scores(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """The gradient of a loss by margins, which torch's fakes run for constant sizes and lack for others."""
    scores = args[1]
    return scores.new_empty(scores.shape) if scores._has_symbolic_sizes_strides else run(args, kwargs)


def _may_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are equal, guarded; sizes that depend on data may be."""
    return len(one) == len(other) and all(guard_or_true(a == b) for a, b in zip(one, other, strict=True))


def _added_to(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """A product that is added in place has the shape of what it is added to, which torch's fakes broadcast."""
    to, left, right = args[:3]
    shape = (*left.shape[:-1], *right.shape[1:]) if left.dim() > 1 else (*left.shape, *right.shape)
    if not _may_equal(to.shape, shape):
        raise RuntimeError(f"a product of shape {shape} is added in place to a tensor of shape {tuple(to.shape)}")
    return run(args, kwargs)


def _added_product(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """A product takes on what is expanded to its shape; torch's fakes broadcast both, so that the result would grow."""
    to, left, right = args[:3]
    shape = (left.shape[0], *right.shape[1:])
    fits = to.dim() <= len(shape) and all(
        guard_or_true(size == wanted) or guard_or_false(size == 1)
        for size, wanted in zip(reversed(to.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise RuntimeError(f"a tensor of shape {tuple(to.shape)} does not expand to {shape}, that of the product")
    return run(args, kwargs)


def _written_elementwise(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """What is computed in place must fit the tensor's dtype in kind, which torch's fakes do not ask of all."""
    to = args[0]
    dtype = functools.reduce(torch.promote_types, (torch.result_type(to, v) for v in args[1:]), to.dtype)
    if not torch.can_cast(dtype, to.dtype):
        raise RuntimeError(f"a result of {dtype} cannot be cast to {to.dtype}, which it is written to")
    return run(args, kwargs)


def _of_one_shape(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """The gradient of a softmax is elementwise of two tensors of one shape, which torch's fakes broadcast."""
    if not _may_equal(args[0].shape, args[1].shape):
        raise RuntimeError(f"a gradient of shape {tuple(args[0].shape)} for a result of shape {tuple(args[1].shape)}")
    return run(args, kwargs)


def _loss_of_images(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """``nll_loss2d_forward``: each place has a class, which torch's fakes do not ask for."""
    scores, classes = args[:2]
    if scores.dim() == 4 and classes.dim() == 3:
        places = (scores.shape[0], *scores.shape[2:])
        if not _may_equal(places, classes.shape):
            raise RuntimeError(f"a class for each of {places} places is asked for, not {tuple(classes.shape)}")
    return run(args, kwargs)


def _squeeze_in_place(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """``squeeze_`` of symbolic sizes, on which torch's kernel for the CPU crashes and its code in Python does not."""
    with enable_python_dispatcher():
        return run(args, kwargs)


def _index(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """``index``: numbers among the index tensors are broadcast to the others, which torch leaves out on the CPU."""
    source, indices = args
    numbers = [i for i in indices if i is not None and i.dim() == 0 and i.dtype not in _MASKS]
    if not numbers or all(i is None or i.dim() == 0 for i in indices):
        return run(args, kwargs)
    whole = [i.unsqueeze(0) if any(i is number for number in numbers) else i for i in indices]
    return run((source, whole), kwargs)


def _index_put(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """``index_put``: index tensors are of the dtypes that ``index`` takes; no version of torch looks at them."""
    if any(index is not None and index.dtype not in _INDEX_DTYPES for index in args[1]):
        raise IndexError(f"index_put takes index tensors of {', '.join(map(str, _INDEX_DTYPES))}")
    return run(args, kwargs)


_MASKS = (torch.uint8, torch.bool)
_INDEX_DTYPES = (torch.int64, torch.int32, *_MASKS)


def _of_parts(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """``complex`` and ``polar``: two tensors of one dtype; no version of torch asks for that."""
    dtypes = [v.dtype for v in (*args, *kwargs.values())]
    if len(set(dtypes)) > 1:
        raise RuntimeError(f"a complex tensor is made of two of one dtype, not of {' and '.join(map(str, dtypes))}")
    return run(args, kwargs)


def _select(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """``select``: the index lies in the dimension; up to torch 2.11 any number will do."""
    made, (x, dim, index) = run(args, kwargs), args
    size = x.shape[dim]
    if not (guard_or_true(-size <= index) and guard_or_true(index < size)):
        raise IndexError(f"select: index {index} is out of range for dimension {dim} of size {size}")
    return made


def _scattered(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``select_scatter`` and its like: a copy, of which no elements overlap; up to torch 2.11 they have as before.

    Of sizes that depend on data torch assumes that they are not zero.
    """
    source: torch.Tensor = args[0]
    made = run(args, kwargs) if is_backed(source) else source.new_empty_strided(source.shape, source.stride())
    overlaps = any(stride == 0 and size != 1 for size, stride in zip(made.shape, made.stride(), strict=True))
    return torch.empty_like(args[0]) if overlaps else made


def _like(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``zeros_like`` and its kin: strides of dimensions of size 1 are kept, too; no version of torch keeps them."""
    made: torch.Tensor = run(args, kwargs)
    source = args[0]
    kept = (
        kwargs.get("memory_format") in (None, torch.preserve_format) and made.layout is source.layout is torch.strided
    )
    if not kept or not _differs_in_ones(made, source):
        return made
    return made.new_empty_strided(made.shape, source.stride())


def _differs_in_ones(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the strides of two tensors of one shape are written the same but where the size is 1."""
    sizes = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(same_size(a, b) or (type(size) is int and size == 1) for size, a, b in sizes)


def _power(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Powers of and by a number that is a symbol: up to torch 2.11 they ask whether it is 1, 2 or one half.

    The result of any other number of its kind has the same layout.
    """
    return run(tuple(_OF_SYMBOLS.get(type(a), a) for a in args), kwargs)


def _grouped_mm(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``_grouped_mm``: kernels take every floating dtype, and rows of the result begin at multiples of 16 bytes.

    Fakes up to torch 2.13 know bfloat16 alone, and such rows only where torch was built for CUDA.
    """
    left, right = args[:2]
    dtype = left.dtype
    if right.dtype != dtype or dtype not in (torch.bfloat16, torch.float16, torch.float32):
        unknown: torch.Tensor = run(args, kwargs)
        return unknown
    if dtype.itemsize == 2:  # what it demands is a matter of bytes
        as_bfloat16 = tuple(torch.empty_like(v, dtype=torch.bfloat16) for v in (left, right))
        shape = run((*as_bfloat16, *args[2:]), {**kwargs, "out_dtype": None}).shape
    else:
        offs = args[2] if len(args) > 2 else kwargs.get("offs")
        shape = _grouped_shape(left.shape, right.shape, offs)
    *outer, columns = shape
    step = 16 // dtype.itemsize
    padded = (columns + step - 1) // step * step
    strides = (*([outer[1] * padded] if len(outer) > 1 else []), padded, 1)
    made: torch.Tensor = left.new_empty_strided(shape, strides)
    return made


def _grouped_shape(left: Sequence[Any], right: Sequence[Any], offs: torch.Tensor | None) -> tuple[Any, ...]:
    """Two matrices and groups along their depth, or one and several of the other side, or several on both."""
    if len(left) == len(right) == 2:
        assert offs is not None
        return offs.shape[0], left[0], right[1]
    if len(left) == len(right):
        return left[0], left[1], right[2]
    return left[-2], right[-1]


def _vector_norm(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``linalg_vector_norm``: a new row-major result, also where it goes over dimensions of size 1 alone.

    Up to torch 2.11 those stay.
    """
    made: torch.Tensor = run(args, kwargs)
    given = dict(zip(("x", "ord", "dim", "keepdim"), args, strict=False)) | dict(kwargs)
    x, dims = args[0], given.get("dim")
    reduced = {d % max(x.dim(), 1) for d in dims} if dims else set(range(x.dim()))
    left = [size for d, size in enumerate(x.shape) if d not in reduced]
    return made.new_empty(made.shape if given.get("keepdim") or made.dim() == len(left) else left)


def _expand(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``expand``: a new dimension of size 1 steps over what follows it; no version of torch has eager's stride."""
    made: torch.Tensor = run(args, kwargs)
    source, shape = args[0], made.shape
    new = [dim for dim in range(made.dim() - source.dim()) if type(shape[dim]) is int and shape[dim] == 1]
    if not new or type(made) is not FakeTensor or made.layout is not torch.strided:
        return made
    strides = list(made.stride())
    for dim in reversed(new):
        strides[dim] = shape[dim + 1] * strides[dim + 1] if source.dim() else 0
    return made.as_strided(shape, strides, made.storage_offset())


def _repeat(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``repeat`` where sizes depend on data, of which torch's own asks whether they are 0.

    A negative count is an error: eager raises it, too, unless there is nothing to repeat.
    """
    value: torch.Tensor = args[0]
    repeats: Sequence[Any] = args[1]
    if not any(map(free_unbacked_symbols, (*value.shape, *repeats))):
        return cast(torch.Tensor, run(args, kwargs))
    for times in repeats:
        require(times >= 0)
    shape = (*[1] * (len(repeats) - value.dim()), *value.shape)
    made = [extent * times for extent, times in zip(shape, repeats, strict=True)]
    return value.new_empty(made)


def _view(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``view``: a dimension of size 1 steps over what follows it, the last of all as the viewed tensor's last does.

    No version of torch has eager's strides there, nor those of tensors without elements.
    """
    made: torch.Tensor = run(args, kwargs)
    source, shape = args[0], made.shape
    ones = [dim for dim, size in enumerate(shape) if type(size) is int and size == 1]
    empty = any(type(size) is int and size == 0 for size in shape)
    if not (ones or empty) or type(made) is not FakeTensor or made.layout is not torch.strided:
        return made
    if empty:
        return made if len(shape) < 2 else made.as_strided(shape, _viewed_empty(source, shape), made.storage_offset())
    strides = list(made.stride())
    for dim in reversed(ones):
        if dim + 1 < len(shape):
            strides[dim] = shape[dim + 1] * strides[dim + 1]
        else:
            strides[dim] = source.stride(-1) if source.dim() else 1
    return made.as_strided(shape, strides, made.storage_offset())


def _viewed_empty(source: torch.Tensor, shape: Sequence[Any]) -> Sequence[Any]:
    """Strides of a view of a tensor without elements: as they were, or row-major with no size below 1."""
    if len(shape) == source.dim() and all(guard_or_false(a == b) for a, b in zip(shape, source.shape, strict=True)):
        return source.stride()
    strides: list[Any] = [1]
    for size in reversed(shape[1:]):
        strides.append(torch.sym_max(size, 1) * strides[-1])
    return strides[::-1]


_OF_SYMBOLS = {torch.SymFloat: 1.25, torch.SymInt: 3}

_LIKE = (
    aten.empty_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
)

_MEAN, _SUM = 1, 2
"""ATen's numbers for ``reduction="mean"`` and ``"sum"``."""


def _resized(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """``resize`` and ``resize_as`` keep the strides of what keeps its size, where no layout is asked for.

    Torch (2.11 and 2.13) says that ``resize_as`` gives what is contiguous, and refuses to resize a tensor whose sizes
    are symbols to constant ones.
    """
    value, wanted = args[:2]
    sizes = wanted.shape if isinstance(wanted, torch.Tensor) else wanted
    layout = kwargs.get("memory_format")
    if layout is torch.preserve_format and isinstance(wanted, torch.Tensor):
        layout = suggest_memory_format(wanted)
    if layout is None and len(sizes) == value.dim() and all(n == m for n, m in zip(value.shape, sizes, strict=True)):
        return cast(torch.Tensor, value.clone())
    made = value.new_empty(sizes)  # a fake one: no mode is entered here
    return made if layout in (None, torch.contiguous_format) else torch.empty_like(made, memory_format=layout)


def _zeros(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Zeros with memory: torch (2.11 and 2.13) takes views of those without below fakes, and they come back as tensors
    of the meta device.  Autograd has the gradient of a sign so; forward mode looks for them among its tangents."""
    made: torch.Tensor = run(args, kwargs)
    return made if forward_ad_level() >= 0 else made.new_empty(made.shape)


def _efficient_attention_backward(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Torch's own takes no ``out``, so that each argument behind it is taken for the next one (at least up to 2.13)."""
    query, key, value, bias = args[1:5]
    if kwargs.get("shared_storage_dqdkdv"):
        of_all = query.new_empty((*query.shape[:-2], 3, *query.shape[-2:]))
        gradients = [of_all.select(-3, n) for n in range(3)]
    else:
        gradients = [x.new_empty(x.shape) for x in (query, key, value)]
    if bias is None or not args[15]:
        return (*gradients, query.new_empty(()))
    columns = bias.shape[-1]  # rows are written in whole pieces of 16
    return (*gradients, bias.new_empty((*bias.shape[:-1], (columns + 15) // 16 * 16)).narrow(-1, 0, columns))


_CORRECTIONS: dict[Any, Callable[[Run, Arguments, Mapping[str, Any]], Any]] = dict.fromkeys(_LIKE, _like) | {
    aten._efficient_attention_backward.default: _efficient_attention_backward,
    aten._efficientzerotensor.default: _zeros,
    aten.expand.default: _expand,
    aten.repeat.default: _repeat,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.linalg_vector_norm.default: _vector_norm,
    aten._unique2.default: _counts,
    aten.unique_dim.default: _counts,
    aten.unique_consecutive.default: _counts,
    aten.mse_loss_backward.default: _loss_backward,
    aten.smooth_l1_loss_backward.default: _loss_backward,
    aten.huber_loss_backward.default: _loss_backward,
    aten._softmax_backward_data.default: _of_one_shape,
    aten._log_softmax_backward_data.default: _of_one_shape,
    aten.nll_loss2d_forward.default: _loss_of_images,
    aten.resize.default: _resized,
    aten.resize_as.default: _resized,
    aten.squeeze_.default: _squeeze_in_place,
    aten.squeeze_.dim: _squeeze_in_place,
    aten.squeeze_.dims: _squeeze_in_place,
    aten.addmm.default: _added_product,
    aten.addmv.default: _added_product,
    aten.addmm_.default: _added_to,
    aten.addmv_.default: _added_to,
    aten.addr_.default: _added_to,
    aten.add_.Tensor: _written_elementwise,
    aten.sub_.Tensor: _written_elementwise,
    aten.mul_.Tensor: _written_elementwise,
    aten.addcmul_.default: _written_elementwise,
    aten.addcdiv_.default: _written_elementwise,
    aten.multi_margin_loss.default: _margin_loss,
    aten.multilabel_margin_loss_forward.default: _margin_loss,
    aten.multi_margin_loss_backward.default: _gradient_of_scores,
    aten.multilabel_margin_loss_backward.default: _gradient_of_scores,
    aten.hardshrink_backward.default: _elementwise_gradient,
    aten.softshrink_backward.default: _elementwise_gradient,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _statistics,
    aten._grouped_mm.default: _grouped_mm,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten.complex.default: _of_parts,
    aten.polar.default: _of_parts,
    aten.select.int: _select,
    aten.select_scatter.default: _scattered,
    aten.slice_scatter.default: _scattered,
    aten.diagonal_scatter.default: _scattered,
    aten.pow.Scalar: _power,
    aten.pow.Tensor_Scalar: _power,
}
