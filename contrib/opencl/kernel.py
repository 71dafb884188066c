"""One kernel of a schedule as a function in OpenCL C, of which each work group runs a part of one loop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import attrs

from turret.contrib.opencl.language import CTYPES, bitcast_text, op_text
from turret.ir import Kernel, TensorDecl, divides_by_zero, product
from turret.ir.conditions import mask_hoisted, mask_operands
from turret.ir.emit.c_emitter import CEmitter
from turret.ir.index import hinted
from turret.ir.nest import flat_load, map_roots, nest_of, plain_reduction, scan_innermost, split_loops

GROUP_WORK = 1 << 15  # steps of loops that a work group should have at least


@attrs.frozen
class Function:
    """A kernel's name, made from its content, and source; tensors, size symbols and random streams that it gets places
    of, in order; and the most work groups that are worth their start."""

    name: str
    source: str
    tensors: tuple[str, ...]
    symbols: tuple[str, ...]
    streams: tuple[int, ...]
    groups: int


def emit(kernel: Kernel, tensors: dict[str, TensorDecl], hints: Mapping[str, int]) -> Function:
    """Write a kernel; ``UnsupportedError`` where loops in OpenCL cannot express it."""
    nest = mask_operands(mask_hoisted(scan_innermost(nest_of(kernel, tensors))), divides_by_zero)
    nest = map_roots(nest, lambda node: flat_load(node, tensors) if node.op == "load" else plain_reduction(node))
    bound = {v for node in nest.reductions for v in node.payload.variables}
    if not (bound - set(nest.inner)) & set(nest.loops) and not nest.scattered:
        nest = split_loops(nest, nest.scan_variables)
    emitter, groups, parts = Emitter(nest), 1, {}
    if nest.independent:
        shared = max(nest.independent, key=lambda v: hinted(v.extent, hints) or 1)
        groups += product(hinted(v.extent, hints) or 1 for v in bound | set(nest.loops)) // GROUP_WORK
        extent, parts = emitter.size(shared.extent), {shared: ("low", "high")}
        emitter.base.line(f"const long part = ({extent} - 1) / (long)get_num_groups(0) + 1;")
        emitter.base.line(f"const long low = get_group_id(0) * part, high = least({extent}, low + part);")
    emitter.write_nest(parts)
    body = "".join(f"  {line}\n" for line in [*emitter.declarations(), *emitter.base.lines])
    name = f"kernel_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    source = f"int {name}(ulong frame, __global const long* places) {{\n{body}  return error;\n}}\n"
    return Function(name, source, tuple(emitter.pointers), tuple(emitter.symbols), tuple(emitter.streams), groups)


class Emitter(CEmitter):
    """The words of OpenCL C."""

    language, long, index_type, unsigned, narrow = "OpenCL", "l", "long", "ulong", "uint"
    ctypes, op_text, bitcast_text = CTYPES, staticmethod(op_text), staticmethod(bitcast_text)

    def declarations(self) -> list[str]:
        """What the names stand for that the kernel's lines use."""
        elements = {name: self.ctype(self.nest.tensors[tensor].dtype).element for tensor, name in self.pointers.items()}
        values = [f"__global {word}* const {name} = BUFFER({word}, @);" for name, word in elements.items()]
        values += [f"const long {name} = SIZE(@);" for name in self.symbols.values()]
        values += [f"const ulong {name} = (ulong)places[@];" for name in self.streams.values()]
        return ["int error = 0;", *(text.replace("@", str(number)) for number, text in enumerate(values))]
