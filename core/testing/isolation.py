"""Jobs in worker processes that may crash or hang: a dead worker costs the job that it was on and no other.

A worker is a process that calls ``serve``; jobs and results are JSON, one line each.  The driver is ``run_jobs``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def serve(handle: Callable[[Any], Any], timeout: float) -> None:
    """In a worker: answer each job on stdin with ``handle(job)``; exit with status 1 when one takes too long.

    What the job prints goes to stderr, so that it cannot mix with results.
    """
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(timeout, exit=True)
        answer = handle(json.loads(line))
        faulthandler.cancel_dump_traceback_later()
        results.write(json.dumps(answer) + "\n")
        results.flush()


def run_jobs(
    command: list[str],
    jobs: Iterable[Any],
    on_result: Callable[[Any, Any], None],
    on_death: Callable[[Any, str], None],
    *,
    workers: int = 2,
    environment: dict[str, str] | None = None,
) -> None:
    """Run all jobs on ``workers`` processes of ``command`` and return when they are done.

    ``on_result(job, answer)`` and ``on_death(job, reason)`` are called one at a time; ``jobs`` is read lazily, so
    it can stop early.
    """
    source = iter(jobs)
    lock = threading.Lock()

    def drive() -> None:
        worker: subprocess.Popen | None = None
        try:
            for job in _shared(source, lock):
                if worker is None:
                    worker = _start(command, environment)
                answer = _ask(worker, job)
                if answer is None:
                    reason = f"the worker died with status {worker.wait()} (1: an error of its own, or out of time)"
                    worker = None
                    with lock:
                        on_death(job, reason)
                else:
                    with lock:
                        on_result(job, answer)
        finally:
            if worker is not None:
                worker.kill()
                worker.wait()

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


def _start(command: list[str], environment: dict[str, str] | None) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | (environment or {}),
    )


def _ask(worker: subprocess.Popen, job: Any) -> Any:
    """The worker's answer, or None when it died."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
    except BrokenPipeError:
        return None
    return json.loads(line) if line else None
