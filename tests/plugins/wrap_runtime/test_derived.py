"""Whoever asks for the gradient of a result gets all of it, as from eager, however many nodes a graph has."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.errors import DoubleBackwardError, UnsupportedError

OPTIONS = {"cache": False, "on_error": "raise"}
F64 = torch.float64


def inner(x, w):
    hidden = (x @ w).sin()
    return hidden, (hidden * w).cos()


def chain(x, w):
    first = (x @ w).sin()
    second = (first * w).cos()
    return first, second, (second @ first).tanh() * x


def beside(x, w):
    hidden = (x @ w).sin()
    return hidden, x.cos(), (hidden * w).cos(), (x.exp() * hidden).sin()


def viewed(x, w):
    whole = x @ w
    upper, lower = whole[:2], whole[2:]
    return upper, lower, (upper * lower).sin()


def reshaped(x, w):
    hidden = (x @ w).sin()
    return hidden.view(2, 8), hidden.t(), (hidden.view(2, 8).reshape(4, 4) * w).cos()


def of_a_view(x, w):
    flat = x.view(-1)
    return flat, (flat[:4] * w).cos()


def nested_views(x, w):
    rows = x[1:]
    columns = rows[:, 1:]
    made = (x @ w).sin().t()
    return columns[0], rows, columns, made[1], made, rows * w[1:]


def of_attention(x, w):
    attended = torch.nn.functional.scaled_dot_product_attention(x[None, None], w[None, None], x[None, None])
    return attended, attended.contiguous(memory_format=torch.channels_last), attended.exp()


def written(x, w):
    made = x * 1
    made.mul_(w)
    return made, made.sin()


def with_a_break(x, w):
    hidden = (x @ w).sin()
    out = (hidden * w).cos()
    turret.graph_break()
    return hidden, out * hidden, out


PROGRAMS = (inner, chain, beside, viewed, reshaped, of_a_view, nested_views, of_attention, written, with_a_break)


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(4, 4, generator=generator, dtype=F64).requires_grad_() for _ in range(2))
    return x, w


def both(program: Callable, ask: Callable[[tuple, tuple], Any], **options: Any) -> tuple[Any, Any]:
    told = []
    for function in (program, turret.compile(program, options={**OPTIONS, **options})):
        given_ = leaves()
        told.append(ask(function(*given_), given_))
    return told[0], told[1]


def assert_same(pair: tuple[Any, Any]) -> None:
    expected, found = pair
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_retained_gradient_is_the_whole_one(program):
    def ask(results, given_):
        for result in results:
            result.retain_grad()
        results[-1].sum().backward()
        return [r.grad for r in results], [v.grad for v in given_]

    assert_same(both(program, ask))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_hook_sees_and_replaces_the_whole_gradient(program):
    def ask(results, given_):
        seen = []
        results[0].register_hook(lambda g: (seen.append(g.clone()), g * 2)[1])
        sum((r * r).sum() for r in results).backward()
        return seen, [v.grad for v in given_]

    assert_same(both(program, ask))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("with_leaves", [False, True])
def test_grad_of_one_result_by_another(program, with_leaves):
    def ask(results, given_):
        wanted = [*results[:-1], *(given_ if with_leaves else ())]
        return torch.autograd.grad(results[-1].square().sum(), wanted, allow_unused=True)

    assert_same(both(program, ask))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_is_asked_of_results_is_what_eager_gives(data):
    program = data.draw(st.sampled_from(PROGRAMS))
    count = len(program(*leaves()))
    places = st.integers(0, count - 1)
    hooked, retained, roots = (
        data.draw(st.sets(places)),
        data.draw(st.sets(places)),
        data.draw(st.sets(places, min_size=1)),
    )
    factor, again = data.draw(st.sampled_from([1, 2])), data.draw(st.booleans())

    def ask(results, given_):
        seen: list[Any] = []
        for n in sorted(hooked):
            results[n].register_hook(lambda g, n=n: (seen.append((n, g.clone())), g * factor)[1])
        for n in sorted(retained):
            results[n].retain_grad()
        for _ in range(1 + again):
            sum((results[n].square() * (n + 1)).sum() for n in sorted(roots)).backward(retain_graph=again)
        seen.sort(key=lambda pair: pair[0])
        return [g for _, g in seen], [r.grad for r in results], [v.grad for v in given_]

    assert_same(both(program, ask))


@pytest.mark.parametrize("asked", [[3], [0, 5], range(12)])
def test_of_many_results_those_that_somebody_looks_at_have_whole_gradients(asked):
    def layers(x, w):
        found = [x]
        for _ in range(12):
            found.append((found[-1] @ w).sin() + found[-1])
        return tuple(found[1:])

    def ask(results, given_):
        for n in asked:
            results[n].retain_grad()
        (results[-1].sum() + results[6].square().sum()).backward()
        return [r.grad for r in results], [v.grad for v in given_]

    with warnings.catch_warnings():
        warnings.simplefilter("error", turret.errors.TurretWarning)
        assert_same(both(layers, ask))


@pytest.mark.parametrize("asked", [[], [3], [0, 50], range(0, 70, 9)])
def test_results_of_a_long_loop_lead_to_the_nearest_and_have_whole_gradients(asked):
    def loop(x, w):
        found = [x]
        for step in range(70):
            found.append((found[-1] * w).sin() + (found[-5] if step % 7 == 6 else 0))
        return tuple(found[1:])

    def ask(results, given_):
        for n in asked:
            results[n].retain_grad()
        (results[-1].sum() + results[33].square().sum()).backward(retain_graph=True)
        (gradient,) = torch.autograd.grad(results[60].sum(), results[2])
        return [r.grad for r in results], [v.grad for v in given_], gradient

    assert_same(both(loop, ask))


def test_a_hook_stays_when_its_result_is_gone():
    def ask(results, given_):
        seen: list[Any] = []
        kept = list(results)
        kept[0].register_hook(lambda g: seen.append(g.clone()))
        last = kept.pop()
        del results, kept
        last.sum().backward()
        return seen

    for program in (inner, viewed):
        told = []
        for function in (program, turret.compile(program, options=OPTIONS)):
            told.append(ask(function(*leaves()), None))
        assert len(told[0]) == 1
        assert_same((told[0], told[1]))


def test_an_input_that_was_written_to_has_the_gradient_of_what_was_computed_of_it():
    def program(x, w):
        x.mul_(w)
        return x.sin(), x.sin() * w

    told = []
    for function in (program, turret.compile(program, options=OPTIONS)):
        seen: list[Any] = []
        x, w = leaves()
        x = x * 1
        first, second = function(x, w)
        x.register_hook(lambda g, seen=seen: seen.append(g.clone()))
        first.retain_grad()
        second.sum().backward()
        told.append((seen, first.grad, w.grad))
    assert_same((told[0], told[1]))


def test_gradients_of_gradients_go_through_results():
    def ask(results, given_):
        (found,) = torch.autograd.grad(results[-1].sum(), results[0], create_graph=True)
        results[0].retain_grad()
        (found * found).sum().backward()
        return found, results[0].grad, [v.grad for v in given_]

    for program in (inner, chain, beside):
        assert_same(both(program, ask))


def test_a_third_order_through_a_result_is_an_error():
    x, w = leaves()
    hidden, out = turret.compile(inner, options=OPTIONS)(x, w)
    (first,) = torch.autograd.grad(out.sum(), hidden, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="that of a result that others were computed of"):
        torch.autograd.grad(first.square().sum(), w, create_graph=True)


def hooked(x, w):
    hidden = (x @ w).sin()
    hidden.register_hook(lambda g: g * 3)
    hidden.register_hook(lambda g: g + 1)
    return hidden, (hidden * w).cos()


def removed(x, w):
    hidden = (x @ w).sin()
    hidden.register_hook(lambda g: g * 3)
    handle = hidden.register_hook(lambda g: g + 1)
    turret.graph_break()
    handle.remove()
    return hidden, (hidden * w).cos()


def of_the_frame(x, w):
    hidden, factor = (x @ w).sin(), w.cos()
    hidden.register_hook(lambda g: g * factor)
    return hidden, (hidden * w).cos()


@pytest.mark.parametrize("program", [hooked, removed, of_the_frame], ids=lambda p: p.__name__)
def test_hooks_of_the_program_come_before_those_of_its_caller(program):
    def ask(results, given_):
        seen: list[Any] = []
        results[0].retain_grad()
        results[0].register_hook(lambda g: seen.append(g.clone()))
        sum((r * r).sum() for r in results).backward()
        return seen, results[0].grad, [v.grad for v in given_]

    assert_same(both(program, ask))


def test_where_a_backward_can_end_nowhere_else_who_looks_is_told():
    class Hooked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = (torch.nn.Linear(4, 4, dtype=F64) for _ in range(2))
            self.first.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))

        def forward(self, x, w):
            hidden = self.first(x * w)
            return hidden, self.second(hidden)

    def ask(results, given_):
        results[-1].sum().backward()
        return [v.grad for v in given_]

    assert_same(both(Hooked(), ask))
    hidden, out = turret.compile(Hooked(), options=OPTIONS)(*leaves())
    hidden.retain_grad()
    with pytest.raises(UnsupportedError, match="cannot end there"):
        out.sum().backward()


class Compiled:
    """Names of what is compiled or reported."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        self.names.append(event.name or "")


def test_a_backward_between_results_is_compiled_when_somebody_looks():
    compiled = Compiled()
    function = turret.compile(inner, options=OPTIONS, plugins=[compiled])
    for _ in range(2):
        sum(r.sum() for r in function(*leaves())).backward()
    assert compiled.names and not any("until" in name for name in compiled.names)
    hidden, out = function(*leaves())
    hidden.retain_grad()
    out.sum().backward()
    assert any("until" in name for name in compiled.names)


def test_what_a_call_saved_goes_when_its_results_do():
    x, w = leaves()
    function = turret.compile(lambda x, w: ((h := x @ w).exp(), h.exp().exp()), options=OPTIONS)
    gc.disable()
    try:
        for _ in range(2):
            results = function(x, w)
            memories = [weakref.ref(r.untyped_storage()) for r in results]
            del results
            assert all(m() is None for m in memories)
    finally:
        gc.enable()


def test_threads_over_one_call_do_not_mix_their_gradients():
    x, w = leaves()
    hidden, out = turret.compile(inner, options=OPTIONS)(x, w)
    plain, result = inner(x, w)
    expected = torch.autograd.grad(result.sum(), [plain, x, w], retain_graph=True)
    wrong: list[Any] = []

    def take() -> None:
        for _ in range(20):
            found = torch.autograd.grad(out.sum(), [hidden, x, w], retain_graph=True)
            if not all(torch.allclose(f, e) for f, e in zip(found, expected, strict=True)):
                wrong.append(found)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sizes_that_change_have_one_backward_between_results():
    function = turret.compile(inner, dynamic=True, options=OPTIONS)
    for size in (3, 5, 7):
        x, w = (torch.randn(size, size, dtype=F64, requires_grad=True) for _ in range(2))
        expected = torch.autograd.grad((r := inner(x, w))[1].sum(), [r[0], w])
        hidden, out = function(x, w)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), [hidden, w]), expected)
