"""``emit``: one kernel of a schedule as C++ source with a name made from its content."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel
from turret.plugins.codegen.cpp.dtypes import ctype
from turret.plugins.codegen.cpp.emitter import Emitter
from turret.plugins.codegen.cpp.horizontal import Horizontal
from turret.plugins.codegen.cpp.nest import Facts
from turret.plugins.codegen.cpp.normalise import normalise
from turret.plugins.codegen.cpp.pointwise import emit_pointwise
from turret.plugins.codegen.cpp.rows import row_facts, row_form
from turret.plugins.codegen.cpp.vertical import Vertical


@attrs.frozen
class CppKernel:
    """One kernel.

    ``function``: name of ``int64_t f(void* const* buffers, const int64_t* sizes, int threads)``; it returns 0, or
    1 for an index out of range, 2 for an integer division by zero.  ``buffers`` are tensors' names in the order of
    the pointers it takes (addresses of first elements), ``sizes`` names of size symbols in theirs.  Kernels that
    differ only in names of tensors, variables, origins or sources share ``function`` and ``source``;
    ``comment`` holds what they do not share.
    """

    function: str
    source: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    reports_errors: bool
    comment: str = ""


def emit(kernel: Kernel, tensors: dict[str, TensorDecl], options: dict[str, Any] | None = None) -> CppKernel:
    """C++ of one kernel.

    ``tensors`` declares every tensor that the kernel reads or writes.  Raises ``UnsupportedError`` where the
    kernel has a dtype or a form that C++ kernels do not handle.
    """
    nest = normalise(kernel, tensors)
    if nest.inner:
        form = row_form(nest)
        emitter = Emitter(nest, row_facts(nest, form))
        (Vertical if form.vertical else Horizontal)(emitter, form).emit()
    else:
        emitter = Emitter(nest, Facts(nest))
        emit_pointwise(emitter)
    body, reports = _body(emitter)
    name = f"turret_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    source = f'extern "C" int64_t {name}(void* const* buffers, const int64_t* sizes, int threads) {body}'
    comment = f"{name}: {kernel.name} ({', '.join(kernel.origins)})"
    comment += "".join(f"\n  {line.strip()}" for text in kernel.sources for line in text.splitlines() if line.strip())
    return CppKernel(name, source, tuple(emitter.pointers), tuple(emitter.symbols), reports, comment)


def _body(emitter: Emitter) -> tuple[str, bool]:
    lines = []
    for number, (tensor, pointer) in enumerate(emitter.pointers.items()):
        element = ctype(emitter.nest.tensors[tensor].dtype).element
        kind = element if tensor in emitter.stored else f"const {element}"
        lines.append(f"{kind}* const {pointer} = ({kind}*)buffers[{number}];")
    for number, name in enumerate(emitter.symbols.values()):
        lines.append(f"const int64_t {name} = sizes[{number}];")
    lines += emitter.base.lines
    reports = any("error |=" in line for line in lines)
    if reports:
        lines = ["int64_t error = 0;", *lines, "return status(error);"]
    else:
        lines.append("return 0;")
    text = "\n".join(line if line.startswith("#") else f"  {line}" for line in lines)
    return f"{{\n{text}\n}}\n", reports
