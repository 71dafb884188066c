"""The Triton of loop programs that are written as text."""

from __future__ import annotations

import pytest

from tests.plugins.loop_lab import schedule
from turret.ir.text import parse
from turret.plugins.codegen.triton import emit

CASES = {
    "a pointwise kernel of whole blocks needs no mask": (
        """\
  input x: float32[8, 16]
  y: float32[8, 16]  [i0<8, i1<16] = add(exp(x[i0, i1]), 1.0:float32)
  return %y
""",
        """\
    x = (tl.program_id(0)) * XBLOCK + tl.arange(0, XBLOCK)
    t0 = tl.load(p0 + x)
    t1 = libdevice.exp(t0)
    t2 = t1 + 1.0
    tl.store(p1 + x, t2)
""",
    ),
    "the last block of a size that is a symbol is masked": (
        """\
  size n: positive = SizeSource(input=0, dimension=0)
  input x: float32[n]
  y: float32[n]  [i0<n] = max(0.0:float32, x[i0])
  return %y
""",
        """\
    x = (tl.program_id(0).to(tl.int64)) * XBLOCK + tl.arange(0, XBLOCK)
    if tl.program_id(0).to(tl.int64) == n0 // XBLOCK:
        xmask = x < n0
        t0 = tl.load(p0 + x, xmask)
        t1 = tl.maximum(0.0, t0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(p1 + x, t1, mask=xmask)
    else:
        t2 = tl.load(p0 + x)
        t3 = tl.maximum(0.0, t2, propagate_nan=tl.PropagateNan.ALL)
        tl.store(p1 + x, t3)
""",
    ),
    "the last block of a large odd size is masked": (
        """\
  input x: float32[65537]
  y: float32[65537]  [i0<65537] = max(0.0:float32, x[i0])
  return %y
""",
        """\
    x = (tl.program_id(0)) * XBLOCK + tl.arange(0, XBLOCK)
    if tl.program_id(0) == 65537 // XBLOCK:
        xmask = x < 65537
        t0 = tl.load(p0 + x, xmask)
        t1 = tl.maximum(0.0, t0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(p1 + x, t1, mask=xmask)
    else:
        t2 = tl.load(p0 + x)
        t3 = tl.maximum(0.0, t2, propagate_nan=tl.PropagateNan.ALL)
        tl.store(p1 + x, t3)
""",
    ),
    "a short row lies in one block": (
        """\
  input x: float32[8, 16]
  a: float32[8]  [i0<8] = sum<r0<16>(x[i0, r0])
  y: float32[8, 16]  [i0<8, i1<16] = div(x[i0, i1], a[i0])
  return %y
""",
        """\
    x = (tl.program_id(0)) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r = tl.arange(0, RBLOCK)[None, :]
    t0 = tl.load(p0 + (r + x * 16))
    t1 = tl.sum(t0, 1, keep_dims=True)
    t2 = tl.div_rn(t0, t1)
    tl.store(p1 + (r + x * 16), t2)
""",
    ),
    "a long row is walked in passes": (
        """\
  input x: float32[8192, 20000]
  y: float32[8192]  [i0<8192] = max<r0<20000>(x[i0, r0])
  return %y
""",
        """\
    x = (tl.program_id(0)) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    rbase = tl.arange(0, RBLOCK)[None, :]
    acc0 = tl.full([XBLOCK, RBLOCK], float("-inf"), tl.float32)
    o0 = x * 20000
    for roffset0 in range(0, 20000, RBLOCK):
        r = roffset0 + rbase
        rmask = r < 20000
        t0 = tl.load(p0 + (o0 + r), rmask)
        acc0 = tl.maximum(acc0, tl.where(rmask, t0, float("-inf")), propagate_nan=tl.PropagateNan.ALL)
    t1 = tl.reduce(acc0, 1, max_nan, keep_dims=True)
    tl.store(p1 + x, t1)
""",
    ),
    "halves are computed with in float32": (
        """\
  input x: bfloat16[64]
  y: bfloat16[64]  [i0<64] = bfloat16(mul(float32(x[i0]), 0.5:float32))
  return %y
""",
        """\
    x = (tl.program_id(0)) * XBLOCK + tl.arange(0, XBLOCK)
    t0 = tl.load(p0 + x).to(tl.float32)
    t1 = t0 * 0.5
    t2 = (t1).to(tl.bfloat16).to(tl.float32)
    tl.store(p1 + x, t2)
""",
    ),
    "an index that is read is checked where it is used": (
        """\
  input x: float32[8]
  input k: int64[64]
  y: float32[64]  [i0<64] = x[[check_index(k[i0], True:bool, 8)]]
  return %y
""",
        """\
    x = (tl.program_id(0)) * XBLOCK + tl.arange(0, XBLOCK)
    t0 = tl.load(p0 + x)
    tl.device_assert((t0 >= 0) & (t0 < 8), "index out of range")
    k0 = t0.to(tl.int32)
    t1 = tl.load(p1 + k0)
    tl.store(p2 + x, t1)
""",
    ),
}


def body(lines: str) -> str:
    """The statements of the one kernel of a loop program, behind the wait for the kernel ahead of it."""
    program = parse(f"loop program p:\n{lines}")
    (kernel,) = schedule(program).kernels
    (emitted,) = emit(kernel, program.declarations())
    return emitted.source.partition("gdc_launch_dependents()")[2].partition("\n")[2].rstrip("\n") + "\n"


@pytest.mark.parametrize("name", CASES)
def test_the_source_of(name):
    given, expected = CASES[name]
    assert body(given) == expected
