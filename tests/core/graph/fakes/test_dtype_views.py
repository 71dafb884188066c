"""Inputs that are views of another dtype: any base will do, sizes may change, and memory is shared as eager's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

OPTIONS = {"on_error": "raise", "cache": False}

VIEWS = {
    "complex of a last dimension of two": ((4, 5, 2), torch.float32, torch.view_as_complex),
    "complex of a flat base": ((40,), torch.float32, lambda b: torch.view_as_complex(b.view(4, 5, 2))),
    "complex of a part": ((4, 6), torch.float64, lambda b: torch.view_as_complex(b[:, 2:4])),
    "part of complex": ((4, 5, 2), torch.float32, lambda b: torch.view_as_complex(b)[1:, ::2]),
    "complex of another layout": ((5, 2, 4), torch.float32, lambda b: torch.view_as_complex(b.mT.contiguous())),
    "conjugated": ((40,), torch.float32, lambda b: torch.view_as_complex(b.view(4, 5, 2)).conj()),
    "negated": ((4, 3), torch.complex64, lambda b: b.conj().imag[1:]),
    "real": ((4, 3), torch.complex64, torch.view_as_real),
    "real part": ((4, 3), torch.complex64, lambda b: b[1:].real),
    "wider": ((4, 8), torch.float32, lambda b: b.view(torch.float64)),
    "wider of a part": ((4, 7), torch.float32, lambda b: b.view(-1)[2:14].view(2, 6).view(torch.float64)),
    "narrower": ((4, 3), torch.int64, lambda b: b[1:].view(torch.int16)),
    "as wide": ((4, 3), torch.float32, lambda b: b.t().view(torch.int32)),
}  # fmt: skip


def made(name, rows=None):
    shape, dtype, view = VIEWS[name]
    shape = shape if rows is None else (shape[0] * rows, *shape[1:])
    base = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape).to(dtype)
    return base, view


def read(view):
    return view * 2, view.shape, view.stride()


def write(view):
    view.mul_(2)
    return view + 1


def write_view(view, base):
    doubled = base * 2
    return write(view), base + 1, doubled


def write_base(view, base):
    base.add_(1)
    return view + 1


def result_of(function, name, rows=None, with_base=True):
    base, view = made(name, rows)
    seen = view(base)
    return function(*((seen, base) if with_base else (seen,))), base, seen


@pytest.mark.parametrize("dynamic", (False, None, True))
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_another_dtype_is_an_input_whatever_its_base(name, dynamic):
    fast = turret.compile(read, fullgraph=True, dynamic=dynamic, options=OPTIONS)
    base, view = made(name)
    torch.testing.assert_close(fast(view(base)), read(view(base)))


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_a_view_of_another_dtype_is_one_to_its_base(name, dynamic):
    fast = turret.compile(write, fullgraph=True, dynamic=dynamic, options=OPTIONS)
    for _ in range(2):
        torch.testing.assert_close(result_of(fast, name, None, False), result_of(write, name, None, False))


@pytest.mark.filterwarnings("ignore::turret.TurretWarning")
@pytest.mark.parametrize("function", (write_view, write_base))
@pytest.mark.parametrize("name", VIEWS)
def test_writes_beside_the_base_are_seen_in_both(name, function):
    fast = turret.compile(function, options={"cache": False})
    for _ in range(2):
        torch.testing.assert_close(result_of(fast, name), result_of(function, name))


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(["complex of a last dimension of two", "part of complex", "real", "real part", "wider"]),
    rows=st.lists(st.integers(1, 4), min_size=2, max_size=4),
)
def test_sizes_of_views_of_another_dtype_change(name, rows):
    fast = turret.compile(read, fullgraph=True, options=OPTIONS)
    for count in rows:
        torch.testing.assert_close(result_of(fast, name, count, False), result_of(read, name, count, False))


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("leaf", (False, True))
@pytest.mark.parametrize("name", [n for n, (_, dtype, _) in VIEWS.items() if dtype.is_floating_point and "omplex" in n])
def test_gradients_reach_the_base_of_a_complex_view(name, leaf, dynamic):
    def gradients(function):
        base, view = made(name)
        base.requires_grad_(not leaf)
        seen = view(base)
        seen.requires_grad_()
        out = function(seen)
        (out * out).real.sum().backward()
        return out.is_leaf, (seen if leaf else base).grad

    def program(view):
        return view * view.conj() * (1 + 2j)

    fast = turret.compile(program, fullgraph=True, dynamic=dynamic, options=OPTIONS)
    torch.testing.assert_close(gradients(fast), gradients(program))
