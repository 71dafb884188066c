"""Modules whose parameters torch took apart: ``unwrap_tensor_subclass_parameters``."""

from __future__ import annotations

import torch
from torch._functorch._aot_autograd.subclass_parametrization import unwrap_tensor_subclass_parameters
from torch.testing._internal.two_tensor import TwoTensor

import turret
from turret.graph.wrapper_tensors import parts_of


class OfLayers(torch.nn.Module):
    """Adds a plain parameter, and one that is a wrapper of wrappers."""

    def __init__(self):
        super().__init__()
        self.plain = torch.nn.Parameter(torch.ones(3))
        self.wrapped = torch.nn.Parameter(TwoTensor(torch.ones(3), TwoTensor(torch.arange(3.0), torch.arange(3.0) * 2)))

    def forward(self, x):
        return x * self.plain + self.wrapped * 2


def test_parameters_that_parametrizations_wrap_anew_are_wrapped_in_the_graph():
    module = unwrap_tensor_subclass_parameters(torch.nn.Sequential(OfLayers(), OfLayers()))
    compiled = turret.compile(module, fullgraph=True, options={"cache": False, "on_error": "raise"})

    def outcome(call):
        module.zero_grad()
        x = torch.arange(3.0, requires_grad=True)
        call(x).sum().backward()
        found = [x.grad, *(p.grad for p in module.parameters())]
        return [None if g is None else (type(g), [p.tolist() for p in parts_of(g)]) for g in found]

    expected = outcome(module)
    assert sum(g is None for g in expected) == 6  # those of leaves that the parametrizations make
    assert outcome(compiled) == outcome(compiled) == expected
