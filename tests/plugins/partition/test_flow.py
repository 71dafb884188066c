"""The minimum cut against networkx on random networks."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.plugins.partition.flow import UNBOUNDED, FlowNetwork

EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20)), max_size=40)


def cut_value(network, sink_side, edges):
    return sum(c for a, b, c in edges if not sink_side[a] and sink_side[b])


@settings(max_examples=200, deadline=None)
@given(EDGES)
def test_cut_has_the_value_of_the_maximum_flow(edges):
    count = 8
    names = {8: "s", 9: "t"}
    graph = networkx.DiGraph()
    graph.add_nodes_from(["s", "t"])
    network = FlowNetwork(count)
    for tail, head, capacity in edges:
        if tail == head:
            continue
        network.connect(tail, head, capacity)
        a, b = names.get(tail, tail), names.get(head, head)
        before = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=before + capacity)
    side = network.sink_side()
    assert side[network.sink] and not side[network.source]
    assert cut_value(network, side, [e for e in edges if e[0] != e[1]]) == networkx.maximum_flow_value(graph, "s", "t")


def test_among_equal_cuts_the_one_nearest_to_the_sink_is_taken():
    network = FlowNetwork(2)
    network.connect(network.source, 0, 5)
    network.connect(0, 1, 5)
    network.connect(1, network.sink, 5)
    assert network.sink_side()[:2] == [False, False]


def test_unbounded_path_is_an_error():
    network = FlowNetwork(1)
    network.connect(network.source, 0, UNBOUNDED)
    network.connect(0, network.sink, UNBOUNDED)
    with pytest.raises(ValueError, match="no finite cut"):
        network.sink_side()
