"""Inputs that lie in each other's memory."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.plugins.joint_harness import assert_same, compiled
from turret.hooks.signature import Mutation


def views(*makers, shape=(4, 4)):
    base = torch.randn(shape)
    return [make(base) for make in makers]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x.add_(1), y * 2)[1],
        lambda x, y: (x[0].fill_(5), y[1].mul_(2), x + y)[2],
        lambda x, y: (y.mul_(2), x.add_(y.sum()), x, y[0])[2:],
    ],
)
@pytest.mark.parametrize(
    "pair",
    [
        (lambda b: b, lambda b: b),
        (lambda b: b, lambda b: b.t()),
        (lambda b: b[:3], lambda b: b[1:]),
        (lambda b: b[::2, :2], lambda b: b[1:3, 1:3]),
        (lambda b: b[0], lambda b: b.view(-1)[2:6]),
    ],
)
def test_a_write_to_one_is_seen_through_the_other(function, pair):
    if pair[0](torch.zeros(4, 4)).shape != pair[1](torch.zeros(4, 4)).shape:
        function = lambda x, y: (x.add_(1), y * 2, x)[1:]  # noqa: E731
    made = assert_same(function, views(*pair), backward=False)
    assert len(made.signature.bases) == 1


def test_neighbours_in_one_memory_stay_inputs_of_their_own():
    def function(x, y):
        x.add_(1)
        return y.mul_(2) + x

    made = assert_same(function, views(lambda b: b[:2], lambda b: b[2:]))
    assert made.signature.bases == ()


def test_inputs_that_share_memory_and_are_only_read_stay_as_they_are():
    made = assert_same(lambda x, y: (x + y.t(), y.view(-1)[2:]), views(lambda b: b, lambda b: b.t().t()))
    assert made.signature.bases == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x.mul_(2), x.sum() + y.sum())[1],
        lambda x, y: (x.mul_(2), y[0].add_(x[0].sum()), y * 3)[2],
        lambda x, y: (y.copy_(y * 2 + 1), x)[1],
        lambda x, y: (x[0].exp_(), y.cos())[1],
    ],
)
@pytest.mark.parametrize(
    "pair", [(lambda b: b[:3], lambda b: b[1:]), (lambda b: b, lambda b: b.t()), (lambda b: b.view(2, 8), lambda b: b)]
)
def test_a_differentiable_write_to_one_flows_to_the_leaf_through_both(function, pair):
    def prepare(args):
        base = args[0] * 1
        return [make(base) for make in pair]

    made = assert_same(function, [torch.randn(4, 4, requires_grad=True)], prepare=prepare)
    (base,) = made.signature.bases
    assert base.joined
    assert made.signature.inputs[2].tracked and made.signature.inputs[2].mutation is Mutation.DATA


def test_a_write_of_something_with_gradients_to_shared_buffers_makes_both_require_them():
    def prepare(args):
        memory, weight = args
        base = memory * 1
        return [base[:3], base[1:], weight]

    def function(x, y, w):
        x.mul_(w)
        return y.sum() * 2

    # Dynamo itself gives up on this one: it reads back its own fake of an input that gained a gradient.
    args = [torch.randn(4, 4), torch.randn(4, requires_grad=True)]
    made = assert_same(function, args, prepare=prepare, capture="fx")
    assert made.signature.bases[0].joined


def test_gradients_of_inputs_that_share_memory_and_are_only_read_are_each_ones_own():
    def prepare(args):
        base = args[0] * 1
        return [base[:3], base[1:]]

    made = assert_same(lambda x, y: x * y, [torch.randn(4, 4, requires_grad=True)], prepare=prepare)
    assert made.signature.bases == () and all(i.requires_grad for i in made.signature.inputs)


def test_leaves_that_share_memory_are_not_views_of_one_tensor_to_autograd():
    def function(x, y):
        total = x.sum()
        y.logical_and_(torch.tensor([0, 1, 1]))
        return total, y * 2

    memory = torch.randn(4)
    x, y = (memory.as_strided((3,), (1,), offset).requires_grad_() for offset in (0, 1))
    with pytest.raises(Exception, match="not views of one tensor"):
        compiled(function)(x, y)


def test_shared_memory_that_autograd_does_not_know_of_is_refused_when_gradients_meet_a_write():
    def function(x, y):
        y.mul_(2)
        return x.sum()

    base = torch.randn(4, requires_grad=True) * 1
    with pytest.raises(Exception, match="not views of one tensor"):
        compiled(function)(base, base.detach())


def test_shared_memory_as_two_dtypes_is_refused_when_written():
    x = torch.randn(4)
    with pytest.raises(Exception, match="different dtypes"):
        compiled(lambda x, y: (y.add_(1), x * 2)[1])(x, x.view(torch.int32))


def test_one_of_several_aliases_changes_shape():
    def function(x, y):
        x.t_()
        return y * 2

    made = assert_same(function, views(lambda b: b[:2], lambda b: b[1:]), capture="fx")
    assert made.signature.inputs[0].mutation is Mutation.METADATA


@pytest.mark.parametrize(
    "maker", [lambda b: b.view(-1), lambda b: b[1:], lambda b: b.t(), lambda b: b, lambda b: b.detach()]
)
def test_a_view_made_without_gradients_requires_one_just_where_eagers_does(maker):
    """It does if the tensor does that it is, in the end, a view of: a leaf may be a view of one that does not."""

    def function(x):
        with torch.no_grad():
            flat = x.unsqueeze(0)
        return flat * 2, x * 3

    assert_same(function, [torch.randn(4, 4)], prepare=lambda args: [maker(args[0]).requires_grad_()])


def test_leaves_that_are_views_of_one_memory_get_their_gradients():
    def made():
        base = torch.arange(4.0)
        return base[:3].requires_grad_(), base[1:].requires_grad_()

    (x, y), (a, b) = made(), made()
    function = compiled(lambda x, y: x * y * y)
    (x * y * y).sum().backward()
    function(a, b).sum().backward()
    assert torch.equal(x.grad, a.grad)
    assert torch.equal(y.grad, b.grad)


@pytest.mark.parametrize("starts", [(3, 0), (0, 3), (2, 2)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_of_one_of_several_views_of_a_tensor_gives_its_gradient_for_all_that_it_shows(starts, dynamic):
    def function(x, y):
        kept = x * 2
        y[None].sub_(3)
        return kept, y.reshape(-1), y.view(-1)[1:]

    seen = []
    for run in (function, turret.compile(function, dynamic=dynamic, options={"cache": False})):
        leaf = torch.linspace(-1, 1, 12, requires_grad=True)
        memory = leaf.clone()
        made = run(memory[starts[0] : starts[0] + 8], memory[starts[1] : starts[1] + 8])
        seen.append(torch.autograd.grad([v.cos().sum() for v in (*made, memory)], leaf)[0])
    torch.testing.assert_close(seen[1], seen[0])
