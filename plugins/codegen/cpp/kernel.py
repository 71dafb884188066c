"""``emit``: one kernel of a schedule as C++ source with a name made from its content."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Mapping
from typing import Any

import attrs

from turret.hooks.devices import OUT_OF_BOUNDS
from turret.ir.expr import Expr, walk
from turret.ir.index import Index, Value, Var, product
from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel
from turret.plugins.codegen.cpp.emission.dtypes import ctype
from turret.plugins.codegen.cpp.emission.emitter import EXTENT_WORDS, Emitter
from turret.plugins.codegen.cpp.emission.facts import Facts
from turret.plugins.codegen.cpp.loops.horizontal import Horizontal
from turret.plugins.codegen.cpp.loops.pointwise import emit_pointwise
from turret.plugins.codegen.cpp.loops.rows import row_facts, row_form
from turret.plugins.codegen.cpp.loops.vertical import Vertical
from turret.plugins.codegen.cpp.normalise import normalise


@attrs.frozen
class CppKernel:
    """One kernel.

    ``function``: name of ``int64_t f(void* const* buffers, const int64_t* sizes, int threads)``; it returns 0, or
    1 for an index out of range, 2 for an integer division by zero, 8 for an index out of range that is a RuntimeError
    in eager.  ``buffers`` are tensors' names in the order of the pointers it takes (addresses of first elements),
    ``sizes`` names of size symbols in theirs, and ``streams`` (of random numbers) the values that follow the sizes.
    One that checks its accesses (``check_bounds``) takes extent and slot of each buffer after them, then the address of
    a report, and returns 4 where it wrote one.  ``numbers``, C++ of 64-bit words, come last.  Kernels that differ only
    in names of tensors, variables, origins, sources or streams share ``function`` and ``source``; ``comment`` holds
    what they do not share.  ``work``: operations on elements, where sizes are known.
    """

    function: str
    source: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    reports_errors: bool
    comment: str = ""
    streams: tuple[int, ...] = ()
    check_bounds: bool = False
    numbers: tuple[str, ...] = ()
    work: int | None = None

    @property
    def words(self) -> int:
        """How many words it takes before its ``numbers``."""
        checks = EXTENT_WORDS * len(self.buffers) + 1 if self.check_bounds else 0
        return len(self.sizes) + len(self.streams) + checks


def emit(
    kernel: Kernel,
    tensors: dict[str, TensorDecl],
    check_bounds: bool = False,
    in_place: Mapping[str, str] = types.MappingProxyType({}),
) -> CppKernel:
    """C++ of one kernel.

    ``tensors`` declares every tensor that the kernel reads or writes; ``in_place`` names what it reads in whose memory
    a tensor that it writes is made.  Kernels that are equal up to names are
    written once.  Raises ``UnsupportedError`` where the kernel has a dtype or a form that C++ kernels do not handle.
    """
    key, names, streams = _signature(kernel, tensors)
    shared = tuple((names.index(made), names.index(over)) for made, over in in_place.items())
    key = key, check_bounds, shared
    made = _written.get(key)
    if made is None:
        if len(_written) >= MOST_REMEMBERED:
            _written.clear()
        made = _written[key] = _write(kernel, tensors, names, streams, check_bounds, in_place)
    comment = f"{kernel.name} ({', '.join(kernel.origins)})"
    comment += "".join(f"\n  {line.strip()}" for text in kernel.sources for line in text.splitlines() if line.strip())
    return CppKernel(
        made.function,
        made.source,
        tuple(names[n] for n in made.buffers),
        made.sizes,
        made.reports_errors,
        comment,
        tuple(streams[n] for n in made.streams),
        check_bounds,
        work=made.work,
    )


@attrs.frozen
class _Written:
    """A kernel without names: ``buffers`` are positions among the kernel's tensors, ``streams`` among its streams."""

    function: str
    source: str
    buffers: tuple[int, ...]
    sizes: tuple[str, ...]
    reports_errors: bool
    streams: tuple[int, ...]
    work: int | None


MOST_REMEMBERED = 4096
_written: dict[Any, _Written] = {}


def _write(
    kernel: Kernel,
    tensors: dict[str, TensorDecl],
    names: list[str],
    streams: list[int],
    check_bounds: bool,
    in_place: Mapping[str, str],
) -> _Written:
    nest = normalise(kernel, tensors)
    if nest.inner:
        form = row_form(nest)
        emitter = Emitter(nest, row_facts(nest, form), check_bounds)
        (Vertical if form.vertical else Horizontal)(emitter, form).emit()
    else:
        emitter = Emitter(nest, Facts(nest), check_bounds)
        emit_pointwise(emitter)
    body, reports = _body(emitter, in_place)
    name, source = function(body)
    pointers, drawn = tuple(map(names.index, emitter.pointers)), tuple(map(streams.index, emitter.streams))
    count = product(v.extent for v in nest.loops)
    work = count * emitter.facts.total_cost(*nest.roots) if isinstance(count, int) else None
    return _Written(name, source, pointers, tuple(emitter.symbols), reports, drawn, work)


def function(body: str, mark: str = "") -> tuple[str, str]:
    """Name and source of the function with a body; ``mark`` stands before the type."""
    name = f"turret_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    return name, f'extern "C" {mark}int64_t {name}(void* const* buffers, const int64_t* sizes, int threads) {body}'


def _signature(kernel: Kernel, tensors: dict[str, TensorDecl]) -> tuple[Any, list[str], list[int]]:
    """What determines a kernel's source, names of tensors and streams of random numbers apart; and those in order of
    their numbers."""
    names: dict[str, int] = {}
    streams: dict[int, int] = {}
    nodes: dict[object, int] = {}

    def index_key(index: Index) -> Any:
        if not index.values:
            return index
        return index.const, tuple((atom_key(atom), coefficient) for atom, coefficient in index.terms)

    def atom_key(atom: Any) -> Any:
        if isinstance(atom, Value):
            return "value", nodes[atom.expr]
        return atom if isinstance(atom, Var) else (atom.sign, index_key(atom.numerator), atom.divisor)

    def node_key(node: Expr) -> Any:
        nodes[node] = len(nodes)
        payload = node.payload
        if node.op == "load":
            payload = names.setdefault(node.tensor, len(names)), tuple(map(index_key, node.coords))
        elif node.op == "index":
            payload = index_key(payload)
        elif node.op == "const":
            payload = repr(payload)
        elif node.op == "random":
            payload = payload[0], streams.setdefault(payload[1], len(streams))
        return node.op, tuple(nodes[arg] for arg in node.args), node.dtype, payload

    stores = []
    for store in kernel.stores:
        graph = tuple(node_key(node) for node in walk(*store.roots) if node not in nodes)
        number = names.setdefault(store.tensor, len(names))
        coords = tuple(map(index_key, store.coords))
        stores.append((graph, number, coords, store.mode, tuple(nodes[root] for root in store.roots)))
    declared = tuple((tensors[n].shape, tensors[n].stride, tensors[n].dtype) for n in names)
    return (kernel.outer, kernel.inner, tuple(stores), declared), list(names), list(streams)


def _body(emitter: Emitter, in_place: Mapping[str, str]) -> tuple[str, bool]:
    lines = []
    first: dict[str, str] = {}
    for number, (tensor, pointer) in enumerate(emitter.pointers.items()):
        element = ctype(emitter.nest.tensors[tensor].dtype).element
        kind = element if tensor in emitter.stored else f"const {element}"
        # Where two are one, the compiler is told: in a loop without dependences between its iterations (``omp simd``)
        # GCC takes two pointers that it cannot tell apart for two memories, and moves reads behind the writes.
        place = in_place.get(tensor, tensor)
        lines.append(f"{kind}* const {pointer} = ({kind}*){first.get(place, f'buffers[{number}]')};")
        first.setdefault(place, pointer)
    for number, name in enumerate(emitter.symbols.values()):
        lines.append(f"const int64_t {name} = sizes[{number}];")
    for number, name in enumerate(emitter.streams.values(), len(emitter.symbols)):
        lines.append(f"const uint64_t {name} = (uint64_t)sizes[{number}];")
    if emitter.check_bounds:
        taken = len(emitter.symbols) + len(emitter.streams)
        lines.append(f"const int64_t* const bounds = sizes + {taken};")
        lines.append(f"int64_t* const report = (int64_t*)sizes[{taken + EXTENT_WORDS * len(emitter.pointers)}];")
    lines += emitter.base.lines
    reports = any("error |=" in line for line in lines)
    status = "status(error)" if reports else "0"
    if emitter.check_bounds:
        status = f"report[0] ? {OUT_OF_BOUNDS} : {status}"
    lines = [*(["int64_t error = 0;"] if reports else []), *lines, f"return {status};"]
    text = "\n".join(line if line.startswith("#") else f"  {line}" for line in lines)
    return f"{{\n{text}\n}}\n", reports
