"""Kernels built by hand, run as C++ and evaluated by torch: what the tests of this folder share."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping

import attrs
import torch

from turret.ir import OPS, Expr, Kernel, Store, TensorDecl, load
from turret.ir.index import Div, Index, Mod, Size, Value, Var
from turret.plugins.codegen.cpp import CppKernel, compile_unit, emit, find_compiler, translation_unit
from turret.plugins.codegen.cpp import load as load_library
from turret.testing.loops.programs import at_sizes, declare

CPU = torch.device("cpu")


@attrs.define
class Case:
    """A kernel with its tensors; outputs are those that it stores."""

    kernel: Kernel
    tensors: dict[str, torch.Tensor]
    declarations: dict[str, TensorDecl] = attrs.field(factory=dict)
    sizes: dict[str, int] = attrs.field(factory=dict)
    emitted: CppKernel | None = None

    def __attrs_post_init__(self) -> None:
        for name, value in self.tensors.items():
            self.declarations.setdefault(name, declare(name, value))

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(store.tensor for store in self.kernel.stores))


def pointwise(expr: Expr, loops: Iterable[Var], inputs: Mapping[str, torch.Tensor], name: str = "k") -> Case:
    """A case that stores ``expr`` at every point of ``loops`` into a new contiguous tensor."""
    loops = tuple(loops)
    out = torch.zeros([v.extent for v in loops], dtype=expr.dtype)
    store = Store("out", tuple(v.index for v in loops), expr)
    return Case(Kernel(name, loops, (), (store,)), {"out": out, **inputs})


def build(source: str) -> ctypes.CDLL:
    """Compile a unit and load it; equal units are compiled once a run."""
    return load_library(compile_unit(source, find_compiler())[0])


def build_cases(cases: Iterable[Case]) -> ctypes.CDLL:
    """One library for many cases."""
    cases = list(cases)
    for case in cases:
        case.emitted = emit(case.kernel, case.declarations)
    return build(translation_unit(case.emitted for case in cases))


def run(library: ctypes.CDLL, case: Case, threads: int = 1) -> int:
    """Run a built case on its tensors; the kernel's status."""
    kernel = case.emitted
    buffers = (ctypes.c_void_p * max(1, len(kernel.buffers)))(*(case.tensors[n].data_ptr() for n in kernel.buffers))
    values = [*(case.sizes[n] for n in kernel.sizes), *kernel.streams]
    sizes = (ctypes.c_int64 * max(1, len(values)))(*values)
    function = getattr(library, kernel.function)
    function.restype, function.argtypes = ctypes.c_int64, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    return function(buffers, sizes, threads)


def check(cases: Iterable[Case], threads: Iterable[int] = (1, 2), **tolerance: float) -> None:
    """Every case gives what torch gives, with each number of threads, and reports no error."""
    cases = list(cases)
    library = build_cases(cases)
    for case in cases:
        before = {name: case.tensors[name].clone() for name in case.outputs}
        wanted = evaluate(case)
        for count in threads:
            for name, value in before.items():
                case.tensors[name].copy_(value)
            assert run(library, case, count) == 0, case.kernel
            for name, want in wanted.items():
                compare(case.tensors[name], want, f"{case.kernel}\n{case.emitted.source}", **tolerance)


def compare(
    got: torch.Tensor,
    want: torch.Tensor,
    context: str,
    rtol: float | None = None,
    atol: float = 0.0,
    signed_zeros: bool = True,
) -> None:
    """Equal, up to a few units in the last place of the dtype (or the tolerance given)."""
    assert got.dtype == want.dtype and got.shape == want.shape, context
    if not got.dtype.is_floating_point:
        different = got != want
        assert not different.any(), f"{got[different][:5]} for {want[different][:5]}\n{context}"
        return
    if rtol is None:
        rtol = 8 * torch.finfo(got.dtype).eps if got.dtype.itemsize > 2 else 2 * torch.finfo(got.dtype).eps
    wrong_zeros = (got == 0) & (want == 0) & (got.signbit() != want.signbit())
    assert not (signed_zeros and wrong_zeros.any()), f"zeros of the wrong sign\n{context}"
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{m}\n{context}")


# ---------------------------------------------------------------- what torch makes of a kernel


def evaluate(case: Case) -> dict[str, torch.Tensor]:
    """The outputs of a case by torch ops, over whole iteration spaces at once."""
    results = {name: case.tensors[name].clone() for name in case.outputs}
    evaluation = _Evaluation(case)
    loops = case.kernel.outer + case.kernel.inner
    for store in case.kernel.stores:
        evaluation.store(store, loops, results[store.tensor])
    return results


class _Evaluation:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.done: dict = {}

    def extent(self, value: Size) -> int:
        return at_sizes(value, self.case.sizes)

    def shape(self, loops: tuple[Var, ...]) -> list[int]:
        return [self.extent(v.extent) for v in loops]

    def index(self, index: Index, loops: tuple[Var, ...]) -> torch.Tensor:
        total = torch.tensor(self.extent(index.const)).reshape([1] * len(loops))
        for atom, coefficient in index.terms:
            total = total + self.atom(atom, loops) * self.extent(coefficient)
        return total

    def atom(self, atom: Var | Div | Mod | Value, loops: tuple[Var, ...]) -> torch.Tensor:
        if isinstance(atom, Var):
            shape = [1] * len(loops)
            shape[loops.index(atom)] = -1
            return torch.arange(self.extent(atom.extent)).reshape(shape)
        if isinstance(atom, Value):
            return self.value(atom.expr, loops)
        numerator, divisor = self.index(atom.numerator, loops), self.extent(atom.divisor)
        if isinstance(atom, Mod):
            return numerator % divisor
        return numerator.div(divisor, rounding_mode="floor")

    def value(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        """The values of ``expr`` at all points of ``loops``, or something that broadcasts to them."""
        key = expr, loops
        if key not in self.done:
            self.done[key] = self._value(expr, loops)
        return self.done[key]

    def _value(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        handler = getattr(self, f"_{expr.op}", None)
        if handler is not None:
            return handler(expr, loops)
        return OPS[expr.op].reference(*(self.value(arg, loops) for arg in expr.args)).to(expr.dtype)

    def _const(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        return torch.tensor(expr.payload, dtype=expr.dtype).reshape([1] * len(loops))

    def _load(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        source = self.case.tensors[expr.tensor]
        coords = [self.index(c, loops).clamp(0, n - 1) for c, n in zip(expr.coords, source.shape, strict=True)]
        return source[tuple(torch.broadcast_tensors(*coords))] if coords else source.reshape([1] * len(loops))

    def _index(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        return self.index(expr.payload, loops)

    def _size(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        return torch.tensor(self.extent(expr.payload)).reshape([1] * len(loops))

    def _check_index(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        return self.value(expr.args[0], loops)

    def _wrap_index(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        value = self.value(expr.args[0], loops)
        return torch.where(value < 0, value + self.extent(expr.payload), value)

    def _cast(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        return self.value(expr.args[0], loops).to(expr.dtype)

    def _bitcast(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        return self.value(expr.args[0], loops).contiguous().view(expr.dtype)

    def rows(self, expr: Expr, loops: tuple[Var, ...], count: int) -> torch.Tensor:
        """All values of ``expr`` with the last ``count`` loops as one dimension."""
        value = self.value(expr, loops).expand(self.shape(loops))
        return value.flatten(len(loops) - count) if count else value.unsqueeze(-1)

    def _reduce(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        bound = expr.payload.variables
        inside = tuple(v for v in loops if v not in bound) + bound
        flat = [self.rows(arg, inside, len(bound)) for arg in expr.args]
        result = REDUCTIONS[expr.payload.kind](*flat)
        for position, variable in enumerate(loops):
            if variable in bound:
                result = result.unsqueeze(position)
        return result

    def _part(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        welford = expr.args[0]
        bound = welford.payload.variables
        inside = tuple(v for v in loops if v not in bound) + bound
        flat = self.rows(welford.args[0], inside, len(bound)).double()
        mean = flat.mean(-1)
        result = mean if expr.payload == "mean" else (flat - mean.unsqueeze(-1)).square().sum(-1)
        for position, variable in enumerate(loops):
            if variable in bound:
                result = result.unsqueeze(position)
        return result.to(expr.dtype)

    def _scan(self, expr: Expr, loops: tuple[Var, ...]) -> torch.Tensor:
        kind, variable = expr.payload
        value = self.value(expr.args[0], loops).expand(self.shape(loops))
        return SCANS[kind](value, loops.index(variable)).to(expr.dtype)

    def store(self, store: Store, loops: tuple[Var, ...], target: torch.Tensor) -> None:
        """Elements one after another for scatters, all at once else."""
        free = store.expr.variables.union(*(c.variables for c in store.coords))
        loops = tuple(v for v in loops if v in free)
        shape = self.shape(loops)
        coords = [self.index(c, loops).expand(shape).reshape(-1) for c in store.coords]
        values = self.value(store.expr, loops).expand(shape).reshape(-1)
        if store.condition is not None:
            keep = self.value(store.condition, loops).expand(shape).reshape(-1)
            coords, values = [c[keep] for c in coords], values[keep]
        if store.mode is None:
            target[tuple(coords)] = values
            return
        combine = {
            "set": lambda a, b: b,
            "add": torch.add,
            "mul": torch.mul,
            "min": torch.minimum,
            "max": torch.maximum,
        }
        for number in range(values.numel()):
            at = tuple(c[number] for c in coords)
            target[at] = combine[store.mode](target[at], values[number])


def _arg(best):
    def reduction(value: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return number.gather(-1, best(value, -1, keepdim=True)).squeeze(-1)

    return reduction


REDUCTIONS = {
    "sum": lambda x: (x.double().sum(-1) if x.is_floating_point() else x.sum(-1, dtype=x.dtype)).to(x.dtype),
    "prod": lambda x: (x.double().prod(-1) if x.is_floating_point() else x.prod(-1, dtype=x.dtype)).to(x.dtype),
    "min": lambda x: x.amin(-1),
    "max": lambda x: x.amax(-1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "argmin": _arg(torch.argmin),
    "argmax": _arg(torch.argmax),
}

SCANS = {
    "sum": lambda x, dim: torch.cumsum(x, dim),
    "prod": lambda x, dim: torch.cumprod(x, dim),
    "min": lambda x, dim: torch.cummin(x, dim).values,
    "max": lambda x, dim: torch.cummax(x, dim).values,
}

INFINITY = math.inf


def element(name: str, value: torch.Tensor, *coords: Index | Var | int) -> Expr:
    """A load of a tensor's element."""
    return load(name, coords, value.dtype)
