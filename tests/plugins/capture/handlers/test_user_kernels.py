"""Launches of the program's own Triton kernels are nodes of the graph, and what they write to is known."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from turret.graph.ops.user_kernels import written_arguments  # noqa: E402


def test_launches_are_captured_in_a_process_with_tritons_interpreter():
    command = [sys.executable, "-m", "tests.plugins.capture.kernel_lab"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    rows = [line.split() for line in found.stdout.splitlines()]
    programs, gradients = rows[:-2], rows[-2:]
    assert len(programs) == 14
    for name, dynamic, graphs, launches in programs:
        assert int(graphs) == (1 if dynamic == "True" else 2), name
        assert int(launches) == int(graphs) * (2 if name == "twice" else 1), name
    assert all(mine == eager for _, mine, eager in gradients)


@triton.jit
def stores(a, b, c, n):
    tl.store(b + tl.arange(0, 8), tl.load(a + tl.arange(0, 8)))


@triton.jit
def stores_by_steps(a, b, c, n):
    pointer = c
    for _ in range(n):
        other = pointer + n
        tl.store(other, tl.load(b))
        pointer += 8


@triton.jit
def adds(a, b, c, n):
    index = tl.load(a)
    tl.atomic_add(b + index, 1)


@triton.jit
def block(a, b, c, n):
    target = tl.make_block_ptr(c, (n,), (1,), (0,), (8,), (0,))
    tl.store(target, tl.load(tl.make_block_ptr(a, (n,), (1,), (0,), (8,), (0,))))


@triton.jit
def descriptor(a, b, c, n):
    target = tl.make_tensor_descriptor(b, shape=[n], strides=[1], block_shape=[8])
    target.store([0], tl.load(a))


@triton.jit
def helper(source, target):
    tl.store(target, tl.load(source))


@triton.jit
def calls(a, b, c, n):
    helper(a, c)


@triton.jit
def calls_by_name(a, b, c, n):
    helper(source=a, target=c)


@triton.jit
def chooses(a, b, c, n):
    target = a if n > 3 else b
    tl.store(target, tl.load(c))


@triton.jit
def assembles(a, b, c, n):
    tl.inline_asm_elementwise("st", "=r", [a + n], dtype=tl.int32, is_pure=False, pack=1)


@pytest.mark.parametrize(
    "kernel, written",
    [
        (stores, "b"), (stores_by_steps, "c"), (adds, "b"), (block, "c"), (descriptor, "b"), (calls, "c"),
        (calls_by_name, "ac"), (chooses, "ab"), (assembles, "a"),
    ],
)  # fmt: skip
def test_arguments_that_a_kernel_writes_through(kernel, written):
    assert written_arguments(kernel) & set("abc") == set(written)


def test_a_kernel_without_source_writes_to_all():
    space = {"triton": triton, "tl": tl}
    exec("def made(a, b):\n    tl.store(a, tl.load(b))\n", space)
    assert written_arguments(space["made"]) == {"a", "b"}


def test_a_kernel_whose_source_is_taken_for_another_text_writes_to_all(monkeypatch):
    """As from Python 3.13 on that of functions made by ``exec`` in a process that ``-c`` started."""
    space = {"triton": triton, "tl": tl}
    exec("def made(a, b):\n    tl.store(a, tl.load(b))\n", space)
    for text in (
        "print(1)\n",
        "def other(a, b):\n    tl.store(a, tl.load(b))\n",
        "def made(a):\n    tl.load(a)\n",
        "\n",
    ):
        monkeypatch.setattr(inspect, "getsource", lambda function, text=text: text)
        assert written_arguments(space["made"]) == {"a", "b"}
