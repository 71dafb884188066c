"""Hooks on tensors that the graph made, and on leaves that existed before."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check, outcome
from turret.errors import CaptureError

OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}
LOG = []


def clamped(x):
    y = x * 2
    scale = x.detach().exp()
    y.register_hook(lambda gradient: gradient.clamp(-1, 1) * scale)
    y.register_hook(lambda gradient: None)
    return y * 3


@pytest.mark.parametrize("run", ["captured", "compiled"])
def test_a_hook_changes_the_gradient(run):
    fast = Observed(clamped, fullgraph=True) if run == "captured" else turret.compile(clamped, options=OPTIONS)
    found = []
    for call in (clamped, fast):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        (call(x) ** 2).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_a_hook_on_a_tensor_without_gradient_raises():
    def program(x):
        try:
            (x * 2).register_hook(lambda g: g)
        except RuntimeError as error:
            return x + 1, str(error)
        return x

    check(program, torch.ones(3), breaks=0)


def test_a_hook_with_side_effects_runs_as_python():
    def program(x):
        y = x * 2
        y.register_hook(lambda gradient: LOG.append(1))
        return y * 3

    observed = Observed(program)
    LOG.clear()
    observed(torch.ones(3, requires_grad=True)).sum().backward()
    assert LOG == [1] and "hook" in observed.breaks[0]


def test_a_hook_that_is_taken_off_again_runs_as_python():
    def program(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 100).remove()
        return y * 3

    observed = Observed(program)
    x = torch.ones(3, requires_grad=True)
    kind, result = outcome(observed, (x,), {})
    assert kind == "returned"
    result.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_old_hooks_of_the_backward_pass_run_around_a_whole_forward():
    def build(seen):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        module.register_backward_hook(lambda m, inputs, outputs: seen.append((m is module, outputs[0].clone())))
        return module

    mine, theirs = [], []
    module, plain, x = build(mine), build(theirs), torch.randn(4, 3)
    observed = Observed(module.__call__, fullgraph=True)
    for _ in range(2):
        found, expected = observed(x), plain(x)
        assert_same(found, expected)
        found.sum().backward()
        expected.sum().backward()
        assert_same(mine, theirs)
        assert_same(module[0].weight.grad, plain[0].weight.grad)
    assert len(observed.graphs) == 1 and len(mine) == 2
    module._backward_hooks.clear()
    assert_same(observed(x), plain(x))
    assert len(observed.graphs) == 2


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize(
    "show",
    [
        lambda x, v: (v, x * 1),
        lambda x, v: (v.view(2, 2), x.t()),
        lambda x, v: (v[1:], v.sin(), x[0]),
    ],
)
def test_a_hook_on_a_view_that_the_caller_gets_changes_the_gradient_behind_it(show, is_leaf):
    def program(x):
        view = x.view(-1)
        view.register_hook(lambda gradient: gradient * 3)
        return show(x, view)

    fast, found = turret.compile(program, options=OPTIONS), []
    for call in (program, fast, fast):
        leaf = torch.arange(4.0).reshape(2, 2).requires_grad_()
        results = call(leaf if is_leaf else leaf * 1)
        sum(r.square().sum() for r in results).backward()
        found.append((leaf.grad, *results))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_a_hook_on_a_view_of_a_result_beside_it_holds_for_the_view_alone():
    def program(x):
        base = x * 2
        row = base[0]
        row.register_hook(lambda gradient: gradient * 3)
        return row, base

    found = []
    for call in (program, turret.compile(program)):
        x = torch.ones(2, 2, requires_grad=True)
        row, base = call(x)
        (row.sum() + base.sum()).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def _hooked(kinds):
    def program(x, w):
        scale = w * 2
        for kind in kinds:
            if kind == "partial":
                x.register_hook(functools.partial(torch.mul, 3))
            elif kind == "closure":
                x.register_hook(lambda g: g + scale.detach())
            elif kind == "none":
                x.register_hook(lambda g: LOG.append(float(g.sum())))
            elif kind == "break":
                turret.graph_break()
            else:
                x.register_hook(lambda g: g * 2).remove()
        return x * x * w

    return program


@given(st.lists(st.sampled_from(["partial", "closure", "none", "break", "removed"]), max_size=4))
@settings(max_examples=25, deadline=None)
def test_hooks_on_leaves_that_existed_before_are_called_as_by_eager(kinds):
    program = _hooked(kinds)
    observed = Observed(program)
    for _ in range(2):
        worlds = []
        for call in (program, observed):
            LOG.clear()
            x, w = torch.arange(3.0).requires_grad_(), torch.ones(3, requires_grad=True)
            call(x, w).sum().backward()
            worlds.append((x.grad, w.grad, list(LOG)))
        assert_same(*worlds[::-1])


def test_hooks_on_leaves_are_registered_behind_one_graph():
    observed = Observed(_hooked(["partial", "closure"]), fullgraph=True)
    x, w = torch.ones(3, requires_grad=True), torch.ones(3)
    for _ in range(2):
        observed(x, w)
    assert len(observed.graphs) == 1 and len(x._backward_hooks) == 4
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        observed(torch.ones(3), w)


def test_a_backward_that_would_call_such_a_hook_is_left_to_python():
    def program(x):
        x.register_hook(lambda g: g * 7)
        (x * x).sum().backward()
        return x.grad

    observed = Observed(program)
    for _ in range(2):
        assert_same(observed(torch.ones(2, requires_grad=True)), torch.full((2,), 14.0))
    with pytest.raises(CaptureError, match="hook"):
        Observed(program, fullgraph=True)(torch.ones(2, requires_grad=True))


def removed_at_once(x):
    y = x * 2
    handle = y.register_hook(lambda gradient: gradient * 100)
    y.register_hook(lambda gradient: gradient + 1)
    handle.remove()
    handle.remove()
    return y * 3


def of_an_argument_removed_at_once(x):
    x.register_hook(lambda gradient: gradient * 100).remove()
    return x * 3


@pytest.mark.parametrize("program", [removed_at_once, of_an_argument_removed_at_once])
def test_a_hook_that_is_removed_is_not_called(program):
    found = []
    for call in (program, Observed(program, fullgraph=True), turret.compile(program, options=OPTIONS, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        call(x).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1:], [found[0]] * 2)


REGISTER = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


@given(st.lists(st.tuples(st.sampled_from(REGISTER), st.sampled_from(["kept", "removed", "handed out"])), max_size=4))
@settings(max_examples=15, deadline=None)
def test_hooks_of_arguments_are_called_after_the_call_in_their_order(steps):
    called, scale = [], 3

    def hook(number, value):
        called.append((number, value.requires_grad))

    def program(x):
        handles = []
        for number, (register, what) in enumerate(steps):
            handle = register(x, functools.partial(hook, number))
            if what == "removed":
                handle.remove()
            elif what == "handed out":
                handles.append(handle)
        return x * scale, handles

    observed = Observed(program, fullgraph=True)
    found = []
    for call in (program, observed):
        called.clear()
        x = torch.ones(3, requires_grad=True)
        result, handles = call(x)
        result.sum().backward(retain_graph=True)
        for handle in handles:
            handle.remove()
        result.sum().backward()
        found.append((list(called), x.grad))
    torch.testing.assert_close(found[1][1], found[0][1])
    assert found[1][0] == found[0][0]


def test_a_hook_behind_the_accumulation_needs_a_leaf():
    def program(x):
        (x * 2).register_post_accumulate_grad_hook(lambda v: None)

    x = torch.ones(3, requires_grad=True)
    for call in (program, Observed(program)):
        with pytest.raises(RuntimeError, match="post accumulate grad hooks"):
            call(x)


def test_methods_of_autograd_may_be_called_through_the_class():
    def program(x):
        y = x * 2
        torch.Tensor.register_hook(y, lambda gradient: gradient * 3)
        z = y + 1
        torch.Tensor.retain_grad(z)
        torch.Tensor.backward(z.sum())
        return x.grad, z.grad

    assert_same(
        Observed(program, fullgraph=True)(torch.ones(3, requires_grad=True)),
        program(torch.ones(3, requires_grad=True)),
    )


@pytest.mark.parametrize("retained_first", [False, True])
def test_a_gradient_is_retained_as_the_hooks_leave_it(retained_first):
    def program(x):
        y = x * 2
        if retained_first:
            y.retain_grad()
        y.register_hook(lambda gradient: gradient * 3)
        y.retain_grad()
        y.sum().backward()
        return x.grad, y.grad

    x, same = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    assert_same(Observed(program)(x), program(same))


@pytest.mark.parametrize("inner", [False, True])
def test_a_hook_with_side_effects_on_what_was_used_before_is_called_with_its_gradient(inner):
    seen = []

    def used(x):
        y = x * 2
        z = y * 3
        y.register_hook(lambda gradient: gradient * 5)
        y.register_hook(lambda gradient: seen.append(gradient.clone()))
        return z + y.detach()

    def program(x):
        return used(x.exp()) if inner else used(x)

    found = []
    for call in (program, observed := Observed(program)):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        call(x).sum().backward()
        found.append((x.grad, *seen))
        seen.clear()
    assert_same(*found)
    assert "gradient hook" in observed.breaks[0]


def test_the_hooks_that_a_tensor_came_with_are_told():
    def program(x):
        made = x * 2
        count = 0 if x._backward_hooks is None else len(x._backward_hooks)
        return made * (count + 1), made._backward_hooks is None

    plain, hooked = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    hooked.register_hook(lambda gradient: gradient * 2)
    observed = Observed(program, fullgraph=True)
    for x in (plain, hooked, torch.ones(2), hooked):
        assert_same(observed(x), program(x))
    assert len(observed.graphs) == 3


def test_hooks_registered_in_compiled_code_are_not_forgotten():
    def program(x):
        x.register_hook(lambda gradient: gradient * 3)
        return x * 2, len(x._backward_hooks)

    observed = Observed(program)
    for _ in range(2):
        x = torch.ones(2, requires_grad=True)
        result, count = observed(x)
        result.sum().backward()
        assert (count, x.grad.tolist()) == (1, [6.0, 6.0])
