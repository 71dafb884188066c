"""Steps of torch's optimizers: one graph a state of theirs, equal to eager, whatever the learning rate does."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler
from torch.utils._pytree import tree_leaves

import turret
import turret.testing
from tests.plugins.capture.capture_lab import Observed, assert_same

_MATRICES = ((4, 3), (5, 2))
_ALL = [
    "SGD", "Adam", "AdamW", "Adamax", "Adadelta", "Adagrad", "Adafactor", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
]  # fmt: skip
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum": 0.5, "maximize": True}],
    "Adam": [{"amsgrad": True, "weight_decay": 0.1}, {"betas": (0.8, 0.9), "maximize": True}],
    "ASGD": [{"t0": 2, "weight_decay": 0.1}],
    "Adagrad": [{"lr_decay": 0.1}],
    "RMSprop": [{"centered": True, "momentum": 0.9}],
    "RAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "NAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}],
}


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in _MATRICES]


def set_gradients(given: list[torch.nn.Parameter], step: int) -> None:
    for number, parameter in enumerate(given):
        generator = torch.Generator().manual_seed(10 * step + number)
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def make(name: str, options: dict[str, Any]) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    held = parameters()
    return held, getattr(torch.optim, name)(held, **options)


def assert_alike(found: torch.optim.Optimizer, expected: torch.optim.Optimizer) -> None:
    """Parameters and state of two optimizers are the same, up to rounding."""
    assert list(found.state_dict()["state"]) == list(expected.state_dict()["state"])
    mine, theirs = ((o.state_dict(), [g["params"] for g in o.param_groups]) for o in (found, expected))
    for one, other in zip(tree_leaves(mine), tree_leaves(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def check(name: str, options: dict[str, Any], rates: list[float], most: int = 3) -> Observed:
    """Steps with these learning rates, captured and not; ``most`` captures are allowed."""
    mine, optimizer = make(name, options)
    theirs, plain = make(name, options)
    observed = Observed(optimizer.step)
    for number, rate in enumerate(rates):
        for held, each in ((mine, optimizer), (theirs, plain)):
            set_gradients(held, number)
            each.param_groups[0]["lr"] = rate
        observed()
        plain.step()
        assert_alike(optimizer, plain)
    assert not observed.breaks and not observed.fallbacks, (observed.breaks, observed.fallbacks)
    assert 1 <= len(observed.graphs) <= most, observed.recompiles
    return observed


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize("name", _ALL)
def test_each_optimizer_is_one_graph_before_it_has_state_and_one_after(name, foreach):
    check(name, {"foreach": foreach}, [0.01] * 4, most=2)


@pytest.mark.parametrize(("name", "options"), [(n, o) for n, many in _OPTIONS.items() for o in many])
def test_options_of_optimizers(name, options):
    check(name, options, [0.01] * 3, most=2)


def test_muon():
    check("Muon", {}, [1e-4] * 3, most=2)


def test_muons_iteration_differs_from_eagers_by_what_rounding_its_half_type_can_do():
    """The iteration runs in bfloat16, where a kernel keeps more digits than eager does between two operations."""
    muon = pytest.importorskip("torch.optim._muon")

    def orthogonal(gradient, momentum):
        return muon._zeropower_via_newtonschulz(gradient.lerp(momentum, 0.95), (3.4445, -4.775, 2.0315), 5, 1e-7)

    for number, shape in enumerate(((8, 6), (6, 8), (16, 16))):

        def inputs(number=number, shape=shape):
            generator = torch.Generator().manual_seed(number)
            return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)

        compiled = turret.compile(orthogonal, options={"on_error": "raise", "cache": False})
        turret.testing.assert_same(orthogonal, compiled, inputs, backward="none", calls=1)


@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float32), (torch.float32, torch.float64)])
@pytest.mark.parametrize("name", ["Adafactor", "Adam", "SGD"])
def test_parameters_of_several_dtypes_and_numbers_of_dimensions_are_grouped_as_in_eager(name, dtypes):
    """With tiny parameters it shows which group's smallest number Adafactor adds."""

    def made():
        generator = torch.Generator().manual_seed(0)
        held = [torch.randn(s, generator=generator).mul(1e-3).to(d) for d in dtypes for s in ((4, 3), (4,))]
        held = [torch.nn.Parameter(p) for p in held]
        return held, getattr(torch.optim, name)(held, lr=0.1, foreach=True)

    (mine, optimizer), (theirs, plain) = made(), made()
    step = turret.compile(optimizer.step, fullgraph=True, options={"cache": False, "on_error": "raise"})
    for number in range(2):
        for held in (mine, theirs):
            set_gradients(held, number)
            for parameter in held:
                parameter.grad.mul_(1e-6)
        step()
        plain.step()
        assert_alike(optimizer, plain)


@settings(max_examples=12, deadline=None)
@given(name=st.sampled_from(_ALL), foreach=st.booleans(), rates=st.lists(st.floats(1e-4, 0.1), min_size=4, max_size=8))
def test_learning_rates_that_change_are_inputs(name, foreach, rates):
    check(name, {"foreach": foreach}, rates)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    ],
)
def test_a_schedule_captures_a_bounded_number_of_times(schedule):
    mine, optimizer = make("SGD", {"lr": 0.1, "momentum": 0.9})
    theirs, plain = make("SGD", {"lr": 0.1, "momentum": 0.9})
    schedules = schedule(optimizer), schedule(plain)
    observed = Observed(optimizer.step)
    for number in range(8):
        set_gradients(mine, number)
        set_gradients(theirs, number)
        observed()
        plain.step()
        for each in schedules:
            each.step()
        assert_alike(optimizer, plain)
    assert not observed.breaks and not observed.fallbacks
    assert len(observed.graphs) <= 3, observed.recompiles


def test_groups_of_parameters_with_rates_of_their_own():
    def grouped() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        held = parameters()
        return held, torch.optim.AdamW([{"params": held[:1], "lr": 0.1}, {"params": held[1:], "weight_decay": 0.5}])

    (mine, optimizer), (theirs, plain) = grouped(), grouped()
    observed = Observed(optimizer.step)
    for number in range(5):
        for held, each in ((mine, optimizer), (theirs, plain)):
            set_gradients(held, number)
            each.param_groups[1]["lr"] = 0.01 / (number + 1)
        observed()
        plain.step()
        assert_alike(optimizer, plain)
    assert not observed.breaks and len(observed.graphs) <= 3


def test_a_learning_rate_that_is_a_tensor():
    observed = check("Adam", {"lr": torch.tensor(0.01), "foreach": False}, [torch.tensor(0.01)] * 3, most=2)  # type: ignore[list-item]
    assert observed.graphs


def test_the_state_that_a_compiled_step_makes_goes_on_in_eager_and_back():
    held, optimizer = make("Adam", {})
    theirs, plain = make("Adam", {})
    observed = Observed(optimizer.step)
    for number in range(6):
        set_gradients(held, number)
        set_gradients(theirs, number)
        (observed if number % 2 == 0 else optimizer.step)()
        plain.step()
        assert_alike(optimizer, plain)
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    set_gradients(held, 7)
    set_gradients(theirs, 7)
    observed()
    plain.step()
    assert_alike(optimizer, plain)


def test_gradients_that_come_and_go():
    held, optimizer = make("Adam", {})
    theirs, plain = make("Adam", {})
    observed = Observed(optimizer.step)
    for number in range(6):
        for each in (held, theirs):
            set_gradients(each, number)
            if number % 3 == 1:
                each[0].grad = None
        observed()
        plain.step()
        assert_alike(optimizer, plain)
    assert not observed.fallbacks


def test_a_closure_that_computes_the_loss():
    def train(step_of) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
        held, optimizer = make("SGD", {"lr": 0.1})
        step = step_of(optimizer)
        losses = []
        for _ in range(3):

            def closure():
                optimizer.zero_grad()
                loss = sum((p * p).sum() for p in held)
                loss.backward()
                return loss

            losses.append(step(closure).detach())
        return losses, optimizer

    observed: list[Observed] = []
    found, mine = train(lambda o: observed.append(Observed(o.step)) or observed[0])
    expected, theirs = train(lambda o: o.step)
    assert_same(found, expected)
    assert_alike(mine, theirs)
    assert observed[0].graphs


def test_lbfgs_agrees_and_its_closure_is_captured():
    def train(step_of) -> torch.optim.Optimizer:
        held, optimizer = make("LBFGS", {"max_iter": 3})
        step = step_of(optimizer)

        def closure():
            optimizer.zero_grad()
            loss = sum(((p - 1) ** 2).sum() for p in held)
            loss.backward()
            return loss

        for _ in range(2):
            step(closure)
        return optimizer

    observed: list[Observed] = []
    assert_alike(train(lambda o: observed.append(Observed(o.step)) or observed[0]), train(lambda o: o.step))
    assert observed[0].graphs


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    held, optimizer = make("SGD", {})
    set_gradients(held, 0)
    kept = [p.grad for p in held]
    observed = Observed(lambda: optimizer.zero_grad(set_to_none=set_to_none))
    observed()
    if set_to_none:
        assert [p.grad for p in held] == [None, None]
    else:
        assert all(p.grad is k and not k.any() for p, k in zip(held, kept, strict=True))
    assert not observed.breaks


def test_hooks_of_steps_run():
    held, optimizer = make("SGD", {"lr": 0.1})
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    observed = Observed(optimizer.step)
    for number in range(2):
        set_gradients(held, number)
        observed()
    assert seen == ["before", "after"] * 2 and observed.graphs


def test_the_whole_path_compiles_a_step_and_loads_no_other_compiler():
    held, optimizer = make("Adam", {})
    theirs, plain = make("Adam", {})
    loaded = "torch._dynamo" in sys.modules
    step = turret.compile(optimizer.step, options={"on_error": "raise", "cache": False})
    for number in range(3):
        set_gradients(held, number)
        set_gradients(theirs, number)
        step()
        assert loaded or "torch._dynamo" not in sys.modules
        plain.step()
        assert_alike(optimizer, plain)


@pytest.mark.parametrize(
    ("name", "options"), [("Adam", {"amsgrad": True}), ("SGD", {"momentum": 0.9}), ("Adagrad", {})]
)
def test_fused_optimizers_compile(name, options):
    held, optimizer = make(name, {"fused": True, **options})
    theirs, plain = make(name, {"fused": True, **options})
    step = turret.compile(optimizer.step, options={"on_error": "raise", "cache": False})
    for number in range(3):
        set_gradients(held, number)
        set_gradients(theirs, number)
        step()
        plain.step()
        assert_alike(optimizer, plain)


PROGRAM = """
import torch
import turret

breaks = []


class Observer:
    @turret.hookimpl
    def turret_event(self, event):
        if event.kind in ("graph_break", "fallback"):
            breaks.append(event.message)


torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))  # loads torch's own compiler
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
    held = torch.nn.Parameter(torch.ones(3))
    held.grad = torch.ones(3)
    turret.compile(kind([held], lr=0.1).step, plugins=[Observer()], options={"cache": False})()
    assert held.detach().ne(1).all()
assert not breaks, breaks
"""


def test_steps_are_captured_whole_where_torchs_own_compiler_keeps_itself_off_them():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)
