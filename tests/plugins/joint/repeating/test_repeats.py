"""Which segments of a captured graph are found to be alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from turret.plugins.joint.repeating.repeats import CallSegment, find_repeats


def segments(function: Callable, *names: str) -> list[CallSegment]:
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    graph.output(function(*(fx.Proxy(graph.placeholder(name), tracer) for name in names)).node)
    nodes = list(graph.nodes)
    found = find_repeats(nodes)
    for start, segment in found.items():
        assert list(segment.calls) == nodes[start : segment.end]
    return [found[start] for start in sorted(found)]


def layer(x: fx.Proxy, weight: fx.Proxy, scale: float = 2.0) -> fx.Proxy:
    inner = torch.relu(torch.mm(x, weight) * scale).sin()
    return x + inner.cos().exp()


def test_layers_in_a_row_are_alike_and_know_what_they_take_and_give():
    one, two, three = segments(lambda x, a, b, c: layer(layer(layer(x, a), b), c), "x", "a", "b", "c")
    assert one.kind == two.kind == three.kind
    assert [n.name for n in one.given] == ["x", "a"]
    assert two.given == (one.calls[-1], two.given[1]) and two.given[1].name == "b"
    assert one.leaving == two.leaving == three.leaving == (len(one.calls) - 1,)


def test_what_surrounds_the_layers_does_not_matter():
    def model(x, a, b):
        return layer(layer(torch.tanh(x) - 1, a), b).sum().neg()

    one, two = segments(model, "x", "a", "b")
    assert one.calls[0].target is torch.mm and two.calls[-1].name == "add_1"


def test_other_constants_of_one_value_are_other_calls():
    assert not segments(lambda x, a, b: layer(layer(x, a, 2.0), b, 3.0), "x", "a", "b")
    assert not segments(lambda x, a, b: layer(layer(x, a, 2.0), b, 2), "x", "a", "b")
    assert not segments(lambda x, a, b: layer(layer(x, a, 0.0), b, -0.0), "x", "a", "b")
    assert not segments(lambda x, a, b: layer(layer(x, a, 1j), b, complex(-0.0, 1)), "x", "a", "b")
    assert not segments(lambda x, a, b: layer(layer(x, a, True), b, 1), "x", "a", "b")


def test_arguments_that_refer_elsewhere_are_other_calls():
    def turned(x, weight):
        product = torch.mm(x, weight)
        inner = torch.relu(product * 2.0).sin()
        return product + inner.cos().exp()  # to its own result, where ``layer`` refers to its argument

    assert not segments(lambda x, a, b: turned(layer(x, a), b), "x", "a", "b")


def test_one_argument_twice_is_not_two():
    def both(x, y):
        return (x * y).sin().cos().exp().tanh().neg().abs()

    assert not segments(lambda x, y: both(both(x, x), y), "x", "y")
    assert len(segments(lambda x, y: both(both(x, y), y), "x", "y")) == 2


def test_runs_of_different_layers_have_different_kinds():
    def other(x, weight):
        return torch.mm(x, weight).tanh().neg().abs().sqrt().log()

    found = segments(lambda x, a, b: other(other(layer(layer(x, a), b), a), b), "x", "a", "b")
    assert len(found) == 4 and len({s.kind for s in found}) == 2


def test_results_that_only_some_of_the_layers_hand_out_leave_all_of_them():
    def model(x, a, b):
        first = layer(x, a)
        inner = first.node.args[1]
        return layer(first, b) + fx.Proxy(inner, x.tracer)

    one, two = segments(model, "x", "a", "b")
    assert one.leaving == two.leaving == (len(one.calls) - 2, len(one.calls) - 1)


def test_a_repeat_in_each_layer_is_part_of_the_layer():
    def wide(x, weight):
        return layer(layer(x, weight), weight).sum(0, True)

    found = segments(lambda x, a, b, c: wide(wide(wide(x, a), b), c), "x", "a", "b", "c")
    assert len(found) == 3 and all(s.calls[-1].target == "sum" for s in found)


def test_calls_of_graphs_and_of_what_depends_on_data_are_in_no_stretch():
    def opaque(x):
        x = layer(x, x)
        x.node.meta["unbacked_bindings"] = {}
        return x

    assert not segments(lambda x: opaque(opaque(x)), "x")
