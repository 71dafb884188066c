"""Classes, objects and modes that answer for torch's functions are asked as torch asks them, inside of the graph."""

from __future__ import annotations

import contextlib
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import turret
from tests.plugins.capture.capture_lab import Observed, outcome
from turret.errors import CaptureError

LOG: list[tuple] = []
X = torch.arange(1.0, 5.0)


def said(who, function, types, args, kwargs):
    name = getattr(getattr(function, "__self__", None), "__name__", None) or function.__name__
    LOG.append((who, name, tuple(t.__name__ for t in types), len(args), tuple(kwargs or ())))


class Plain(torch.Tensor):
    """Says nothing."""


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        said(cls.__name__, func, types, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs or {})


class Deeper(Logged):
    """A subclass of one that answers: asked first."""

    factor = 3

    def thrice(self):
        return self * self.factor


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        said(cls.__name__, func, types, args, kwargs)
        return NotImplemented


class Reversed(torch.Tensor):
    def __rsub__(self, other):
        return "exchanged"

    def __lt__(self, other):
        return "less"


class Disabled(torch.nn.Parameter):
    tag = 2

    def halved(self):
        return self / self.tag


class Answering:
    """No tensor, but takes a part in torch's functions."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        said(cls.__name__, func, types, args, kwargs)
        plain = [a.value if isinstance(a, Answering) else a for a in args]
        return Answering(func(*plain, **(kwargs or {})))


class Counting(TorchFunctionMode):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.calls = factor, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        said("mode", func, types, args, kwargs)
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.sin else result


def of(kind, value=X):
    with torch._C.DisableTorchFunction():
        return value.clone().as_subclass(kind)


def contents(value):
    """What a result is, as something that compares equal."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return type(value).__name__, value.as_subclass(torch.Tensor).tolist(), str(value.dtype), vars(value)
    if isinstance(value, Answering):
        return "Answering", contents(value.value)
    if isinstance(value, (tuple, list)):
        return type(value), [contents(v) for v in value]
    return value


def same(program, *make, graphs=1):
    """Results, and who was asked for what, are eager's; ``make`` are functions that make the arguments."""
    observed = Observed(program)
    for _ in range(2):
        LOG.clear()
        plain = [m() for m in make]
        expected = outcome(program, tuple(plain), {})
        asked = list(LOG)
        LOG.clear()
        mine = [m() for m in make]
        found = outcome(observed, tuple(mine), {})
        assert found[0] == expected[0], (found, expected)
        if found[0] == "returned":
            assert contents(found[1]) == contents(expected[1])
        assert [contents(v) for v in mine] == [contents(v) for v in plain]
        assert asked == LOG
    if graphs is not None:
        assert (len(observed.graphs), observed.breaks) == (graphs, [])
    return observed


OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.eq, operator.lt]
FUNCTIONS = [torch.add, torch.mul, torch.maximum, torch.nn.functional.mse_loss, torch.Tensor.sub]
KINDS = [torch.Tensor, Plain, Logged, Deeper, Refusing, Reversed]


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(OPERATORS + FUNCTIONS),
    st.sampled_from(KINDS),
    st.sampled_from([*KINDS, float, Answering]),
    st.booleans(),
)
def test_whoever_torch_asks_is_asked_in_its_order(function, left, right, swapped):
    def make():
        return 2.0 if right is float else Answering(X.clone()) if right is Answering else of(right)

    def program(a, b):
        return function(b, a) if swapped else function(a, b)

    same(program, lambda: of(left), make, graphs=None)


@pytest.mark.parametrize("kind", [Plain, Logged, Deeper])
def test_methods_attributes_and_items_are_one_graph(kind):
    def program(x):
        y = x.reshape(2, 2).T
        return y[0], len(y), y.shape, y.dtype, -y, [row.sum() for row in y], torch.cat([y, y], 1), x.max(0), 1 / x

    same(program, lambda: of(kind))


@pytest.mark.parametrize("kind", [Plain, Logged])
def test_changes_in_place_reach_the_tensor(kind):
    def program(x):
        x.add_(1)
        x[0] = 7
        x *= 2
        x.note = x.shape[0]
        return x, x.view(2, 2), x.note

    same(program, lambda: of(kind))


def test_attributes_and_methods_of_the_class_and_of_the_instance():
    def make():
        made = of(Deeper)
        made.scale = 2
        return made

    observed = same(lambda x: (x.thrice() * x.scale, x.factor), make)
    other = make()
    other.scale = 5
    assert contents(observed(other)) == contents((other.thrice() * 5, 3)) and len(observed.graphs) == 2


def test_operators_of_the_class_go_before_torchs():
    same(lambda x, y: (y - x, x < y, y > x, x + y, y - 1), lambda: of(Reversed), lambda: X.clone())


def test_tensors_of_classes_are_made():
    def program(x):
        made = x.as_subclass(Logged)
        made.add_(1)
        return made, made.as_subclass(torch.Tensor) * 2, Plain(x) * 2, torch.Tensor._make_subclass(Plain, x), x

    same(program, lambda: X.clone())


def test_nobody_is_asked_where_that_is_switched_off():
    def program(x):
        with torch._C.DisableTorchFunctionSubclass():
            y = x * 2
            return y, torch.overrides.has_torch_function_unary(x)

    same(program, lambda: of(Logged))


def test_a_parameter_of_a_class_that_is_not_asked_is_a_parameter():
    weight = Disabled(torch.ones(4))
    module = torch.nn.Linear(4, 4)
    module.weight = Disabled(torch.ones(4, 4))
    same(lambda p: (p * 2, p.halved(), p.tag, type(p)), lambda: weight)
    compiled = turret.compile(module, fullgraph=True)
    compiled(X).sum().backward()
    assert torch.equal(module.weight.grad, X.expand(4, 4))


@pytest.mark.parametrize("kind", [Plain, Logged])
def test_gradients_reach_tensors_of_classes(kind):
    leaf = of(kind).requires_grad_()
    compiled = turret.compile(lambda x: (x.sin() * x).sum(), fullgraph=True)
    result = compiled(leaf)
    result.backward()
    plain = X.clone().requires_grad_()
    (plain.sin() * plain).sum().backward()
    assert type(result) is kind and torch.allclose(leaf.grad.as_subclass(torch.Tensor), plain.grad)


def test_objects_answer():
    same(lambda o, x: (torch.add(o, x), torch.nn.functional.relu(o), torch.mul(x, o)), lambda: Answering(X), lambda: X)


def test_modes_inside_and_around_see_every_call():
    def program(x):
        with Counting(2) as outer, Counting(3) as inner:
            y = torch.sin(x) + torch.ones(4)
            size = y.shape
        return y, size, outer.calls, inner.calls

    same(program, lambda: X.clone())
    for factors, graphs in (((2, 2), 1), ((2, 3), 2)):
        observed = Observed(lambda x: torch.sin(x) + x[0])
        for factor in factors:
            LOG.clear()
            with Counting(factor) as mine:
                found = observed(X)
            with Counting(factor) as plain:
                expected = torch.sin(X) + X[0]
            assert torch.equal(found, expected) and mine.calls == plain.calls
        assert (len(observed.graphs), observed.breaks) == (graphs, [])


def test_a_graph_break_keeps_the_mode():
    def program(x):
        with Counting(2) as mode:
            y = torch.sin(x)
            print("", end="")
            y = torch.sin(y)
        return torch.sin(y), mode.calls

    observed = same(program, lambda: X.clone(), graphs=None)
    assert len(observed.graphs) == 2 and len(observed.breaks) == 1


def test_accessors_are_told_apart_by_what_they_access():
    class Ten(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func == torch.Tensor.ndim.__get__:
                return 10
            return super().__torch_function__(func, types, args, kwargs or {})

    same(lambda x: (x.ndim, x.shape, x + 1), lambda: of(Ten))


def test_a_class_that_overrides_what_capture_reads():
    class Shaped(torch.Tensor):
        @property
        def shape(self):
            return (7,)

        def to(self, *args):
            return super().to(*args) + 1

    same(lambda x: (x.shape, x.to(torch.float64), x * 2), lambda: of(Shaped))


def test_one_hop_is_skipped():
    redispatch = getattr(torch.overrides, "redispatch_function", None)
    if redispatch is None:
        pytest.skip("this torch skips no hops")

    class Skipping(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return redispatch(func, types, args, kwargs or {})

    def total(x):
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(total, (x,), x)
        return x.sum()

    same(lambda x: total(x), lambda: of(Skipping), graphs=None)


def test_a_frame_that_is_called_past_a_hop_finds_nobody_asked_whatever_is_compiled_for_it():
    redispatch = getattr(torch.overrides, "redispatch_function", None)
    if redispatch is None:
        pytest.skip("this torch skips no hops")
    calls = []

    class Skipping(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            return redispatch(func, types, args, kwargs or {})

    def total(x):
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(total, (x,), x)
        turret.graph_break()
        return x.sum()

    compiled = turret.compile(lambda x: total(x), options={"cache": False, "recompile_limit": 64})
    for _ in range(3):
        calls.clear()
        found = compiled(of(Skipping))
        assert calls.count(total) == 1
        torch.testing.assert_close(found.as_subclass(torch.Tensor), total(of(Skipping)).as_subclass(torch.Tensor))


@pytest.mark.parametrize("around", [0, 1, 2])
def test_the_stack_of_modes_is_read_and_changed_as_the_program_sees_it(around):
    pop, push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
    count, at = torch._C._len_torch_function_stack, torch._C._get_function_stack_at

    def program(x, mode):
        before = count()
        with Counting(2):
            within = count()
        if before:
            top = at(before - 1)
            popped = pop()
            push(popped)
            assert popped is top
        push(mode)
        return x + 10 * before + within

    outer = [Counting(1) for _ in range(around)]
    observed, found = Observed(program), []
    for run in (program, observed, observed):
        with contextlib.ExitStack() as stack:
            for mode in outer:
                stack.enter_context(mode)
            mine = Counting(3)
            result = run(X, mine)
            assert pop() is mine and [at(n) for n in range(count())] == outer
        assert count() == 0
        found.append((result.tolist(), mine.calls))
    assert found[0] == found[1] == found[2]
    assert not observed.breaks


def test_what_changes_torch_itself_is_not_called_to_find_out_who_answers():
    before = torch.get_num_threads()

    def program(x):
        torch.set_num_threads(before + 1)
        return x + 1

    observed = Observed(program, fullgraph=True)
    with Counting(1), pytest.raises(CaptureError):
        observed(X)
    assert torch.get_num_threads() == before


@torch.compiler.disable
def opaque():
    pass


def inference(x):
    with torch.inference_mode():
        return x + 1


KINDS = [
    torch.clone, torch.t, torch.Tensor.detach, inference, lambda x: x[:2], lambda x: x.view(-1).view(2, 2),
    lambda x: x.clone().requires_grad_(), lambda x: x.requires_grad_()[:1], lambda x: x[:1].expand(3, 2),
    lambda x: torch.complex(x, x).conj(), lambda x: torch.complex(x, x).conj().imag, lambda x: x.double(),
    lambda x: x.as_subclass(Logged), lambda x: x.as_subclass(Logged)[:1], lambda x: x.as_subclass(Deeper).t(),
    lambda x: torch.nn.Parameter(x),
]  # fmt: skip
"""What makes an argument, of two rows and columns."""


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=2, max_size=7),
    inside=st.booleans(),
    breaks=st.booleans(),
    changes=st.booleans(),
)
def test_nobody_hears_that_guards_ask_an_argument(calls, inside, breaks, changes):
    calls = [*calls, *calls]

    def inner(x, box):
        if changes:
            x.neg_()
        return torch.sin(x) * 2 + box[0]

    def program(x, box):
        first = inner(x, box)
        if (
            breaks
        ):  # where the frame cannot go on elsewhere (before Python 3.12): those that it calls are captured alone
            [opaque() for _ in range(1)]
        return inner(first, box)

    def around(x, box):
        mode = Heard()
        with mode:
            [opaque() for _ in range(breaks)]
            return program(x, box), mode.calls

    class Heard(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    found = []
    for function in (around if inside else program,) * 2:
        run = turret.compile(function) if found else function
        heard = []
        for make, mode in calls:
            x, box, mine = make(torch.linspace(-1, 1, 4).reshape(2, 2)), [torch.ones(1)], Heard()
            LOG.clear()
            with mine if mode else contextlib.nullcontext():
                try:
                    result = run(x, box)
                except RuntimeError as error:  # what may not be changed in place
                    result = None, str(error)
            heard.append((result[1] if inside or isinstance(result, tuple) else 0, mine.calls, list(LOG)))
        found.append(heard)
    assert found[0] == found[1]
