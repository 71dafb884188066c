"""Methods of the program's objects are called where the program calls them: capture compares, hashes and prints none."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import turret

X = torch.randn(3, 4)
ASKED: list[str] = []


def noted(name):
    def method(self, *args, **kwargs):
        ASKED.append(name)
        raise RuntimeError(name)

    return method


NAMES = [
    "__eq__", "__ne__", "__hash__", "__bool__", "__len__", "__repr__", "__str__", "__iter__", "__contains__", "__lt__",
    "__getitem__", "__dir__", "__reduce_ex__", "__copy__", "__deepcopy__", "__index__", "__int__", "__float__",
]  # fmt: skip
METHODS = {name: noted(name) for name in NAMES}
Owner = type("Owner", (), dict(METHODS))
Net = type("Net", (nn.Module,), dict(METHODS))


class Scaled(Net):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), 2.0

    def forward(self, x):
        return self.linear(x) * self.scale


class Broken(Scaled):
    def forward(self, x):
        x = self.linear(x)
        print(end="")
        return x * self.scale


class Doubling(Owner):
    def __call__(self, x):
        return x * 2


owner, scaled = Owner(), Scaled()
owner.value = 3.0
layers = nn.ModuleList([Scaled(), Scaled(), Broken()])


def through_slices(x):
    for layer in layers[1:]:
        x = layer(x)
    return x


def held(kept, x):
    kept["other"] = owner
    return x * kept["one"].value, kept


PROGRAMS = {
    "a root": (scaled, X),
    "a root with a break": (Broken(), X),
    "a part": (nn.Sequential(nn.Linear(4, 4), Scaled(), Broken()), X),
    "slices": (through_slices, X),
    "an argument": (lambda net, x: net(x) + 1, scaled, X),
    "in a list": (lambda nets, x: nets[0](x), [scaled], X),
    "an object": (lambda o, x: x * o.value, owner, X),
    "an object from outside": (lambda x: x * owner.value, X),
    "a partial": (functools.partial(lambda o, x: x * o.value, owner), X),
    "a value of a dict": (held, {"one": owner}, X),
    "returned": (lambda o, x: (o, x + 1), owner, X),
    "callable": (Doubling(), X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_capture_calls_no_method_that_the_program_does_not(name):
    function, *arguments = PROGRAMS[name]
    expected = function(*arguments)
    compiled = turret.compile(function, options={"on_error": "raise", "cache": False})
    ASKED.clear()
    for _ in range(2):
        found = compiled(*arguments)
        if isinstance(expected, tuple):
            assert [a is b for a, b in zip(found, expected, strict=True)].count(False) == 1
            found, wanted = next((a, b) for a, b in zip(found, expected, strict=True) if isinstance(a, torch.Tensor))
        else:
            wanted = expected
        torch.testing.assert_close(found, wanted)
    assert ASKED == []
