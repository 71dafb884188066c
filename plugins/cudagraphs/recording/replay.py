"""The function that replays a node: straight-line Python, written for the node.

Walking lists of decisions would cost more than what they decide; each line here is what one input or output needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.errors import CodegenError
from turret.hooks.devices import Placed
from turret.plan.modes import below_autograd
from turret.plugins.cudagraphs.recording.node import ALIGNMENT, Node, flat, flat_at, memory_at, overlapping, tensor_on
from turret.plugins.cudagraphs.recording.recorder import Item
from turret.plugins.cudagraphs.work import Layout, RecordingDevice, Result, Shapes, Work, float_bits
from turret.storage.source_lines import show_lines
from turret.torch_compat.native import same_addresses

_NATIVE_FROM = 4
"""Inputs from which on the native comparison is faster than one in Python."""

_MADE_NATIVELY_FROM = 4
"""Buffers from which on one native call makes them faster than one each, whose list is then taken apart."""

_PACKED_FROM, _PACKED_BYTES, _PITCH = 8, 1 << 16, 512
"""How many saved tensors of one layout are made in one block of memory, how many bytes each has at most, and the bytes
that each begins at a multiple of, as what torch's allocators hand out does.

An allocator takes as long for one as for all.  They live until the backward has run, all of them; where few are kept
longer, a block that holds them holds little more."""


def write_replay(
    node: Node, recording_device: RecordingDevice, arity: int, work: Work
) -> Callable[[list, int], list | None]:
    """``replay(args, stream) -> outputs``: runs the node for these inputs and empties ``args``; None: it does not fit.

    It keeps the recording and not the node, so that nothing has to wait for the garbage collector.
    """
    return _Writer(node, recording_device, arity, work).build()


class _Writer:
    def __init__(self, node: Node, recording_device: RecordingDevice, arity: int, work: Work) -> None:
        self.node, self.recording_device, self.arity, self.written = node, recording_device, arity, work.written
        recorded = self.recorded = node.recorded
        self.names: dict[str, Any] = {
            "empty": recording_device.empty,
            "tally": node.tally,
            "flat": flat,
            "view": torch.as_strided,
            "below_autograd": below_autograd,
            "overlapping": overlapping,
            "memory": lambda address, nbytes: memory_at(address, nbytes, recording_device.device, recorded.recording),
            "tensor_on": lambda *layout: tensor_on(recording_device.device, *layout),
            "bump": torch.autograd.graph.increment_version,
            "bits": float_bits,
            "floats": work.floats,
        }
        self.lines: list[str] = []
        self.dispatches = False
        self.visible_outputs = work.visible_outputs
        self.packed: dict[int, str] = {}
        """Buffers that are made in one block with others, and where each lies."""
        self.told: list[int] = []
        """Buffers whose addresses a native call gives that makes all of them."""

    def build(self) -> Callable[[list, int], list | None]:
        if self.arity:
            names = ", ".join(f"a{n}" for n in range(self.arity))
            self.lines.append(f"{names}{',' if self.arity == 1 else ''} = args")
        self._check()
        made = [] if self.node.blocks else self._make_buffers()
        self._copy_in()
        addresses = self._addresses()
        self.lines += [
            "try:",
            f"    launch(({''.join(f'{a}, ' for a in addresses)}), stream)",
            "except BaseException:",
            "    tally.broken = True",
            "    raise",
        ]
        self._copy_out(made)
        self._results()
        return self._function()

    def _function(self) -> Callable[[list, int], list | None]:
        mode, indent = ("    with below_autograd():\n", "        ") if self.dispatches else ("", "    ")
        source = f"def replay(args, stream):\n{mode}" + "".join(f"{indent}{line}\n" for line in self.lines)
        exec(compile(source, f"<turret replay {self.node.name} {id(self.node):x}>", "exec"), self.names)
        function = self.names.pop("replay")  # so that it does not hold itself
        show_lines(function, source)
        return function

    def _check(self) -> None:
        """Return None where the node does not fit."""
        self._check_fixed()
        self.lines += [f"p{n} = a{n}.data_ptr()" for n in self.node.inputs.moving]
        count = sum(kind == "float" for kind, _ in self.node.first_addresses)
        if count:
            self.lines.append(f"{''.join(f'f{n}, ' for n in range(count))}= floats(args)")
        self._check_alignments()
        copied = [n for kind, n in self.recorded.pinned if kind == "input"]
        if copied and self.written:
            self.names |= {"copied": copied, "written": self.written}
            self.lines += ["if overlapping(args, copied, written):", "    return None"]

    def _check_fixed(self) -> None:
        """Inputs that have to lie where they lay."""
        fixed = self.node.inputs.fixed
        if len(fixed) >= _NATIVE_FROM and same_addresses is not None:
            at = [fixed.get(n, 0) for n in range(self.arity)]
            self.names |= {"same": same_addresses, "at": at, "fixed": list(fixed)}
            self.lines += ["if not same(args, at, fixed):", "    return None"]
        elif fixed:
            unlike = " or ".join(f"a{n}.data_ptr() != {address}" for n, address in fixed.items())
            self.lines += [f"if {unlike}:", "    return None"]

    def _check_alignments(self) -> None:
        """Inputs that may lie anywhere of the same alignment."""
        alignments = self.node.alignments
        aligned = [n for n, rest in alignments.items() if rest == 0]
        if aligned:
            self.lines += [f"if ({' | '.join(f'p{n}' for n in aligned)}) & {ALIGNMENT - 1}:", "    return None"]
        for n, rest in alignments.items():
            if rest:
                self.lines += [f"if p{n} & {ALIGNMENT - 1} != {rest}:", "    return None"]

    def _make_buffers(self) -> list[str]:
        """Make the memory of outputs; its names."""
        made = [f"b{n}" for n in range(len(self.node.shapes.buffers))]
        if len(made) < _MADE_NATIVELY_FROM or not self._make_natively(made):
            self._pack()
            for number in range(len(made)):
                if number not in self.packed:
                    self._buffer(number)
        return made

    def _make_natively(self, made: Sequence[str]) -> bool:
        """Make all of it in one call, which tells addresses; False where nothing does."""
        many = self.recording_device.makes_many
        if many is None:
            return False
        told = [n for (kind, n), words in self.recorded.words.items() if kind == "buffer" and words]
        nbytes, placed = blocks_of(self.node.shapes, self.visible_outputs)
        try:
            self.names["make"] = many(nbytes, placed, told)
        except (CodegenError, ImportError, ValueError):
            return False
        self.told = told
        self.lines += ["made, told = make()", f"{', '.join(made)} = made", "del made"]
        return True

    def _pack(self) -> None:
        """Make the small saved tensors of one layout in one block."""
        for number, members in enumerate(packable(self.node.shapes, self.visible_outputs)):
            layout = self.node.shapes.buffers[members[0]]
            pitch = _pitch(layout)
            step, block = pitch // layout.dtype.itemsize, f"k{number}"
            self.names[f"dtype_{block}"] = layout.dtype
            views = f"view({block}, {(len(members), *layout.shape)!r}, {(step, *layout.stride)!r}, 0).unbind()"
            self.lines += [
                f"{block} = empty(({len(members) * step},), (1,), dtype_{block})",
                f"{', '.join(f'b{n}' for n in members)} = {views}",
                f"q{number} = {block}.data_ptr()",
            ]
            self.packed |= {n: f"q{number} + {place * pitch}" for place, n in enumerate(members)}
            self.dispatches = True

    def _buffer(self, number: int) -> None:
        layout = self.node.shapes.buffers[number]
        self.names[f"dtype{number}"] = layout.dtype
        self.lines.append(f"b{number} = empty({layout.shape!r}, {layout.stride!r}, dtype{number})")

    def _pinned(self, kind: str) -> list[tuple[int, str, str]]:
        """Memory in the pool that stands for inputs or buffers: number, its name, and the name of its layout."""
        found = []
        for (what, n), pinned in self.recorded.pinned.items():
            if what == kind and pinned.layout.extent:
                memory, layout = f"m_{kind}{n}", f"layout_{kind}{n}"
                self.names[memory] = flat_at(pinned.address, pinned.layout, self.recording_device.device)
                self.names[layout] = pinned.layout
                self.dispatches = True
                found.append((n, memory, layout))
        return found

    def _copy_in(self) -> None:
        for n, memory, layout in self._pinned("input"):
            self.lines.append(f"{memory}.copy_(flat(a{n}, {layout}))")

    def _copy_out(self, made: Sequence[str]) -> None:
        for n, memory, layout in self._pinned("buffer"):
            self.lines.append(f"flat({made[n]}, {layout}).copy_({memory})")
        for n, memory, layout in self._pinned("input"):
            if n in self.written:
                self.lines.append(f"flat(a{n}, {layout}).copy_({memory})")

    def _addresses(self) -> list[str]:
        """Bind the recording, and name the addresses that a replay is told."""
        told: list[Item] = [("buffer", n) for n in self.told]
        others = [item for item, words in self.recorded.words.items() if words and item not in frozenset(told)]
        names = []
        for kind, n in others:
            address = self.packed.get(n, f"b{n}.data_ptr()")
            names.append({"input": f"p{n}", "float": f"bits(f{n})"}.get(kind, address))
        items = [*others, *told]
        arguments = [self.recorded.words[item] for item in items]
        first = [self.node.first_addresses[item] for item in items]
        self.names["launch"] = self.recorded.recording.bind(arguments, first)
        return [*names, "*told"] if told else names

    def _results(self) -> None:
        self.lines.append("tally.replays += 1")
        for n, times in self.node.version_bumps.items():
            self.lines += [f"bump(a{n})"] * times
        for n, (address, nbytes) in enumerate(self.node.blocks):
            self.lines.append(f"s{n} = memory({address}, {nbytes})")
        texts: dict[Result, str] = {}
        values = []
        for number, result in enumerate(self.node.shapes.results):
            if result.kind in ("value", "constant") or result not in texts:
                text = self._result(number, result)
                if result.kind in ("value", "constant"):
                    values.append(text)
                    continue
                texts[result] = text
            values.append(texts[result])
        self.lines += ["args.clear()", f"return [{', '.join(values)}]"]

    def _result(self, number: int, result: Result) -> str:
        name = f"r{number}"
        if result.kind == "value":
            self.names[name] = result.source
            return name
        if result.kind == "constant":
            self.names[f"c{number}"] = result.source
        if result.kind == "buffer" and self.node.blocks:
            layout = result.layout
            assert layout is not None
            self.names[f"dtype_{name}"] = layout.dtype
            layout_text = f"{result.offset}, {layout.shape!r}, {layout.stride!r}, dtype_{name}"
            self.lines.append(f"{name} = tensor_on(s{result.source}, {layout_text})")
            return name
        base = {"input": "a", "buffer": "b"}.get(result.kind, "c")
        base += str(number if result.kind == "constant" else result.source)
        if result.layout is None:
            return base
        self.dispatches = True
        start = f"{result.offset}" if result.kind == "buffer" else f"{base}.storage_offset() + {result.offset}"
        self.lines.append(f"{name} = view({base}, {result.layout.shape!r}, {result.layout.stride!r}, {start})")
        return name


def packable(shapes: Shapes, visible_outputs: int | None) -> list[list[int]]:
    """Buffers that may lie in one block, as lists of those alike: many small ones that a backward alone reads."""
    if visible_outputs is None:
        return []
    given = {r.source for r in shapes.results[:visible_outputs] if r.kind == "buffer"}
    given |= {r.source for r in shapes.results if r.kind == "buffer" and r.layout is not None}
    alike: dict[Layout, list[int]] = {}
    for number, layout in enumerate(shapes.buffers):
        if number not in given and 0 < layout.nbytes <= _PACKED_BYTES:
            alike.setdefault(layout, []).append(number)
    return [members for members in alike.values() if len(members) >= _PACKED_FROM]


def blocks_of(shapes: Shapes, visible_outputs: int | None) -> tuple[list[int], list[Placed]]:
    """The bytes of the blocks that buffers lie in, and where each buffer lies: one block each, but for packed ones."""
    nbytes: list[int] = []
    placed: dict[int, Placed] = {}
    for members in packable(shapes, visible_outputs):
        layout = shapes.buffers[members[0]]
        step = _pitch(layout) // layout.dtype.itemsize
        for place, number in enumerate(members):
            placed[number] = Placed(layout.shape, layout.stride, layout.dtype, len(nbytes), place * step)
        nbytes.append(len(members) * _pitch(layout))
    for number, layout in enumerate(shapes.buffers):
        if number not in placed:
            placed[number] = Placed(layout.shape, layout.stride, layout.dtype, len(nbytes))
            nbytes.append(layout.nbytes)
    return nbytes, [placed[number] for number in range(len(shapes.buffers))]


def _pitch(layout: Layout) -> int:
    """How far the beginnings of packed tensors lie apart, in bytes."""
    return -(-layout.nbytes // _PITCH) * _PITCH
