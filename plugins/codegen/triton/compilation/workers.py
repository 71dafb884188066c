"""A pool of compile workers: processes that hold a warm Triton compiler, each fed by a thread of this process.

They are started as scripts, not forked (a process with a GPU context must not fork) and not through
``multiprocessing`` (which runs the user's main module again).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from turret.errors import CodegenError
from turret.plugins.codegen.triton.compilation.worker import receive, send
from turret.storage.fork_safety import Lock, after_fork
from turret.storage.toolchain import processors

SCRIPT = Path(__file__).with_name("worker.py")
IDLE_SECONDS = 120.0
"""After so long without work a worker ends and gives its memory back."""

MOST_WORKERS = 16
FIRST_WORKERS, STEP_SECONDS = 2, 0.05
"""Workers that are started at once, and the pause before each further one: a graph of one kernel is traced in 0.2 s
and should not wait for sixteen processes that load a compiler (0.3 s of a core each); one of hundreds of nodes wants
them all."""


def worker_count(wanted: int = 0) -> int:
    """How many workers to use: ``wanted``, or one for each core that this process may run on, at most 16."""
    return wanted or min(MOST_WORKERS, processors())


class _Worker:
    """One process; ``ask`` is called by one thread."""

    def __init__(self) -> None:
        if not sys.executable:
            raise CodegenError("no Python executable to run Triton's compiler in (sys.executable is empty)")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
        )

    @property
    def requests(self) -> IO[bytes]:
        """The pipe to the process."""
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def answers(self) -> IO[bytes]:
        """The pipe from it."""
        assert self.process.stdout is not None
        return self.process.stdout

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer, or None where the process died."""
        try:
            send(self.requests, request)
            return receive(self.answers)
        except (OSError, ValueError):
            return None

    def last_words(self) -> str:
        """The end of what the process wrote to standard error."""
        self.log.seek(0)
        return "\n".join(self.log.read().decode(errors="replace").splitlines()[-12:])

    def stop(self) -> None:
        """End the process; it removes its files when its input ends."""
        for stream in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class WorkerPool:
    """Workers and the queue they take requests from; grows with the queue, up to ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._queue: queue.Queue[tuple[dict[str, Any], Future] | None] = queue.Queue()
        self._lock = Lock()
        self._threads = 0
        self._idle = 0
        self._warming = False
        self._closed = False
        self._running: set[_Worker] = set()

    def warm(self) -> None:
        """Start workers, so that they have loaded the compiler when the first request comes: some, then one by one.

        From the first request on, requests tell how many are wanted."""
        with self._lock:
            while self._threads < min(FIRST_WORKERS, self.size) and not self._closed:
                self._grow()
            if self._warming or self._threads >= self.size:
                return
            self._warming = True
        threading.Thread(target=self._warm_further, daemon=True, name="turret-warm").start()

    def _warm_further(self) -> None:
        while True:
            time.sleep(STEP_SECONDS)
            with self._lock:
                if not self._warming or self._closed or self._threads >= self.size:
                    self._warming = False
                    return
                self._grow()

    def submit(self, request: dict[str, Any]) -> Future:
        """Compile in a worker; the future holds the answer, or raises ``CodegenError``."""
        future: Future = Future()
        with self._lock:
            if self._closed:
                raise CodegenError("the pool of compile workers is closed")
            self._warming = False
            self._queue.put((request, future))
            if self._queue.qsize() > self._idle and self._threads < self.size:
                self._grow()
        return future

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._closed = True
            running = list(self._running)
            for _ in range(self._threads):
                self._queue.put(None)
        for worker in running:
            worker.stop()

    def _grow(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, daemon=True, name="turret-compile").start()

    def _serve(self) -> None:
        worker: _Worker | None = None
        try:
            worker = self._start()
            while (job := self._next()) is not None:
                worker = self._do(worker, *job)
        except CodegenError as error:
            self._refuse(error)
        finally:
            if worker is not None:
                with self._lock:
                    self._running.discard(worker)
                worker.stop()

    def _start(self) -> _Worker:
        try:
            worker = _Worker()
        except OSError as error:
            raise CodegenError(f"no process for Triton's compiler could be started: {error}") from error
        with self._lock:
            self._running.add(worker)
        return worker

    def _next(self) -> tuple[dict[str, Any], Future] | None:
        """The next request; None once the thread no longer counts as one that serves."""
        while True:
            with self._lock:
                self._idle += 1
            try:
                job = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                job = None
            with self._lock:
                self._idle -= 1
                if job is None and (self._closed or self._queue.empty()):
                    self._threads -= 1
                    return None
            if job is not None:
                return job

    def _do(self, worker: _Worker, request: dict[str, Any], future: Future) -> _Worker:
        """Answer one request; a worker that dies over it is replaced, and the request tried once more."""
        if not future.set_running_or_notify_cancel():
            return worker
        for _ in range(2):
            answer = worker.ask(request)
            if answer is not None:
                break
            words = worker.last_words()
            with self._lock:
                self._running.discard(worker)
                closed = self._closed
            worker.stop()
            if closed:
                break
            try:
                worker = self._start()
            except CodegenError as error:
                future.set_exception(error)
                raise
        if answer is None:
            future.set_exception(CodegenError(f"Triton's compiler died on kernel {request['name']}:\n{words}"))
        elif "error" in answer:
            future.set_exception(
                CodegenError(f"Triton did not compile kernel {request['name']}:\n{answer['error'].rstrip()}")
            )
        else:
            future.set_result(answer)
        return worker

    def _refuse(self, error: CodegenError) -> None:
        """End a thread that has no process; where no other serves, what waits cannot be compiled."""
        with self._lock:
            self._threads -= 1
            while self._threads == 0 and not self._queue.empty():
                job = self._queue.get_nowait()
                if job is not None:
                    job[1].set_exception(error)


_pools: dict[int, WorkerPool] = {}
_pools_lock = Lock()


def shared_pool(wanted: int = 0) -> WorkerPool:
    """The process's pool of a size."""
    size = worker_count(wanted)
    with _pools_lock:
        if size not in _pools:
            _pools[size] = WorkerPool(size)
        return _pools[size]


def _close_all() -> None:
    for pool in _pools.values():
        pool.close()


@after_fork
def _forget() -> None:
    """In a forked child the pools' threads are gone and their processes are the parent's.

    The child lets go of the pipes as well: a worker ends when the last process that could write to it has closed its.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for pool in _pools.values():
        for worker in pool._running:
            for stream in (worker.requests, worker.answers):
                with contextlib.suppress(OSError, ValueError):
                    os.dup2(nothing, stream.fileno(), inheritable=False)
    os.close(nothing)
    _pools.clear()


atexit.register(_close_all)
