"""Clusters: as few as may be, none of which waits for itself, and what the placement made eager is in none."""

from __future__ import annotations

import torch
from torch import fx

import turret
from turret.hooks.products import NodePlacement, Placement
from turret.pipeline.graph_compilers.clusters import clustered

aten = torch.ops.aten


def stage_graph(function, *args):
    return turret.stage_graph(turret.partition(turret.joint_graph(function, *args)))


def split(graph, is_eager):
    nodes = graph.module.graph.nodes
    names = [(n.name, is_eager(n)) for n in nodes if n.op == "call_function"]
    where = {name: NodePlacement("eager" if eager else "compiled", "asked for") for name, eager in names}
    return clustered(graph.module, Placement(where))


def ops(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def test_a_graph_without_eager_calls_is_one_cluster():
    graph = stage_graph(lambda x: torch.softmax(x @ x, -1), torch.randn(3, 3))
    made = split(graph, lambda node: False)
    (cluster,) = made.clusters
    assert ops(cluster.module) == ops(graph.module)
    assert [n.op for n in made.module.graph.nodes].count("call_module") == 1


def test_an_eager_call_parts_what_is_before_it_from_what_is_behind():
    x = torch.randn(3, 4)
    graph = stage_graph(lambda v: (v.sin() + 1).cumsum(0) * v.cos(), x)
    made = split(graph, lambda node: node.target is aten.cumsum.default)
    assert [set(ops(c.module)) for c in made.clusters] == [
        {aten.sin.default, aten.add.Tensor, aten.cos.default},
        {aten.mul.Tensor},
    ]
    torch.testing.assert_close(made.module(x)[0], (x.sin() + 1).cumsum(0) * x.cos())


def test_clusters_know_which_inputs_eager_calls_gave():
    graph = stage_graph(lambda v: v.sin().cumsum(0) * v, torch.randn(3, 4))
    made = split(graph, lambda node: node.target is aten.cumsum.default)
    behind = made.clusters[1]
    names = [n.name for n in behind.module.graph.find_nodes(op="placeholder")]
    assert [names[n] for n in behind.eager_inputs] == ["cumsum"]


def test_parts_of_one_call_stay_with_it():
    graph = stage_graph(lambda v: torch.aminmax(v.cumsum(0), dim=0), torch.randn(3, 4))
    made = split(graph, lambda node: node.target is aten.cumsum.default)
    for cluster in made.clusters:
        for node in cluster.module.graph.find_nodes(op="placeholder"):
            assert not isinstance(node.meta["val"], (tuple, list))


def test_a_write_to_an_input_comes_after_all_that_reads_it():
    inner = fx.Graph()
    x = inner.placeholder("x")
    x.meta["val"] = torch.randn(3)
    first = inner.call_function(aten.sin.default, (x,))
    inner.call_function(aten.copy_.default, (x, first))
    last = inner.call_function(aten.cos.default, (x,))
    inner.output((first, last))
    for node in inner.nodes:
        node.meta.setdefault("val", torch.randn(3))
    module = fx.GraphModule(torch.nn.Module(), inner)
    placed = Placement({n.name: NodePlacement("compiled") for n in inner.nodes if n.op == "call_function"})
    value = torch.randn(3)
    expected = value.sin(), value.sin().cos()
    made = clustered(module, placed)
    torch.testing.assert_close(made.module(value), expected)
    assert len(made.clusters) == 2
