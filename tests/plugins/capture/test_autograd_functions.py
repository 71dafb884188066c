"""``autograd.Function`` under capture: one graph, with the user's gradients; a clean break for what is not followed."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome
from turret.errors import CaptureError

OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


class WrongSquare(torch.autograd.Function):
    """Its gradient is not the forward's, so that one derived from the forward would be noticed."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * 7


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.scale = scale
        y = torch.exp(x)
        ctx.save_for_backward(y, weight)
        ctx.shape = x.shape
        return y * weight * scale, (y > 1).float()

    @staticmethod
    def backward(ctx, gradient, _):
        y, weight = ctx.saved_tensors
        of_weight = (gradient * y * ctx.scale).sum_to_size(weight.shape) if ctx.needs_input_grad[1] else None
        return (gradient * weight * ctx.scale * y).reshape(ctx.shape), of_weight, None


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(x, low):
        return x.clamp(min=low)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, low = inputs
        ctx.save_for_backward(x)
        ctx.low = low

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x > ctx.low), None


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class WithIndices(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort(-1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, gradient, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(-1, indices, gradient) * 3


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.mask = mask
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask


def gradients(program, *args):
    """Results and gradients of the arguments."""
    args = copy.deepcopy(args)
    torch.manual_seed(0)
    results = program(*args)
    results = results if isinstance(results, tuple) else (results,)
    sum((r * torch.arange(1.0, r.numel() + 1).reshape(r.shape)).sum() for r in results if r.requires_grad).backward()
    return results, [a.grad for a in args]


def check(program, *args, run=True):
    """One graph; results and gradients as in eager, of the graph as captured and compiled."""
    expected = gradients(program, *args)
    observed = Observed(program, fullgraph=True)
    assert_same(gradients(observed, *args), expected)
    assert len(observed.graphs) == 1
    if run:
        assert_same(gradients(turret.compile(program, fullgraph=True, options=OPTIONS), *args), expected)


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_the_users_gradient_is_taken():
    check(lambda x: WrongSquare.apply(x).sum() + 1, leaf(3, 4))


def test_attributes_of_the_context_and_several_results():
    check(lambda x, w: Scaled.apply(x * 2, w, 2.0), leaf(3, 4), leaf(4))


def test_one_tensor_as_two_arguments_collects_both_gradients():
    check(lambda x: Scaled.apply(x, x, 2.0)[0], leaf(4), run=False)


def test_gradients_of_an_argument_given_twice_are_added_up_in_eagers_order():
    first, second, third = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, gradient):
            return gradient * first, gradient * second

    def program(x):
        return Twice.apply(x, x).sum() + (x * third).sum()

    found = []
    for function in (program, turret.compile(program, backend="eager")):
        x = torch.zeros(1000, requires_grad=True)
        function(x).backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_a_context_set_up_apart():
    check(lambda x: Clamped.apply(x * 2, 0.1), leaf(3, 4), run=False)


def test_a_backward_that_is_differentiable_once():
    check(lambda x: Rounded.apply(x * 3) * x, leaf(3, 4), run=False)


def test_an_argument_changed_in_place():
    check(lambda x: Doubled.apply(x * 3) + 1, leaf(3, 4))


def test_a_result_without_gradient():
    check(lambda x: WithIndices.apply(x), leaf(3, 4), run=False)


def test_random_numbers_of_the_forward_are_those_of_the_backward():
    program = turret.compile(lambda x: Dropped.apply(x), fullgraph=True, options=OPTIONS)
    (result,), (gradient,) = gradients(program, torch.ones(64, requires_grad=True))
    weights = torch.arange(1.0, 65.0)
    assert torch.equal(gradient, weights * (result != 0)) and 0 < (result != 0).sum() < 64


def test_dynamic_sizes_reach_the_backward():
    program = turret.compile(lambda x, w: Scaled.apply(x, w, x.shape[0])[0], dynamic=True, options=OPTIONS)
    for rows in (3, 5):
        expected = gradients(lambda x, w: Scaled.apply(x, w, x.shape[0])[0], leaf(rows, 4), leaf(4))
        assert_same(gradients(program, leaf(rows, 4), leaf(4)), expected)


def test_a_tensor_from_elsewhere_gets_no_gradient():
    other = leaf(4)

    class Closure(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * other

        @staticmethod
        def backward(ctx, gradient):
            return gradient * other

    check(lambda x: Closure.apply(x), leaf(3, 4), run=False)
    assert other.grad is None


COUNTED = []


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        COUNTED.append(1)
        return gradient * 2


def test_a_backward_with_side_effects_runs_as_python():
    observed = Observed(lambda x: Counting.apply(x + 1) * 2)
    expected = gradients(lambda x: Counting.apply(x + 1) * 2, leaf(3))
    COUNTED.clear()
    assert_same(gradients(observed, leaf(3)), expected)
    assert len(COUNTED) == 1 and "backward that changes" in observed.breaks[0]


class Unmaterialised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 if second is None else first * 3 + second


def test_gradients_that_may_be_none_run_as_python():
    def program(x):
        first, _ = Unmaterialised.apply(x)
        return first

    observed = Observed(program)
    assert_same(gradients(observed, leaf(3)), gradients(program, leaf(3)))
    assert "set_materialize_grads" in observed.breaks[0]


class Withheld(torch.autograd.Function):
    """Nothing flows through it."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return None


class OneUnmaterialised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, x * 2)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        x, twice = ctx.saved_tensors
        return twice + 1 if gradient is None else gradient * x


class PassedOn(OneUnmaterialised):
    @staticmethod
    def backward(ctx, gradient):
        return None if gradient is None else gradient * 5


class Careless(OneUnmaterialised):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


WITHOUT_GRADIENT = {
    "dropped": lambda x: Withheld.apply(OneUnmaterialised.apply(x)).sum() + x.sum(),
    "dropped alone": lambda x: Withheld.apply(OneUnmaterialised.apply(x)).sum(),
    "passed on": lambda x: Withheld.apply(PassedOn.apply(x)).sum() + x.sum(),
    "passed on alone": lambda x: Withheld.apply(PassedOn.apply(x)).sum(),
    "two in a row": lambda x: Withheld.apply(OneUnmaterialised.apply(PassedOn.apply(x))).sum(),
    "one before": lambda x: Withheld.apply(PassedOn.apply(OneUnmaterialised.apply(x))).sum(),
    "in one branch": lambda x: (OneUnmaterialised.apply(x) * Withheld.apply(OneUnmaterialised.apply(x))).sum(),
    "given": lambda x: OneUnmaterialised.apply(x).sum(),
    "detached": lambda x: OneUnmaterialised.apply(x).detach().sum() + x.sum(),
    "power": lambda x: Withheld.apply(x ** x.shape[0]).sum(),
    "largest": lambda x: Withheld.apply(x.max()) * 2,
    "product": lambda x: Withheld.apply(x.prod()) * 2,
    "careless, given": lambda x: Careless.apply(x).sum(),
    "dropped only": lambda x: Withheld.apply(x).sum(),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_backward_that_no_gradient_reaches_is_given_none(name, is_leaf, dynamic):
    program, found = WITHOUT_GRADIENT[name], []
    for run in (program, turret.compile(program, fullgraph=True, dynamic=dynamic, options=OPTIONS)):
        x = leaf(3)
        given = x if is_leaf else x * 1
        (gradient,) = torch.autograd.grad(run(given), x, allow_unused=True)
        found.append(gradient)
    assert (found[0] is None) == (found[1] is None)
    if found[0] is not None:
        torch.testing.assert_close(found[1], found[0])


def test_a_backward_that_raises_where_there_is_no_gradient_does_so():
    def program(x):
        return Withheld.apply(Careless.apply(x)).sum() + x.sum()

    for run in (program, turret.compile(program)):
        with pytest.raises(TypeError, match="NoneType"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(leaf(3)).backward()


def test_without_gradients_the_forward_is_part_of_the_graph():
    observed = Observed(lambda x: Scaled.apply(x, x, 2.0), fullgraph=True)
    x = torch.ones(4)
    assert_same(observed(x), Scaled.apply(x, x, 2.0))
    assert not any("autograd" in n.name for n in observed.graphs[0].module.graph.nodes)


@pytest.mark.parametrize("grad", [True, False])
def test_the_mode_is_looked_at(grad):
    observed = Observed(lambda x: WrongSquare.apply(x) * 2)
    with torch.set_grad_enabled(grad):
        assert observed(leaf(3)).requires_grad is grad
    with torch.set_grad_enabled(not grad):
        assert observed(leaf(3)).requires_grad is not grad


class OldNames(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_variables
        return gradient * x


class RaisesBackward(OldNames):
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient")


def test_saved_variables_are_the_saved_tensors():
    check(lambda x: OldNames.apply(x).sum() + 1, leaf(3))


class RaisesNothingSaid(OldNames):
    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError


class ForgetsGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale):
        return x * weight * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Refusal(Exception):
    pass


class RaisesItsOwn(OldNames):
    @staticmethod
    def backward(ctx, gradient):
        raise Refusal("no gradient")


@pytest.mark.parametrize(
    "f",
    [
        lambda x: RaisesBackward.apply(x) + 1,
        lambda x: RaisesNothingSaid.apply(x) * 2,
        lambda x: ForgetsGradients.apply(x, x * 2, 3.0).sum(),
        lambda x: RaisesBackward.apply(x).detach() + x,
    ],
)
def test_a_backward_that_fails_does_so_where_it_runs(f):
    observed = Observed(f, fullgraph=True)
    for _ in range(2):
        ours, eager = leaf(3), leaf(3)
        found, expected = observed(ours), f(eager)
        assert_same(found, expected)
        assert_same(*(outcome(made.sum().backward, (), {}) for made in (found, expected)))
        assert_same(ours.grad, eager.grad)


class GivesTooMany(OldNames):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum().expand(7)


def test_a_gradient_of_the_wrong_size_is_refused_under_the_name_of_the_function():
    f = lambda x: GivesTooMany.apply(x) + 1  # noqa: E731
    found, expected = (outcome(made(leaf(3)).sum().backward, (), {}) for made in (Observed(f, fullgraph=True), f))
    assert "Function GivesTooManyBackward returned" in str(expected)
    assert_same(found, expected)


def test_a_backward_that_raises_an_exception_of_the_program_runs_as_python():
    x = leaf(3)
    assert_same(Observed(lambda x: RaisesItsOwn.apply(x) + 1)(x), RaisesItsOwn.apply(x) + 1)
    with pytest.raises(CaptureError, match="backward raises"):
        Observed(lambda x: RaisesItsOwn.apply(x), fullgraph=True)(x)


def test_an_instance_applies_as_its_class_does():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 5

    def f(x):
        return Doubled().apply(x) * 3

    observed, x, y = Observed(f, fullgraph=True), torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        found = observed(x)
    found.sum().backward()
    with pytest.warns(DeprecationWarning):
        f(y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    with pytest.warns(DeprecationWarning):
        assert type(Observed(lambda x: (x + 1, Doubled()))(x)[1]) is Doubled


class Remembers(torch.autograd.Function):
    """What its backward changes is seen by the next one."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.save_for_backward(x)
        ctx.change, ctx.count, ctx.seen, ctx.total = change, 0, [], torch.zeros_like(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        ctx.change(ctx, gradient)
        return gradient * (ctx.count + 1 + len(ctx.seen)) + ctx.total, None


def count(ctx, gradient):
    ctx.count += 1


def append(ctx, gradient):
    ctx.seen.append(gradient.shape)


def add_up(ctx, gradient):
    ctx.total.add_(gradient)


def replace(ctx, gradient):
    ctx.total = ctx.total + 1


def part_of_total(ctx, gradient):
    ctx.total[:1] += 1


def nothing(ctx, gradient):
    mine = gradient.clone()
    mine.add_(1)
    [].append(mine)


@pytest.mark.parametrize("change", [count, append, add_up, replace, part_of_total, nothing])
@pytest.mark.parametrize("run", ["captured", "compiled"])
def test_what_a_backward_changes_is_changed_each_time_it_runs(change, run):
    def program(x):
        return Remembers.apply(x * 2, change).exp()

    def twice(call):
        x = torch.linspace(-1, 1, 3).requires_grad_()
        out = call(x)
        return [torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for _ in range(3)]

    fast = Observed(program) if run == "captured" else turret.compile(program, options=OPTIONS)
    assert_same(twice(fast), twice(program))
    if run == "captured":
        assert bool(fast.breaks) == (change not in (nothing, add_up, part_of_total))


class AddsToWhatItWasGiven(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, statistics):
        ctx.statistics = statistics
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.statistics.add_(gradient.sum())
        return gradient * ctx.statistics, None


def test_a_backward_that_writes_to_an_argument_of_the_forward_writes_to_it():
    def found(call):
        x, statistics = torch.ones(3, requires_grad=True), torch.zeros(())
        call(x, statistics).sum().backward()
        return x.grad, statistics

    def program(x, statistics):
        return AddsToWhatItWasGiven.apply(x, statistics)

    assert_same(found(turret.compile(program, options=OPTIONS)), found(program))


class WritesToItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(3)


@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly")
@pytest.mark.parametrize("last", [False, True])
def test_a_write_to_the_gradient_that_a_backward_is_given_is_seen(last):
    def program(x):
        made = WritesToItsGradient.apply(x.sin())
        return made if last else made.exp()

    def found(call):
        x, gradient = torch.ones(3, requires_grad=True), torch.ones(3)
        call(x).backward(gradient)
        return x.grad, gradient

    assert_same(found(turret.compile(program, options={"cache": False})), found(program))


def test_a_gradient_hook_that_changes_an_object_made_here_breaks_the_graph():
    def program(x):
        seen, number = [], 0
        y = x * 2

        def hook(gradient):
            nonlocal number
            seen.append(gradient)
            number += 1

        y.register_hook(hook)
        return y.sin(), seen, lambda: number

    def found(call):
        x = torch.ones(3, requires_grad=True)
        y, seen, number = call(x)
        before = len(seen), number()
        y.sum().backward()
        return before, len(seen), number(), x.grad

    assert_same(found(Observed(program)), found(program))


class Returned(torch.autograd.Function):
    """Returns what it is given, after what it makes of it."""

    @staticmethod
    def forward(ctx, *given):
        return given[0] if len(given) == 1 else given

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


class ReturnedLater(Returned):
    @staticmethod
    def forward(*given):
        return given[0] if len(given) == 1 else given

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class Written(Returned):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(2))
        return x


@pytest.mark.parametrize("kind", [Returned, ReturnedLater, Written], ids=lambda k: k.__name__)
@pytest.mark.parametrize("grad_mode", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize(
    "made", [lambda: torch.ones(4), lambda: torch.arange(4), lambda: torch.ones(6)[1:5], lambda: torch.ones(4).exp()]
)
def test_an_argument_that_is_returned_as_it_came_is_a_tensor_of_its_own(kind, grad_mode, made):
    def one(x):
        inside = x * 1
        y, z = kind.apply(x), kind.apply(inside)
        facts = y is x, z is inside, y._is_view(), y.requires_grad
        return x, y, z, facts

    def two(x):
        if kind is Written:
            return ()
        a, b, c, d = kind.apply(x, x, 3, [x][0].detach())
        return a, b, c, d, a is b, a is x

    def reshaped(x):
        y = kind.apply(x)
        y.unsqueeze_(0)
        return x.shape, y.shape, y

    with torch.set_grad_enabled(grad_mode):
        for program in (one, two, reshaped):
            found = []
            for run in (program, turret.compile(program, options=OPTIONS)):
                x = made()
                result = run(x)
                tensors = [r for r in result if isinstance(r, torch.Tensor)]
                facts = [r for r in result if not isinstance(r, torch.Tensor)]
                found.append((facts, [t is x for t in tensors], [t._base is x for t in tensors], x.shape, tensors))
            assert found[0][:-1] == found[1][:-1], program.__name__
            for plain, compiled in zip(found[0][-1], found[1][-1], strict=True):
                torch.testing.assert_close(compiled, plain)


def test_an_argument_with_a_gradient_is_detached_where_none_is_wanted():
    def program(x):
        with torch.no_grad():
            y = Returned.apply(x)
        return y, y is x, y.requires_grad, y._is_view()

    x = torch.ones(3, requires_grad=True)
    (plain, *facts), (found, *others) = program(x), turret.compile(program, options=OPTIONS)(x)
    assert facts == others and found is not x and not found.requires_grad and torch.equal(plain, found)


SEVERAL_IN_ONE_MEMORY = {
    "whole and part": lambda y: (y, y[0]),
    "part and whole": lambda y: (y[0], y),
    "parts": lambda y: (y[0], y[1]),
    "transposed": lambda y: (y, y.t()),
    "detached": lambda y: (y, y.detach()),
    "data": lambda y: (y, y.data),
    "view of all": lambda y: (y, y.view_as(y)),
    "unbound": lambda y: y.unbind(),
    "same": lambda y: (y, y),
}


@pytest.mark.parametrize("makes", SEVERAL_IN_ONE_MEMORY.values(), ids=SEVERAL_IN_ONE_MEMORY)
@pytest.mark.parametrize("kept", [slice(None), slice(0, 1), slice(-1, None)], ids=["all", "first", "last"])
def test_each_of_several_results_in_one_memory_has_a_gradient_of_its_own(makes, kept):
    class Several(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return makes(x * 2)

        @staticmethod
        def backward(ctx, *gradients):
            return torch.ones(3, 4) * sum((n + 1) * g.sum() for n, g in enumerate(gradients))

    def program(x):
        return Several.apply(x)[kept]

    found = []
    for run in (program, turret.compile(program, options={"capture": "turret", "cache": False})):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        results = run(x)
        weighted = [(r * torch.linspace(1, 2, r.numel()).reshape(r.shape)).sum() * 3**n for n, r in enumerate(results)]
        found.append((*results, *torch.autograd.grad(weighted, [x])))
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain)


def materialises(name):
    def setup(ctx):
        if name == "set_materialize_grads":
            ctx.set_materialize_grads(False)
        elif name is not None:
            setattr(ctx, name, False)

    return setup


@pytest.mark.parametrize("flag", [None, "set_materialize_grads", "materialize_grads", "_materialize_non_diff_grads"])
def test_the_gradient_of_a_result_without_one_is_none_where_the_context_says_so(flag):
    setup = materialises(flag)

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            constant = x.clone()
            ctx.mark_non_differentiable(constant)
            setup(ctx)
            return x * 2, constant

        @staticmethod
        def backward(ctx, first, second):
            return first * 3 if second is None else first * 5 + second

    def program(x):
        first, constant = Marked.apply(x)
        return first * constant.sum()

    observed = Observed(program, fullgraph=True)
    assert_same(gradients(observed, leaf(3)), gradients(program, leaf(3)))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_an_inference_tensor_is_saved_for_no_backward(needs_gradient):
    def function(x):
        with torch.inference_mode():
            doubled = x * 2
        return Product.apply(doubled, x)

    x = torch.randn(3, requires_grad=needs_gradient)
    (found, result), (expected, wanted) = (outcome(f, (x,), {}) for f in (Observed(function).call, function))
    assert found == expected == ("raised" if needs_gradient else "returned")
    assert str(result) == str(wanted)
