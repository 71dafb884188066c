"""Running a C++ compiler: the one place where Turret starts one, and where it ends with whatever it has started.

A compiler is a driver (``g++``) that starts others (``cc1plus``, ``as``, ``ld``).  It runs in a process group of its
own, and the whole group is ended when its time is up, when the compile is interrupted, and when this process exits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from turret.errors import CodegenError
from turret.storage.fork_safety import after_fork

CANDIDATES = ("g++", "clang++", "c++")
INSTALL = (
    "install one (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: gxx), or name one in CXX"
)
TIME_LIMIT = 600.0
"""Seconds that a compiler may take for one library."""
_LOOK = 0.5
"""Seconds between two looks at whether anybody still waits for a compiler."""
_SHOWN = 20
"""Lines of a compiler's messages that an error shows."""

_running: set[subprocess.Popen[str]] = set()


def find_command(purpose: str) -> list[str]:
    """The command that ``CXX`` names, else the first known compiler; ``CodegenError`` where it is not there."""
    named = os.environ.get("CXX")
    candidates = [named] if named else CANDIDATES
    for command in map(words, candidates):
        if command and shutil.which(command[0]):
            return command
    raise CodegenError(f"{purpose} needs a C++ compiler; tried {', '.join(candidates)}; {INSTALL}")


def words(command: str) -> list[str]:
    """The words of a command as a shell takes it; ``CodegenError`` where a quotation does not end."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise CodegenError(f"{command!r} is no command: {error}; check CXX and the option cpp_compiler") from error


def build(command: Sequence[str], made: Path, what: str) -> bytes:
    """Run a compiler that writes the file ``made``; its bytes.  ``what`` is compiled, for messages.

    Raises ``CodegenError`` with the command and the compiler's messages where it fails, and where it does not end
    within ``TIME_LIMIT``.
    """
    build_all([command], [made], what)
    return made.read_bytes()


def build_all(commands: Sequence[Sequence[str]], made: Sequence[Path], what: str) -> None:
    """Run compilers side by side, each of which writes a file; as ``build`` where one fails."""
    for command, file, done in zip(commands, made, run_all(commands, TIME_LIMIT), strict=True):
        if done.returncode != 0 or not file.exists():
            ended = f" (ended by signal {-done.returncode})" if done.returncode < 0 else ""
            messages = "\n".join(done.stderr.splitlines()[:_SHOWN])
            raise CodegenError(f"the C++ compiler failed on {what}{ended}\n  {shlex.join(command)}\n{messages}")


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a compiler to its end, whatever its status; ``CodegenError`` where it cannot start or takes too long."""
    return run_all([command], seconds)[0]


def run_all(commands: Sequence[Sequence[str]], seconds: float) -> list[subprocess.CompletedProcess[str]]:
    """Run compilers side by side; where one cannot start or takes too long, the others are ended, too."""
    interrupted = threading.Event()
    if len(commands) == 1 and threading.current_thread() is not threading.main_thread():
        return [_run(commands[0], seconds, interrupted)]
    # Interrupts come to the main thread: in another one, none comes between the start of a process and the note of it.
    executor = ThreadPoolExecutor(len(commands))
    try:
        try:
            running = [executor.submit(_run, command, seconds, interrupted) for command in commands]
        except RuntimeError:  # Python is ending, and starts no thread any more
            return [_run(command, seconds, interrupted) for command in commands]
        return [done.result() for done in running]
    except BaseException:
        interrupted.set()
        raise
    finally:
        executor.shutdown(wait=False)


def _run(command: Sequence[str], seconds: float, interrupted: threading.Event) -> subprocess.CompletedProcess[str]:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
    except (OSError, ValueError) as error:
        raise CodegenError(f"the C++ compiler could not run: {error}\n  {shlex.join(command)}\n  {INSTALL}") from error
    _running.add(process)
    try:
        output, messages = _communicate(process, command, seconds, interrupted)
    finally:
        _end(process)
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()
    return subprocess.CompletedProcess(command, process.returncode, output, messages)


def _communicate(
    process: subprocess.Popen[str], command: Sequence[str], seconds: float, interrupted: threading.Event
) -> tuple[str, str]:
    """What a compiler writes until it ends; ``CodegenError`` where it takes too long, or nobody waits any more."""
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left <= 0 or interrupted.is_set() or _is_interrupted():
            why = f"did not end within {seconds:g} s" if left <= 0 else "was interrupted"
            raise CodegenError(f"the C++ compiler {why} and was stopped\n  {shlex.join(command)}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=min(left, _LOOK))


def _is_interrupted() -> bool:
    """Whether an interrupt has ended the program, which now waits for a compile in another thread."""
    return not threading.main_thread().is_alive() and getattr(sys, "last_type", None) is KeyboardInterrupt


def stop_all() -> None:
    """End every compiler that this process has started."""
    for process in list(_running):
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of a compiler; nothing where it has ended."""
    if process.returncode is None:  # until it is waited for, no other group has its number
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _running.discard(process)


atexit.register(stop_all)
after_fork(_running.clear)
