"""The C++ of loop programs that are written as text."""

from __future__ import annotations

import shutil

import pytest

import turret
from turret.ir.text import parse

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def body(lines: str) -> str:
    """The statements of the one kernel of a loop program, behind those that read its arguments."""
    source = turret.codegen(turret.schedule(parse(f"loop program p:\n{lines}"))).source
    kernel = source.partition("int threads) {\n")[2].partition("  return 0;\n")[0]
    return "".join(line for line in kernel.splitlines(keepends=True) if "buffers[" not in line)


def test_a_loop_over_a_size_that_is_a_symbol_is_cut_into_tasks():
    program = """\
  size n: positive = SizeSource(input=0, dimension=0)
  input x: float32[n]
  y: float32[n]  [i0<n] = max(0.0:float32, mul(x[i0], 0.5:float32))
  return %y
"""
    assert (
        body(program)
        == """\
  const int64_t s0 = sizes[0];
  const int64_t tasks0 = ((s0 + 8191) / 8192);
  const int workers0 = team(threads, tasks0, 4 * s0);
#pragma omp parallel for num_threads(workers0) schedule(static)
  for (int64_t task0 = 0; task0 < tasks0; task0++) {
    const int64_t a0 = task0 * 8192;
    const int64_t z0 = a0 + 8192 < s0 ? a0 + 8192 : s0;
#pragma omp simd
    for (int64_t i0 = a0; i0 < z0; i0++) {
      const float t0 = p0[i0];
      const float t1 = t0 * 0.5f;
      const float t2 = max_of<float>(0.0f, t1);
      p1[i0] = t2;
    }
  }
"""
    )


def test_a_choice_between_a_half_and_a_constant():
    program = """\
  input x: float16[1000]
  input k: int64[1000]
  y: float32[1000]  [i0<1000] = where(lt(k[i0], 3:int64), float32(x[i0]), 1.0:float32)
  return %y
"""
    assert (
        body(program)
        == """\
#pragma omp simd
  for (int64_t i0 = 0; i0 < 1000; i0++) {
    const int64_t t0 = p0[i0];
    const bool t1 = t0 < 3;
    const float t2 = f16_load(p1[i0]);
    const float t3 = t1 ? t2 : 1.0f;
    p2[i0] = t3;
  }
"""
    )
