"""Facts about calls that are read off schemas and tags."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from turret.graph import externs, op_traits
from turret.graph.ops import random_ops

aten = torch.ops.aten


def graph_of(*calls):
    graph = fx.Graph()
    nodes = {"x": graph.placeholder("x")}
    for name, target, *args in calls:
        nodes[name] = graph.call_function(target, tuple(nodes.get(a, a) if isinstance(a, str) else a for a in args))
    return nodes


def test_views_are_told_from_copies_and_writes():
    assert op_traits.is_view_op(aten.view.default) and op_traits.is_view_op(aten.split.Tensor)
    for op in (aten.clone.default, aten.add.Tensor, aten.add_.Tensor, aten._unsafe_view.default):
        assert not op_traits.is_view_op(op)


def test_storage_root_follows_views_getitem_and_copies_into():
    nodes = graph_of(
        ("v", aten.view.default, "x", [4]),
        ("s", aten.split.Tensor, "v", 2),
        ("g", operator.getitem, "s", 0),
        ("c", aten.clone.default, "g"),
        ("w", aten.copy_.default, "x", "c"),
    )
    root = op_traits.storage_root
    assert root(nodes["g"]) is nodes["x"] and root(nodes["c"]) is nodes["c"] and root(nodes["w"]) is nodes["x"]


def test_attention_without_dropout_is_not_random():
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    nodes = graph_of(
        ("a", attention, "x", "x", "x"), ("b", attention, "x", "x", "x", 0.5), ("r", aten.rand_like.default, "x")
    )
    assert op_traits.is_random_op(attention)
    assert not op_traits.is_random_call(nodes["a"])
    assert op_traits.is_random_call(nodes["b"]) and op_traits.is_random_call(nodes["r"])


def test_effects_must_run_and_are_not_pure():
    nodes = graph_of(
        ("w", aten.copy_.default, "x", "x"), ("r", aten.bernoulli.p, "x", 0.5), ("a", aten.neg.default, "x")
    )
    assert op_traits.is_effectful(nodes["w"]) and op_traits.is_effectful(nodes["r"])  # a generator goes on
    assert [op_traits.is_pure_call(nodes[n]) for n in "wra"] == [False, False, True]


def test_a_draw_that_is_read_is_run_by_its_reader_and_a_seed_that_is_not_is_dropped():
    seed = random_ops.seed
    nodes = graph_of(("r", aten.bernoulli.p, "x", 0.5), ("a", aten.neg.default, "r"), ("s", seed, torch.device("cpu")))
    assert not op_traits.is_effectful(nodes["r"]) and not op_traits.is_effectful(nodes["s"])


def test_bytes_count_elements_of_nested_values():
    x = torch.empty(3, 4, dtype=torch.float16)
    assert op_traits.tensor_bytes(x) == 24 and op_traits.tensor_bytes((x, [x])) == 48 and op_traits.tensor_bytes(7) == 8


def test_sizes_that_depend_on_data_are_guessed_symbol_by_symbol():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    hint, rows = op_traits.size_hint, ShapeEnv().create_unbacked_symint()
    assert (hint(rows), hint(rows * 100, 10), hint(rows // 3 + 1, 30)) == (64, 1000, 11)
    assert hint(6 - rows) == 5 and hint(-rows) == 64  # a guess is one of a size
    assert hint(7) == 7 and hint(object(), 5) == 5


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_collectives_and_waits_run_exactly_once_and_keep_what_they_were_given():
    from torch.distributed import _functional_collectives  # noqa: F401 (registers the ops)

    ops = torch.ops._c10d_functional
    reduced, waited = ("r", ops.all_reduce.default, "x", "sum", "0"), ("w", ops.wait_tensor.default, "r")
    nodes = graph_of(reduced, waited, ("s", aten.sin.default, "x"))
    assert [op_traits.is_collective(nodes[n].target) for n in "rws"] == [True, True, False]
    assert [op_traits.is_effectful(nodes[n]) for n in "rws"] == [True, True, False]
    assert [op_traits.is_pure_call(nodes[n]) for n in "rws"] == [False, False, True]
    assert [externs.may_return_alias(nodes[n].target) for n in "rws"] == [True, True, False]
    nodes["x"].graph.output(nodes["x"])
    op_traits.erase_unread(nodes["x"].graph)
    assert [n.name for n in nodes["x"].graph.nodes if n.op == "call_function"] == [nodes["r"].name, nodes["w"].name]
