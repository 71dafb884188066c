"""Triton kernels become binaries for the architectures asked for, once, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from tests.plugins.codegen.triton.kernel_samples import SOURCE, scale, variant
from turret.errors import CodegenError
from turret.plugins.codegen.triton import KernelCompiler, WorkerPool
from turret.plugins.codegen.triton.compilation import workers
from turret.plugins.codegen.triton.compilation.compile import request_key, request_of, triton_version
from turret.plugins.codegen.triton.compilation.workers import worker_count
from turret.storage.artifact_cache import ArtifactCache

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(2)
    yield made
    made.close()


@pytest.mark.parametrize("arch", [80, 90])
def test_binaries_are_for_the_architecture_asked_for(pool: WorkerPool, tmp_path: Path, arch: int) -> None:
    (compiled,), fresh = KernelCompiler("cuda", arch, ArtifactCache(tmp_path), lambda: pool).compile([variant(scale())])
    assert fresh == 1
    assert compiled.image[:4] == b"\x7fELF"
    flags = int.from_bytes(compiled.image[48:52], "little")
    assert arch in (flags & 0xFF, flags >> 8 & 0xFF)  # where older and newer assemblers write it
    assert compiled.function == "scale" and compiled.function.encode() in compiled.image
    assert compiled.binary.threads == 128 and compiled.hidden_pointers == 2 and compiled.global_scratch == 0


def test_equal_kernels_are_compiled_once_and_the_cache_serves_later_compilers(pool: WorkerPool, tmp_path: Path) -> None:
    cache, seen = ArtifactCache(tmp_path), []
    wanted = [variant(scale(3.0)), variant(scale(3.0, buffers=("c", "d"))), variant(scale(3.0), 1)]
    compiled, fresh = KernelCompiler("cuda", 90, cache, lambda: pool).compile(wanted, lambda *n: seen.append(n))
    assert fresh == 2 and seen == [(1, 2), (2, 2)]
    assert compiled[0] == compiled[1] != compiled[2]
    assert compiled[2].binary.threads == 64

    def no_pool() -> WorkerPool:
        raise AssertionError("nothing is left to compile")

    again, fresh = KernelCompiler("cuda", 90, ArtifactCache(tmp_path), no_pool).compile(wanted)
    assert fresh == 0 and again == compiled


def test_the_address_depends_on_everything_that_the_binary_does() -> None:
    base = scale()
    requests = [
        request_of(variant(base), "cuda", 90),
        request_of(variant(base), "cuda", 80),
        request_of(variant(base, 1), "cuda", 90),
        request_of(variant(scale(2.5)), "cuda", 90),
        request_of(variant(attrs.evolve(base, divisible=frozenset())), "cuda", 90),
        request_of(variant(attrs.evolve(base, signature={**base.signature, "n": "i64"})), "cuda", 90),
        request_of(variant(attrs.evolve(base, options={"debug": True})), "cuda", 90),
    ]
    assert len({request_key(r) for r in requests}) == len(requests)
    named = request_of(variant(attrs.evolve(base, buffers=("c", "d"), origins=("mul",), comment="x.py:3")), "cuda", 90)
    assert request_key(named) == request_key(requests[0])


def test_a_kernel_that_does_not_compile_is_named_with_triton_s_message(pool: WorkerPool, tmp_path: Path) -> None:
    broken = scale(name="broken", source=SOURCE.format(name="broken", factor="nothing_of_that_name"))
    compiler = KernelCompiler("cuda", 90, ArtifactCache(tmp_path), lambda: pool)
    with pytest.raises(CodegenError, match="did not compile kernel broken") as caught:
        compiler.compile([variant(broken)])
    assert "nothing_of_that_name" in str(caught.value)
    assert compiler.compile([variant(scale())])[1] == 1
    (without, with_it), fresh = compiler.compile([variant(broken), variant(scale())], optional=["broken"])
    assert without is None and with_it is not None and fresh == 1


def test_a_signature_that_is_not_the_source_s_is_refused(pool: WorkerPool, tmp_path: Path) -> None:
    kernel = scale(parameters=("x", "y"), sizes=())
    with pytest.raises(CodegenError, match=r"takes \['x', 'y', 'n', 'XBLOCK'\]"):
        KernelCompiler("cuda", 90, ArtifactCache(tmp_path), lambda: pool).compile([variant(kernel)])


def test_a_worker_that_dies_is_replaced_and_the_kernel_at_fault_is_named(tmp_path: Path) -> None:
    pool = WorkerPool(1)
    fatal = scale(
        name="fatal", source="import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos._exit(3)\n"
    )
    compiler = KernelCompiler("cuda", 90, ArtifactCache(tmp_path), lambda: pool)
    try:
        with pytest.raises(CodegenError, match=r"died on kernel fatal:\n.*last words"):
            compiler.compile([variant(fatal)])
        assert compiler.compile([variant(scale())])[1] == 1
    finally:
        pool.close()


def test_what_a_kernel_prints_while_it_is_read_does_not_disturb_the_answers(pool: WorkerPool, tmp_path: Path) -> None:
    chatty = scale(name="chatty", source="print('hello' * 1000)\n" + SOURCE.format(name="chatty", factor=2))
    assert KernelCompiler("cuda", 90, ArtifactCache(tmp_path), lambda: pool).compile([variant(chatty)])[1] == 1


def test_a_closed_pool_leaves_no_process(tmp_path: Path) -> None:
    pool = WorkerPool(2)
    pool.warm()
    deadline = time.monotonic() + 20
    while len(pool._running) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    processes = [w.process for w in pool._running]
    assert len(processes) == 2
    pool.close()
    assert all(p.wait(timeout=20) is not None for p in processes)
    with pytest.raises(CodegenError, match="closed"):
        pool.submit({})


class Idle:
    """A worker that has no process."""

    def ask(self, request: dict) -> dict:
        return {}

    def stop(self) -> None:
        pass


def test_few_workers_start_at_once_and_further_ones_until_requests_tell_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = threading.Semaphore(0)
    monkeypatch.setattr(workers, "_Worker", Idle)
    monkeypatch.setattr(workers, "time", SimpleNamespace(sleep=lambda seconds: steps.acquire()))
    pool = WorkerPool(8)
    pool.warm()
    pool.warm()
    assert pool._threads == workers.FIRST_WORKERS
    steps.release()
    reached(lambda: pool._threads == workers.FIRST_WORKERS + 1)
    assert pool.submit({}).result(timeout=20) == {}
    steps.release()
    reached(lambda: not any(t.name == "turret-warm" for t in threading.enumerate()))
    assert pool._threads == workers.FIRST_WORKERS + 1
    pool.warm()
    for _ in range(pool.size):
        steps.release()
    reached(lambda: pool._threads == pool.size)
    pool.close()


def reached(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_number_of_workers_follows_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert worker_count() == min(16, cores) and worker_count(3) == 3


def test_a_warm_start_does_not_import_triton(pool: WorkerPool, tmp_path: Path) -> None:
    """A second process finds the binaries of the first without the compiler or a worker."""
    KernelCompiler("cuda", 90, ArtifactCache(tmp_path), lambda: pool).compile([variant(scale())])
    program = f"""
import sys
import threading
from tests.plugins.codegen.triton.kernel_samples import scale, variant
from turret.storage.artifact_cache import ArtifactCache
from turret.plugins.codegen.triton import KernelCompiler
_, fresh = KernelCompiler("cuda", 90, ArtifactCache({str(tmp_path)!r}), lambda: 1 / 0).compile([variant(scale())])
print(fresh, "triton" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["0", "False"], done.stderr


def test_the_version_of_triton_is_part_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(variant(scale()), "cuda", 90)
    key = request_key(request)
    monkeypatch.setattr("turret.plugins.codegen.triton.compilation.compile.triton_version", lambda: "0.0")
    assert triton_version() != "0.0" and request_key(request) != key
