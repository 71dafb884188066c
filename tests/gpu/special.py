"""What equality with eager on one stream does not show: streams, threads, capture, alignment, memory, randomness."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turret
from tests.gpu.cases import Block, randn
from tests.gpu.data_sizes import DATA_SIZES
from tests.gpu.products import PRODUCTS

RAISE = {"on_error": "raise"}


def _close(got: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    relative = ((got - expected).norm() / expected.norm()).item()
    assert relative <= tolerance, f"relative error {relative:.2e}"


def _work(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(torch.relu((x + 1) @ w) * 2, -1).sum(1)


def side_stream() -> None:
    """Kernels go to the current stream, and memory moves safely among streams."""
    compiled = turret.compile(_work, options=RAISE)
    x, w = randn(2000, 512), randn(512, 512)
    expected = _work(x, w)
    compiled(x, w)
    streams = [torch.cuda.Stream() for _ in range(4)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    results = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 4]):
            results.append(compiled(x, w))
    torch.cuda.synchronize()
    for result in results:
        _close(result, expected)


def threads() -> None:
    """Eight threads, each with a stream of its own, call one compiled function."""
    compiled = turret.compile(_work, options=RAISE)
    w = randn(256, 256)
    inputs = [randn(300, 256) for _ in range(8)]
    expected = [_work(x, w) for x in inputs]
    compiled(inputs[0], w)
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def worker(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    result = compiled(inputs[number], w)
                torch.cuda.current_stream().synchronize()
                _close(result, expected[number])
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=worker, args=(n,)) for n in range(8)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    if failures:
        raise failures[0]


def graph_capture() -> None:
    """A compiled call is captured by a CUDA graph of torch's and replayed with new contents."""
    compiled = turret.compile(_work, options=RAISE)
    x, w = randn(500, 512), randn(512, 512)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compiled(x, w)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x, w)
    for _ in range(3):
        x.copy_(randn(500, 512))
        graph.replay()
        _close(result, _work(x, w))


def misaligned_inputs() -> None:
    """Inputs cut out of larger tensors at odd places, also where the program writes to them."""

    def f(x: Tensor, state: Tensor) -> Tensor:
        state.add_(x)
        return x.exp() * state

    compiled = turret.compile(f, options=RAISE)
    for shift in (0, 1, 3, 4):
        x, state = randn(4096 + 7)[shift : shift + 4096], randn(4096 + 7)[shift : shift + 4096]
        twin = state.clone()
        got, expected = compiled(x, state), f(x, twin)
        _close(got, expected)
        _close(state, twin)


def dynamic_sizes() -> None:
    """One compile for many sizes, among them 0, 1 and odd ones."""
    graphs = []

    class Count:
        cache_key = "counts graphs"

        @turret.hookimpl
        def turret_event(self, event: object) -> None:
            if event.kind == "compile_started":
                graphs.append(event)

    def f(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1) + x.sum(0)

    compiled = turret.compile(f, dynamic=True, options=RAISE, plugins=[Count()])
    for rows, columns in ((100, 64), (7, 1000), (513, 33), (33, 4097), (2, 2)):
        x = randn(rows, columns)
        _close(compiled(x), f(x))
    assert len(graphs) <= 2, f"{len(graphs)} graphs for five sizes"


def dynamic_sizes_beyond_32_bits() -> None:
    """A graph made for small sizes computes its indices in 32 bits until a tensor has more elements than they count."""
    compiled = turret.compile(lambda x: (x + 1, x.sum(0, dtype=torch.int32)), dynamic=True, options=RAISE)
    for rows, columns in ((64, 96), (1 << 16, (1 << 15) + 16), (33, 7)):
        x = (torch.arange(columns, device="cuda") % 5).to(torch.int8).expand(rows, columns).contiguous()
        got, sums = compiled(x)
        assert torch.equal(got[0], x[0] + 1) and torch.equal(got[-1], x[-1] + 1)
        assert torch.equal(got.amax(0), x[0] + 1) and torch.equal(sums, x[0].int() * rows)


def training_with_dynamic_batch() -> None:
    """Gradients of a model whose batch changes."""
    torch.manual_seed(0)
    model = Block(128, 4).cuda()
    compiled = turret.compile(model, dynamic=True, options=RAISE)
    for batch in (4, 7, 2):
        x = randn(batch, 50, 128)
        gradients = []
        for run in (model, compiled):
            model.zero_grad()
            run(x).square().mean().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for got, expected in zip(*gradients, strict=True):
            _close(got, expected, 1e-4)


def dropout() -> None:
    """Kept elements are scaled, about the right share is kept, calls differ, and the gradient has the same mask."""
    x = torch.ones(1000, 1000, device="cuda", requires_grad=True)
    compiled = turret.compile(lambda x: F.dropout(x * 2, 0.25, True), options=RAISE)
    first, second = compiled(x), compiled(x)
    kept = (first != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.01, f"kept {kept}"
    assert set(first.unique().tolist()) <= {0.0, float(torch.tensor(2 / 0.75))}
    assert not torch.equal(first, second)
    second.sum().backward()
    assert torch.equal(x.grad != 0, second != 0)


def index_out_of_range_is_noticed_by_eager_s_rule() -> None:
    """In range indices pass the check that a compiled gather makes."""
    table, index = randn(100, 16), torch.randint(-100, 100, (50,), device="cuda")
    compiled = turret.compile(lambda t, i: t[i] * 2, options=RAISE)
    _close(compiled(table, index), table[index] * 2)


def memory() -> None:
    """No memory is held between calls, and a call's peak is near eager's."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(512, 8) for _ in range(4))).cuda()
    x = randn(8, 256, 512)
    peaks = {}
    for name, run in (("eager", model), ("turret", turret.compile(model, options=RAISE))):
        with torch.no_grad():
            run(x)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            run(x)
            torch.cuda.synchronize()
            peaks[name] = torch.cuda.max_memory_allocated() - before
            assert torch.cuda.memory_allocated() - before < 1 << 20, "memory is held after the call"
    assert peaks["turret"] <= 1.1 * peaks["eager"], f"peak {peaks}"


def autotuning() -> None:
    """Tuned kernels are right, and what was chosen is found again on disk."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x * 2, -1), x.exp().sum(0)

    x = randn(3000, 1234)
    with tempfile.TemporaryDirectory() as folder:
        options = {**RAISE, "max_autotune": True, "cache_dir": folder}
        for _ in range(2):
            turret.reset()
            for got, expected in zip(turret.compile(f, options=options)(x), f(x), strict=True):
                _close(got, expected)
        choices = [json.loads(path.read_text()) for path in Path(folder).glob("**/choice.json")]
    assert all(min(c["milliseconds"]) == c["milliseconds"][c["choice"]] for c in choices)
    assert choices, "nothing was timed"


_FIRST_CALL = """
import sys, torch, turret
import torch.nn.functional as F
torch.manual_seed(0)
q, k, v = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
compiled = turret.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), options={"on_error": "raise"})
before = compiled(q, k, v) if sys.argv[1] == "compiled" else None
eager = F.scaled_dot_product_attention(q, k, v)
assert torch.equal(compiled(q, k, v), eager) and (before is None or torch.equal(before, eager))
print(torch._C._get_sdp_priority_order())
"""


def first_attention_of_a_process() -> None:
    """It takes the kernel of eager, and leaves the order in which kernels are asked as eager leaves it."""
    orders = set()
    for first in ("compiled", "eager"):
        command = [sys.executable, "-c", _FIRST_CALL, first]
        orders.add(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout)
    assert len(orders) == 1, orders


def second_device() -> None:
    """A function runs on a device that is not the current one."""
    if torch.cuda.device_count() < 2:
        return
    compiled = turret.compile(_work, options=RAISE)
    x, w = randn(100, 64).to("cuda:1"), randn(64, 64).to("cuda:1")
    _close(compiled(x, w), _work(x, w))
    assert torch.cuda.current_device() == 0


def mixed_devices() -> None:
    """Tensors of the CPU inside a graph of the GPU."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, (y @ y.t() + 1).sum(0)

    x, y = randn(30, 40), torch.randn(20, 20)
    compiled = turret.compile(f, options=RAISE)
    for got, expected in zip(compiled(x, y), f(x, y), strict=True):
        assert got.device == expected.device
        _close(got, expected)


SPECIAL: tuple[Callable[[], None], ...] = (
    side_stream,
    threads,
    graph_capture,
    misaligned_inputs,
    dynamic_sizes,
    dynamic_sizes_beyond_32_bits,
    training_with_dynamic_batch,
    dropout,
    index_out_of_range_is_noticed_by_eager_s_rule,
    memory,
    autotuning,
    first_attention_of_a_process,
    second_device,
    mixed_devices,
    *DATA_SIZES,
    *PRODUCTS,
)
