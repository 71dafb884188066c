"""Jobs in worker processes that may crash or hang: a dead worker costs the job that it was on and no other.

A worker is a process that calls ``serve``; jobs and results are JSON, one line each.  ``Worker`` is the driver's end of
one, and ``run_jobs`` keeps several busy.
"""

from __future__ import annotations

import faulthandler
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Literal

import attrs


def serve(handle: Callable[[Any], Any], timeout: float | Callable[[Any], float]) -> None:
    """In a worker: answer each job on stdin with ``handle(job)``; exit, stacks printed, when one takes too long.

    ``timeout``: seconds for a job, or what gives them for one.

    What the job prints goes to stderr, so that it cannot mix with results.
    """
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    for line in sys.stdin:
        job = json.loads(line)
        faulthandler.dump_traceback_later(timeout(job) if callable(timeout) else timeout, exit=True)
        answer = handle(job)
        faulthandler.cancel_dump_traceback_later()
        results.write(json.dumps(answer) + "\n")
        results.flush()


@attrs.frozen
class Death:
    """How a worker ended in the middle of a job: ``kind``, one sentence, and the end of what it printed."""

    kind: Literal["crash", "hang"]
    reason: str
    printed: str


_JOBS = 2000
"""Jobs that a worker does before another takes its place: code that was loaded is never unloaded, and a process has
65,530 mappings on Linux, five of which a library takes (6,600 programs of two or three kernels' libraries each)."""


class Worker:
    """A worker process, started when a job is first asked of it, and anew after one that ended it or after ``_JOBS``.

    ``timeout``: seconds that a job may take, for workers that do not watch the time themselves or cannot.
    """

    def __init__(self, command: list[str], timeout: float, environment: Mapping[str, str] | None = None) -> None:
        self._command, self._timeout = command, timeout
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen | None = None
        self._printed: IO[bytes] | None = None
        self._asked = 0

    def ask(self, job: Any) -> Any:
        """The answer to a job, or the ``Death`` of the process."""
        if self._asked >= _JOBS:
            self.close()
        if self._process is None:
            self._start()
        self._asked += 1
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line()
        except BrokenPipeError:
            line = b""
        return json.loads(line) if line else self._death(in_time=line is not None)

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _start(self) -> None:
        self._asked = 0
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=self._environment,
        )

    def _line(self) -> bytes | None:
        """The next line of results; nothing at the end of the process, None when time has run out."""
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self._timeout):
                return None
        return self._process.stdout.readline()

    def _death(self, in_time: bool) -> Death:
        assert self._process is not None and self._printed is not None
        if not in_time:
            self._process.kill()
        status = self._process.wait()
        self._printed.seek(0)
        printed = self._printed.read().decode(errors="replace")
        self.close()
        hung = not in_time or "Timeout (" in _about_the_end(printed)
        reason = f"no answer within {self._timeout:g} s" if not in_time else "out of time" if hung else _ending(status)
        return Death("hang" if hung else "crash", reason, _about_the_end(printed))


def _about_the_end(printed: str) -> str:
    """What a process printed at its end: the stacks of its threads, innermost calls first, else its last words."""
    start = max(printed.rfind("Fatal Python error"), printed.rfind("Timeout ("))
    return printed[start:][:6000] if start >= 0 else printed[-6000:]


def _ending(status: int) -> str:
    """What the status of a process says."""
    if status < 0:
        return f"the process died of {signal.Signals(-status).name}"
    return f"the process ended with status {status}"


_AT_MOST = 24 * 3600.0
"""Seconds for a job of ``run_jobs``, whose workers watch the time themselves."""


def run_jobs(
    command: list[str],
    jobs: Iterable[Any],
    on_result: Callable[[Any, Any], None],
    on_death: Callable[[Any, Death], None],
    *,
    workers: int = 2,
    environment: dict[str, str] | None = None,
) -> None:
    """Run all jobs on ``workers`` processes of ``command`` and return when they are done.

    ``on_result(job, answer)`` and ``on_death(job, death)`` are called one at a time; ``jobs`` is read lazily, so
    it can stop early.
    """
    source = iter(jobs)
    lock = threading.Lock()

    def drive() -> None:
        worker = Worker(command, _AT_MOST, environment)
        try:
            for job in _shared(source, lock):
                answer = worker.ask(job)
                with lock:
                    if isinstance(answer, Death):
                        on_death(job, answer)
                    else:
                        on_result(job, answer)
        finally:
            worker.close()

    threads = [threading.Thread(target=drive) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _shared(source: Iterator[Any], lock: threading.Lock) -> Iterator[Any]:
    while True:
        with lock:
            try:
                job = next(source)
            except StopIteration:
                return
        yield job
