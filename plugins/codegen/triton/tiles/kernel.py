"""What Triton emission hands to compiling and launching: source text, parameters, configurations, grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch


@attrs.frozen
class DeviceProperties:
    """What emission asks about a device.

    ``capability``: major and minor of the compute capability.  ``multiprocessors``: how many there are; a reduction
    with fewer rows than that is split over programs.
    """

    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132


@attrs.frozen
class Config:
    """One way to compile and launch a kernel: values of its constexprs (sorted by name), warps, pipeline stages."""

    constants: tuple[tuple[str, int], ...]
    num_warps: int = 4
    num_stages: int = 1

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.constants)
        return f"({values}; {self.num_warps} warps, {self.num_stages} stages)"


@attrs.frozen
class Scratch:
    """Memory that lives from the kernel that lists it to the last kernel of the same ``emit`` that names it.

    ``name`` appears in ``buffers``.  ``count``: elements, as Python source over size symbols.  ``dtype``: as in
    ``torch.<dtype>``.  ``zeroed``: whether it must hold zeros when the first kernel starts.
    """

    name: str
    count: str
    dtype: str
    zeroed: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        kind: torch.dtype = getattr(torch, self.dtype)
        return kind.itemsize


@attrs.frozen
class TritonKernel:
    """One Triton kernel.

    ``name``: the ``@triton.jit`` function in ``source``, made from its content: equal sources have equal names.
    ``source``: a whole Python module, the same to the byte for kernels that differ only in names of tensors; what
    they do not share (names, the user's lines) is in ``comment``.  Its parameters are pointers to the first elements
    of the tensors ``buffers``, then the values of the size symbols ``sizes``, then the numbers ``streams`` (of
    random numbers; not part of what kernels are equal by), then the constexprs that ``configs`` give values to.
    ``parameters`` are the names of the former three kinds in order; ``signature`` gives each its Triton type
    (``*bf16``, ``i32``, ``i64``).  ``divisible``: parameters known to be multiples of 16 (pointers: in bytes).
    ``configs``: candidates in order of preference, never empty.
    ``grid``: up to three numbers of programs, each Python source over size symbols, constexprs and ``cdiv``; a
    product of zero means that there is nothing to launch.  ``grid_for`` computes it.
    ``scratch``: memory that the caller provides for this kernel and those emitted with it.
    ``options``: compile options besides warps and stages (``debug`` where the kernel asserts that indices are in
    range: a failing one stops the device, as eager's does).
    ``stored``: those of ``buffers`` that the kernel writes; autotuning must restore the ones that it also reads
    (``inplace``: read and written, or scattered to).
    ``assumes``: expressions over size symbols, all of them zero or less where the kernel may run; ``otherwise`` is the
    kernel to run where they are not, which may assume less; the last of them assumes nothing.
    ``described``: parameters that must be multiples of 16 bytes for the kernel to be right (tensor descriptors begin
    there).  ``rivals``: other kernels that do the same, with scratch memory of their own, for a timer to choose among;
    none where sizes are symbolic.
    ``ends``: those of ``buffers`` that hold where groups of rows end, with how many rows there are (where that is
    known), so that it can be timed on groups of equal size.
    """

    name: str
    source: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    parameters: tuple[str, ...]
    signature: dict[str, str]
    divisible: frozenset[str]
    configs: tuple[Config, ...]
    grid: tuple[str, ...]
    scratch: tuple[Scratch, ...] = ()
    options: dict[str, Any] = attrs.field(factory=dict)
    stored: tuple[str, ...] = ()
    inplace: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    comment: str = ""
    streams: tuple[int, ...] = ()
    assumes: tuple[str, ...] = ()
    otherwise: TritonKernel | None = None
    ends: dict[str, int] = attrs.field(factory=dict)
    described: frozenset[str] = frozenset()
    rivals: tuple[TritonKernel, ...] = ()

    @property
    def alternatives(self) -> tuple[TritonKernel, ...]:
        """The kernel, and those for other sizes, in the order in which they are asked."""
        return (self,) if self.otherwise is None else (self, *self.otherwise.alternatives)

    def chosen_for(self, sizes: dict[str, int]) -> TritonKernel:
        """Which of ``alternatives`` to run for values of the size symbols."""
        if self.otherwise is None or all(evaluated(text, sizes) <= 0 for text in self.assumes):
            return self
        return self.otherwise.chosen_for(sizes)

    def wanted_for(self, hints: Mapping[str, int]) -> tuple[TritonKernel, ...]:
        """The one of ``alternatives`` to run for sizes as their hints say; all of them where some have no hint."""
        try:
            return (self.chosen_for(dict(hints)),)
        except (NameError, ZeroDivisionError):
            return self.alternatives

    def grid_for(self, config: Config, sizes: dict[str, int]) -> tuple[int, int, int]:
        """Numbers of programs for values of the size symbols."""
        counts = [evaluated(text, {**sizes, **dict(config.constants)}) for text in self.grid]
        x, y, z = (*counts, *(1,) * (3 - len(counts)))
        return x, y, z

    def __str__(self) -> str:
        head = f"# {self.name}({', '.join(self.buffers + self.sizes)}) grid ({', '.join(self.grid)})"
        comment = [f"# {line}" for line in self.comment.splitlines()]
        assumes = [f"# for sizes where {text} <= 0" for text in self.assumes]
        return "\n".join([head, *comment, *assumes, *(f"# {config}" for config in self.configs), self.source])


def evaluated(text: str, values: dict[str, int]) -> int:
    """A count in Python source, for values of the names in it."""
    host: dict[str, Any] = {
        "min": min,
        "max": max,
        "cdiv": lambda a, b: -(-a // b),
        "floor_div": int.__floordiv__,
        "floor_mod": int.__mod__,
    }
    names = {**values, **host}
    return int(eval(text, {"__builtins__": {}}, names))
