"""``backward`` and ``autograd.grad`` inside captured code: what is taken, what breaks, what raises."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, outcome


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)


def assert_close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, equal_nan=True)


def check(function: Any, breaks: list[str] | None = None, calls: int = 2) -> Observed:
    """Calls on two equal pairs of leaves, one captured, one compiled, one plain: results, exceptions and gradients."""
    observed, (plain, mine, theirs) = Observed(function), (leaves(), leaves(), leaves())
    compiled = turret.compile(function, options={"on_error": "raise", "cache": False})
    for _ in range(calls):
        expected = outcome(function, plain, {})
        for call, given in ((observed, mine), (compiled, theirs)):
            found = outcome(call, given, {})
            assert found[0] == expected[0], (found, expected)
            if expected[0] == "raised":
                assert type(found[1]) is type(expected[1]) and str(found[1]) == str(expected[1])
            else:
                assert_close(found[1], expected[1])
            for p, q in zip(given, plain, strict=True):
                assert (p.grad is None) == (q.grad is None)
                if q.grad is not None:
                    assert_close(p.grad, q.grad)
                    assert p.grad.stride() == q.grad.stride() and p.grad.requires_grad == q.grad.requires_grad
    if breaks is not None:
        assert len(observed.breaks) == len(breaks), observed.breaks
        assert all(words in text for words, text in zip(breaks, observed.breaks, strict=True)), observed.breaks
    return observed


def test_several_backwards_add_up():
    def function(x, w):
        loss = (x @ w).tanh().sum()
        loss.backward(retain_graph=True)
        first = x.grad.clone()
        loss.backward()
        (x * 2).sum().backward()
        return loss.detach(), first, x.grad

    check(function, [])


def test_gradients_of_gradients():
    def function(x, w):
        loss = (x @ w).tanh().pow(2).sum()
        (g,) = torch.autograd.grad(loss, [x], create_graph=True)
        (loss + g.pow(2).sum()).backward()
        return loss.detach()

    check(function, [])


@pytest.mark.filterwarnings("ignore:Using backward")
def test_create_graph_leaves_gradients_with_a_history():
    def function(x, w):
        loss = (x @ w).tanh().pow(2).sum()
        loss.backward(create_graph=True)
        penalty = x.grad.pow(2).sum()
        x.grad = w.grad = None
        penalty.backward()
        return loss.detach()

    check(function, [])


def test_a_gradient_is_given_and_several_roots():
    def function(x, w):
        y = x @ w
        y.backward(torch.ones_like(y) * 2, retain_graph=True)
        torch.autograd.backward([y.sum(), (x * x).sum()], [None, torch.tensor(3.0)])
        return y.detach()

    check(function, [])


def test_the_gradient_that_is_given_stays_the_programs():
    def function(x, w):
        given = torch.ones(3, 4)
        x.backward(given)
        x.grad.add_(1)
        return given

    check(function, [])


def test_named_leaves_alone_are_given_gradients():
    def function(x, w):
        (x @ w).sin().sum().backward(inputs=[w])
        return x.grad

    check(function, [])


def test_retained_gradients_of_results_in_between():
    def function(x, w):
        y = x @ w
        y.retain_grad()
        z = y.sin()
        z.sum().backward(retain_graph=True)
        z.sum().backward()
        return y.grad, y.retains_grad

    check(function, [])


def test_what_retains_gradients_does_so_outside():
    def function(x, w):
        y = x @ w
        y.retain_grad()
        return y

    for call in (Observed(function), turret.compile(function, options={"on_error": "raise"})):
        y = call(*leaves())
        assert y.retains_grad
        y.sin().sum().backward()
        assert_close(y.grad, y.detach().cos())


def test_hooks_of_results_in_between():
    def function(x, w):
        y = x @ w
        y.register_hook(lambda gradient: gradient * 3)
        y.sin().sum().backward()

    check(function, [])


@pytest.mark.parametrize("post", [False, True])
def test_hooks_of_leaves_break(post):
    seen: list[str] = []

    def function(x, w):
        loss = (x @ w).sin().sum()
        loss.backward()
        return loss.detach()

    x, w = leaves()
    observed = Observed(function)
    observed(x, w)
    assert not observed.breaks
    if post:
        handle = x.register_post_accumulate_grad_hook(lambda p: seen.append("post"))
    else:
        handle = x.register_hook(lambda g: seen.append("hook"))
    observed(x, w)
    assert len(seen) == 1 and "with hooks" in observed.breaks[0]
    handle.remove()
    observed(x, w)
    assert len(seen) == 1


def test_a_second_backward_raises_what_eager_raises():
    def function(x, w):
        loss = (x @ w).tanh().sum()
        loss.backward()
        loss.backward()

    check(function)


def test_a_second_backward_outside_raises_what_eager_raises():
    def function(x, w):
        loss = (x @ w).tanh().sum()
        loss.backward()
        return loss, loss * 2, (x @ w).tanh()

    for call in (function, Observed(function), turret.compile(function, options={"on_error": "raise"})):
        first, second, _ = call(*leaves())
        for each in (first, second):
            with pytest.raises(RuntimeError, match="a second time"):
                each.backward()
    x, w = leaves()
    loss, *_ = turret.compile(lambda x, w: (backward_once(x, w), (x @ w).cos()), options={"on_error": "raise"})(x, w)
    assert loss.requires_grad


@pytest.mark.parametrize("asked", ["input", "between", "another"])
@pytest.mark.parametrize("leaf", [False, True])
def test_results_of_inputs_with_a_history_have_the_gradients_that_a_backward_within_leaves(leaf, asked):
    def function(x, w):
        between = x @ x
        above = between.exp()
        root = {"another": (x * 3).sin()}.get(asked, above)
        found = torch.autograd.grad(root.sum(), {"between": between}.get(asked, x))[0]
        return found, between, w.sin()

    def outcome(function):
        x, w = leaves()
        x = x.detach()[:, :1].expand(-1, len(x)).clone().requires_grad_()
        given = x if leaf else x * 1
        found, between, other = function(given, w)
        try:
            return "", [found, *torch.autograd.grad([between.sum(), other.sum()], [given, w])]
        except RuntimeError as error:
            return str(error).split(" (")[0], []

    expected, got = outcome(function), outcome(turret.compile(function))
    assert got[0] == expected[0]
    torch.testing.assert_close(got[1], expected[1])


def backward_once(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    loss = (x @ w).tanh().sum()
    loss.backward()
    return loss


def test_what_is_left_after_a_backward_has_gradients():
    def function(x, w):
        loss = (x @ w).tanh().sum()
        loss.backward(retain_graph=True)
        return loss

    compiled = turret.compile(function, options={"on_error": "raise", "cache": False})
    (x, w), (a, b) = leaves(), leaves()
    compiled(x, w).backward()
    function(a, b).backward()
    assert_close(x.grad, a.grad)
    assert_close(w.grad, b.grad)


def test_a_result_some_of_whose_gradients_are_left_breaks_at_the_backward():
    def function(x, w):
        y = x.tanh()
        y.sum().backward()
        return (y @ w).sum()

    observed = check(function)
    assert "some gradients are left" in observed.breaks[0]


def test_what_was_computed_before_breaks():
    def function(x, w):
        (x @ w).sum().backward()

    x, w = leaves()
    observed = Observed(function)
    observed(x * 2, w)
    assert "computed before" in observed.breaks[0]
    assert x.grad is not None


def test_anomaly_mode_and_hooks_on_saved_tensors_are_eagers():
    def function(x, w):
        (x @ w).tanh().sum().backward()

    observed, packed = Observed(function), []
    observed(*leaves())
    assert not observed.breaks
    with torch.autograd.graph.saved_tensors_hooks(lambda v: packed.append(v) or v, lambda v: v):
        observed(*leaves())
    assert packed
    with warnings.catch_warnings(), torch.autograd.detect_anomaly():
        warnings.simplefilter("ignore")
        x, w = leaves()
        with pytest.raises(RuntimeError, match="nan"):
            observed(x.detach().fill_(float("nan")).requires_grad_(), w)


def test_leaves_made_in_compiled_code():
    def function(x, w):
        made = torch.ones(4, 2, requires_grad=True)
        (x @ made).sin().sum().backward()
        return made.grad

    check(function, [])


def test_writes_to_what_a_backward_needs_raise_as_in_eager():
    def function(x, w):
        y = (x @ w).exp()
        loss = y.sum()
        y.mul_(2)
        loss.backward()

    check(function)


def test_autocast():
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (x @ w).float().pow(2).mean()
        loss.backward()
        return loss.detach()

    check(function, [])


def test_steps_under_autocast_read_the_weights_of_each_step():
    """Casts of weights are kept for as long as autocast is on: a graph ends it as the program's block does."""

    def losses(wrap: Any) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    made = model(x)
                loss = (made + model(x)).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call, x = wrap(step), torch.randn(3, 4)
        return [call(x).item() for _ in range(4)]

    expected = losses(lambda step: step)
    assert losses(lambda step: Observed(step, fullgraph=True)) == expected
    assert losses(lambda step: turret.compile(step, fullgraph=True, backend="eager")) == expected


def test_a_scaler_of_gradients_breaks_with_its_reason():
    def run(wrap: Any) -> tuple[list[torch.Tensor], Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        call = wrap(step)
        for size in (1.0, 2.0, float("inf"), 1.0):  # the third step is left out, and the scale halved
            call(torch.full((3, 4), size))
        return [torch.tensor(scaler.get_scale()), *(p.detach() for p in model.parameters())], call

    expected, _ = run(lambda step: step)
    found, observed = run(Observed)
    assert_close(found, expected)
    assert all("reads a tensor's value" in text for text in observed.breaks) and not observed.fallbacks
    assert observed.breaks


def test_gradients_in_the_layout_of_their_leaf():
    def function(x, w):
        loss = (x.t().reshape(-1)[:8].reshape(4, 2) * w).sum()
        loss.backward()
        return loss.detach()

    check(function, [])
    across = torch.randn(4, 3).t().requires_grad_()
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    for leaf in (across, image):
        for call in (Observed(lambda v: (v * 2).flatten().cumsum(0).sum().backward()),):
            call(leaf)
            assert leaf.grad.stride() == leaf.stride()


def test_a_step_keeps_nothing_of_its_gradients_alive():
    (x, w), kept = leaves(), []

    def function(x, w):
        loss = (x @ w).sin().sum()
        loss.backward()
        return loss

    compiled = turret.compile(function, options={"on_error": "raise", "cache": False})
    for _ in range(2):
        x.grad = w.grad = None
        compiled(x, w)
        kept.append(weakref.ref(x.grad))
    x.grad = w.grad = None
    gc.collect()
    assert [each() for each in kept] == [None, None]


@pytest.mark.parametrize(
    "view", [lambda x: (x * 2)[0], lambda x: x[0], lambda x: (x + 1).view(-1), lambda x: (x + 1).split(1)[0]]
)
@pytest.mark.parametrize("detach", [torch.Tensor.detach_, torch.detach_])
def test_a_view_is_not_detached_in_place(view, detach):
    def program(x):
        try:
            return detach(view(x))
        except RuntimeError as error:
            return x * len(str(error))

    x = torch.randn(3, 2, requires_grad=True)
    assert torch.equal(turret.compile(program, options={"cache": False})(x), program(x))
