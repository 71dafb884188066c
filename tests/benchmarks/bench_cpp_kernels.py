"""Times of generated C++ kernels against eager PyTorch and torch.compile, kernel by kernel.

    python -m tests.benchmarks.bench_cpp_kernels [--threads 2] [--rounds 30] [--only softmax]

Every kernel is built by hand in the loop IR, as the scheduler would make it, and checked against eager first.
Times are the least of all rounds, in milliseconds; the three contenders take turns within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable

import attrs
import torch
import torch.nn.functional as F

from turret.ir import Expr, Kernel, Store, TensorDecl, call, check_index, constant, load, part, reduce
from turret.ir.index import Index, Var
from turret.plugins.codegen.cpp import compile_unit, emit, find_compiler, translation_unit
from turret.plugins.codegen.cpp import load as load_library

F32 = torch.float32


@attrs.define
class Bench:
    """One measurement: kernels run in order, and the same in torch."""

    name: str
    kernels: list[Kernel]
    tensors: dict[str, torch.Tensor]
    eager: Callable
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def number(value: float) -> Expr:
    return constant(value, F32)


def kernel(outer: tuple[Var, ...], inner: tuple[Var, ...], *stores: tuple[str, tuple, Expr]) -> Kernel:
    made = tuple(Store(name, tuple(Index.wrap(c) for c in coords), expr) for name, coords, expr in stores)
    return Kernel("bench", outer, inner, made)


def chain() -> Bench:
    i = Var("i", 1 << 20)
    value = load("x", (i,), F32)
    for op in ("sin", "erf", "exp", "tanh", "sigmoid"):
        value = call(op, value)
    eager = lambda x: torch.sigmoid(torch.tanh(torch.exp(torch.erf(torch.sin(x)))))  # noqa: E731
    x = torch.randn(1 << 20)
    return Bench(
        "chain of 5 over 1M",
        [kernel((i,), (), ("out", (i,), value))],
        {"x": x, "out": x.clone()},
        eager,
        ("x",),
        ("out",),
    )


def gelu() -> Bench:
    i = Var("i", 4096 * 1024)
    x = load("x", (i,), F32)
    value = call(
        "mul", call("mul", x, number(0.5)), call("add", number(1.0), call("erf", call("mul", x, number(0.5**0.5))))
    )
    data = torch.randn(4096, 1024)
    return Bench(
        "gelu 4096x1024",
        [kernel((i,), (), ("out", (i,), value))],
        {"x": data.reshape(-1), "out": torch.empty(4096 * 1024)},
        F.gelu,
        ("x",),
        ("out",),
    )


def tanh_gelu() -> Bench:
    i = Var("i", 4096 * 1024)
    x = load("x", (i,), F32)
    cubed = call("mul", call("mul", x, x), x)
    inside = call("mul", number(0.7978845608028654), call("add", x, call("mul", number(0.044715), cubed)))
    value = call("mul", call("mul", number(0.5), x), call("add", number(1.0), call("tanh", inside)))
    data = torch.randn(4096 * 1024)
    return Bench(
        "tanh gelu 4096x1024",
        [kernel((i,), (), ("out", (i,), value))],
        {"x": data, "out": torch.empty_like(data)},
        lambda x: F.gelu(x, approximate="tanh"),
        ("x",),
        ("out",),
    )


def softmax_of(x: Expr, row: tuple[Var, ...]) -> Expr:
    powers = call("exp", call("sub", x, reduce("max", row, x)))
    return call("div", powers, reduce("sum", row, powers))


def softmax() -> Bench:
    i, r = Var("i", 4096), Var("r", 1024)
    data = torch.randn(4096, 1024)
    return Bench(
        "softmax 4096x1024",
        [kernel((i,), (r,), ("out", (i, r), softmax_of(load("x", (i, r), F32), (r,))))],
        {"x": data, "out": torch.empty_like(data)},
        lambda x: torch.softmax(x, -1),
        ("x",),
        ("out",),
    )


def softmax_across() -> Bench:
    i, r, c = Var("i", 64), Var("r", 64), Var("c", 1024)
    data = torch.randn(64, 64, 1024)
    return Bench(
        "softmax dim 1 of 64x64x1024",
        [kernel((i, c), (r,), ("out", (i, r, c), softmax_of(load("x", (i, r, c), F32), (r,))))],
        {"x": data, "out": torch.empty_like(data)},
        lambda x: torch.softmax(x, 1),
        ("x",),
        ("out",),
    )


def layer_norm() -> Bench:
    i, r = Var("i", 4096), Var("r", 1024)
    x, y, w, b = load("x", (i, r), F32), load("y", (i, r), F32), load("w", (r,), F32), load("b", (r,), F32)
    total = call("add", x, y)
    moments = reduce("welford", (r,), total)
    mean = part(moments, "mean")
    scale = call("rsqrt", call("add", call("div", part(moments, "m2"), number(1024)), number(1e-5)))
    value = call("add", call("mul", call("mul", call("sub", total, mean), scale), w), b)
    tensors = {
        "x": torch.randn(4096, 1024),
        "y": torch.randn(4096, 1024),
        "w": torch.randn(1024),
        "b": torch.randn(1024),
        "out": torch.empty(4096, 1024),
    }
    return Bench(
        "add + layer norm 4096x1024",
        [kernel((i,), (r,), ("out", (i, r), value))],
        tensors,
        lambda x, y, w, b: F.layer_norm(x + y, (1024,), w, b),
        ("x", "y", "w", "b"),
        ("out",),
    )


def layer_norm_backward() -> Bench:
    i, r = Var("i", 4096), Var("r", 1024)
    x, g, w = load("x", (i, r), F32), load("g", (i, r), F32), load("w", (r,), F32)
    mean, scale = load("mean", (i,), F32), load("scale", (i,), F32)
    normal = call("mul", call("sub", x, mean), scale)
    weighted = call("mul", g, w)
    first, second = reduce("sum", (r,), weighted), reduce("sum", (r,), call("mul", weighted, normal))
    inside = call("sub", call("sub", call("mul", weighted, number(1024)), first), call("mul", normal, second))
    dx = kernel((i,), (r,), ("dx", (i, r), call("mul", call("div", scale, number(1024)), inside)))
    dw = kernel(
        (r,), (i,), ("dw", (r,), reduce("sum", (i,), call("mul", g, normal))), ("db", (r,), reduce("sum", (i,), g))
    )
    tensors = {
        "x": torch.randn(4096, 1024),
        "g": torch.randn(4096, 1024),
        "w": torch.randn(1024),
        "mean": torch.randn(4096),
        "scale": torch.rand(4096),
        "dx": torch.empty(4096, 1024),
        "dw": torch.empty(1024),
        "db": torch.empty(1024),
    }

    def eager(x, g, w, mean, scale):
        mean, scale = mean[:, None], scale[:, None]
        normal = (x - mean) * scale
        weighted = g * w
        inside = weighted * 1024 - weighted.sum(1, keepdim=True) - normal * (weighted * normal).sum(1, keepdim=True)
        return scale / 1024 * inside, (g * normal).sum(0), g.sum(0)

    return Bench("layer norm backward", [dx, dw], tensors, eager, ("x", "g", "w", "mean", "scale"), ("dx", "dw", "db"))


def transposed_add() -> Bench:
    i, j = Var("i", 4096), Var("j", 1024)
    value = call("add", load("x", (i, j), F32), load("t", (j, i), F32))
    tensors = {"x": torch.randn(4096, 1024), "t": torch.randn(1024, 4096), "out": torch.empty(4096, 1024)}
    return Bench(
        "x + t.t() 4096x1024",
        [kernel((i, j), (), ("out", (i, j), value))],
        tensors,
        lambda x, t: x + t.t(),
        ("x", "t"),
        ("out",),
    )


def column_sum() -> Bench:
    i, j = Var("i", 4096), Var("j", 1024)
    return Bench(
        "column sum 4096x1024",
        [kernel((j,), (i,), ("out", (j,), reduce("sum", (i,), load("x", (i, j), F32))))],
        {"x": torch.randn(4096, 1024), "out": torch.empty(1024)},
        lambda x: x.sum(0),
        ("x",),
        ("out",),
    )


def cross_entropy() -> Bench:
    rows, classes = 512, 32000
    i, j = Var("i", rows), Var("j", classes)
    x = load("x", (i, j), F32)
    best = reduce("max", (j,), x)
    total = call("add", call("log", reduce("sum", (j,), call("exp", call("sub", x, best)))), best)
    at = check_index(load("at", (i,), torch.int64), classes)
    loss = call("sub", total, load("x", (i.index, Index.of_value(at)), F32))
    k = Var("k", rows)
    mean = kernel((), (k,), ("out", (), call("div", reduce("sum", (k,), load("loss", (k,), F32)), number(rows))))
    tensors = {
        "x": torch.randn(rows, classes),
        "at": torch.randint(0, classes, (rows,)),
        "loss": torch.empty(rows),
        "out": torch.empty(()),
    }
    return Bench(
        "cross entropy 512x32000",
        [kernel((i,), (j,), ("loss", (i,), loss)), mean],
        tensors,
        F.cross_entropy,
        ("x", "at"),
        ("out",),
    )


BENCHES = (
    chain,
    gelu,
    tanh_gelu,
    softmax,
    softmax_across,
    layer_norm,
    layer_norm_backward,
    transposed_add,
    column_sum,
    cross_entropy,
)


def ours(bench: Bench, threads: int) -> tuple[Callable[[], None], float]:
    """A call of the bench's kernels, and the seconds that emitting and compiling took."""
    declarations = {
        n: TensorDecl(n, tuple(t.shape), tuple(t.stride()), t.dtype, t.device) for n, t in bench.tensors.items()
    }
    started = time.perf_counter()
    kernels = [emit(k, declarations) for k in bench.kernels]
    entry, _ = compile_unit(translation_unit(kernels), find_compiler())
    seconds = time.perf_counter() - started
    library = load_library(entry)
    calls = []
    for made in kernels:
        function = getattr(library, made.function)
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        buffers = (ctypes.c_void_p * len(made.buffers))(*(bench.tensors[n].data_ptr() for n in made.buffers))
        calls.append((function, buffers))

    def call_all() -> None:
        for function, buffers in calls:
            function(buffers, None, threads)

    return call_all, seconds


def check(bench: Bench, call_all: Callable[[], None]) -> None:
    call_all()
    wanted = bench.eager(*(bench.tensors[n] for n in bench.inputs))
    for name, want in zip(bench.outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        scale = float(want.abs().max())
        torch.testing.assert_close(bench.tensors[name].reshape(want.shape), want, rtol=1e-4, atol=1e-5 * scale)


def least_times(contenders: list[Callable], rounds: int) -> list[float]:
    best = [float("inf")] * len(contenders)
    for _ in range(rounds):
        for number, contender in enumerate(contenders):
            started = time.perf_counter()
            contender()
            best[number] = min(best[number], time.perf_counter() - started)
    return [1e3 * b for b in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{'kernel':32} {'ours':>8} {'compile':>8} {'eager':>8}  ms, {arguments.threads} threads; build s")
    for make in BENCHES:
        bench = make()
        if arguments.only not in bench.name:
            continue
        call_all, seconds = ours(bench, arguments.threads)
        check(bench, call_all)
        inputs = [bench.tensors[n] for n in bench.inputs]
        compiled = torch.compile(bench.eager)
        compiled(*inputs)
        times = least_times(
            [call_all, lambda c=compiled, i=inputs: c(*i), lambda b=bench, i=inputs: b.eager(*i)], arguments.rounds
        )
        print(f"{bench.name:32} " + " ".join(f"{t:8.3f}" for t in times) + f"  {seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
