"""Graphs that run eagerly and raise: their inputs are what they were, or the error says that they are not."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.frames.eager_graphs import eagerly, left_no_writes

WRITES = {
    "add": lambda v: v.add_(1),
    "a part": lambda v: v[..., :1].zero_(),
    "through detach": lambda v: v.detach().mul_(3),
    "reshaped": lambda v: v.unsqueeze_(0),
    "other memory": lambda v: v.set_(torch.zeros(2)),
    "grown": lambda v: v.resize_(12),
    "history": lambda v: v.mul_(torch.ones(1, requires_grad=True)),
    "twice": lambda v: v.add_(1).mul_(2),
    "none": lambda v: v + 1,
}
FOUND = ("add", "a part", "through detach", "twice", "none")
"""What can be undone."""


def graph_of(writes: list[str], told: bool) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{n}") for n in range(2)]
    for node in inputs:
        node.meta["written"] = told
    for n, name in enumerate(writes):
        graph.call_function(WRITES[name], (inputs[n % 2],))
    graph.call_function(torch.gather, (inputs[0], 0, inputs[0]))  # raises: no index has that dtype
    graph.output(())
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@given(st.lists(st.sampled_from(sorted(WRITES)), max_size=4), st.booleans(), st.booleans())
def test_inputs_are_as_they_were_where_the_error_is_marked_so(writes: list[str], told: bool, shared: bool) -> None:
    memory = torch.arange(6.0)
    x, y = memory[:4], (memory[2:] if shared else torch.arange(4.0))
    before = [(v.tolist(), v._version, v.requires_grad) for v in (x, y)]
    with pytest.raises(Exception) as found:
        eagerly(graph_of(writes, told))(x, y)
    unchanged = [(v.tolist(), v._version, v.requires_grad) for v in (x, y)] == before
    if left_no_writes(found.value):
        assert unchanged and x.grad_fn is None is y.grad_fn
    else:
        assert set(writes) - {"none"} and not (told and set(writes) <= set(FOUND))


@pytest.mark.parametrize("told", [False, True])
def test_tensors_of_inference_mode_are_put_back(told: bool) -> None:
    with torch.inference_mode():
        x, y = torch.arange(4.0), torch.arange(4.0)
        with pytest.raises(RuntimeError) as found:
            eagerly(graph_of(["add", "a part"], told))(x, y)
    assert left_no_writes(found.value) == told == (x.tolist() == y.tolist() == [0, 1, 2, 3])


def test_what_a_recomputation_wrote_before_it_ended_early_stays() -> None:
    """Eager checkpoints end the second run of a function by an error of a hook, once all is there that they need."""
    graph = torch.fx.Graph()
    x, total = graph.placeholder("x"), graph.placeholder("total")
    total.meta["written"] = True
    doubled = graph.call_function(torch.mul, (x, 2))
    graph.call_method("add_", (total, 1))
    graph.output((graph.call_function(torch.sin, (doubled,)),))
    run = eagerly(torch.fx.GraphModule(torch.nn.Module(), graph))
    total, x = torch.zeros(()), torch.ones(3, requires_grad=True)
    torch.utils.checkpoint.checkpoint(lambda v: run(v, total)[0], x, use_reentrant=False).sum().backward()
    assert total.item() == 2


@pytest.mark.parametrize("dynamic", [False, True])
@given(st.lists(st.sampled_from([-1.0, 1.0, 3.0]), min_size=2, max_size=2), st.integers(2, 5))
@settings(max_examples=10, deadline=None)
def test_an_if_on_data_is_one_again_whatever_sizes_change(dynamic, values, size):
    def program(x, w, t):
        y = (x if t[1] > 2 else x * 4) if t[0] > 0 else x * 2
        return y + 1, w if t[1] > 0 else w * 2

    compiled = turret.compile(program, backend="eager", fullgraph=True, dynamic=dynamic)
    found = []
    for call in (program, compiled):
        x, w = (torch.full((size,), number, requires_grad=True) for number in (2.0, 3.0))
        results = call(x, w, torch.tensor(values))
        sum(v.sum() for v in results).backward()
        found.append((*results, x.grad, w.grad))
    torch.testing.assert_close(found[1], found[0])
