"""What Triton's interpreter lacks or does slowly: libdevice, checks on the device, reductions by any function."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    """Change the interpreter of this process."""
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)
    interpreter.ReduceOps.apply_impl = _by_halves(interpreter.ReduceOps.apply_impl)
    interpreter.ScanOps.apply_impl = _step_by_step(interpreter.ScanOps.apply_impl)
    interpreter.InterpreterBuilder.binary_op = _typed_comparisons(interpreter.InterpreterBuilder.binary_op)
    interpreter.InterpreterBuilder.create_atomic_rmw = _atomic_bfloat16(
        interpreter.InterpreterBuilder.create_atomic_rmw
    )
    interpreter.InterpreterBuilder.create_dot = _dot_of_bfloat16(interpreter.InterpreterBuilder.create_dot)
    interpreter.InterpreterBuilder.get_all_ones_value = _all_ones
    interpreter._patch_lang_tensor = _scalars_as_indices(interpreter._patch_lang_tensor)
    interpreter._convert_float = _exact_bfloat16(interpreter._convert_float)
    for name in ("masked_load", "masked_store", "atomic_rmw", "atomic_cas"):
        _check_places(f"create_{name}")
    np.seterr(all="ignore")


class OutOfBounds(Exception):
    """An access outside of the memory of every argument."""


_extents: list[tuple[int, int, int, int]] = []
"""Of each tensor that the running kernel has: its first element, begin and end of its memory, bytes of an element."""


def give_memory(arguments: list[Any]) -> None:
    """Say what the next kernel may access: the storages of its arguments."""
    _extents.clear()
    for tensor in arguments:
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            _extents.append((tensor.data_ptr(), start, start + storage.nbytes(), tensor.element_size()))


def _check_places(name: str) -> None:
    """Make an operation of the interpreter refuse pointers to memory that the kernel was not given."""
    original = getattr(interpreter.InterpreterBuilder, name)

    def checked(self: Any, *arguments: Any, **options: Any) -> Any:
        pointers = arguments[1] if name == "create_atomic_rmw" else arguments[0]
        position = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}.get(name)
        places = np.asarray(pointers.data, dtype=np.uint64)
        active = (
            np.ones_like(places, dtype=bool)
            if position is None
            else np.broadcast_to(arguments[position].data, places.shape)
        )
        inside = np.zeros_like(places, dtype=bool)
        for _, low, high, size in _extents:
            inside |= (places >= low) & (places + np.uint64(size) <= high)
        wrong = places[active & ~inside]
        if wrong.size:
            raise OutOfBounds(_describe(int(wrong.flat[0])))
        return original(self, *arguments, **options)

    setattr(interpreter.InterpreterBuilder, name, checked)


def _describe(place: int) -> str:
    """A place as an element of the argument whose memory is nearest."""
    distance = [max(low - place, place - high + 1, 0) for _, low, high, _ in _extents]
    number = min(range(len(_extents)), key=distance.__getitem__)
    first, low, high, size = _extents[number]
    element, start, end = ((at - first) // size for at in (place, low, high))
    return f"argument {number}, element {element}, memory from {start} to {end}"


def _exact_bfloat16(original: Any) -> Any:
    """Conversions between float32 and bfloat16 as devices make them: to nearest even, subnormals kept."""

    def convert(data: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        data = np.ascontiguousarray(data)
        if source == tl.float32 and target == tl.bfloat16:
            return torch.from_numpy(data).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        if source == tl.bfloat16 and target == tl.float32:
            return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16).to(torch.float32).numpy()
        return original(data, source, target, mode)

    return convert


def _atomic_bfloat16(original: Any) -> Any:
    """Atomic additions of bfloat16, element after element."""

    def create_atomic_rmw(self: Any, op: Any, pointer: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return original(self, op, pointer, value, mask, *rest)
        before = np.zeros_like(value.data)
        for k in np.ndindex(pointer.data.shape):
            if mask.data[k]:
                memory = torch.frombuffer((ctypes.c_char * 2).from_address(int(pointer.data[k])), dtype=torch.bfloat16)
                before[k] = memory.view(torch.int16).item() & 0xFFFF
                memory += torch.from_numpy(np.array([value.data[k]]).view(np.int16)).view(torch.bfloat16)
        return interpreter.TensorHandle(before, value.dtype.scalar)

    return create_atomic_rmw


def _dot_of_bfloat16(original: Any) -> Any:
    """Products of bfloat16 matrices; as it stands their bits are multiplied as integers."""

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return original(self, _widened(left), _widened(right), *rest)

    return create_dot


def _widened(value: Any) -> Any:
    if value.dtype.scalar != tl.bfloat16:
        return value
    data = torch.from_numpy(np.ascontiguousarray(value.data).view(np.int16)).view(torch.bfloat16)
    return interpreter.TensorHandle(data.to(torch.float32).numpy(), tl.float32)


def _typed_comparisons(original: Any) -> Any:
    """Comparisons whose result is known to be bool; as it stands a scalar one becomes a float when it is spread."""

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        result = original(self, left, right, op)
        return interpreter.TensorHandle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    return binary_op


def _all_ones(self: Any, kind: Any) -> Any:
    """Minus one in any integer type; numpy 2.5 no longer takes it for one without a sign."""
    return interpreter.TensorHandle(np.full(1, -1).astype(interpreter._get_np_dtype(kind)), kind.scalar)


def _scalars_as_indices(original: Any) -> Any:
    """Scalars, which are arrays of one element, as bounds of loops: numpy 2.4 no longer makes ints of those."""

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch


def _block(data: np.ndarray, dtype: Any) -> tl.tensor:
    kind = tl.block_type(dtype, list(data.shape)) if data.shape else dtype
    return tl.tensor(interpreter.TensorHandle(np.ascontiguousarray(data), dtype), kind)


def _is_built_in(function: Any) -> bool:
    return function.fn.__module__.startswith("triton.")


def _apply(function: Any, left: list[np.ndarray], right: list[np.ndarray], dtypes: list[Any]) -> list[np.ndarray]:
    blocks = [_block(d, t) for d, t in zip((*left, *right), (*dtypes, *dtypes), strict=True)]
    result = function.fn(*blocks)
    results = result if isinstance(result, tuple) else (result,)
    return [r.handle.data.reshape(d.shape) for r, d in zip(results, left, strict=True)]


def _by_halves(original: Any) -> Any:
    """Reductions by a combining function on whole halves of blocks at a time."""

    def apply_impl(self: Any, input: Any) -> Any:
        if _is_built_in(self.combine_fn):
            return original(self, input)
        data, dtypes = [i.handle.data for i in input], [i.dtype for i in input]
        axis = self.axis
        while data[0].shape[axis] > 1:
            halves = [np.split(d, 2, axis) for d in data]
            data = _apply(self.combine_fn, [h[0] for h in halves], [h[1] for h in halves], dtypes)
        if not self.keep_dims:
            data = [d.squeeze(axis) for d in data]
        return tuple(self.to_tensor(d if d.shape else d.item(), t) for d, t in zip(data, dtypes, strict=True))

    return apply_impl


def _step_by_step(original: Any) -> Any:
    """Scans by a combining function, whole slices at a time."""

    def apply_impl(self: Any, input: Any) -> Any:
        if _is_built_in(self.combine_fn) or self.reverse:
            return original(self, input)
        data, dtypes = [i.handle.data for i in input], [i.dtype for i in input]
        steps = [[np.take(d, [0], self.axis) for d in data]]
        for k in range(1, data[0].shape[self.axis]):
            steps.append(_apply(self.combine_fn, steps[-1], [np.take(d, [k], self.axis) for d in data], dtypes))
        joined = [np.concatenate(parts, self.axis) for parts in zip(*steps, strict=True)]
        return tuple(self.to_tensor(d, t) for d, t in zip(joined, dtypes, strict=True))

    return apply_impl


def _libdevice(function: Any) -> Any:
    def call(*arguments: Any) -> tl.tensor:
        tensors = [a for a in arguments if isinstance(a, tl.tensor)]
        dtype = tensors[0].dtype
        values = [
            torch.from_numpy(np.array(a.handle.data)) if isinstance(a, tl.tensor) else torch.tensor(float(a))
            for a in arguments
        ]
        kind = torch.float64 if dtype == tl.float64 else torch.float32
        result = function(*(v.to(kind) for v in values)).numpy()
        scalar = all(not t.type.is_block() for t in tensors)
        return _block(result, dtype) if not scalar else tl.tensor(interpreter.TensorHandle(result, dtype), dtype)

    return call


def no_wait() -> None:
    """Kernels are interpreted one after the other."""


_RENAMED = {"rint": torch.round, "fast_expf": torch.exp, "fast_dividef": torch.div}


class _Libdevice:
    """Every function of libdevice that torch has, too."""

    def __getattr__(self, name: str) -> Any:
        named = (_RENAMED.get(name), getattr(torch, name, None), getattr(torch.special, name, None))
        function = next((f for f in named if f is not None), None)
        if function is None:
            raise AttributeError(f"torch has no function like libdevice's {name}")
        return _libdevice(function)


LIBDEVICE = _Libdevice()
"""Stands for ``triton.language.extra.libdevice``, which only exists on a device."""
