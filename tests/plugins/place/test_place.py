"""Placement: compiled unless dtype, layout, device or op forbid it, and then with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import turret
from tests.plugins.joint_graphs import make_context
from turret.errors import StageError
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import NodePlacement, Placement, StageGraph, Target
from turret.plugins import place


def placed(function, *args, target=None, plugins=()):
    module = make_fx(function)(*args)
    graph = StageGraph(module, "inference", target or Target("cpu"), (None,))
    return place.turret_place(make_context(*plugins), graph).nodes


def test_ops_of_the_surface_are_compiled():
    nodes = placed(lambda x: (x.exp() @ x).sum(0), torch.randn(3, 3))
    assert {p.where for p in nodes.values()} == {"compiled"}
    assert nodes["mm"].reason == "library kernel" and nodes["exp"].reason == ""


def test_complex_tensors_run_eagerly_on_both_sides():
    nodes = placed(lambda x: torch.ops.aten.view_as_real(x * 2) + 1, torch.randn(3, dtype=torch.complex64))
    assert nodes["mul"].where == "eager" and "dtype complex64" in nodes["mul"].reason
    assert nodes["view_as_real"].where == "eager" and nodes["add"].where == "compiled"


def test_op_outside_the_surface_runs_eagerly_unless_a_plugin_lowers_it():
    gelu = torch.ops.aten.gelu.default

    class Lowers:
        @hookimpl
        def turret_lowerings(self):
            return {gelu: lambda builder, x: x}

    def function(x):
        return gelu(x)

    assert placed(function, torch.randn(3))["gelu"].where == "eager"
    assert placed(function, torch.randn(3), plugins=[Lowers()])["gelu"].where == "compiled"


def test_tensors_of_another_device_run_eagerly():
    nodes = placed(lambda x: x + 1, torch.randn(3), target=Target("cuda", 0))
    assert nodes["add"].where == "eager" and "on cpu, compiled for cuda:0" in nodes["add"].reason


def test_sparse_tensors_run_eagerly():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.eye(2).to_sparse()
    y = graph.call_function(torch.ops.aten.neg.default, (x,))
    y.meta["val"] = x.meta["val"]
    graph.output((y,))
    stage = StageGraph(fx.GraphModule(torch.nn.Module(), graph), "inference", Target("cpu"), (None,))
    assert "layout sparse_coo" in place.turret_place(make_context(), stage).nodes[y.name].reason


def test_every_call_node_has_a_placement():
    with FakeTensorMode():
        x = torch.randn(4, 4)
    module = make_fx(lambda x: torch.var_mean(x, 0))(x)
    stage = StageGraph(module, "inference", Target("cpu"), (None, None))
    names = {n.name for n in module.graph.nodes if n.op == "call_function"}
    assert set(place.turret_place(make_context(), stage).nodes) == names


@pytest.mark.parametrize(
    "given", [7, {"sin": "eager"}, Placement({"sin": "eager"}), Placement({"sin": NodePlacement("gpu")})]
)
def test_what_is_no_placement_is_refused_in_the_name_of_the_plugin(given):
    class Wrong:
        @hookimpl
        def turret_place(self):
            return given

    compiled = turret.compile(torch.sin, plugins=[Wrong()], options={"cache": False, "on_error": "raise"})
    with pytest.raises(StageError, match=r"stage 'place' .*Wrong.* (is no Placement|expected NodePlacement)"):
        compiled(torch.randn(3))


def _sums_by_index(x, index, source):
    aten = torch.ops.aten
    rows = index[:, 0]
    return (
        aten.scatter_add(x, 0, index, source),
        aten.index_add(x, 0, rows, source),
        aten.index_put(x, [rows], source, True),
        aten.scatter(x, 0, index, source, reduce="add"),
        aten.scatter_reduce(x, 0, index, source, "mean", include_self=False),
        aten.embedding_dense_backward(source, rows, 4, -1, False),
    )


def _orderless_by_index(x, index, source):
    aten = torch.ops.aten
    return (
        aten.scatter(x, 0, index, source),
        aten.index_put(x, [index[:, 0]], source),
        aten.scatter_reduce(x, 0, index, source, "amax", include_self=True),
        aten.scatter_add(x.long(), 0, index, source.long()),
    )


@pytest.fixture
def deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _scatters(function):
    x, index, source = torch.zeros(4, 3), torch.tensor([[0, 1, 2], [0, 0, 0]]), torch.ones(2, 3)
    names = ("scatter", "index_add", "index_put", "embedding_dense_backward")
    return {name: p for name, p in placed(function, x, index, source).items() if name.startswith(names)}


def test_sums_by_index_run_eagerly_under_deterministic_algorithms(deterministic_algorithms):
    found = _scatters(_sums_by_index)
    assert len(found) == 6
    assert {p.where for p in found.values()} == {"eager"}
    assert all("use_deterministic_algorithms" in p.reason for p in found.values())


def test_scatters_whose_order_is_of_no_consequence_stay_compiled(deterministic_algorithms):
    found = _scatters(_orderless_by_index)
    assert len(found) == 4
    assert {p.where for p in found.values()} == {"compiled"}


def test_sums_by_index_are_compiled_without_deterministic_algorithms():
    assert {p.where for p in _scatters(_sums_by_index).values()} == {"compiled"}
