"""The recorder: a call runs on fake values and becomes a node, with what it reads as inputs."""

from __future__ import annotations

import operator

import pytest
import torch

from turret.frames.sources import LocalSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.facts.policy import History, Policy
from turret.plugins.capture.interpreter.tracer import FrameTracer
from turret.plugins.capture.record.graph import GraphRecorder, input_name
from turret.plugins.capture.values.base import Constant, Opaque
from turret.plugins.capture.values.sequences import Tuple

X = LocalSource(0, "x")
MATRIX, VECTOR = torch.ones(2, 3), torch.ones(4)


@pytest.fixture
def recorder() -> GraphRecorder:
    return FrameTracer(Policy(None, History())).recorder


def names(recorder: GraphRecorder) -> list[str]:
    return [node.name for node in recorder.graph.nodes]


def test_a_tensor_from_before_is_an_input_with_a_guard_on_its_properties(recorder):
    value = recorder.tensor_input(MATRIX, X)
    assert [(i.node.name, i.source) for i in recorder.inputs] == [("x", X)]
    assert [g.kind for g in recorder.t.guards] == ["TENSOR"]
    assert tuple(value.fake.shape) == (2, 3) and recorder.calls == 0


def test_a_call_is_a_node_whose_result_is_a_tensor_of_the_graph(recorder):
    with recorder.fake_mode:
        x = recorder.tensor_input(MATRIX, X)
        result = recorder.call(operator.add, [x, Constant(1)], {})
        total = recorder.call_method("sum", [result], {"dim": Constant(1)})
    assert names(recorder) == ["x", "add", "sum_1"] and recorder.calls == 2
    assert result.node.args == (x.node, 1) and total.node.kwargs == {"dim": 1}
    assert tuple(total.fake.shape) == (2,)


def test_results_of_one_call_are_taken_out_of_it_one_by_one(recorder):
    with recorder.fake_mode:
        x = recorder.tensor_input(VECTOR, X)
        parts = recorder.call(torch.chunk, [x, Constant(2)], {})
    assert type(parts) is Tuple and len(parts.items) == 2
    assert names(recorder) == ["x", "chunk", "getitem", "getitem_1"]


def test_what_fails_on_fake_tensors_and_what_no_operation_takes_leaves_no_node(recorder):
    with recorder.fake_mode:
        x = recorder.tensor_input(MATRIX, X)
        with pytest.raises(Unsupported, match="matmul does not run on fake tensors"):
            recorder.call(torch.matmul, [x, x], {})
        with pytest.raises(Unsupported, match="as an argument of an operation"):
            recorder.call(torch.relu, [Opaque(object(), None)], {})
    assert names(recorder) == ["x"]


def test_a_graph_in_the_graph_takes_what_it_uses_from_around_as_its_input(recorder):
    with recorder.fake_mode:
        x = recorder.tensor_input(VECTOR, X)
        with recorder.region() as region:
            recorder.call(torch.sin, [x], {})
            assert recorder.graph is region.graph
    assert [n.op for n in region.graph.nodes] == ["placeholder", "call_function"]
    assert list(region.lifted) == [x.node] and names(recorder) == ["x"]


@pytest.mark.parametrize("marked, kind", [(True, torch.SymInt), (False, int)])
def test_a_size_is_a_symbol_where_the_policy_wants_one(marked, kind):
    recorder = FrameTracer(Policy(marked, History())).recorder
    value = recorder.tensor_input(VECTOR, X)
    with recorder.fake_mode:
        size = recorder.size_value(value, 0)
    assert type(value.fake.shape[0]) is kind
    assert isinstance(size, Constant) is not marked


def test_an_input_is_named_after_where_it_was_found():
    assert input_name(LocalSource(0, "weights")) == "weights"
