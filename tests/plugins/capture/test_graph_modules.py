"""``fx.GraphModule`` and exported programs as roots and as parts: captured like any module."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(6.0).reshape(2, 3)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))) + 1


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, extra, *, scale=1.0):
        self.count.add_(1)
        return {"y": self.linear(x) * scale + extra["shift"], "count": self.count + 1}


def traced() -> fx.GraphModule:
    torch.manual_seed(0)
    return fx.symbolic_trace(Model().eval())


def exported() -> nn.Module:
    torch.manual_seed(0)
    return torch.export.export(Model().eval(), (X,)).module()


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


@pytest.mark.parametrize("make", [traced, exported, lambda: Around(traced()), lambda: Around(exported())])
def test_the_module_is_one_graph(make):
    module = make()
    observed = Observed(module.__call__)
    for _ in range(2):
        assert_same(observed(X), module(X))
    assert len(observed.graphs) == 1 and not observed.breaks


def test_it_trains():
    module = fx.symbolic_trace(Model())
    plain = fx.symbolic_trace(Model())
    plain.load_state_dict(module.state_dict())
    observed = Observed(module.__call__)
    observed(X).sum().backward()
    plain(X).sum().backward()
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(module.state_dict(), plain.state_dict())


def test_an_edited_graph_is_captured_anew():
    module = traced()
    observed = Observed(module.__call__)
    assert_same(observed(X), module(X))
    for node in module.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.sigmoid
    module.recompile()
    assert_same(observed(X), module(X))
    module.linear = nn.Linear(3, 3)
    assert_same(observed(X), module(X))
    assert len(observed.graphs) == 3


def test_a_class_with_a_call_of_its_own():
    class Doubling(fx.GraphModule):
        def __call__(self, *args):
            return super().__call__(*args) * 2

    base = traced()
    module = Doubling(base, base.graph)
    observed = Observed(module.__call__)
    assert_same(observed(X), module(X))
    assert observed.graphs


def export_with_sizes() -> nn.Module:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=10)
    shapes = {"x": {0: rows}, "extra": {"shift": None}, "scale": None}
    arguments = (torch.randn(4, 3), {"shift": torch.ones(3)})
    return torch.export.export(Counting(), arguments, {"scale": 2.0}, dynamic_shapes=shapes).module()


def test_an_exported_program_with_sizes_and_buffers():
    module, plain = export_with_sizes(), export_with_sizes()
    observed = Observed(module.__call__)
    for rows in (4, 5, 6, 7):
        given = (torch.ones(rows, 3), {"shift": torch.ones(3)})
        assert_same(observed(*given, scale=2.0), plain(*given, scale=2.0))
    assert len(observed.graphs) == 2 and not observed.breaks
    with pytest.raises(AssertionError, match="Guard failed"):
        observed(torch.ones(12, 3), {"shift": torch.ones(3)}, scale=2.0)


def test_an_unflattened_program_has_its_modules_captured():
    module = torch.export.unflatten(torch.export.export(Model().eval(), (X,)))
    observed = Observed(module.__call__)
    assert_same(observed(X), module(X))
    assert observed.graphs
