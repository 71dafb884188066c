"""Graphs of the recording driver, as a capture leaves them behind."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import torch

from tests.core.plan.launch.driver_lab import FakeDriver
from turret.plan.launch.graphs import NativeGraph

CONTEXT = 1001
"""The primary context of device 1, on which these graphs are."""


class FakeGraph:
    """A graph under construction; ``read`` is what Turret makes of it."""

    def __init__(self, fake: FakeDriver, library: ctypes.CDLL) -> None:
        self.fake, self.library = fake, library
        for name in ("graph", "node", "kernel", "instantiate"):
            getattr(fake.driver, f"fake_{name}").restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(fake.driver.fake_graph())
        self.nodes: list[ctypes.c_void_p] = []
        self.instantiated = 0

    def kernel(self, name: str, *parameters: bytes | int, in_buffer: bool = False, by_kernel: bool = False) -> int:
        """A kernel node; an int is a parameter of 8 bytes.  Returns its number."""
        given = [struct.pack("<Q", p) if isinstance(p, int) else p for p in parameters]
        sizes = (ctypes.c_int64 * len(given))(*map(len, given))
        further = sizes, len(given), b"".join(given), int(in_buffer), int(by_kernel)
        return self._add(self.fake.driver.fake_kernel(self.handle, name.encode(), *further))

    def node(self, kind: int) -> int:
        """A node of a type that has no parameters here."""
        return self._add(self.fake.driver.fake_node(self.handle, kind))

    def copy(self, source: int, target: int, nbytes: int, height: int = 1) -> int:
        number = self.node(1)
        self.fake.driver.fake_copy(self.nodes[number], *map(ctypes.c_uint64, (source, target, nbytes, height)))
        return number

    def clear(self, target: int, nbytes: int) -> int:
        number = self.node(2)
        self.fake.driver.fake_memset(self.nodes[number], ctypes.c_uint64(target), ctypes.c_uint64(nbytes))
        return number

    def hide(self, number: int) -> None:
        """The driver does not tell what this node was handed."""
        self.fake.driver.fake_hide(self.nodes[number])

    def edge(self, before: int, after: int) -> None:
        self.fake.driver.fake_edge(self.handle, self.nodes[before], self.nodes[after])

    def _add(self, handle: int) -> int:
        self.nodes.append(ctypes.c_void_p(handle))
        return len(self.nodes) - 1

    def read(self, device: int = 1) -> NativeGraph:
        made = NativeGraph(device, self.handle.value, self._instantiate, self.library)
        self.fake.clear()
        return made

    def _instantiate(self) -> int:
        self.instantiated += 1
        return self.fake.driver.fake_instantiate(self.handle)

    def log(self, *words: str) -> list[str]:
        """Lines of the driver that begin with one of these words, since the last time."""
        lines = [line for line in self.fake.log() if line.split()[0] in words]
        self.fake.clear()
        return lines


def floats(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def size(tensor: torch.Tensor) -> bytes:
    """The number of elements, as kernels of the fake driver take it."""
    return struct.pack("<q", tensor.numel())


def words(arguments: bytes) -> Sequence[Any]:
    return struct.unpack(f"<{len(arguments) // 8}Q", arguments)
