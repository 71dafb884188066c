"""Full backward hooks of modules are called in compiled functions with eager's values and in eager's order."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook, register_module_full_backward_pre_hook

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

SEEN = []


class Masked(nn.Module):
    """One input and one result that take gradients, beside others."""

    def __init__(self, broken=False):
        super().__init__()
        self.linear, self.broken = nn.Linear(3, 3), broken

    def forward(self, x, mask, factor):
        y = self.linear(x * mask)
        if self.broken:
            turret.graph_break()
        return None, y.tanh() * factor, mask + 1


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, y):
        return self.linear(x) * y, x + y


def scaled(module, gradients, of_results):
    known = next(g for g in of_results if g is not None)
    return tuple(None if g is None else g * 1.5 + known.mean() for g in gradients)


def tripled(module, gradients):
    return tuple(None if g is None else g * 3 for g in gradients)


def noted(module, gradients, *of_results):
    SEEN.append((type(module).__name__, *gradients, *(g for row in of_results for g in row)))


def hooked_layers(hook, pre_hook):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    for layer in (*model, model):
        layer.register_full_backward_hook(hook)
        layer.register_full_backward_pre_hook(pre_hook)
    return model


def trained(call, model, x):
    """The result of a call, gradients, and what hooks have seen, twice."""
    SEEN.clear()
    found = []
    for _ in range(2):
        x = x.detach().clone().requires_grad_()
        results = call(x * 2)
        (results if isinstance(results, torch.Tensor) else results[1]).square().mean().backward()
        found += [x.grad, *(p.grad for p in model.parameters())]
        model.zero_grad()
    return found, list(SEEN)


def assert_trains_alike(program, model, *, fullgraph, breaks):
    x = torch.linspace(-1, 1, 6).view(2, 3)
    expected = trained(program, model, x)
    observed = Observed(program, fullgraph=fullgraph)
    assert_same(trained(observed, model, x), expected)
    assert bool(observed.breaks) == breaks
    compiled = turret.compile(program, fullgraph=fullgraph, options={"cache": False, "on_error": "raise"})
    assert_same(trained(compiled, model, x), expected)
    return observed


def test_hooks_that_change_gradients_are_part_of_one_graph():
    model = hooked_layers(scaled, tripled)
    observed = assert_trains_alike(lambda x: model(x) + 1, model, fullgraph=True, breaks=False)
    assert len(observed.graphs) == 1


def test_hooks_get_none_for_what_takes_no_gradient():
    model = Masked()
    model.register_full_backward_hook(scaled)
    model.register_full_backward_pre_hook(tripled)
    mask = torch.tensor([1.0, 0.0, 1.0])
    assert_trains_alike(lambda x: model(x, mask, 2), model, fullgraph=True, breaks=False)


def test_hooks_of_all_modules_are_part_of_one_graph():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    handles = register_module_full_backward_hook(scaled), register_module_full_backward_pre_hook(tripled)
    try:
        assert_trains_alike(lambda x: model(x) + 1, model, fullgraph=True, breaks=False)
    finally:
        for handle in handles:
            handle.remove()


def test_a_hook_may_write_to_tensors():
    total, model = torch.zeros(3), nn.Tanh()

    def of_inputs(module, given, results):
        total.add_(given[0].sum(0) * results[0].sum())

    model.register_full_backward_hook(of_inputs)
    found = []
    for call in (lambda x: model(x * 2), Observed(lambda x: model(x * 2), fullgraph=True)):
        total.zero_()
        call(torch.ones(2, 3, requires_grad=True)).sum().backward()
        found.append(total.clone())
    assert_same(*found)


@pytest.mark.parametrize("hooks", [(noted, noted), (scaled, noted), (noted, tripled)])
def test_hooks_that_keep_what_they_see_are_called_by_eager(hooks):
    model = hooked_layers(*hooks)
    observed = assert_trains_alike(lambda x: model(x) + 1, model, fullgraph=False, breaks=True)
    assert "full backward hooks" in observed.breaks[0]


def test_hooks_of_several_inputs_and_results_are_called_by_eager():
    model = Both()
    model.register_full_backward_hook(lambda module, given, results: tuple(g * 2 for g in given))
    observed = assert_trains_alike(lambda x: model(x, x.sin()), model, fullgraph=False, breaks=True)
    assert "full backward hooks" in observed.breaks[0]


def test_hooks_of_a_module_that_breaks_the_graph_are_called_by_eager():
    model = Masked(broken=True)
    model.register_full_backward_hook(scaled)
    mask = torch.tensor([1.0, 0.0, 1.0])
    assert_trains_alike(lambda x: model(x.exp(), mask, 2), model, fullgraph=False, breaks=True)


def test_a_hook_is_not_called_for_a_gradient_that_goes_around_the_result():
    class Leaking(nn.Module):
        def forward(self, x):
            self.inner = x * 2
            return self.inner * 3

    model = Leaking()
    model.register_full_backward_hook(lambda module, given, results: (given[0] * 5,))

    def program(x):
        return model(x * 1), model.inner

    x = torch.ones(3)
    assert_trains_alike(program, model, fullgraph=False, breaks=True)
    found = []
    for call in (program, Observed(program), turret.compile(program)):
        x = torch.ones(3, requires_grad=True)
        call(x)[1].sum().backward()
        found.append(x.grad)
    assert_same(found[1:], found[:1] * 2)


def test_a_hooked_input_that_a_module_writes_to_raises_eagers_error():
    model = nn.ReLU(inplace=True)
    model.register_full_backward_hook(scaled)
    for call in (lambda x: model(x * 2), Observed(lambda x: model(x * 2)), turret.compile(lambda x: model(x * 2))):
        with pytest.raises(
            RuntimeError, match=r"BackwardHookFunction(Backward)? is a view and is being modified inplace"
        ):
            call(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("returned", [lambda g: (g, g), lambda g: g, lambda g: (None,), lambda g: [g * 2]])
def test_what_a_hook_may_not_return_is_left_to_eager(returned):
    model = nn.Tanh()
    model.register_full_backward_hook(lambda module, given, results: returned(given[0]))
    found = []
    for call in (lambda x: model(x * 2), Observed(lambda x: model(x * 2))):
        x = torch.ones(2, 3, requires_grad=True)
        try:
            call(x).sum().backward()
        except RuntimeError as error:
            found.append(str(error))
        found.append(x.grad)
    assert_same(*found) if len(found) == 2 else assert_same(found[:2], found[2:])
