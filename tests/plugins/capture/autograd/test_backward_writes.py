"""Backwards of the program's own, and gradient hooks, that write to tensors from before: part of the compiled backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from turret.errors import UnsupportedError

OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}
OUTSIDE = torch.zeros(3)
"""A tensor that a backward may be the first to look at."""

CHANGES = {
    "counts": lambda target, gradient: target.add_(1),
    "adds up": lambda target, gradient: target.add_(gradient),
    "multiplies": lambda target, gradient: target.mul_(2),
    "sets": lambda target, gradient: target.copy_(gradient * 2),
    "a part": lambda target, gradient: target[:1].add_(gradient[1:2]),
    "a view": lambda target, gradient: target.view(-1).flip(0).sin_() + target.view(3).neg_(),
    "out": lambda target, gradient: torch.mul(gradient, 3, out=target),
    "another": lambda target, gradient: OUTSIDE.sub_(target),
}


def function(kept, changes, inside, read):
    """A function of the program's whose backward changes a tensor that its forward was given, or made."""

    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, target):
            if inside == "forward writes":
                target.mul_(3)
            if inside == "made":
                target = target * 1
            if inside == "part":
                target = target[:3]
            if kept == "saved":
                ctx.save_for_backward(target)
            ctx.target = target if kept == "attribute" else None
            return x.sin() + (target if inside == "forward reads" else 0)

        @staticmethod
        def backward(ctx, gradient):
            target = {"attribute": ctx.target, "outside": OUTSIDE}.get(kept)
            target = ctx.saved_tensors[0] if target is None else target
            found = gradient * 2
            if read != "after":
                found = found + target * gradient
            for change in changes:
                CHANGES[change](target, gradient)
            if read != "before":
                found = found - target * gradient
            return found, None

    return Writing.apply


def program(apply, around):
    """``apply``, and what else is computed with the tensor that its backward writes to."""

    def run(x, target):
        y = x * target if around == "saved before" else x * 2
        if around == "hook":
            y.register_hook(lambda gradient: OUTSIDE.mul_(2).add_(gradient) * 0 + gradient)
        made = apply(y, target)
        if around == "saved after":
            made = made * target
        if around == "twice":
            made = apply(made, target)
        if around == "two results":
            return made, apply(x, target) * 3
        if around == "read":
            return made, target + 1
        return (made,)

    return run


def steps(call, kind, between, backward, calls):
    """All that can be seen of some calls and their backwards."""
    with torch.no_grad():
        OUTSIDE.zero_()
    x, target = torch.linspace(-1, 1, 3).requires_grad_(), torch.tensor([1.0, -2.0, 0.5])
    if kind == "leaf":
        target.requires_grad_()
    if kind == "no leaf":
        target = target.requires_grad_() * 2
    if kind == "view":
        target = torch.ones(2, 3)[1]
    if kind == "strided":
        target = torch.ones(3, 2)[:, 1]
    if kind == "half":
        x, target = x.detach().double().requires_grad_(), target.double()
    seen = []

    def look():
        moved = target._version != versions[-1][0], OUTSIDE._version != versions[-1][1]
        versions.append((target._version, OUTSIDE._version))
        seen.append((None if x.grad is None else x.grad.clone(), target.detach().clone(), OUTSIDE.clone(), moved))

    versions = [(target._version, OUTSIDE._version)]
    pending = []
    try:
        for number in range(calls):
            results = call(x, target)
            seen.append(tuple(r.detach().clone() for r in results))
            look()
            if between == "written":
                with torch.no_grad():
                    target.add_(number + 1)
            pending.append([r for r in results if r.requires_grad])
            if backward == "later" and number < calls - 1:
                continue
            for roots in pending:
                chosen = roots[:1] if backward == "first" else roots[-1:] if backward == "last" else roots
                for again in range(2 if backward in ("twice", "freed") else 1):
                    weights = [torch.arange(1.0, 4.0, dtype=r.dtype) * (again + 1) for r in chosen]
                    torch.autograd.backward(chosen, weights, retain_graph=backward != "freed")
                    look()
            pending = []
    except RuntimeError as error:
        seen.append(type(error))
    return seen


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(
    kept=st.sampled_from(["attribute", "saved", "outside"]),
    changes=st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=3),
    inside=st.sampled_from(["nothing", "forward reads", "forward writes", "made", "part"]),
    read=st.sampled_from(["before", "after", "both"]),
    around=st.sampled_from(["nothing", "saved before", "saved after", "twice", "two results", "read", "hook"]),
    kind=st.sampled_from(["plain", "leaf", "no leaf", "view", "strided", "half"]),
    between=st.sampled_from(["nothing", "written"]),
    backward=st.sampled_from(["once", "twice", "freed", "first", "last", "later"]),
    calls=st.integers(1, 2),
)
def test_what_a_backward_writes_is_seen_as_in_eager(
    kept, changes, inside, read, around, kind, between, backward, calls
):
    if (kept == "attribute" and set(changes) == {"another"}) or (
        inside == "forward writes" and around == "saved after"
    ):
        # What a backward only reads is saved, and a change of it is an error, where eager reads what lies there; of what
        # the forward changed the new value is saved, where eager finds the change.
        between = "nothing"
    run = program(function(kept, tuple(changes), inside, read), around)
    expected = steps(run, kind, between, backward, calls)
    found = steps(turret.compile(run, options=OPTIONS), kind, between, backward, calls)
    assert_same(found, expected)


def backward_of(run, *args, weights=torch.tensor([1.0, 2.0, 3.0])):
    """Results, gradients, and arguments afterwards."""
    with torch.no_grad():
        OUTSIDE.zero_()
    results = run(*args)
    results = results if isinstance(results, tuple) else (results,)
    torch.autograd.backward(results, [weights] * len(results))
    return [r.detach() for r in results], [a.grad for a in args], [a.detach() for a in args], OUTSIDE.clone()


def leaf():
    return torch.linspace(-1, 1, 3).requires_grad_()


@pytest.mark.parametrize("kept", ["attribute", "saved", "outside"])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_write_in_a_backward_is_part_of_the_one_graph(kept, change):
    run = program(function(kept, (change,), "nothing", "both"), "hook")
    expected = backward_of(run, leaf(), torch.ones(3))
    for fast in (Observed(run, fullgraph=True), turret.compile(run, fullgraph=True, options=OPTIONS)):
        assert_same(backward_of(fast, leaf(), torch.ones(3)), expected)


def pairs(requires_grad=False):
    return TwoTensor(*(torch.full((3,), float(n), requires_grad=requires_grad) for n in (1, 2)))


@pytest.mark.parametrize("kept", ["attribute", "saved"])
@pytest.mark.parametrize("inside", ["nothing", "forward writes", "made"])
def test_a_write_in_a_backward_to_a_wrapper_reaches_what_it_wraps(kept, inside):
    def found(call):
        x, target = pairs(True), pairs()
        out = call(x, target)
        seen = [target.a.clone(), target.b.clone()]
        for _ in range(2 if kept == "attribute" else 1):
            out.sum().backward(retain_graph=True)
            seen += [target.a.clone(), target.b.clone(), x.grad.a.clone(), x.grad.b.clone()]
        return seen

    run = function(kept, ("counts", "multiplies"), inside, "both")
    fast = turret.compile(lambda x, target: run(x, target), fullgraph=True, options=OPTIONS)
    assert_same(found(fast), found(run))


class ReadsWhatTheForwardChanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.target = target.mul_(2)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.target, None


def test_a_backward_reads_a_tensor_as_others_left_it_after_the_forward_changed_it():
    def found(call):
        x, target = leaf(), torch.ones(3)
        out = call(x, target)
        target.add_(5)
        out.backward(torch.ones(3))
        return x.grad

    def run(x, target):
        return ReadsWhatTheForwardChanged.apply(x, target)

    assert_same(found(turret.compile(run, fullgraph=True, options=OPTIONS)), found(run))


def test_gradients_of_gradients_of_a_backward_that_reads_late_are_refused():
    x, target = leaf(), torch.ones(3)
    out = turret.compile(ReadsWhatTheForwardChanged.apply, options=OPTIONS)(x, target)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("read", ["before", "after"])
@pytest.mark.parametrize("kept", ["attribute", "saved"])
@pytest.mark.parametrize("change", ["counts", "adds up", "sets", "a part"])
def test_a_backward_with_gradients_of_its_own_that_writes_is_eagers(change, kept, read):
    run = function(kept, (change,), "nothing", read)

    def found(apply):
        x, target = leaf(), torch.ones(3)
        out = apply(x, target)
        try:
            (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return first, target.clone(), *torch.autograd.grad(first.sum(), x), target
        except RuntimeError as error:
            assert not isinstance(error, UnsupportedError)
            return (torch.zeros(()),)

    compiled = turret.compile(lambda x, target: run(x * x, target), options=OPTIONS)
    torch.testing.assert_close(found(compiled), found(lambda x, target: run(x * x, target)))


def test_a_backward_with_gradients_of_its_own_that_writes_to_what_the_forward_made_is_refused():
    run = function("attribute", ("adds up",), "made", "before")
    x = leaf()
    out = turret.compile(lambda x, target: run(x, target), options=OPTIONS)(x, torch.ones(3))
    with pytest.raises(UnsupportedError, match="create_graph"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


@pytest.mark.parametrize("spoil", ["data", "layout", "gradient"])
def test_a_tensor_that_lies_elsewhere_by_the_time_of_the_backward_is_refused(spoil):
    run = function("attribute", ("adds up",), "nothing", "before")
    x, target, gradient = leaf(), torch.ones(3), torch.ones(3)
    out = turret.compile(lambda x, target: run(x, target), options=OPTIONS)(x, target)
    if spoil == "data":
        target.data = torch.ones(3)
    if spoil == "layout":
        target.unsqueeze_(0)
    with pytest.raises(UnsupportedError, match="uses a tensor from before"):
        out.backward(target if spoil == "gradient" else gradient)


class LaysOutAnew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.target = target
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        ctx.target.unsqueeze_(0)
        return gradient, None


class ReturnsWhatItWritesTo(LaysOutAnew):
    @staticmethod
    def backward(ctx, gradient):
        return ctx.target.add_(gradient), None


class WritesToItsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.result = x.sin()
        return ctx.result

    @staticmethod
    def backward(ctx, gradient):
        return gradient + ctx.result.mul_(2), None


@pytest.mark.parametrize("kind", [LaysOutAnew, ReturnsWhatItWritesTo, WritesToItsResult])
def test_a_backward_that_changes_more_than_values_runs_as_python(kind):
    def run(x, target):
        return kind.apply(x, target) * 1 if kind is not WritesToItsResult else kind.apply(x * 1, target)

    fast = turret.compile(run, options=OPTIONS)
    assert_same(backward_of(fast, leaf(), torch.ones(3)), backward_of(run, leaf(), torch.ones(3)))


def test_memory_that_the_forward_made_keeps_what_a_backward_left_in_it():
    """Also where there are several alike, and gradients of some results alone."""
    run = program(function("attribute", ("adds up",), "made", "both"), "two results")

    def found(call):
        x, target, seen = leaf(), torch.ones(3), []
        results = call(x, target)
        for chosen in (slice(0, 1), slice(1, 2), slice(0, 2), slice(1, 2)):
            roots = results[chosen]
            torch.autograd.backward(roots, [torch.arange(1.0, 4.0)] * len(roots), retain_graph=True)
            seen.append(x.grad.clone())
        return seen

    assert_same(found(turret.compile(run, fullgraph=True, options=OPTIONS)), found(run))


@pytest.mark.filterwarnings("ignore:Turret runs")
def test_a_write_to_memory_that_an_argument_shares_with_another_is_seen():
    run = function("attribute", ("multiplies",), "nothing", "both")

    def both(x, target, other):
        return run(x, target) + other

    def found(call, shared):
        base = torch.arange(6.0)
        x, target, other = leaf(), base[:3], base[2:5] if shared else base[3:]
        call(x, target, other).sum().backward()
        return x.grad, base

    fast = turret.compile(both, options={"cache": False})
    for shared in (False, True, False):
        assert_same(found(fast, shared), found(both, shared))


def test_hooks_beside_one_that_was_removed_write_to_tensors_of_their_own():
    def program(x, seen):
        y = x * 2
        first = y.register_hook(lambda g: None)
        y.register_hook(lambda g: seen[0].add_(g))
        first.remove()
        y.register_hook(lambda g: seen[1].mul_(g))
        return y * x

    found = []
    for run in (program, turret.compile(program)):
        x, seen = torch.arange(3.0).requires_grad_(), [torch.ones(3), torch.full((3,), 5.0)]
        run(x, seen).sum().backward()
        found.append([x.grad, *seen])
    for expected, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, expected)
