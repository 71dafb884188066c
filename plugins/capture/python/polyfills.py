"""Builtins written in Python, for the interpreter to follow: it captures these in place of the C functions."""

from __future__ import annotations

import functools
import heapq
import math
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from turret.torch_compat.programs.functions import assert_async, safe_softmax


def iterate_by_index(value: Any) -> Iterator[Any]:
    number = 0
    while True:
        try:
            item = value[number]
        except IndexError:
            return
        yield item
        number += 1


def iterate_until(function: Callable[[], Any], end: Any) -> Iterator[Any]:
    while (item := function()) != end:
        yield item


def any_(items: Iterable[Any]) -> bool:
    for item in items:  # noqa: SIM110
        if item:
            return True
    return False


def all_(items: Iterable[Any]) -> bool:
    for item in items:  # noqa: SIM110
        if not item:
            return False
    return True


def sum_(items: Iterable[Any], start: Any = 0) -> Any:
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    if isinstance(start, bytes):
        raise TypeError("sum() can't sum bytes [use b''.join(seq) instead]")
    if isinstance(start, bytearray):
        raise TypeError("sum() can't sum bytearray [use b''.join(seq) instead]")
    if type(start) not in (int, float):
        for item in items:
            start = start + item
        return start
    numbers, items = [start], iter(items)
    for item in items:
        if type(item) not in (int, float, bool):
            start = total(*numbers) + item
            for item in items:
                start = start + item
            return start
        numbers.append(item)
    return total(*numbers)


def total(*numbers: Any) -> Any:
    """The sum of plain numbers, which Python makes in one go: from 3.12 on it makes up for roundings."""
    return sum(numbers[1:], numbers[0])


def reduce(function: Callable[[Any, Any], Any], items: Iterable[Any], *initial: Any) -> Any:
    try:
        iterator = iter(items)
    except TypeError:
        raise TypeError("reduce() arg 2 must support iteration") from None
    if initial:
        result = initial[0]
    else:
        try:
            result = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    for item in iterator:
        result = function(result, item)
    return result


_NOTHING: Any = object()


def extreme(name: str, better: Callable[[Any, Any], bool], args: tuple, key: Any, default: Any, nothing: Any) -> Any:
    if not args:
        raise TypeError(f"{name} expected at least 1 argument, got 0")
    if len(args) > 1 and default is not nothing:
        raise TypeError(f"Cannot specify a default for {name}() with multiple positional arguments")
    items = iter(args[0]) if len(args) == 1 else iter(args)
    best = next(items, nothing)
    if best is nothing:
        if default is nothing:
            raise ValueError(f"{name}() arg is an empty sequence")
        return default
    best_key = best if key is None else key(best)
    for item in items:
        item_key = item if key is None else key(item)
        if better(item_key, best_key):
            best, best_key = item, item_key
    return best


def min_(*args: Any, key: Any = None, default: Any = _NOTHING) -> Any:
    return extreme("min", lambda a, b: a < b, args, key, default, _NOTHING)


def max_(*args: Any, key: Any = None, default: Any = _NOTHING) -> Any:
    return extreme("max", lambda a, b: a > b, args, key, default, _NOTHING)


def count_elements(counts: Any, items: Iterable[Any]) -> None:
    for item in items:
        counts[item] = counts.get(item, 0) + 1


def heapify(heap: list) -> None:
    for position in reversed(range(len(heap) // 2)):
        heapq._siftup(heap, position)  # type: ignore[attr-defined]


def heappush(heap: list, item: Any) -> None:
    heap.append(item)
    heapq._siftdown(heap, 0, len(heap) - 1)  # type: ignore[attr-defined]


def heappop(heap: list) -> Any:
    return _popped(heap, heapreplace)


def heapreplace(heap: list, item: Any) -> Any:
    return _replaced(heap, item, heapq._siftup)  # type: ignore[attr-defined]


def _popped(heap: list, replace: Callable) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    return replace(heap, last) if heap else last


def _replaced(heap: list, item: Any, sift_up: Callable) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first, heap[0] = heap[0], item
    sift_up(heap, 0)
    return first


def heappushpop(heap: list, item: Any) -> Any:
    return heapreplace(heap, item) if heap and heap[0] < item else item


def heapify_max(heap: list) -> None:
    for position in reversed(range(len(heap) // 2)):
        heapq._siftup_max(heap, position)  # type: ignore[attr-defined]


def heappop_max(heap: list) -> Any:
    return _popped(heap, heapreplace_max)


def heapreplace_max(heap: list, item: Any) -> Any:
    return _replaced(heap, item, heapq._siftup_max)  # type: ignore[attr-defined]


def bisect_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> int:
    lo, hi = bounds_of_search(a, lo, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        if item < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


def bisect_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> int:
    lo, hi = bounds_of_search(a, lo, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        if x < item:
            hi = middle
        else:
            lo = middle + 1
    return lo


def bounds_of_search(a: Any, lo: Any, hi: Any) -> tuple[int, int]:
    lo = operator.index(lo)
    if lo < 0:
        raise ValueError("lo must be non-negative")
    return lo, len(a) if hi is None else operator.index(hi)


def insort_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


def insort_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


def prod(iterable: Iterable[Any], /, *, start: Any = 1) -> Any:
    for item in iterable:
        start = start * item
    return start


def delitem(a: Any, b: Any, /) -> None:
    del a[b]


def call(obj: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return obj(*args, **kwargs)


def count_of(a: Iterable[Any], b: Any, /) -> int:
    count = 0
    for item in iterated(a):
        if item is b or item == b:
            count += 1
    return count


def index_of(a: Iterable[Any], b: Any, /) -> int:
    for number, item in enumerate(iterated(a)):
        if item is b or item == b:
            return number
    raise ValueError("sequence.index(x): x not in sequence")


def iterated(a: Any) -> Iterator[Any]:
    try:
        return iter(a)
    except TypeError:
        raise TypeError(f"argument of type {type(a).__name__!r} is not iterable") from None


class ComparedBy:
    """What ``functools.cmp_to_key`` makes of an object: it compares as a function of two objects says."""

    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) == 0

    def __le__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) >= 0


def cmp_to_key(mycmp: Callable[[Any, Any], Any]) -> Callable[[Any], ComparedBy]:
    def key(obj: Any) -> ComparedBy:
        return ComparedBy(mycmp, obj)

    return key


def attrgetter(*names: str) -> Callable[[Any], Any]:
    for name in names:
        if not isinstance(name, str):
            raise TypeError("attribute name must be a string")

    def get(value: Any) -> Any:
        found = []
        for name in names:
            item = value
            for part in name.split("."):
                item = getattr(item, part)
            found.append(item)
        return found[0] if len(found) == 1 else tuple(found)

    return get


def itemgetter(*keys: Any) -> Callable[[Any], Any]:
    def get(value: Any) -> Any:
        return value[keys[0]] if len(keys) == 1 else tuple([value[k] for k in keys])

    return get


def methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    if not isinstance(name, str):
        raise TypeError("method name must be a string")

    def call(value: Any) -> Any:
        return getattr(value, name)(*args, **kwargs)

    return call


class FunctionContext:
    """The ``ctx`` of an autograd function."""

    def __init__(self, needs_input_grad: tuple) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple = ()
        self.dirty: tuple = ()
        self.not_differentiable: tuple = ()
        self.materialize_grads = True
        self._materialize_non_diff_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    @property
    def saved_variables(self) -> tuple:
        return self.saved_tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.not_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


def call_graph_module(wrapped: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
    """The call of an ``fx.GraphModule``: that of its class where it has one of its own, else that of any module."""
    if wrapped.cls_call is not None:
        return wrapped.cls_call(module, *args, **kwargs)
    return super(wrapped.cls, module).__call__(*args, **kwargs)


def batch_norm_of_momentum(
    input: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    """Batch norm in training by a momentum that is no constant: the statistics of the batch alone are those of 1."""
    of_batch, spread = torch.zeros_like(mean), torch.zeros_like(variance)
    result = torch.nn.functional.batch_norm(input, of_batch, spread, weight, bias, True, 1.0, eps)
    with torch.no_grad():
        mean.mul_(1.0 - momentum).add_(of_batch * momentum)
        variance.mul_(1.0 - momentum).add_(spread * momentum)
    return result


def call_without_gradients(function: Any, *args: Any) -> Any:
    """A call that autograd records nothing of."""
    with torch.no_grad():
        return function(*args)


class Quiet:
    """``DisableTorchFunctionSubclass`` and ``DisableTorchFunction``: fewer answer for torch's functions."""

    def __init__(self, level: int) -> None:
        self.level = level

    def __enter__(self) -> None:
        self.before = set_level(self.level, False)

    def __exit__(self, *exception: Any) -> None:
        set_level(self.before, True)


def set_level(level: int, force: bool) -> int:
    """Stands for a change of what the capture knows; no code that runs calls it."""
    raise AssertionError("a change of who is asked for answers, outside of a capture")


def attention_of_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    mask_mod: Callable[..., torch.Tensor],
    scale: float,
    score_buffers: tuple = (),
    mask_buffers: tuple = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``flex_attention``: ``query`` of shape (batch, heads, length, width), ``key`` and ``value`` with as many heads or
    fewer (each serves several of ``query``), and with as many batches or one."""
    device = query.device
    if torch.is_autocast_enabled(device.type):
        lower = torch.get_autocast_dtype(device.type)
        query, key, value = query.to(lower), key.to(lower), value.to(lower)
    with torch.autocast(device.type, enabled=False):
        groups = query.size(1) // key.size(1)
        if query.size(0) != key.size(0) and key.size(0) != 1:
            raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={query.size(0)} and Bkv={key.size(0)}")
        key, value = (x.repeat_interleave(groups, dim=1).expand(query.size(0), -1, -1, -1) for x in (key, value))
        precise = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = (query.to(precise) @ key.to(precise).transpose(-2, -1)) * scale
        places = [torch.arange(size, device=device) for size in scores.shape]
        allowed = _over_places(mask_mod, (), mask_buffers)(*places, *mask_buffers)
        changed = _over_places(score_mod, (0,), score_buffers)(scores, *places, *score_buffers)
        scores = torch.where(allowed, changed.to(precise), -math.inf)
        nothing = torch.all(scores == -math.inf, dim=-1)
        sums = torch.where(nothing, -math.inf, scores.logsumexp(dim=-1))
        most = torch.max(scores, dim=-1)[0]
        found = safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    order = [*sorted(range(3), key=query.stride().__getitem__, reverse=True), 3]
    found = found.permute(order).contiguous().permute([order.index(n) for n in range(4)])
    return found, sums / math.log(2), most / math.log(2)


def _over_places(function: Callable[..., Any], scores: tuple, buffers: tuple) -> Callable[..., Any]:
    """A function of one score's batch, head, row and column, over all of them; ``scores``: ``(0,)`` where it takes the
    score, too."""
    for number in (3, 2, 1, 0):
        dims = (*scores, *(0 if n == number else None for n in range(4)), *(None for _ in buffers))
        function = torch.vmap(function, in_dims=dims)
    return function


def inverse_stft(
    spectrum: torch.Tensor,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: torch.Tensor | None,
    center: bool,
    normalized: bool,
    onesided: bool | None,
    length: int | None,
    return_complex: bool,
) -> torch.Tensor:
    """``torch.istft``: ``spectrum`` of shape (channels, frequencies, frames), or without channels; lengths in samples.

    ``RuntimeError`` where windows leave samples that nothing is known of; what else eager refuses, ``ValueError``, so
    that the call is left to it.
    """
    hop, width = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    sided = onesided is not False
    if not _is_stft(spectrum, n_fft, sided and not return_complex) or (return_complex and sided):
        raise ValueError("arguments of torch.istft")
    window = _padded_window(spectrum, window, hop, width, n_fft)
    frames = (spectrum if spectrum.dim() == 3 else spectrum.unsqueeze(0)).transpose(1, 2)
    norm = "ortho" if normalized else None
    if return_complex:
        parts = torch.fft.ifft(frames, dim=-1, norm=norm)
    else:
        parts = torch.fft.irfft(frames[..., : n_fft // 2 + 1], n=n_fft, dim=-1, norm=norm)
    margin = n_fft // 2 if center else 0
    whole = n_fft + hop * (frames.shape[1] - 1)
    end = whole - margin if length is None else margin + length
    sums = torch.ops.aten.unfold_backward(parts * window, (parts.shape[0], whole), 1, n_fft, hop)[:, margin:end]
    weights = window.square().expand(1, frames.shape[1], n_fft)
    weights = torch.ops.aten.unfold_backward(weights, (1, whole), 1, n_fft, hop)[:, margin:end]
    assert_async(weights.abs().amin() >= 1e-11, "window overlap add min: 1")
    signal = sums / weights
    if end > whole:
        warnings.warn(
            "The length of signal is shorter than the length parameter. Result is being padded with zeros in the tail. "
            "Please check your center and hop_length settings.",
            stacklevel=2,
        )
        signal = torch.nn.functional.pad(signal, (0, end - whole))
    return signal if spectrum.dim() == 3 else signal.squeeze(0)


def _padded_window(
    spectrum: torch.Tensor, window: torch.Tensor | None, hop: int, width: int, n_fft: int
) -> torch.Tensor:
    """The window of ``torch.istft``, of the length of a frame; ones where there is none."""
    if not 0 < hop <= width <= n_fft:
        raise ValueError("arguments of torch.istft")
    if window is None:
        dtype = torch.float64 if spectrum.dtype == torch.complex128 else torch.float32
        window = torch.ones(width, dtype=dtype, device=spectrum.device)
    if window.shape != (width,) or window.device != spectrum.device or window.is_complex():
        raise ValueError("arguments of torch.istft")
    left = (n_fft - width) // 2
    return torch.nn.functional.pad(window, (left, n_fft - width - left))


def _is_stft(spectrum: torch.Tensor, n_fft: int, half: bool) -> bool:
    """Whether a tensor is a spectrogram of frames of that length; ``half``: of real signals, without what repeats."""
    fits = spectrum.is_complex() and spectrum.dim() in (2, 3) and spectrum.numel() > 0
    return fits and spectrum.shape[-2] == (n_fft // 2 + 1 if half else n_fft)


def fill_handle(handle: Any, number: int, hooks_dict: Any, extra_dict: Any) -> None:
    """The attributes of a ``RemovableHandle``."""
    handle.hooks_dict_ref = weakref.ref(hooks_dict)
    handle.id = number
    extra = extra_dict if isinstance(extra_dict, list) else [extra_dict] if isinstance(extra_dict, dict) else []
    handle.extra_dict_ref = tuple(weakref.ref(held) for held in extra)


def dispatching_method(descriptor: Any, object: Any, owner: Any = None) -> Any:
    """``functools.singledispatchmethod.__get__`` as a version has it that remembers methods, which this does not."""
    name = getattr(descriptor.func, "__name__", "singledispatchmethod method")

    def method(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise TypeError(f"{name} requires at least 1 positional argument")
        found = descriptor.dispatcher.dispatch(args[0].__class__)
        return found.__get__(object, owner)(*args, **kwargs)

    method.__isabstractmethod__ = descriptor.__isabstractmethod__  # type: ignore[attr-defined]
    method.register = descriptor.register  # type: ignore[attr-defined]
    return functools.update_wrapper(method, descriptor.func)


def text_of_fields(fields: Iterable[Any], args: Any, kwargs: Any) -> str:
    """``str.format``; ``fields``: the text before each, what leads to its value, its format and its conversion."""
    made = ""
    for before, steps, spec, conversion in fields:
        made += before
        if steps is None:
            continue
        first, further = steps
        value = args[first] if isinstance(first, int) else kwargs[first]
        for is_attribute, key in further:
            value = getattr(value, key) if is_attribute else value[key]
        if conversion is not None:
            value = repr(value) if conversion == "r" else str(value) if conversion == "s" else ascii(value)
        made += format(value, spec)
    return made


def text_of_directives(directives: Iterable[Any], values: Any) -> str:
    """``text % values``; ``directives``: the text before each, and what stands there, of which texts differ."""
    made, number = "", 0
    for before, directive, conversion in directives:
        made += before
        if directive is None:
            continue
        value = values[number]
        number += 1
        if conversion in "sr":
            value = str(value) if conversion == "s" else repr(value)
        made += directive % (value,)
    return made
