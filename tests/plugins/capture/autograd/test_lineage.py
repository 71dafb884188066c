"""``_version`` and ``_base``: how often a tensor was written to, and what it is a view of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same


def written(x):
    before = x._version
    x.add_(1)
    made = x * 2
    made[0] = 3
    made[1:].mul_(2)
    made += 1
    return made, x._version - before, made._version, made[1:]._version, x[1:]._version - before


def counted_on_from_call_to_call(x):
    x.add_(1)
    return x * 1, x._version


def asked_whether_it_changed(x):
    before = x._version
    made = x.sin()
    if x._version != before:
        raise RuntimeError("changed")
    x.mul_(2)
    return made, x._version == before, made._version == 0


def filled(x):
    made = torch.empty(4)
    torch.add(x, 1, out=made)
    made.normal_().clamp_(0, 1)
    nn.functional.relu(made, inplace=True)
    return made._version


@pytest.mark.parametrize("program", [written, counted_on_from_call_to_call, asked_whether_it_changed, filled])
def test_counts_of_writes_are_eagers_in_one_graph_for_all_calls(program):
    observed = Observed(program, fullgraph=True)
    x, expected = torch.arange(4.0), torch.arange(4.0)
    for _ in range(4):
        found = observed(x)
        if program is not filled:
            assert_same(found, program(expected))
    assert x._version == expected._version or program is filled
    assert len(observed.graphs) == 1


def test_a_module_that_keeps_what_it_computed_until_its_weight_changes():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.version, self.kept = nn.Parameter(torch.ones(4)), None, None

        def forward(self, x):
            if self.version != self.weight._version:
                self.version, self.kept = self.weight._version, self.weight.detach() * 2
            return x * self.kept

    captured, plain = Cached(), Cached()
    observed = Observed(captured, fullgraph=True)
    for step in range(4):
        for module, call in ((captured, observed), (plain, plain)):
            module.found = call(torch.ones(4))
            if step % 2:
                with torch.no_grad():
                    module.weight.add_(1)
        assert_same(captured.found, plain.found)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.data.add_(1), x._version)[1],
        lambda x: ((y := x * 2).data.add_(1), y._version)[1],
        lambda x: x.detach()._version,
        lambda x: ((y := x.data).mul_(2), y._version, x._version)[1:],
        lambda x: ((y := x * 1), (z := y.data).zero_(), y.mul_(2), z._version, y._version)[3:],
        lambda x: (x.data.add_(1), (y := x.data).add_(1), y._version, x._version)[2:],
        lambda x: ((y := x.data).unsqueeze_(0).add_(1), y._version, x._version)[1:],
        lambda x: ((y := x.clone()).set_(x), y._version, y.add_(1)._version, x._version)[1:],
        lambda x: ((y := x * 2), torch.empty(0).set_(y).add_(1), y._version)[2:],
    ],
)
def test_counts_that_memory_does_not_tell_are_pythons_to_read(program):
    assert Observed(program)(torch.ones(4)) == program(torch.ones(4))


def views_of_an_argument(x):
    first = x[1:]
    second = first[1:]
    return second._base is x, first._base is x, x._base is None, second * 1


def views_of_what_the_graph_made(x):
    made = x * 2
    part = made[1:]
    part._base.add_(1)
    return part._base is made, part._base, part, made._base, part.reshape(3, 1)._base is made


def of_no_names(x):
    return x.name, getattr(x, "names", "none"), x._grad_fn, x._python_dispatch, x._has_symbolic_sizes_strides, x + 1


@pytest.mark.parametrize("program", [views_of_an_argument, views_of_what_the_graph_made, of_no_names])
def test_bases_are_the_programs_own_tensors(program):
    observed = Observed(program, fullgraph=True)
    for x in (torch.arange(4.0), torch.arange(4.0) + 1):
        assert_same(observed(x), program(x))
    assert len(observed.graphs) == 1


def test_an_argument_that_is_a_view_is_told_from_one_that_is_none():
    def program(x):
        return x * 2 if x._base is None else x._base.sum() + x

    observed = Observed(program, fullgraph=True)
    memory = torch.arange(5.0)
    for x in (memory, memory[1:], torch.ones(4)[2:], torch.ones(4)):
        assert_same(observed(x), program(x))


def test_a_write_to_the_base_of_an_argument_reaches_the_argument():
    def program(x):
        x._base.add_(1)
        return x * 1

    found, expected = torch.arange(4.0), torch.arange(4.0)
    assert_same(Observed(program, fullgraph=True)(found[1:]), program(expected[1:]))
    assert_same(found, expected)


def test_counts_of_tensors_in_one_memory_begin_with_what_each_came_with():
    def program(x, y):
        first = x._version - y._version
        x.add_(1)
        return first, x * 1

    observed = Observed(program)
    for writes in (0, 2):
        x = torch.ones(3)
        beside = x.detach()
        for _ in range(writes):
            beside.add_(1)
        for other in (beside, x.data):
            assert observed(x, other)[0] == x._version - 1 - (other._version - (other is beside))


def test_a_tensor_whose_data_were_set_has_the_count_of_its_own_writes():
    def program(x):
        x.data = torch.zeros(4)
        x.add_(1)
        x.data = x.data * 2
        return x._version, x + 1

    observed, mine, plain = Observed(program), torch.ones(4), torch.ones(4)
    for _ in range(2):
        assert_same(observed(mine), program(plain))
        assert_same((mine, mine._version), (plain, plain._version))
