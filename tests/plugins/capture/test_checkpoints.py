"""Checkpoints and scripted functions: one graph, gradients as in eager, tags for what is computed again."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import turret
from tests.plugins.capture.capture_lab import Observed

NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh())
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


def keep_products(context, op, *args, **kwargs):
    keep = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


CONTEXTS = functools.partial(create_selective_checkpoint_contexts, keep_products)


@torch.jit.script
def scripted(x: torch.Tensor, n: int) -> torch.Tensor:
    total = x
    for i in range(n):
        total = total * x + i
    return total


traced = torch.jit.trace(lambda x: x.sin() * 2, torch.ones(3, 4))

PROGRAMS = {
    "plain": lambda x: checkpoint(NET, x, use_reentrant=False) * 2,
    "reentrant": lambda x: checkpoint(NET, x * 1, use_reentrant=True) * 2,
    "sequential": lambda x: checkpoint_sequential(NET, 2, x, use_reentrant=False),
    "selective": lambda x: checkpoint(NET, x, use_reentrant=False, context_fn=CONTEXTS) * 2,
    "structured": lambda x: checkpoint(lambda a, b: {"y": NET(a) + b}, x, b=x, use_reentrant=False)["y"],
    "traced": lambda x: traced(x) * NET(x),
    "scripted": lambda x: scripted(x, 3) * NET(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("run", ["captured", "compiled"])
def test_gradients_are_those_of_eager(name, run):
    program, found = PROGRAMS[name], []
    fast = Observed(program, fullgraph=True) if run == "captured" else turret.compile(program, options=OPTIONS)
    for call in (program, fast):
        NET.zero_grad()
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        result = call(x)
        result.pow(2).sum().backward()
        found.append((result.detach(), x.grad, NET[0].weight.grad.clone()))
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [{}, {"use_reentrant": None}, {"use_reentrant": True}, {"use_reentrant": False}])
@pytest.mark.parametrize("wanted", [False, True])
def test_where_no_form_is_named_the_result_has_gradients_only_if_an_argument_wants_them(form, wanted):
    def program(x):
        return checkpoint(NET, x, **form) * 2

    x = torch.ones(3, 4, requires_grad=wanted)
    assert turret.compile(program, options={"cache": False})(x).requires_grad == program(x).requires_grad


def test_calls_of_a_checkpoint_are_tagged():
    observed = Observed(PROGRAMS["plain"], fullgraph=True)
    observed(torch.ones(3, 4))
    tagged = [n for n in observed.graphs[0].module.graph.nodes if "recompute" in n.meta]
    assert len(tagged) == 4


def test_a_selective_checkpoint_keeps_its_policy():
    observed = Observed(PROGRAMS["selective"], fullgraph=True)
    observed(torch.ones(3, 4, requires_grad=True))
    (graph,) = [m for m in observed.graphs[0].module.children() if isinstance(m, torch.fx.GraphModule)]
    assert graph.meta["_checkpoint_context_fn"] == CONTEXTS or graph.meta["_checkpoint_context_fn"].args


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_reentrant_checkpoint_without_gradient_of_its_arguments_is_eagers(fullgraph, gradients):
    observed = Observed(PROGRAMS["reentrant"], fullgraph=fullgraph)
    x = torch.ones(3, 4)
    with torch.set_grad_enabled(gradients), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = observed(x)
        torch.testing.assert_close(found, PROGRAMS["reentrant"](x))
    assert not found.requires_grad
    ours, eagers = said[:-1], said[-1]
    assert [str(w.message) for w in ours] == [str(eagers.message)] * gradients
    assert len(observed.breaks) == (gradients and not fullgraph)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_reentrant_checkpoint_returns_tensors_of_its_own_in_the_memory_of_its_arguments():
    def program(x, w):
        same, both = checkpoint(lambda v: (v, v * w), x, use_reentrant=True)
        same.add_(1)
        return same, same is x, both.requires_grad, torch.is_grad_enabled()

    w = torch.ones(4, requires_grad=True)
    for call in (program, Observed(program, fullgraph=True)):
        x = torch.zeros(4)
        found, *flags = call(x, w)
        assert flags == [False, False, True] and found.data_ptr() == x.data_ptr() and x.sum() == 4


def test_a_reentrant_checkpoint_refuses_keyword_arguments():
    def program(x):
        return checkpoint(lambda v, factor: v * factor, x, use_reentrant=True, factor=2)

    for call in (program, Observed(program)):
        with pytest.raises(ValueError, match="Unexpected keyword arguments"):
            call(torch.ones(3, requires_grad=True))


def test_a_traced_function_is_one_call():
    observed = Observed(PROGRAMS["traced"], fullgraph=True)
    observed(torch.ones(3, 4))
    assert sum("traced" in n.name for n in observed.graphs[0].module.graph.nodes) == 1


def test_a_context_function_may_be_made_by_the_program():
    w = torch.randn(4, 4, requires_grad=True)

    def program(x):
        operators = [torch.ops.aten.mm.default]
        contexts = [lambda: create_selective_checkpoint_contexts(operators)]
        return checkpoint(lambda v: (v @ w).sin().exp(), x, use_reentrant=False, context_fn=contexts[0])

    found = []
    for function in (turret.compile(program, fullgraph=True, options=OPTIONS), program):
        x = torch.arange(16.0).reshape(4, 4).div(16).requires_grad_()
        result = function(x)
        found.append((result, *torch.autograd.grad(result.sum(), (x, w))))
    torch.testing.assert_close(*found)


class Outputs(dict):
    """What a layer gives, as models of libraries give it."""


def test_containers_that_a_checkpoint_makes_are_no_side_effects():
    def layer(x, w):
        made, held = Outputs(), []
        made["hidden"] = (x @ w).relu()
        held.append(made)
        made.count = len(held)
        return made

    def program(x, w):
        made = checkpoint(layer, x, w, use_reentrant=False)
        return made["hidden"].sum() * made.count

    found = []
    for call in (turret.compile(program, fullgraph=True, options=OPTIONS), program):
        x = torch.arange(16.0).reshape(4, 4).div(16).requires_grad_()
        w = torch.eye(4, requires_grad=True)
        found.append(torch.autograd.grad(call(x, w), (x, w)))
    torch.testing.assert_close(*found)


NOTED: list[int] = []


@pytest.mark.parametrize("reachable", ["closure", "global"])
@pytest.mark.parametrize("form", [{"use_reentrant": False}, {"use_reentrant": True}], ids=str)
def test_a_function_that_changes_what_its_caller_made_does_so_in_the_backward_again(form, reachable):
    def program(x):
        global NOTED
        log = []
        NOTED = log

        def function(x):
            (log if reachable == "closure" else NOTED).append(1)
            return x.sin().exp()

        return checkpoint(function, x, **form).sum(), log

    def told(run):
        loss, log = run(torch.ones(3, requires_grad=True))
        before = len(log)
        loss.backward()
        return before, len(log)

    compiled = turret.compile(program)
    assert told(compiled) == told(compiled) == told(program) == (1, 2)
