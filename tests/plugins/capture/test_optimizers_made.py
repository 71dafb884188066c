"""Optimizers that compiled code makes, changes or hands out: whole training steps in one graph, equal to eager's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

_NAMES = [
    "SGD", "Adam", "AdamW", "Adamax", "Adadelta", "Adagrad", "Adafactor", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
]  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def weights(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def assert_steps_alike(program, calls: int = 2, graphs: int | None = 1) -> None:
    """``program(net, x)`` captured whole does to a network what it does as Python."""
    mine, theirs = network(), network()
    observed = Observed(program, fullgraph=True)
    for number in range(calls):
        x = torch.arange(8.0).reshape(2, 4) / (number + 4)
        assert_same(observed(mine, x), program(theirs, x))
        assert_same(weights(mine), weights(theirs))
    if graphs is not None:
        assert len(observed.graphs) == graphs


@pytest.mark.parametrize("name", _NAMES)
def test_a_step_with_an_optimizer_of_its_own_is_one_graph(name):
    def program(net, x):
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(x).pow(2).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        return len(optimizer.state), optimizer.param_groups[0]["lr"]

    getattr(torch.optim, name)(network().parameters())  # the first one changes its class, which is captured anew
    assert_steps_alike(program)


@st.composite
def plans(draw):
    options = st.fixed_dictionaries({}, optional={"lr": st.sampled_from([0.1, 0.5]), "weight_decay": st.just(0.1)})
    groups = draw(st.lists(options, min_size=1, max_size=2))
    return {
        "name": draw(st.sampled_from(["SGD", "Adam", "RMSprop"])),
        "groups": groups,
        "named": draw(st.booleans()),
        "added": draw(st.booleans()),
        "momentum": draw(st.booleans()),
        "schedule": draw(st.sampled_from([None, "StepLR", "LambdaLR"])),
        "steps": draw(st.integers(1, 3)),
        "clip": draw(st.booleans()),
        "copied": draw(st.booleans()),
    }


def planned(plan):
    def program(net, x):
        layers = [net[0], net[2]]
        halves = [list(v.named_parameters(str(n)) if plan["named"] else v.parameters()) for n, v in enumerate(layers)]
        if len(plan["groups"]) == 1:
            halves = [halves[0] + halves[1]]
        groups = [{"params": half, **options} for half, options in zip(halves, plan["groups"], strict=True)]
        extra = {"momentum": 0.9} if plan["momentum"] and plan["name"] != "Adam" else {}
        first = groups[:1] if plan["added"] else groups
        optimizer = getattr(torch.optim, plan["name"])(first, lr=0.2, **extra)
        for group in groups[len(first) :]:
            optimizer.add_param_group(group)
        schedule = None
        if plan["schedule"] == "StepLR":
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        elif plan["schedule"] is not None:
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        for _ in range(plan["steps"]):
            net(x).pow(2).sum().backward()
            if plan["clip"]:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
        if plan["copied"]:
            again = getattr(torch.optim, plan["name"])(net.parameters(), lr=0.3, **extra)
            if len(plan["groups"]) == 1:
                again.load_state_dict(optimizer.state_dict())
            net(x).sum().backward()
            again.step()
            again.zero_grad()
        return [g["lr"] for g in optimizer.param_groups], [sorted(s) for s in optimizer.state.values()]

    return program


@given(plans())
@settings(max_examples=10, deadline=None)
def test_any_way_to_make_an_optimizer_is_followed(plan):
    assert_steps_alike(planned(plan), graphs=None)


def test_a_compiled_step_with_an_optimizer_of_its_own_does_what_eager_does():
    def program(net, x):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        net(x).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    mine, theirs = network(), network()
    compiled = turret.compile(program, fullgraph=True, options={"cache": False, "on_error": "raise"})
    for _ in range(2):
        compiled(mine, torch.ones(2, 4))
        program(theirs, torch.ones(2, 4))
    torch.testing.assert_close(weights(mine), weights(theirs))


def test_an_optimizer_that_is_handed_out_goes_on_as_eagers():
    def program(net, x):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        net(x).pow(2).sum().backward()
        optimizer.step()
        return optimizer

    found = []
    for call in (program, Observed(program, fullgraph=True)):
        net = network()
        optimizer = call(net, torch.ones(2, 4))
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        found.append((weights(net), optimizer.state_dict()["param_groups"]))
    assert_same(found[1], found[0])


def test_the_first_optimizer_of_a_class_of_the_programs_own_is_made_in_the_graph():
    def program(kind, net, x):
        optimizer = kind(net.parameters(), 0.1)
        net(x).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return [state["count"] for state in optimizer.state.values()], kind.step.hooked

    def new_kind():
        class Own(torch.optim.Optimizer):
            def __init__(self, params, rate):
                super().__init__(params, {"rate": rate})

            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]:
                        p.add_(p.grad, alpha=-group["rate"])
                        self.state[p]["count"] = self.state[p].get("count", 0) + 1

        return Own

    mine, theirs, kinds = network(), network(), (new_kind(), new_kind())
    observed = Observed(program, fullgraph=True)
    for _ in range(3):
        found, expected = (
            call(kind, net, torch.ones(2, 4))
            for call, kind, net in zip((observed, program), kinds, (mine, theirs), strict=True)
        )
        assert_same(found, expected)
    assert_same(weights(mine), weights(theirs))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: torch.optim.SGD(net.parameters(), lr=-1), "learning rate"),
        (lambda net: torch.optim.SGD([], lr=1), "empty parameter list"),
        (lambda net: torch.optim.SGD([net[0].weight * 2], lr=1), "non-leaf"),
    ],
)
def test_what_an_optimizer_refuses_the_program_handles(make, message):
    def program(net, x):
        try:
            make(net)
        except ValueError as error:
            return x + 1, str(error)

    net, x = network(), torch.ones(2, 4)
    found = Observed(program, fullgraph=True)(net, x)
    assert message in found[1]
    assert_same(found, program(net, x))
