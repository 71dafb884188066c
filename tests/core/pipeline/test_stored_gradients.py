"""Gradients that nobody asked for when a graph was stored: of some results alone, and gradients of gradients."""

from __future__ import annotations

import functools

import pytest
import torch

import turret


def several(x):
    return torch.log(x), x * 2, torch.sqrt(x) * x.sum()


def held(x):
    return torch.log(x), x * torch.tensor([2, 3, 4]), torch.sqrt(x[:2])


def gradients(function, asked, size):
    """The gradient of some results, where those of the others are infinite or not a number."""
    x = torch.zeros(size, 3).requires_grad_()
    results = function(x)
    sum(results[n].sum() for n in asked).backward()
    return x.grad


def twice(function, asked, size):
    """A gradient of a gradient."""
    x = torch.linspace(0.5, 2, 3 * size, dtype=torch.float64).view(size, 3).requires_grad_()
    results = function(x)
    (first,) = torch.autograd.grad(sum(results[n].sin().sum() for n in asked), x, create_graph=True)
    return first.detach(), *torch.autograd.grad(first.square().sum(), x)


WAYS = {
    "all": functools.partial(gradients, asked=(0, 1, 2)),
    "one": functools.partial(gradients, asked=(1,)),
    "two": functools.partial(gradients, asked=(1, 2)),
    "twice": functools.partial(twice, asked=(0, 1, 2)),
    "one twice": functools.partial(twice, asked=(2,)),
}


@pytest.mark.parametrize("function", [several, held])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("later", WAYS)
@pytest.mark.thorough
def test_a_later_process_gives_gradients_that_the_first_did_not_ask_for(tmp_path, function, dynamic, later):
    for way, size in (("all", 2), (later, 2), (later, 4)):
        turret.reset()  # what was compiled is on the disk alone
        compiled = turret.compile(function, dynamic=dynamic, options={"cache_dir": str(tmp_path)})
        found, expected = WAYS[way](compiled, size=size), WAYS[way](function, size=size)
        torch.testing.assert_close(found, expected, equal_nan=True)


class Watch:
    """What was said of graphs that are not stored."""

    def __init__(self):
        self.said = []

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "perf_hint" and event.stage == "graph_cache":
            self.said.append(event.message)


def test_that_a_graph_is_captured_again_is_on_record(tmp_path):
    for dynamic in (False, True):
        turret.reset()
        watch = Watch()
        options = {"cache_dir": str(tmp_path)}
        gradients(turret.compile(several, dynamic=dynamic, plugins=[watch], options=options), (0,), 2)
        assert ["captured in every process" in text for text in watch.said] == [True] * dynamic
