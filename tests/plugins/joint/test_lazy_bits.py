"""Tensors whose memory holds the conjugate or the negative of their values: inputs, views, results, captured ones."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret


def z(seed=0):
    return torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


KEPT, KEPT_NEGATIVE = z(5).conj(), z(6).conj().imag


class Holding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", z(7).conj())
        self.other = z(8).conj().imag

    def forward(self, x):
        return x * self.kept + self.other, self.kept, self.other.t()


HOLDING = Holding()


def conj():
    return (z().conj(),)


def negative():
    return (z().conj().imag,)


def plain():
    return (z(),)


def with_its_memory():
    memory = z()
    return memory.conj().imag, memory


PROGRAMS = {
    "parts of a conjugate": (lambda x: torch.sin(x.real) + x.imag * 2, conj),
    "a negative": (lambda x: torch.sin(x) * 2, negative),
    "a part of a negative": (lambda x: x[1:, ::2].exp() + x.t()[0, 0], negative),
    "parts of a conjugate made inside": (lambda x: x.conj().imag.cos() - (x * 2).conj().imag, plain),
    "a view of a negative": (lambda x: (x.t(), x, x[0]), negative),
    "a view of a conjugate": (lambda x: (x.t(), x, x.imag, x.conj().imag), conj),
    "made here": (lambda x: (x.conj(), (x * 2).conj(), (x * 2).conj().imag, torch._neg_view(x.real + 1)), plain),
    "resolved": (lambda x: (x.resolve_conj(), x.imag.resolve_neg(), x.clone(), x.imag.clone()), conj),
    "asked": (lambda x: (x.is_conj(), x.imag.is_neg(), x + 1 if x.is_conj() else x - 1), conj),
    "a conjugate written to": (lambda x: (x.mul_(2 + 1j), x.sum()), conj),
    "a negative written to": (lambda x: (x.mul_(2).add_(1), x.sin()), negative),
    "a part of a negative written to": (lambda x: (x[1].fill_(3), x.sum()), negative),
    "a negative of an input written to": (lambda x: (x.conj().imag.mul_(2), x * 1), plain),
    "a part of a real part written to": (lambda x: (x.real.select(0, -3).sin_(), x.real.cosh(), x * 1), conj),
    "a part of a conjugate's written to": (lambda x: (x.conj().real[1].mul_(3), x.conj().imag, x * 1), plain),
    "twice": (lambda x: (x.imag.add_(1), x.real.mul_(2), x.imag[0].exp_(), x * 1, x.conj() * 1), conj),
    "a negative copied to": (lambda x: x.copy_(x.t().reshape(3, 4)), negative),
    "its own conjugate copied to it": (lambda x: (x.copy_(x.conj()), x * 1), plain),
    "a result written to a negative": (lambda x: torch.add(x, 1, out=x), negative),
    "memory written to through a negative": (lambda x, y: x.mul_(2).sum() + y.real.sum(), with_its_memory),
    "memory of a negative": (lambda x, y: x * y.imag, with_its_memory),
    "spread": (lambda x: x.sum(0) + 1, lambda: (z().conj().imag[:1].expand(5, 4),)),
    "nothing": (lambda x: x.sin(), lambda: (z().conj().imag[:0],)),
    "a product": (lambda x: (x @ x.mH, x.t() @ x.conj()), conj),
    "captured": (lambda x: (x * KEPT + KEPT.imag, KEPT_NEGATIVE.sin(), KEPT, KEPT_NEGATIVE, KEPT.t()), plain),
    "in a module": (lambda x: HOLDING(x), plain),
}


def seen(value):
    """What a program can tell of a value."""
    if isinstance(value, (tuple, list)):
        return [seen(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.dtype, value.is_conj(), value.is_neg(), value.stride(), value.resolve_conj().resolve_neg()


def assert_same(mine, theirs):
    torch.testing.assert_close(mine[4], theirs[4], equal_nan=True) if isinstance(mine, tuple) else None
    if isinstance(mine, list):
        assert len(mine) == len(theirs)
        for pair in zip(mine, theirs, strict=True):
            assert_same(*pair)
    elif isinstance(mine, tuple):
        assert mine[:4] == theirs[:4]
    else:
        assert mine == theirs


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_see_what_eager_shows_them(name):
    program, arguments = PROGRAMS[name]
    fast = turret.compile(program, options={"cache": False, "on_error": "fallback"})
    for _ in range(2):
        mine, theirs = arguments(), arguments()
        assert_same(seen(fast(*mine)), seen(program(*theirs)))
        assert_same(seen(mine), seen(theirs))


def test_a_guard_tells_lazy_bits_apart():
    fast = turret.compile(lambda x: x * 2 + 1, options={"cache": False, "on_error": "raise"})
    given = (z().real, z().conj().imag, torch._neg_view(z().real), z().real)
    for x in given:
        torch.testing.assert_close(fast(x), x * 2 + 1)


def test_gradients_reach_a_negative_input():
    program = lambda x: (x.sin() * x).sum()  # noqa: E731
    fast = turret.compile(program, options={"cache": False, "on_error": "raise"})
    found = []
    for call in (program, fast):
        leaf = z().requires_grad_()
        call(leaf.conj().imag * 1 + leaf.conj().imag).backward()
        call(leaf.conj().imag).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)


def test_a_stored_graph_takes_negatives_as_well(tmp_path):
    program = lambda x: torch.sin(x) * 2  # noqa: E731
    options = {"cache_dir": str(tmp_path), "on_error": "raise"}
    for _ in range(2):
        turret.reset()
        x = z().conj().imag
        torch.testing.assert_close(turret.compile(program, options=options)(x), program(x))


VIEWS = {
    "conj": lambda x: x.conj(),
    "negative": torch._neg_view,
    "real": lambda x: x.real if x.is_complex() else x,
    "imag": lambda x: x.imag if x.is_complex() else torch._neg_view(x),
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[:, 1:] if x.shape[1] > 1 else x,
    "flat": lambda x: x.reshape(-1, 1),
}
STEPS = {
    **VIEWS,
    "sine": torch.sin,
    "scaled": lambda x: x * 2 + 1,
    "written": lambda x: x.mul_(3),
    "real part written": lambda x: ((x.real if x.is_complex() else x).select(0, -1).add_(1), x)[1],
    "part written": lambda x: (x[0].add_(1), x)[1],
    "cloned": torch.clone,
    "resolved": lambda x: x.resolve_conj().resolve_neg(),
    "as real numbers": lambda x: torch.view_as_real(x.resolve_conj())[..., 1] if x.is_complex() else x,
    "as bits": lambda x: x if x.is_complex() else x.resolve_neg().view(torch.int32).view(torch.float32),
    "summed": lambda x: x + x.sum(),
    "kept": lambda x: x,
}


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from(sorted(VIEWS)), max_size=3),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
)
def test_random_chains_of_views_and_writes_are_those_of_eager(before, steps):
    def program(x):
        made = []
        for step in steps:
            x = STEPS[step](x)
            made.append(x)
        return made

    def argument():
        memory = z()
        x = memory
        for view in before:
            x = VIEWS[view](x)
        return memory, x

    (mine, given), (theirs, same) = argument(), argument()
    fast = turret.compile(program, options={"cache": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(seen(fast(given)), seen(program(same)))
    assert_same(seen([mine, given]), seen([theirs, same]))


FORMULAS = {
    **{name: VIEWS[name] for name in ("conj", "negative", "real", "imag", "transposed", "sliced")},
    "complex factor": lambda x: x * (2 - 1j),
    "complex term": lambda x: 1j - x,
    "factor": lambda x: x * 0.5,
    "square": lambda x: x * x,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "sgn": torch.sgn,
    "adjoint": lambda x: x.mH,
    "physical": torch.conj_physical,
    "resolved": lambda x: x.resolve_conj().resolve_neg(),
    "as real numbers": lambda x: torch.view_as_real(x.resolve_conj())[..., 1] if x.is_complex() else x,
    "as complex numbers": lambda x: x if x.is_complex() else torch.view_as_complex(torch.stack([x, x * 2], -1)),
}


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(sorted(FORMULAS)), min_size=1, max_size=5), st.data())
def test_gradients_through_conjugates_and_negatives_are_those_of_eager_whichever_results_are_kept(steps, data):
    returned = data.draw(st.lists(st.integers(0, len(steps)), min_size=1, max_size=3, unique=True))
    used = data.draw(st.lists(st.sampled_from(returned), min_size=1, unique=True))

    def program(x, y):
        made = [torch.complex(x, y)]
        for step in steps:
            made.append(FORMULAS[step](made[-1]))
        return tuple(made[n] for n in returned)

    def gradients(call):
        leaves = [z(seed).real.clone().requires_grad_() for seed in (1, 2)]
        made = call(*leaves)
        losses = [(n.real.sum() * 1.5 + (n.imag**2).sum() if n.is_complex() else (n * n).sum()) for n in made]
        total = sum(loss for n, loss in zip(returned, losses, strict=True) if n in used)
        return seen(made), torch.autograd.grad(total, leaves, allow_unused=True)

    mine, its = gradients(turret.compile(program, options={"cache": False, "on_error": "raise"}))
    theirs, expected = gradients(program)
    assert_same(mine, theirs)
    torch.testing.assert_close(its, expected, equal_nan=True)


def test_slices_at_numbers_of_a_conjugated_input_in_inference_mode_are_one_graph():
    def program(x, start, end):
        x[:, -(start // 2) : end].mul_(2)
        return x + 1

    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise"})
    with torch.inference_mode():
        for start, end in ((-2, 2), (2, -3), (-3, 1)):
            x = torch.randn(2, 2, dtype=torch.complex64)
            expected, mine = x.clone().conj(), x.clone().conj()
            torch.testing.assert_close(compiled(mine, start, end), program(expected, start, end))
            torch.testing.assert_close(mine, expected)
