"""Attention of few queries over parts of the keys (``turret.attention_parts``): a kernel of its own.

A program has one query and one part.  Where the mask lets the query see no key of the part, but some key of another,
it reads nothing else; of other parts it reads keys and values that the query sees.  What lies in the others never
comes out, be it NaN.  A mask hides by minus infinity, or by a number so low that no score is seen beside it; of a query
whose keys are all hidden so, all are read, since it is their mean that comes out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from turret.graph.dtypes import HALF
from turret.graph.externs import op_name
from turret.graph.ops.attention_ops import BESIDE, part_length
from turret.ir import Ref, Template, TensorDecl
from turret.plugins.codegen.triton.emission.prelude import IMPORTS, SIGNAL, WAIT, WAIT_IMPORT, WAITS_FROM
from turret.plugins.codegen.triton.tiles.dtypes import triton_type
from turret.plugins.codegen.triton.tiles.kernel import Config, DeviceProperties, TritonKernel
from turret.plugins.codegen.triton.tiles.tiling import power_of_two

_OP = "turret::attention_parts.default"
_DTYPES = HALF | {torch.float32}
LONGEST_MASK = 1 << 14
"""Keys whose mask a program may read to tell whether the query sees any."""
LONGEST_HEAD = 256
"""Elements of a head that registers hold with a part of the keys."""
_WIDE = 1 << 31
_LOWEST = {torch.float16: -6e4}
_LOW = -1e30
"""Numbers from which on a mask hides: the least numbers of the dtypes do, which libraries make masks of."""


def writes(template: Template, declarations: Mapping[str, TensorDecl]) -> bool:
    """Whether a call is one that ``attention_kernel`` writes."""
    if op_name(template.op) != _OP:
        return False
    declared = _operands(template, declarations)
    static = all(d.is_static and d.dtype in _DTYPES for d in declared)
    width = declared[0].shape[-1]
    keys = declared[1].shape[2]
    short = len(declared) < 4 or (isinstance(keys, int) and keys <= LONGEST_MASK)
    return static and short and isinstance(width, int) and 0 < width <= LONGEST_HEAD


def _operands(template: Template, declarations: Mapping[str, TensorDecl]) -> list[TensorDecl]:
    return [declarations[argument.name] for argument in template.args[:4] if isinstance(argument, Ref)]


def attention_kernel(
    template: Template, declarations: Mapping[str, TensorDecl], properties: DeviceProperties
) -> TritonKernel:
    """The kernel of a call that ``writes`` is true of."""
    *_, scale, parts = template.args
    query, key, value, *bias = _operands(template, declarations)
    (out,) = template.outputs
    assert out is not None
    batch, heads, queries, width = map(int, query.shape)
    keys = int(key.shape[2])
    length = part_length(keys, parts)
    names = ("query", "key", "value", *(["bias"] if bias else []), "out")
    declared = (query, key, value, *bias, out)
    wide = any(int(d.last_offset) >= _WIDE for d in declared)
    block = power_of_two(length)
    body = _body(declared, (batch, heads, queries, keys, width), float(scale), parts, length, wide)
    waits = properties.capability >= WAITS_FROM
    lines = [*([WAIT, SIGNAL] if waits else []), *body]
    text = "\n".join(f"    {line}" if line else line for line in lines)
    types = {n: f"*{triton_type(d.dtype).short}" for n, d in zip(names, declared, strict=True)}
    configs = tuple(Config((("BLOCK", block),), warps, 1) for warps in (4, 2, 8))
    signature = ", ".join([*names, "BLOCK: tl.constexpr"])
    identity = f"{signature}{types}{text}{configs}"
    name = f"turret_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    imports = IMPORTS + (WAIT_IMPORT if waits else "")
    return TritonKernel(
        name=name,
        source=f"{imports}\n\n@triton.jit\ndef {name}({signature}):\n{text}\n",
        buffers=tuple(d.name for d in declared),
        sizes=(),
        parameters=names,
        signature=types,
        divisible=frozenset(),
        configs=configs,
        grid=(str(parts * batch * heads * queries),),
        options={"enable_fp_fusion": True},
        stored=(out.name,),
        origins=template.origins,
        comment=f"{out.name} ({', '.join(template.origins)})",
    )


def _body(
    declared: tuple[TensorDecl, ...], extents: tuple[int, ...], scale: float, parts: int, length: int, wide: bool
) -> list[str]:
    _, _, _, *bias, _ = declared
    batch, heads, queries, keys, width = extents
    columns = power_of_two(width)
    even = length * parts == keys and length == power_of_two(length)
    across = f"d < {width}" if columns != width else ""
    lines = [
        f"program = tl.program_id(0){'.to(tl.int64)' if wide else ''}",
        f"part = program % {parts}",
        f"row = program // {parts}",
        f"i = row % {queries}",
        f"h = row // {queries} % {heads}",
        f"b = row // {queries * heads}",
        "place = tl.arange(0, BLOCK)",
        f"keys = part * {length} + place",
        f"d = tl.arange(0, {columns})",
        f"sums = tl.zeros([{columns}], tl.float32)",
        "best = tl.full([], float('-inf'), tl.float32)",
        "total = tl.full([], 0.0, tl.float32)",
        f"sees = (place < {length}) & (keys < {keys})",
    ]
    if bias:
        mask = "" if even else ", mask=sees, other=float('-inf')"
        low = _LOWEST.get(bias[0].dtype, _LOW)
        whole = power_of_two(keys)
        beyond = f", mask=every < {keys}, other=float('-inf')" if whole != keys else ""
        lines += [
            f"masked = tl.load(bias + {_bias_offset(bias[0], 'keys')}{mask}).to(tl.float32)",
            f"sees = (masked > {low!r}) | (masked != masked)",
            "if tl.max(sees.to(tl.int32), 0) == 0:",
            f"    every = tl.arange(0, {whole})",
            f"    row_mask = tl.load(bias + {_bias_offset(bias[0], 'every')}{beyond}).to(tl.float32)",
            f"    others = (row_mask > {low!r}) | (row_mask != row_mask)",
            "    if tl.max(others.to(tl.int32), 0) == 0:",
            "        sees = masked > float('-inf')",
            "masked = tl.where(sees, masked, float('-inf'))",
        ]
    rows = batch * heads * queries
    return [
        *lines,
        "if tl.max(sees.to(tl.int32), 0) > 0:",
        *(f"    {line}" for line in _part(declared, scale, across, even and not bias)),
        f"result = out + (part * {rows} + row) * {width + BESIDE}",
        f"tl.store(result + d, sums{f', mask={across}' if across else ''})",
        f"tl.store(result + {width}, best)",
        f"tl.store(result + {width + 1}, total)",
    ]


def _part(declared: tuple[TensorDecl, ...], scale: float, across: str, whole: bool) -> list[str]:
    """The lines that compute a part of which the query sees something; ``whole``: all keys of every part."""
    query, key, value, *bias, _ = declared
    block = _all("" if whole else "sees[:, None]", f"({across})[None, :]" if across else "")
    lines = [
        f"q = tl.load(query + {_offset(query, 'i', 'd')}{_all(across)}).to(tl.float32)",
        f"k = tl.load(key + {_offset(key, 'keys[:, None]', 'd[None, :]')}{block}).to(tl.float32)",
        f"v = tl.load(value + {_offset(value, 'keys[:, None]', 'd[None, :]')}{block}).to(tl.float32)",
        f"scores = tl.sum(k * q[None, :], 1) * {scale!r}{' + masked' if bias else ''}",
    ]
    if not (whole or bias):
        lines.append("scores = tl.where(sees, scores, float('-inf'))")
    return [
        *lines,
        "best = tl.max(scores, 0)",
        "weights = tl.exp(scores - tl.where(best == float('-inf'), 0.0, best))",
        "total = tl.sum(weights, 0)",
        "sums = tl.sum(weights[:, None] * v, 0)",
    ]


def _all(*masks: str) -> str:
    found = [mask for mask in masks if mask]
    return f", mask={' & '.join(found)}, other=0.0" if found else ""


def _offset(decl: TensorDecl, row: str, column: str) -> str:
    """Where an element lies of the program's sample and head."""
    terms = [("b", 0), ("h", 1), (row, 2), (column, 3)]
    found = [f"{name} * {decl.stride[n]}" for name, n in terms if decl.shape[n] != 1]
    return f"({' + '.join(found) or '0'})" if decl.shape[3] != 1 else f"({' + '.join([*found, column])})"


def _bias_offset(decl: TensorDecl, keys: str) -> str:
    """Where the mask of each of some keys lies, for the program's query."""
    names = ("b", "h", "i", keys)[4 - len(decl.shape) :]
    steps = {n: s for n, extent, s in zip(names, decl.shape, decl.stride, strict=True) if extent != 1}
    return f"({' + '.join(f'{name} * {step}' for name, step in {keys: 0, **steps}.items())})"
