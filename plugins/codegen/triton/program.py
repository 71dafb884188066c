"""``emit``: one kernel of a schedule as Triton kernels with names made from their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import attrs

from turret.ir.index import Size
from turret.ir.nest import Nest
from turret.ir.program import Template, TensorDecl
from turret.ir.schedule import Kernel
from turret.plugins.codegen.triton.emission.ahead import ahead
from turret.plugins.codegen.triton.emission.attention import attention_kernel
from turret.plugins.codegen.triton.emission.body import grid_texts, write_body
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.prelude import IMPORTS, SIGNAL, WAIT, WAIT_IMPORT, WAITS_FROM, prelude_for
from turret.plugins.codegen.triton.emission.scatter import in_order, independent_loops, is_serial
from turret.plugins.codegen.triton.tile_loops.tiling import tile_loop
from turret.plugins.codegen.triton.tiles.dtypes import triton_type
from turret.plugins.codegen.triton.tiles.facts import Facts
from turret.plugins.codegen.triton.tiles.kernel import DeviceProperties, TritonKernel
from turret.plugins.codegen.triton.tiles.matrix import matrix_form, matrix_tiling
from turret.plugins.codegen.triton.tiles.normalise import normalise
from turret.plugins.codegen.triton.tiles.specialization import (
    MULTIPLE,
    conditions,
    multiples,
    narrow_sizes,
    odd,
    sizes_fit,
)
from turret.plugins.codegen.triton.tiles.split import split
from turret.plugins.codegen.triton.tiles.split_kernel import Part
from turret.plugins.codegen.triton.tiles.tiling import Tiling, held_rows, rows_walked, serial_tile, tile


def emit(
    kernel: Kernel | Template,
    declarations: dict[str, TensorDecl],
    properties: DeviceProperties | None = None,
    hints: Mapping[str, int] | None = None,
    given: frozenset[str] = frozenset(),
    tuned: bool = False,
) -> tuple[TritonKernel, ...]:
    """Triton of one kernel, or of a call that ``writes`` is true of.

    Several, to be launched in order, where a reduction is split; none where nothing is stored.

    ``declarations`` declares every tensor that the kernel reads or writes.  ``hints`` are values that size symbols had
    and may have again: kernels are right for any, and some have another one beside them that is fast for such.
    ``given``: tensors that were there before the kernel ahead in the stream began, and that it does not write.
    ``tuned``: a timer will choose, so that kernels have their ``rivals`` beside them.  Raises
    ``UnsupportedError`` where the kernel has a dtype or a form that tiles cannot express.
    """
    properties, hints = properties or DeviceProperties(), hints or {}
    if isinstance(kernel, Template):
        return (attention_kernel(kernel, declarations, properties),)
    stages = in_order(kernel, declarations)
    if len(stages.kernels) == 1:
        stages = split(kernel, declarations, properties, hints)
    tensors = {**declarations, **stages.tensors}
    rivals = tuned and len(stages.kernels) == 1
    found = (_Writer(k, tensors, properties, hints, given, stages.part).write(rivals) for k in stages.kernels)
    written = [kernel for kernel in found if kernel is not None]
    if written:
        written[0] = attrs.evolve(written[0], scratch=stages.scratch)
    return tuple(written)


@attrs.frozen(eq=False)
class _Writer:
    """Writes one kernel, in as many variants as are worth it.

    ``declarations``, ``hints``, ``given`` as for ``emit``; ``part``: the part of rows that a program takes, where the
    kernel has a loop over parts.
    """

    kernel: Kernel
    declarations: dict[str, TensorDecl]
    properties: DeviceProperties
    hints: Mapping[str, int]
    given: frozenset[str]
    part: Part | None

    def write(self, rivals: bool) -> TritonKernel | None:
        """The kernel, with ``rivals`` beside it where they are wanted; None where it would store nothing."""
        nest = normalise(self.kernel, self.declarations, odd(self.hints))
        if not nest.stores:
            return None
        emitter = self._emitter(_tiling(self.kernel, nest, self.part))
        made = self._written(emitter)
        if not made.sizes:
            return attrs.evolve(made, rivals=self._rivals(emitter.tiling) if rivals else ())
        made = self._with_faster(emitter, emitter.tiling, (), made)
        if not any(value % MULTIPLE == 0 for value in self.hints.values()):
            return made
        aligned = _tiling(self.kernel, normalise(self.kernel, self.declarations, self.hints), self.part)
        divisible = multiples(aligned)
        return self._with_faster(emitter, aligned, divisible, made) if divisible else made

    def _emitter(self, tiling: Tiling, narrow: bool = False, divisible: tuple[str, ...] = ()) -> Emitter:
        return Emitter(rows_walked(tiling, self.properties.multiprocessors), narrow, divisible)

    def _with_faster(
        self, general: Emitter, tiling: Tiling, divisible: tuple[str, ...], made: TritonKernel
    ) -> TritonKernel:
        """A kernel for sizes like those that the graph was made for, with ``made``, which assumes less, beside it.

        ``general``: what wrote the kernel that assumes nothing.  ``tiling``: one that walks rows of symbolic length.
        ``divisible``: symbols to take for multiples of 16.
        """
        # A symbol without a hint may be the bits of a float.
        known = tiling.nest.hints.keys() >= set(made.sizes)
        narrow = _narrow_sizes(general, tiling) if known else None
        held, ends = (held_rows(tiling) if known else None) or (tiling, ())
        if not divisible and narrow is None and held is tiling:
            return made
        faster = self._emitter(held, narrow is not None, divisible)
        fast = self._written(faster)
        divisible = tuple(name for name in divisible if name in faster.symbols)
        assumes = conditions([] if narrow is None else [*narrow, *faster.sizes], divisible, ends)
        if not assumes or (fast.name == made.name and not divisible):
            return made
        parameters = frozenset(faster.symbols[name] for name in divisible)
        return attrs.evolve(fast, divisible=parameters, assumes=assumes, otherwise=made)

    def _rivals(self, tiling: Tiling) -> tuple[TritonKernel, ...]:
        """Other kernels that do the same as one of static sizes."""
        loop = tile_loop(tiling, self.properties)
        return () if loop is None else (self._written(Emitter(loop)),)

    def _written(self, emitter: Emitter) -> TritonKernel:
        """The kernel that a tiling gives.

        Where the device can, it begins by waiting for the kernel ahead of it: it may be launched before that has ended.
        """
        waits = self.properties.capability >= WAITS_FROM
        return _written(self.kernel, emitter, waits, self.given)


def _narrow_sizes(general: Emitter, tiling: Tiling) -> tuple[Size, ...] | None:
    """The sizes that must fit 32 bits for all indices to; None where all do anyway, or some did not."""
    fit = general.wide and sizes_fit(general.sizes, tiling.nest.hints)
    return narrow_sizes(Facts(tiling)) if fit else None


def _written(kernel: Kernel, emitter: Emitter, waits: bool, given: frozenset[str]) -> TritonKernel:
    write_body(emitter)
    constants = [name for name, _ in emitter.tiling.configs[0].constants]
    parameters = [*emitter.pointers.values(), *emitter.symbols.values(), *emitter.streams.values()]
    signature = ", ".join([*parameters, *(f"{name}: tl.constexpr" for name in constants)])
    front, behind = _parted(emitter, given) if waits else ([], emitter.base.lines)
    lines = [*front, *([WAIT, SIGNAL] if waits else []), *behind] or ["pass"]
    body = "\n".join(f"    {line}" for line in lines)
    prelude = prelude_for(body)
    types = _parameter_types(emitter)
    configs, options = emitter.tiling.configs, _options(emitter.asserts)
    # Equal text may stand for kernels of several types, since a store converts to its pointer's, and of several
    # block sizes: where a block is as long as a row, nothing in the text says how long.
    identity = f"{signature}{types}{body}{prelude}{configs}{options}"
    name = f"turret_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    imports = IMPORTS + (WAIT_IMPORT if waits else "")
    parts = [imports, *([prelude] if prelude else []), f"@triton.jit\ndef {name}({signature}):\n{body}\n"]
    stored, inplace = _written_tensors(emitter)
    return TritonKernel(
        name=name,
        source="\n\n".join(parts),
        buffers=tuple(emitter.pointers),
        sizes=tuple(emitter.symbols),
        parameters=tuple(parameters),
        signature=types,
        divisible=frozenset(),
        configs=configs,
        grid=grid_texts(emitter),
        options=options,
        stored=stored,
        inplace=inplace,
        origins=kernel.origins,
        comment=_comment(kernel),
        streams=tuple(emitter.streams),
        ends=_ends(emitter.tiling),
        described=frozenset(emitter.described),
    )


def _ends(tiling: Tiling) -> dict[str, int]:
    """The tensor of where groups of rows end, with how many rows there are."""
    if tiling.matrix is None or tiling.matrix.groups is None:
        return {}
    rows = tiling.tiles[0].extent
    return {tiling.matrix.groups.ends: rows} if isinstance(rows, int) else {}


def _parted(emitter: Emitter, given: frozenset[str]) -> tuple[list[str], list[str]]:
    """The lines in front of the wait, and those behind it: of rows that lie in one block loads may come first."""
    row, pointers = emitter.tiling.row, emitter.pointers
    if row is None or not emitter.tiling.persistent or given.isdisjoint(pointers):
        return [], emitter.base.lines
    return ahead(emitter.base.lines, pointers.values(), [p for t, p in pointers.items() if t in given])


def _parameter_types(emitter: Emitter) -> dict[str, str]:
    """Triton's words for the types of pointers, sizes and streams, by parameter."""
    tensors = emitter.tiling.nest.tensors
    types = {p: f"*{triton_type(tensors[t].dtype).short}" for t, p in emitter.pointers.items()}
    types |= dict.fromkeys(emitter.symbols.values(), "i32" if emitter.narrow else "i64")
    return types | dict.fromkeys(emitter.streams.values(), "i64")


def _written_tensors(emitter: Emitter) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors that are written, and those of them that are read or updated as well."""
    nest = emitter.tiling.nest
    stored = tuple(t for t in emitter.pointers if any(s.tensor == t for s in nest.stores))
    read = {tensor for tensor, _ in nest.accesses()[0]}
    return stored, tuple(t for t in stored if t in read or any(s.tensor == t and s.mode for s in nest.stores))


def _tiling(kernel: Kernel, nest: Nest, part: Part | None) -> Tiling:
    form = matrix_form(nest)
    if form is not None:
        return matrix_tiling(nest, form)
    if not is_serial(kernel, nest.tensors):
        return tile(nest, part if part is not None and part.number in nest.outer else None)
    coords = tuple(store.coords for store in nest.stores if store.mode is not None)
    return serial_tile(nest, independent_loops(coords, nest.outer))


def _comment(kernel: Kernel) -> str:
    lines = [f"{kernel.name} ({', '.join(kernel.origins)})"]
    lines += [line.strip() for text in kernel.sources for line in text.splitlines() if line.strip()]
    return "\n".join(lines)


def _options(asserts: bool) -> dict[str, bool]:
    """Compile options: checks only where the kernel makes some, and never those of integer overflow.

    A product and a sum are rounded each, as in eager, where they are two kernels: ``a * b - b * a`` is 0.  That costs
    what is bound by arithmetic alone 3 to 4 % (a polynomial of degree 12), and no other of 21 kernels (H200).
    """
    return {"enable_fp_fusion": False} | ({"debug": True, "sanitize_overflow": False} if asserts else {})
