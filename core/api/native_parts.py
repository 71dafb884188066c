"""The native parts of Turret, for building them ahead of their first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from turret.frames import frame_hook, guard_tree
from turret.graph.autograd import nodes
from turret.plan.launch import fresh_tensors
from turret.plan.launch.driver_library import GRAPHS, LAUNCHER
from turret.storage import prebuilt
from turret.storage.extension import Extension


@attrs.frozen
class Part:
    """One native library: what it is called, its key and file name, and what compiles it."""

    name: str
    key: str
    library: str
    compile: Callable[[], bytes]

    def prebuilt(self) -> Path | None:
        """Where it lies, if it was built ahead of time."""
        return prebuilt.find(self.key, self.library)

    def prebuild(self) -> Path:
        """Build it ahead of time, where that was not done.

        Raises ``CodegenError`` where it cannot be compiled, ``TurretError`` where it cannot be written.
        """
        return self.prebuilt() or prebuilt.put(self.key, self.library, self.compile)


def parts() -> tuple[Part, ...]:
    """All parts, as the running interpreter and its torch need them."""
    return (
        _extension("frame hook", frame_hook.EXTENSION),
        _extension("guard tree", guard_tree.extension()),
        _extension("autograd nodes", nodes.extension()),
        _extension("tensor maker", fresh_tensors.extension()),
        *(Part(made.purpose, made.key(), made.file, made.compile) for made in (LAUNCHER, GRAPHS)),
    )


def _extension(name: str, extension: Extension) -> Part:
    return Part(name, extension.key(), extension.library, extension.build)
