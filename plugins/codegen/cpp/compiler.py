"""The C++ compiler: finding it, its flags for this machine, running it, and loading what it made."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from turret.errors import CodegenError
from turret.plugins.codegen.cpp.unit import parts
from turret.storage import toolchain
from turret.storage.artifact_cache import Entry, Store, process_cache
from turret.storage.environment import processor
from turret.storage.libraries import keep_library, open_library, stored_library

LIBRARY = "kernels.so"
VERSION_LIMIT = 20.0
"""Seconds within which a compiler says its version."""

_WHAT = "generated code"
PART = 24 * 1024
"""Characters of source that are worth another process: about half a second of GCC's time against a tenth to start."""

_FLAGS = [
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-plt",
    "-w",
]
"""Never ``-ffast-math``: NaN, infinities and signed zeros must come out as eager's.  Reassociation is written out."""

_KIND_FLAGS = {
    # GCC (12.2 seen) makes cos(atan(x)) one over a root without errno, and 0 of a NaN; builtins are named as such.
    # It also moves the call of a function that one way of a choice needs there, where it has no vectors.
    "gcc": ("-mprefer-vector-width=512", "-fno-semantic-interposition", "-fno-builtin", "-fno-tree-sink"),
    "clang": ("-mprefer-vector-width=512",),
}


@attrs.frozen
class Compiler:
    """A working C++ compiler: absolute path, ``gcc`` or ``clang``, and the first line of its ``--version``.

    ``arguments`` are those that its name came with (``ccache g++``, ``g++ -m64``), ``further`` the user's flags.
    """

    path: str
    kind: str
    version: str
    further: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for a shared library of kernels on this machine, then those that the user adds."""
        wide = _KIND_FLAGS[self.kind] if platform.machine() in ("x86_64", "AMD64") else ()
        return (*_FLAGS, *wide, *self.further)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Libraries to link: libmvec only where it exists and the compiler calls it.

        With GCC the runtime of C++ is left out, which kernels use nothing of: a quarter of the time that a small unit
        takes (60 against 80 ms of CPU time, GCC 12.2) is spent on reading it.
        """
        glibc = platform.libc_ver()[0] == "glibc"
        if self.kind != "gcc" or not glibc:
            return ("-lm",)
        vector = ("-lmvec",) if platform.machine() == "x86_64" else ()
        return ("-nodefaultlibs", "-lgomp", *vector, "-lm", "-lgcc", "-lc")

    @property
    def fingerprint(self) -> str:
        """Everything about the machine and the compiler that the binary depends on."""
        return "\n".join((self.path, *self.arguments, self.version, *self.flags, *self.libraries, processor()))


def find_compiler(wanted: str | None = None, further_flags: str = "") -> Compiler:
    """The compiler named by ``wanted`` or ``CXX``, else the first of g++, clang++ and c++ that works.

    Raises ``CodegenError`` that says what was tried and how to get one.
    """
    named = wanted or os.environ.get("CXX")
    return attrs.evolve(_find(named, os.environ.get("PATH", "")), further=tuple(shlex.split(further_flags)))


@functools.lru_cache(maxsize=16)
def _find(named: str | None, path: str) -> Compiler:
    tried = []
    for name in (named,) if named else toolchain.CANDIDATES:
        command = toolchain.words(name)
        located = shutil.which(command[0], path=path) if command else None
        if located is None:
            tried.append(f"{name}: not found")
            continue
        version, problem = _version((located, *command[1:]))
        if problem:
            tried.append(f"{name}: {problem}")
            continue
        first = version.splitlines()[0] if version else ""
        return Compiler(located, "clang" if "clang" in version else "gcc", first, arguments=tuple(command[1:]))
    raise CodegenError(f"no working C++ compiler; tried {'; '.join(tried)}; {toolchain.INSTALL}")


@functools.cache
def _version(command: tuple[str, ...]) -> tuple[str, str]:
    """What a compiler says of itself, and what is wrong with it; asked once, as it may take its time to say nothing."""
    try:
        done = toolchain.run([*command, "--version"], VERSION_LIMIT)
    except CodegenError as error:
        return "", str(error)
    return done.stdout, f"--version ended with status {done.returncode}" if done.returncode else ""


def unit_key(source: str, compiler: Compiler) -> str:
    """Content address of the library that ``source`` makes with ``compiler`` on this machine."""
    return hashlib.sha256(f"{compiler.fingerprint}\n{source}".encode()).hexdigest()


def compile_unit(source: str, compiler: Compiler, store: Store = process_cache) -> tuple[Entry, bool]:
    """The entry with the shared library (``LIBRARY``) of a translation unit, and whether ``store`` had it.

    Raises ``CodegenError`` with the compiler's own messages where it fails.
    """
    key = unit_key(source, compiler)
    found = stored_library(store, key)
    if found is not None:
        return found, True
    return keep_library(store, key, {LIBRARY: _compile(source, compiler), "kernels.cpp": source.encode()}), False


def _compile(source: str, compiler: Compiler) -> bytes:
    count = min(toolchain.processors(), len(source) // PART)
    command = [compiler.path, *compiler.arguments, *compiler.flags]
    with tempfile.TemporaryDirectory(prefix="turret-build-") as scratch:
        made = Path(scratch, "unit.so")
        if count < 2:
            inputs = [Path(scratch, "unit.cpp")]
            inputs[0].write_text(source)
        else:
            inputs = _objects(parts(source, count), [c for c in command if c != "-shared"], Path(scratch))
        return toolchain.build([*command, "-o", str(made), *map(str, inputs), *compiler.libraries], made, _WHAT)


def _objects(units: Sequence[str], command: Sequence[str], scratch: Path) -> list[Path]:
    """The object files of units that are compiled side by side."""
    texts, made = ([Path(scratch, f"part{n}.{kind}") for n in range(len(units))] for kind in ("cpp", "o"))
    for path, unit in zip(texts, units, strict=True):
        path.write_text(unit)
    commands = [[*command, "-c", "-o", str(to), str(text)] for to, text in zip(made, texts, strict=True)]
    toolchain.build_all(commands, made, _WHAT)
    return made


def load(entry: Entry) -> ctypes.CDLL:
    """Load a library of kernels; ``CodegenError`` where the entry holds none."""
    try:
        return open_library(entry[LIBRARY], entry.key)
    except OSError as error:
        raise CodegenError(f"the compiled kernels {entry.key} cannot be loaded: {error}") from error
