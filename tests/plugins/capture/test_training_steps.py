"""Whole training steps, ``backward`` and optimizer included: one graph, and all that the program sees as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import turret
from tests.plugins.capture.capture_lab import Observed

_OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    "Adam": [{"lr": 0.01}, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}],
    "AdamW": [{"lr": 0.01}, {"lr": 0.01, "maximize": True}],
    "RMSprop": [{"lr": 0.01}, {"lr": 0.01, "centered": True, "momentum": 0.9}],
    "Adagrad": [{"lr": 0.01, "lr_decay": 0.1}],
    "Adadelta": [{"lr": 0.1}],
}
_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda out, y: F.cross_entropy(out, y),
    "mse": lambda out, y: F.mse_loss(out, F.one_hot(y, out.shape[-1]).to(out)),
    "sum": lambda out, y: out.sum() * 0.01,
    "logsumexp": lambda out, y: out.logsumexp(-1).mean() - out.gather(1, y[:, None]).mean(),
}


class Tied(nn.Module):
    """Two uses of one weight, a buffer that counts, and a scale of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.t())[:, :4] * self.scale


class Layer(nn.Module):
    """Enough calls for the joint trace to copy all layers behind the first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))) * 2).sin()


class Shared(nn.Module):
    """Parameters whose gradients are one tensor of autograd's, an expanded one, and one of other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.across = nn.Parameter(torch.randn(4, 8).t())
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.across + (self.one + self.two) + self.frozen


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 4)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.4), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 4)),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)),
    "layers": lambda: nn.Sequential(nn.Linear(8, 6), *(Layer() for _ in range(3)), nn.Linear(6, 4)),
    "tied": Tied,
    "shared": Shared,
}


@attrs.frozen
class Recipe:
    """What a training step does."""

    model: str = "mlp"
    loss: str = "cross_entropy"
    optimizer: str = "SGD"
    options: dict[str, Any] = attrs.field(factory=lambda: {"lr": 0.1})
    clip: float | None = None
    batches: int = 1
    set_to_none: bool = True
    zeroed_first: bool = False
    by_grad: bool = False

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer, Callable]:
        torch.manual_seed(0)
        model = _MODELS[self.model]().double()  # steps of Adam enlarge what rounding leaves of gradients of zero
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = getattr(torch.optim, self.optimizer)(trained, **self.options)
        loss_of = _LOSSES[self.loss]

        def backward(loss: torch.Tensor) -> None:
            if not self.by_grad:
                loss.backward()
                return
            for p, new in zip(trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
                if new is not None:
                    p.grad = new.clone() if p.grad is None else p.grad + new

        def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, Any]:
            if self.zeroed_first:
                optimizer.zero_grad(set_to_none=self.set_to_none)
            for part, target in zip(x.chunk(self.batches), y.chunk(self.batches), strict=True):
                loss = loss_of(model(part), target) / self.batches
                backward(loss)
            norm = None if self.clip is None else nn.utils.clip_grad_norm_(trained, self.clip)
            optimizer.step()
            if not self.zeroed_first:
                optimizer.zero_grad(set_to_none=self.set_to_none)
            return loss, norm

        return model, optimizer, step


@st.composite
def recipes(draw: Any) -> Recipe:
    name = draw(st.sampled_from(sorted(_OPTIMIZERS)))
    options = dict(draw(st.sampled_from(_OPTIMIZERS[name])))
    kinds = [{}, {"foreach": True}, {"foreach": False}, *([{"fused": True}] if name in _FUSED else [])]
    return Recipe(
        model=draw(st.sampled_from(sorted(_MODELS))),
        loss=draw(st.sampled_from(sorted(_LOSSES))),
        optimizer=name,
        options=options | draw(st.sampled_from(kinds)),
        clip=draw(st.sampled_from([None, 0.1, 10.0])),
        batches=draw(st.integers(1, 2)),
        set_to_none=draw(st.booleans()),
        zeroed_first=draw(st.booleans()),
        by_grad=draw(st.booleans()),
    )


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 8, dtype=torch.float64), torch.randint(0, 4, (6,))


def assert_close(one: Any, other: Any) -> None:
    for mine, theirs in zip(tree_leaves(one), tree_leaves(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


def sharing(model: nn.Module) -> list[int]:
    """For each gradient the first one in whose memory it lies."""
    places = [p.grad.untyped_storage().data_ptr() if p.grad is not None else None for p in model.parameters()]
    return [places.index(each) for each in places]


def check(recipe: Recipe, compiled: Callable[[Callable], Callable], steps: int = 3) -> None:
    """Steps of two equal models, one compiled; whatever can be seen of both is the same after each."""
    mine, optimizer, step = recipe.make()
    theirs, plain, plain_step = recipe.make()
    function = compiled(step)
    held: list[Any] = []
    for number in range(steps):
        torch.manual_seed(number)
        x, y = batch()
        before = [[p.grad for p in model.parameters()] for model in (mine, theirs)]
        state = torch.get_rng_state()
        expected = plain_step(x, y)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        found = function(x, y)
        assert torch.equal(torch.get_rng_state(), after)
        held.append((before, found))
        assert found[0].requires_grad == expected[0].requires_grad
        assert_close(found, expected)
        for (name, p), q, (was, other) in zip(
            mine.named_parameters(), theirs.parameters(), zip(*before, strict=True), strict=True
        ):
            assert_close(p, q)
            assert (p.grad is None) == (q.grad is None), name
            if q.grad is not None:
                assert_close(p.grad, q.grad)
                assert p.grad.stride() == q.grad.stride() and p.grad.is_leaf and not p.grad.requires_grad, name
                assert (p.grad is was) == (q.grad is other), name
        assert sharing(mine) == sharing(theirs)
        assert_close(list(mine.buffers()), list(theirs.buffers()))
        assert_close(optimizer.state_dict(), plain.state_dict())


def captured(observed: list[Observed]) -> Callable[[Callable], Callable]:
    """Graphs run as they are captured, and each call is one of them."""

    def compiled(step: Callable) -> Callable:
        observed.append(Observed(step))
        return observed[-1]

    return compiled


def through(**options: Any) -> Callable[[Callable], Callable]:
    """The whole stack."""
    options = {"on_error": "raise", "cache": False, "fallback_random": True, **options}
    return lambda step: turret.compile(step, options=options)


@settings(max_examples=10, deadline=None)
@given(recipe=recipes())
def test_a_step_is_one_graph_and_does_what_eager_does(recipe):
    observed: list[Observed] = []
    check(recipe, captured(observed))
    (seen,) = observed
    assert not seen.breaks and not seen.fallbacks, (seen.breaks, seen.fallbacks)
    assert len(seen.graphs) <= 3, seen.recompiles


@pytest.mark.parametrize("model", ["dropout", "layers", "shared"])
def test_a_compiled_step_does_what_eager_does(model):
    check(Recipe(model, optimizer="Adam", options={"lr": 0.01}, clip=0.1, batches=2), through())


@pytest.mark.thorough
@settings(max_examples=6, deadline=None)
@given(recipe=recipes())
def test_any_compiled_step_does_what_eager_does(recipe):
    check(recipe, through())
