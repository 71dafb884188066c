"""``x.data = y``, addresses of tensors, ``requires_grad`` of new tensors."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check
from turret.errors import CaptureError


class Clamped(nn.Module):
    def __init__(self, requires_grad: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -3.0, 2.0]), requires_grad=requires_grad)

    def forward(self, x):
        before = self.weight.data
        first = self.weight * x
        self.weight.data = self.weight.data.clamp(-1, 1) * 2
        return first, self.weight * x, before + 0, self.weight.sum()


@pytest.mark.parametrize("requires_grad", [True, False])
def test_new_data_of_a_parameter_are_seen_and_kept_and_gradients_reach_it(requires_grad: bool):
    plain = Clamped(requires_grad)
    captured = copy.deepcopy(plain)
    observed = Observed(captured.__call__, fullgraph=True)
    for _ in range(3):
        for module, call in ((plain, plain), (captured, observed)):
            module.x = torch.ones(3, requires_grad=True)
            module.found = call(module.x)
            sum(v.sum() for v in module.found if v.requires_grad).backward()
        assert_same(captured.found, plain.found)
        assert_same(captured.weight.data, plain.weight.data)
        assert_same(captured.weight.grad, plain.weight.grad)
        assert_same(captured.x.grad, plain.x.grad)


def test_new_data_changed_in_place_afterwards_are_not_captured():
    class Changed(Clamped):
        def forward(self, x):
            data = x * 2
            self.weight.data = data
            data.add_(1)
            return self.weight * x

    with pytest.raises(CaptureError, match="in place"):
        Observed(Changed(True).__call__, fullgraph=True)(torch.ones(3))
    plain, captured = Changed(False), Changed(False)
    assert_same(Observed(captured.__call__, fullgraph=True)(torch.ones(3)), plain(torch.ones(3)))
    assert_same(captured.weight.data, plain.weight.data)


def test_addresses_tell_whether_tensors_are_the_same():
    def f(q, k):
        return q.data_ptr() == k.data_ptr(), q + k

    q = torch.ones(2)
    observed = Observed(f)
    for k in (q, q + 1, q):
        assert_same(observed(q, k), f(q, k))
    assert not observed.breaks


def test_requires_grad_of_a_new_tensor():
    def f(x):
        y = (x * 2).detach()
        y.requires_grad = True
        return y * 3

    check(f, torch.ones(2))


def test_an_attribute_of_a_new_tensor_is_read_back_and_leaves_with_it():
    def f(x):
        y = x * 2
        y.note = [x + 1]
        return y, y.note[0] * 3

    observed = Observed(f, fullgraph=True)
    for _ in range(2):
        found, expected = observed(torch.ones(2)), f(torch.ones(2))
        assert_same(found, expected)
        assert_same(found[0].note, expected[0].note)


def test_writes_that_autograd_does_not_see_are_allowed_and_seen_by_the_backward():
    def of_a_result(x, w):
        y = x.sin()
        z = y * y * w
        y.data.mul_(2)
        return z, y

    def of_an_input(x, w):
        z = (x * w).sum()
        w.data.add_(1)
        return z + (x * w).exp().sum(), z

    def of_a_part(x, w):
        y = x.exp()
        y.data[0] = 0
        return y * w, y

    def by_no_name(x, w):
        z = x * w
        x.data.zero_()
        return z, z + 1

    for program in (of_a_result, of_an_input, of_a_part, by_no_name):
        found = []
        for call in (program, turret.compile(program, options={"cache": False, "on_error": "raise"})):
            x, w = (torch.linspace(-1, 1, 3).requires_grad_() for _ in range(2))
            versions = x._version, w._version
            results = call(x, w)
            assert (x._version, w._version) == versions
            sum(r.sum() for r in results).backward()
            found.append([*(r.detach() for r in results), x.grad, w.grad, x.detach(), w.detach()])
        torch.testing.assert_close(*found)


def test_an_input_that_is_written_to_by_way_of_its_data_is_written_to_once():
    def f(x, n):
        x.data.add_(1)
        return torch.tensor([1.0, 2.0])[n] + x

    for call in (f, turret.compile(f, options={"cache": False})):
        x = torch.zeros(2)
        with pytest.raises(IndexError):
            call(x, torch.tensor(7))
        assert torch.equal(x, torch.ones(2))


def _resized(steps):
    def program(x, y):
        z, found = x, []
        for step in steps:
            if step == "swap":
                x.data = y
            elif step == "shrink":
                y.data = torch.zeros([0])
            elif step == "grow":
                y.data = torch.ones(2, 3) + x.detach().sum()
            elif step == "use":
                found.append((x * 2).sum())
            elif step == "use new":
                found.append((y * 2).sum())
            else:
                found.append((y.detach() * 2).sum())
        return [x, y, *found, torch.tensor(x is z)]

    return program


@given(
    st.lists(st.sampled_from(["swap", "shrink", "grow", "use", "use new", "read"]), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_data_of_another_shape_are_eagers_with_the_gradients(steps, first, second):
    program = _resized(steps)
    observed = Observed(program)
    for _ in range(2):
        worlds = []
        for call in (program, observed):
            x, y = torch.arange(4.0).requires_grad_(first), (torch.arange(4.0) + 3).requires_grad_(second)
            try:
                found = call(x, y)
                followed = [v for v in found if v.requires_grad]
                if followed:
                    sum(v.sum() for v in followed).backward()
            except RuntimeError as error:
                worlds.append(type(error))
                continue
            worlds.append((found, [v.requires_grad for v in found], x.data, y.data, x.grad, y.grad))
        assert_same(*worlds[::-1])


def test_data_of_another_shape_are_set_in_one_graph():
    observed = Observed(_resized(["swap", "use", "shrink", "read"]), fullgraph=True)
    for _ in range(3):
        x, y = torch.ones(4, requires_grad=True), (torch.arange(4.0)).requires_grad_()
        found = observed(x, y)
        found[2].backward()
        assert found[0] is x and found[1] is y and y.shape == (0,) and y.grad is None
        assert_same(x.grad, torch.full((4,), 2.0))
    assert len(observed.graphs) == 1
    with pytest.raises(CaptureError, match="another shape"):
        Observed(_resized(["shrink", "use new"]), fullgraph=True)(torch.ones(4), torch.ones(4, requires_grad=True))


def memory_of_another(v, w):
    y = v.clone()
    same = y
    y.set_(w)
    return y + 1, same is y, same * 2, y.shape


def writes_to_both(v, w):
    y, older = v.clone(), None
    older = y[1:]
    y.set_(w)
    y.add_(1)
    w.mul_(2)
    return y, older, w + 0


def an_input_takes_another(v, w):
    v.set_(w)
    w.add_(1)
    v.mul_(2)
    return v + 1


def an_input_takes_a_result(v, w):
    v.set_(w * 2)
    v.mul_(2)
    return v + 1


def exchanged(v, w):
    kept = torch.empty(0).set_(v)
    v.set_(w)
    w.set_(kept)
    return v + 1, w * 2


def emptied(v, w):
    y = v.clone()
    y.set_()
    v.set_()
    return y, y.numel(), w + 1


def in_a_loop(v, w):
    y = torch.zeros(1)
    for number in range(3):
        y.set_(w.t() + number)
    return y, y.stride()


SETS = [
    memory_of_another, writes_to_both, an_input_takes_another, an_input_takes_a_result, exchanged, emptied, in_a_loop
]  # fmt: skip


@pytest.mark.parametrize("program", SETS)
def test_set_leaves_tensors_where_eager_leaves_them(program):
    for shape in ((4,), (2, 3)):
        mine, theirs = ([torch.arange(4.0), torch.arange(float(math.prod(shape))).reshape(shape)] for _ in range(2))
        observed = Observed(program, fullgraph=True)
        assert_same(observed(*mine), program(*theirs))
        assert_same(mine, theirs)
        shares = [a.untyped_storage()._cdata == b.untyped_storage()._cdata for a, b in (mine, theirs)]
        assert shares[0] == shares[1]


@pytest.mark.parametrize("program", SETS)
def test_set_is_compiled(program):
    mine, theirs = ([torch.arange(4.0), torch.arange(6.0)] for _ in range(2))
    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    assert_same(compiled(*mine), program(*theirs))
    assert_same(mine, theirs)


def _of_new_data(x, y):
    before = y.data_ptr()
    x.data = y
    same = x.data_ptr() == y.data_ptr()
    y.data = torch.ones(3, 4)
    return same, before == x.data_ptr(), x.data_ptr() == y.data_ptr(), x * 2


def _of_a_parameter(x, y):
    weight = nn.Parameter(x)
    return weight.data_ptr() == x.data_ptr(), weight.data_ptr() == y.data_ptr(), weight * 2


@pytest.mark.parametrize("program", [_of_new_data, _of_a_parameter])
def test_addresses_are_those_of_the_data_that_a_tensor_was_given(program):
    check(program, torch.randn(3, 4), torch.randn(3, 4), breaks=0)


def test_addresses_of_a_layers_new_data_are_those_of_the_tensor_they_came_from():
    layer, other = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))

    def program(x):
        layer.weight.data = other.data
        return layer(x), layer.weight.data_ptr() == other.data_ptr()

    observed = Observed(program, fullgraph=True)
    for x in (torch.randn(3, 4), torch.randn(3, 4)):
        assert_same(observed(x), program(x))
    assert observed(torch.ones(3, 4))[1]


def test_addresses_of_views_tell_whether_they_begin_where_their_base_does():
    def program(x):
        return x.view(-1).data_ptr() == x.data_ptr(), x[1:].data_ptr() == x.data_ptr(), x.t().data_ptr() == x.data_ptr()

    check(program, torch.randn(3, 4), breaks=0)
