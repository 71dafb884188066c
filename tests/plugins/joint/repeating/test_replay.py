"""Layers that are alike are traced once, and the graph is the one that tracing each of them gives."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import turret
from tests.plugins.capture.capture_lab import Observed
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import CapturedGraph, JointGraph
from turret.plugins.decompositions.table import decomposition_table
from turret.plugins.joint.repeating.replay import Replays
from turret.plugins.joint.trace import trace

WIDTH = 8


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        layout = tuple(value.shape), value.stride(), value.storage_offset()
        return *layout, value.dtype, value.device, value.requires_grad
    if isinstance(value, (list, tuple)):
        return type(value).__name__, *map(described, value)
    return value


def rows(joint: JointGraph) -> list[tuple]:
    """All that a joint graph says of its nodes."""
    found = []
    for n in joint.module.graph.nodes:
        meta = [(key, described(n.meta[key])) for key in sorted(n.meta)]
        found.append((n.op, n.name, n.target, str(n.args), str(n.kwargs), [u.name for u in n.users], meta))
    return found


@attrs.frozen
class Both:
    copied: int
    joint: JointGraph

    def ops(self) -> list[str]:
        return [str(n.target) for n in self.joint.module.graph.nodes if n.op == "call_function"]


def compare(captured: CapturedGraph) -> Both:
    """Trace a graph with copies and without: the results must not differ in anything."""
    told: list[str] = []
    plain = trace(captured, decomposition_table(), replay=False)
    copied = trace(captured, decomposition_table(), report=told.append)
    for mine, theirs in zip(rows(copied), rows(plain), strict=True):
        assert mine == theirs
    assert copied.signature == plain.signature
    assert copied.num_forward_outputs == plain.num_forward_outputs
    copied.module.graph.lint()
    return Both(int(told[0].split()[2]) if told else 0, copied)


def both(function: Callable, *args: Any) -> Both:
    observed = Observed(function, fullgraph=True)
    observed(*args)
    (captured,) = observed.graphs
    return compare(captured)


class Layer(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.second(self.dropout(torch.relu(self.first(x)))))


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, *rest)
        return x.square()


def stack(count: int = 4, kind: Callable[..., nn.Module] = Layer, **options: Any) -> Stack:
    torch.manual_seed(0)
    return Stack([kind(**options) for _ in range(count)])


X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("training", [False, True])
def test_layers_are_traced_once(training):
    with torch.set_grad_enabled(training):
        found = both(stack(5), X)
    assert found.joint.signature.training == training
    assert found.copied == (3 if training else 4)  # the first layer's argument needs no gradient


def test_layers_of_an_input_that_needs_a_gradient():
    assert both(stack(4), X.clone().requires_grad_()).copied == 3


def test_an_input_without_gradient_makes_the_first_layer_another():
    assert both(stack(4), X).copied == 2


def test_dropout_draws_in_order():
    found = both(stack(4, p=0.5).train(), X)
    assert found.copied >= 2
    assert sum("bernoulli" in op or "rand" in op or "dropout" in op for op in found.ops()) >= 4


@pytest.mark.parametrize("frozen", [1, 2, 3])
def test_frozen_layers_are_apart_from_those_that_learn(frozen):
    model = stack(6)
    for layer in model.layers[:frozen]:
        layer.requires_grad_(False)
    assert both(model, X).copied >= 2


def test_layers_of_which_single_parameters_are_frozen():
    model = stack(6)
    for layer in model.layers[::2]:
        layer.first.weight.requires_grad_(False)
    found = both(model, X)
    assert 2 <= found.copied <= 4


def test_one_layer_again_and_again():
    layer = Layer()

    def run(x):
        return layer(layer(layer(layer(x)))).sin()

    assert both(run, X.clone().requires_grad_()).copied == 1  # the last, whose gradients of the weights come first
    with torch.no_grad():
        assert both(run, X).copied == 3


class Twice(nn.Module):
    """Uses a weight twice, which gets two gradients in each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm((x @ self.weight).relu() @ self.weight).tanh().sin()


def test_weights_that_are_used_twice_in_a_layer():
    assert both(stack(4, Twice), X.clone().requires_grad_()).copied == 3


def test_sums_of_gradients_keep_their_order_where_layers_share_weights():
    layer = Twice()
    found = both(lambda x: layer(layer(layer(layer(x)))).sin(), X.clone().requires_grad_())
    assert found.copied == 1


def test_hidden_states_that_are_results_too():
    model = stack(4)

    def run(x):
        states = [x]
        for layer in model.layers:
            states.append(layer(states[-1]))
        return tuple(states)

    both(run, X.clone().requires_grad_())
    with torch.no_grad():
        assert both(run, X).copied == 3


def test_a_table_for_all_layers_that_learns():
    """Gradients of one input of the layers flow through another: what is below it is not run with the layer."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return self.norm(self.linear(x) * bias + x).tanh().sin()

    model, table = stack(4, Biased), nn.Parameter(torch.randn(WIDTH))
    both(lambda x: model(x, table.exp()), X)
    both(lambda x: model(x, table), X)


class Attention(nn.Module):
    """Grouped queries, with a mask for all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, 4, 2).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, 4).transpose(1, 2).chunk(2, -1)
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(found.transpose(1, 2).reshape(batch, length, -1))


@pytest.mark.parametrize("training", [False, True])
def test_attention_with_grouped_queries(training):
    model, mask = stack(4, Attention), torch.ones(3, 3).tril().bool()
    with torch.set_grad_enabled(training):
        assert both(lambda x: model(x, mask), torch.randn(2, 3, WIDTH)).copied >= 2


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.one, self.two = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(x + self.two(self.second(F.relu_(self.one(self.first(x))))))


def test_batch_norm_in_training_writes_to_its_statistics_and_is_traced_each_time():
    model = stack(3, Convolutions)
    assert both(model, torch.randn(2, 4, 5, 5)).copied == 0
    assert both(model.eval(), torch.randn(2, 4, 5, 5)).copied >= 1
    with torch.no_grad():
        assert both(model.eval(), torch.randn(2, 4, 5, 5)).copied == 2


@pytest.mark.parametrize("reentrant", [False])
def test_checkpointed_layers(reentrant):
    model = stack(4)

    def run(x):
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return x.sin()

    both(run, X.clone().requires_grad_())


def test_layers_in_autocast():
    model = stack(4)

    def run(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    assert both(run, X).copied >= 2


def test_layers_in_part_without_gradients():
    model = stack(6)

    def run(x):
        with torch.no_grad():
            for layer in model.layers[:3]:
                x = layer(x)
        for layer in model.layers[3:]:
            x = layer(x)
        return x.sin()

    assert both(run, X).copied >= 2


class Modes(Layer):
    """Changes grad mode and autocast on its way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True).clamp(min=1.0)
        with torch.autocast("cpu", torch.bfloat16):
            inner = self.first(x / scale)
        return self.norm(x + self.second(inner.float().relu()))


def test_modes_that_change_inside_of_layers():
    assert both(stack(4, Modes), X.clone().requires_grad_()).copied >= 2
    with torch.no_grad():
        assert both(stack(4, Modes), X).copied >= 2


def test_layers_that_write_to_an_argument():
    model = stack(4)

    def run(x, memory):
        for number, layer in enumerate(model.layers):
            x = layer(x)
            memory[number].copy_(x.detach())
        return x

    both(run, X, torch.zeros(4, *X.shape))


def test_layers_that_write_to_what_they_were_given():
    def layer(x):
        return x.mul_(2).add_(1).neg_().sub_(3).div_(4).mul_(5)

    assert both(lambda x: layer(layer(layer(x.clone()))), X).copied == 0
    both(lambda x: layer(layer(layer(x.clone()))), X.clone().requires_grad_())


def test_layers_whose_results_are_views():
    def layer(x):
        return (x.sin().cos() * 2).relu().exp().neg().t()

    both(lambda x: layer(layer(layer(x))), torch.randn(4, 4))
    both(lambda x: layer(layer(layer(x))), torch.randn(4, 4, requires_grad=True))


def test_layers_with_two_results():
    def layer(x, y):
        z = (x * y).sin().cos().tanh() + x
        return z, z.exp().neg()

    def run(x, y):
        for _ in range(4):
            x, y = layer(x, y)
        return x + y

    assert both(run, X, X).copied >= 2
    both(run, X.clone().requires_grad_(), X)


def test_a_result_that_hands_on_an_argument():
    layer = Layer()

    def run(x, y):
        for _ in range(4):
            x, y = layer(x), F.dropout(y, 0.0)
        return x * y

    both(run, X.clone().requires_grad_(), X.clone().requires_grad_())


def test_layers_of_other_shapes_are_traced_apart():
    def layer(x, weight):
        return torch.relu(x @ weight).sin().cos().tanh() * 2

    sizes = [3, 3, 3, 5, 5, 5, 5]
    weights = [torch.randn(m, n) for m, n in itertools.pairwise(sizes)]

    def run(x, *weights):
        for weight in weights:
            x = layer(x, weight)
        return x

    assert both(run, torch.randn(2, 3), *weights).copied == 3


def test_shapes_that_are_dynamic_are_traced_each_time():
    observed = Observed(stack(3), fullgraph=True, dynamic=True)
    observed(X)
    assert compare(observed.graphs[0]).copied == 0


def test_a_tensor_of_numbers_made_in_each_layer():
    def layer(x):
        return (x.sin().cos().tanh() * torch.tensor([1.0, 2.0])).exp().neg()

    both(lambda x: layer(layer(layer(x))), torch.randn(3, 2))
    both(lambda x: layer(layer(layer(x))), torch.randn(3, 2, requires_grad=True))


SCALARS = {
    "cache": False,
    "on_error": "raise",
    "capture_scalar_outputs": True,
    "capture_dynamic_output_shape_ops": True,
}


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * (x * 2).amax().item()).tanh().cos() - x.mean().item()


def _counted(x: torch.Tensor) -> torch.Tensor:
    positive = (x > 0.1).sum().item()
    return (x.cos() * torch.ones(positive).sum()).tanh() * 0.5 + x / (1 + positive)


def _found(x: torch.Tensor) -> torch.Tensor:
    rows, columns = (x > 0.1).nonzero(as_tuple=True)
    return (x.cos() + x[rows, columns].sin().sum()).tanh() * 0.5 + x / (1 + rows.shape[0])


@pytest.mark.parametrize("layer", [_scaled, _counted, _found])
@pytest.mark.parametrize("learns", [False, True])
def test_layers_that_read_numbers_each_have_their_own(layer: Callable, learns: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = layer(x)
        return x

    compiled = turret.compile(program, options=SCALARS)
    for seed in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_(learns)
        found, expected = compiled(x), program(x)
        torch.testing.assert_close(found, expected)
        if learns:
            torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, expected)))


def test_floats_in_rows_that_are_alike_each_have_their_own_symbol() -> None:
    compiled = turret.compile(torch.tensor, options=SCALARS)
    for seed in range(3):
        rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).tolist()
        torch.testing.assert_close(compiled(rows), torch.tensor(rows), rtol=0, atol=0)


def test_layers_under_a_custom_gradient():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    def layer(x):
        return Double.apply(x.sin().cos().tanh()).exp().neg().abs()

    both(lambda x: layer(layer(layer(x))), X.clone().requires_grad_())


def test_a_gradient_that_reaches_only_some_arguments():
    def layer(x, y):
        return (x.sin().cos() * y.detach()).tanh().exp() + y.argmax().float() * 0

    def run(x, y):
        for _ in range(4):
            x = layer(x, y)
        return x

    both(run, X.clone().requires_grad_(), X.clone().requires_grad_())


def test_compiled_layers_learn_as_eager_ones():
    told: list[str] = []

    class Watch:
        @hookimpl
        def turret_event(self, event):
            if event.kind == "reuse" and event.stage == "joint":
                told.append(event.message)

    model, x = stack(4), X.clone().requires_grad_()
    theirs, y = copy.deepcopy(model), X.clone().requires_grad_()
    found = turret.compile(model, plugins=[Watch()], options={"on_error": "raise", "cache": False})(x)
    expected = theirs(y)
    torch.testing.assert_close(found, expected)
    weights = torch.linspace(-1, 1, found.numel()).view_as(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for one, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert told == ["joint trace: 3 segments of calls are copies of earlier ones"]


def test_complex_layers_whose_gradients_are_conjugate():
    def layer(x, weight):
        return ((x * weight).exp() * 0.5 + x).sin().cos() * weight

    def run(x, *weights):
        for weight in weights:
            x = layer(x, weight)
        return x

    weights = [torch.randn(3, dtype=torch.complex64, requires_grad=True) for _ in range(4)]
    both(run, torch.randn(3, dtype=torch.complex64), *weights)


def test_a_backward_that_cannot_be_copied_has_everything_traced_again(monkeypatch):
    """Found out in the backward, when the forward is copied already."""
    looked: list[Any] = []

    def look(self: Replays, value: torch.Tensor) -> tuple | None:
        if torch._C._current_autograd_node() is None:
            return plain(self, value)
        looked.append(value)
        return None

    plain = Replays.look
    monkeypatch.setattr(Replays, "look", look)
    assert both(stack(4), X.clone().requires_grad_()).copied == 0
    assert looked
