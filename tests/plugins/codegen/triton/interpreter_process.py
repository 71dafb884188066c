"""Runs Triton kernels under Triton's interpreter, in a process of its own.

Triton decides when it is imported whether its functions are interpreted, so tests that compile and tests that
interpret cannot share a process.  This module is both sides: ``Interpreter`` starts the process and talks to it;
run as a program, it is the process.
"""

from __future__ import annotations

import atexit
import os
import pickle
import struct
import subprocess
import sys
from typing import Any


class InterpretedFailure(Exception):
    """A kernel that raised in the interpreter; the text is the traceback there."""


class Interpreter:
    """A process that interprets kernels; started on first use, ended with the tests."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def launch(
        self,
        name: str,
        source: str,
        arguments: list[Any],
        written: tuple[int, ...],
        constants: dict[str, int],
        grid: tuple[int, int, int],
    ) -> None:
        """Run ``name`` of the module ``source``; those of ``arguments`` numbered in ``written`` get its results.

        Raises ``InterpretedFailure`` where the kernel does, or where it accesses memory that no argument has.
        """
        if 0 in grid:
            return
        reply = self._ask((name, source, arguments, written, constants, grid))
        if isinstance(reply, str):
            raise InterpretedFailure(f"{reply}\n{source}")
        for number, value in reply.items():
            arguments[number].untyped_storage().copy_(value.untyped_storage())

    def _ask(self, request: Any) -> Any:
        if self.process is None or self.process.poll() is not None:
            environment = {**os.environ, "TRITON_INTERPRET": "1"}
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            atexit.register(self.close)
        _send(self.process.stdin, request)
        return _receive(self.process.stdout)

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(timeout=10)


def _send(stream: Any, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def _receive(stream: Any) -> Any:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<q", header)[0]))


def _serve() -> None:
    import importlib.util
    import tempfile
    import traceback
    from pathlib import Path

    from tests.plugins.codegen.triton.interpreter_shims import LIBDEVICE, give_memory, install, no_wait

    install()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what kernels print must not get between the replies
    folder = tempfile.TemporaryDirectory()
    functions: dict[str, Any] = {}
    while True:
        try:
            name, source, arguments, written, constants, grid = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if source not in functions:
                path = Path(folder.name) / f"m{len(functions)}_{name}.py"
                path.write_text(source)
                spec = importlib.util.spec_from_file_location(path.stem, path)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                module.libdevice, module.gdc_wait, module.gdc_launch_dependents = LIBDEVICE, no_wait, no_wait
                functions[source] = getattr(module, name)
            give_memory(arguments)
            functions[source][grid](*arguments, **constants)
            _send(output, {k: arguments[k] for k in written})
        except Exception as failure:
            cause = failure.__cause__ or failure
            _send(output, f"{type(cause).__name__}: {cause}\n{traceback.format_exc()}")


if __name__ == "__main__":
    _serve()
