"""Extension modules in C++: built for the running interpreter at first use, kept in the artifact cache, loaded.

They are built at first use and not at install because they reach into the interpreter's objects: a binary fits one
minor version of CPython alone, and an install made for one environment is often used from another.  ``turret build``
builds them ahead of time for the interpreter that runs it; such a binary is taken before the artifact cache is asked.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import attrs
import torch

from turret.errors import CodegenError
from turret.storage import prebuilt
from turret.storage.artifact_cache import open_store
from turret.storage.libraries import ROLE, as_path
from turret.storage.native_enums import Enums, header_text, write_header
from turret.torch_compat.native import uses_cxx11_abi

_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-w")


@attrs.frozen
class Extension:
    """The extension module of one C++ source; it is named ``_turret_`` and the file's stem.

    ``purpose`` is named in errors; ``flags`` go to the compiler, behind the source; ``facts`` are what else the binary
    depends on, ``headers`` the files that the source includes from beside it, ``enums`` those of
    ``native_enums.HEADER``.
    """

    source: Path
    purpose: str
    flags: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    headers: tuple[Path, ...] = ()
    enums: Enums = ()

    @classmethod
    def of_torch(
        cls,
        source: Path,
        purpose: str,
        libraries: tuple[str, ...] = (),
        includes: tuple[str, ...] = (),
        headers: tuple[Path, ...] = (),
        enums: Enums = (),
    ) -> Extension:
        """One that is built against the running torch's C++.

        ``libraries`` are those of torch's beside ``c10`` and ``torch_cpu``, ``includes`` more folders of its headers.
        """
        torchs = Path(torch.__file__).parent
        flags = (
            "-std=c++20", "-fvisibility=hidden", "-Wl,-z,now",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(uses_cxx11_abi)}",
            *(f"-I{torchs / 'include' / folder}" for folder in ("", *includes)),
            f"-L{torchs / 'lib'}", *(f"-l{name}" for name in ("c10", "torch_cpu", *libraries)),
        )  # fmt: skip
        return cls(source, purpose, flags, (torch.__version__,), headers, enums)

    @property
    def name(self) -> str:
        return f"_turret_{self.source.stem}"

    @property
    def library(self) -> str:
        return f"{self.name}.so"

    def key(self) -> str:
        """The address of the binary, built ahead of time or in the artifact cache."""
        known = (sys.version, sys.implementation.cache_tag, sysconfig.get_platform(), *_FLAGS, *self.flags, *self.facts)
        digest = hashlib.sha256((repr(known) + header_text(self.enums)).encode())
        for part in (self.source, *self.headers):
            digest.update(part.read_bytes())
        return digest.hexdigest()

    def is_built(self) -> bool:
        """Whether the binary is there: built ahead of time, or in the artifact cache."""
        key = self.key()
        return prebuilt.find(key, self.library) is not None or open_store().get(key, ROLE) is not None

    def content(self) -> bytes:
        """The binary, built into the artifact cache where it is not there; raises as ``load``."""
        key = self.key()
        found = prebuilt.find(key, self.library)
        if found is not None:
            return found.read_bytes()
        return open_store().get_or_build(key, ROLE, lambda: {self.library: self.build()})[0][self.library]

    def load(self) -> Any:
        """A new module, built where it is not there.

        Raises ``CodegenError`` with what is missing (a C++ compiler, the Python headers) and how to get it.
        """
        found = prebuilt.find(self.key(), self.library)
        if found is not None:
            return self._load(str(found))
        with as_path(self.content(), self.library) as path:
            return self._load(path)

    def _load(self, path: str) -> Any:
        spec = importlib.util.spec_from_file_location(
            self.name, path, loader=importlib.machinery.ExtensionFileLoader(self.name, path)
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except ImportError:
            open_store().remove(self.key())  # no library for this machine: another process builds its own
            raise
        return module

    def build(self) -> bytes:
        """Compile; raises as ``load``."""
        headers = sysconfig.get_paths()["include"]
        if not Path(headers, "internal", "pycore_frame.h").exists():
            raise CodegenError(
                f"{self.purpose} needs the Python headers, and {headers} lacks them; install them "
                f"(Debian and Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-dev)"
            )
        from turret.storage import toolchain  # most processes find a binary

        compiler = toolchain.find_command(self.purpose)
        with tempfile.TemporaryDirectory(prefix="turret-extension-") as scratch:
            made = Path(scratch, self.library)
            includes = (f"-I{headers}", f"-I{headers}/internal", write_header(scratch, self.enums))
            command = [*compiler, *_FLAGS, *includes, str(self.source), *self.flags, "-o", str(made)]
            return toolchain.build(command, made, self.source.name)
