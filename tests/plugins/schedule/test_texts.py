"""What the scheduler makes of loop programs that are written as text."""

from __future__ import annotations

import pytest

from tests.plugins.loop_lab import schedule
from turret.ir.text import parse

ROWS = """\
  input x: float32[8, 16]
  a: float32[8]  [i0<8] = sum<r0<16>(x[i0, r0])
  b: float32[8, 16]  [i0<8, i1<16] = div(x[i0, i1], a[i0])
  return %b
"""

CASES = {
    "a value with one user goes into it": (
        """\
  input x: float32[8, 16]
  a: float32[8, 16]  [i0<8, i1<16] = exp(x[i0, i1])
  b: float32[8, 16]  [i0<8, i1<16] = add(a[i0, i1], 1.0:float32)
  return %b
""",
        """\
  kernel k0 (): for i0 < 8; for i1 < 16
    b[i0, i1] = add(exp(x[i0, i1]), 1.0:float32)
  free x
  arena 0 bytes, peak 512
  buffer b  {bytes: 512}
""",
    ),
    "a row and what needs its sum are one kernel": (
        ROWS,
        """\
  kernel k0 (): for i0 < 8; row r0 < 16
    b[i0, r0] = div(x[i0, r0], sum<r0<16>(x[i0, r0]))
  free x
  arena 0 bytes, peak 512
  buffer b  {bytes: 512}
  fused a + b: 576 bytes, vertical
""",
    ),
    "a transposed copy and a sum share a walk over what both read": (
        """\
  input x: float32[8, 16]
  a: float32[8, 16]  [i0<8, i1<16] = exp(x[i0, i1])
  t: float32[16, 8]  [i0<16, i1<8] = a[i1, i0]
  s: float32[8]  [i0<8] = sum<r0<16>(a[i0, r0])
  return %t, %s
""",
        """\
  kernel k0 (): for i0 < 8; row r0 < 16
    t[r0, i0] = exp(x[i0, r0])
    s[i0] = sum<r0<16>(exp(x[i0, r0]))
  free x
  arena 0 bytes, peak 544
  buffer s  {bytes: 32}
  buffer t  {bytes: 512}
  fused a + t: 512 bytes, vertical
  fused a+t + s: 1024 bytes, vertical
""",
    ),
    "a call stands between kernels, and what it reads and gives lies in the arena": (
        """\
  input x: float32[8, 16]
  a: float32[8, 16]  [i0<8, i1<16] = exp(x[i0, i1])
  m: float32[8, 8]  = aten::mm.default(%a, %x)  {reason: "library kernel"}
  b: float32[8, 8]  [i0<8, i1<8] = neg(m[i0, i1])
  c: float32[8, 8]  [i0<8, i1<8] = sin(b[i0, i1])
  return %c
""",
        """\
  kernel k0 (): for i0 < 8; for i1 < 16
    a[i0, i1] = exp(x[i0, i1])
  m: float32[8, 8]  = aten::mm.default(%a, %x)  {reason: "library kernel"}
  free x
  kernel k1 (): for i0 < 8; for i1 < 8
    c[i0, i1] = sin(neg(m[i0, i1]))
  arena 768 bytes, peak 1024
  buffer a  {bytes: 512, arena_offset: 0}
  buffer m  {bytes: 256, arena_offset: 512}
  buffer c  {bytes: 256}
""",
    ),
    "a scatter is its initial values, and then what is put on top of them": (
        """\
  input x: float32[8]
  input k: int64[4]
  y: float32[8]  = %x with [i0<4] [[check_index(k[i0], True:bool, 8)]] add 1.0:float32
  return %y
""",
        """\
  kernel k0 (): for i0 < 8
    y[i0] = x[i0]
  free x
  kernel k1 (): for i0 < 4
    y[[check_index(k[i0], True:bool, 8)]] add= 1.0:float32
  free k
  arena 0 bytes, peak 32
  buffer y  {bytes: 32}
""",
    ),
    "an option leaves kernels apart": (
        ROWS,
        """\
  kernel k0 (): for i0 < 8; row r0 < 16
    a[i0] = sum<r0<16>(x[i0, r0])
  kernel k1 (): for i0 < 8; for i1 < 16
    b[i0, i1] = div(x[i0, i1], a[i0])
  free x
  arena 64 bytes, peak 576
  buffer a  {bytes: 32, arena_offset: 0}
  buffer b  {bytes: 512}
  apart a + b: 576 bytes, more than 1 definitions
""",
    ),
}
OPTIONS = {"an option leaves kernels apart": {"max_fusion_size": 1}}


def steps(lines: str, **options: object) -> str:
    """Steps, memory and decisions of the schedule of a loop program."""
    text = str(schedule(parse(f"loop program p:\n{lines}"), **options))
    return text.partition("\n")[2].partition("loop program p:")[0]


@pytest.mark.parametrize("name", CASES)
def test_the_steps_of(name):
    given, expected = CASES[name]
    assert steps(given, **OPTIONS.get(name, {})) == expected
