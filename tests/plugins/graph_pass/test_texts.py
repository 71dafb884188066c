"""What passes make of graphs that are written as text."""

from __future__ import annotations

import importlib

import pytest

from tests.plugins.joint_graphs import make_context
from turret.hooks.text.graph_text import graph_text
from turret.pipeline.graph_reader import parse


def passed(name: str, lines: str) -> str:
    """The nodes of a graph after a pass; ``aten.`` stands for ``torch.ops.aten.``."""
    module = parse(f"graph g:\n{lines.replace('aten.', 'torch.ops.aten.')}").module
    importlib.import_module(f"turret.plugins.graph_pass.{name}").run(module, make_context())
    module.graph.lint()
    return graph_text("g", module).partition("\n")[2].replace("torch.ops.", "") + "\n"


CASES = {
    "permutes are one": (
        "simplify",
        """\
  x: float32[2, 3, 4]  = input
  a = aten.permute.default(%x, [2, 0, 1])
  b = aten.permute.default(%a, [2, 1, 0])
  return (%b,)
""",
        """\
  x: float32[2, 3, 4]  = input
  a: float32[4, 2, 3] strides [1, 12, 4]  = aten.permute.default(%x, [2, 0, 1])
  b: float32[3, 2, 4] strides [4, 12, 1]  = aten.permute.default(%x, [1, 0, 2])
  return (%b,)
""",
    ),
    "permutes that undo each other are none": (
        "simplify",
        """\
  x: float32[2, 3, 4]  = input
  a = aten.permute.default(%x, [2, 0, 1])
  b = aten.permute.default(%a, [1, 2, 0])
  c = aten.exp.default(%b)
  return (%c,)
""",
        """\
  x: float32[2, 3, 4]  = input
  a: float32[4, 2, 3] strides [1, 12, 4]  = aten.permute.default(%x, [2, 0, 1])
  c: float32[2, 3, 4]  = aten.exp.default(%x)
  return (%c,)
""",
    ),
    "the outer one of two views is all that counts": (
        "simplify",
        """\
  x: float32[2, 3, 4]  = input
  a = aten.view.default(%x, [6, 4])
  b = aten.view.default(%a, [24])
  return (%b,)
""",
        """\
  x: float32[2, 3, 4]  = input
  a: float32[6, 4]  = aten.view.default(%x, [6, 4])
  b: float32[24]  = aten.view.default(%x, [24])
  return (%b,)
""",
    ),
    "equal calls are made once": (
        "common_subexpressions",
        """\
  x: float32[4]  = input
  a = aten.exp.default(%x)
  b = aten.exp.default(%x)
  c = aten.add.Tensor(%a, %b)
  return (%c,)
""",
        """\
  x: float32[4]  = input
  a: float32[4]  = aten.exp.default(%x)
  c: float32[4]  = aten.add.Tensor(%a, %a)
  return (%c,)
""",
    ),
    "random calls are all made": (
        "common_subexpressions",
        """\
  x: float32[4]  = input
  a = aten.rand_like.default(%x)
  b = aten.rand_like.default(%x)
  c = aten.add.Tensor(%a, %b)
  return (%c,)
""",
        """\
  x: float32[4]  = input
  a: float32[4]  = aten.rand_like.default(%x)
  b: float32[4]  = aten.rand_like.default(%x)
  c: float32[4]  = aten.add.Tensor(%a, %b)
  return (%c,)
""",
    ),
    "what nobody reads goes": (
        "dead_code",
        """\
  x: float32[4]  = input
  a = aten.exp.default(%x)
  b = aten.neg.default(%x)
  return (%b,)
""",
        """\
  x: float32[4]  = input
  b: float32[4]  = aten.neg.default(%x)
  return (%b,)
""",
    ),
}
"""Pass, graph before and graph after, by what it does."""


@pytest.mark.parametrize(("name", "before", "after"), CASES.values(), ids=CASES)
def test_a_pass_makes_of_a_graph(name, before, after):
    assert passed(name, before) == after
