"""Inputs whose memory holds other bits than their values, and writes through views as another dtype."""

from __future__ import annotations

import pytest
import torch

import turret

KINDS = {
    "plain": lambda z: z,
    "conjugated": lambda z: z.conj(),
    "negated": torch._neg_view,
    "both": lambda z: torch._neg_view(z.conj()),
    "part": lambda z: z[1:].conj(),
}
PROGRAMS = {
    "a write to the real part": lambda a, b: (a.mul_(b), a.real.add_(1))[2:],
    "a write to the imaginary part": lambda a, b: (a.mul_(b), a.imag.mul_(2), a * 1)[2:],
    "the parts": lambda a, b: (a.mul_(b), a.real, a.imag)[1:],
    "the conjugate": lambda a, b: (a.mul_(b), a.conj())[1:],
    "a part of the conjugate": lambda a, b: (a.add_(b), a[1:].conj().imag)[1:],
    "nothing written": lambda a, b: (a * b, a.real, a[1:].imag, a.conj()),
}


def called(function, kind, trained):
    torch.manual_seed(0)
    z, b = torch.randn(5, dtype=torch.complex64), torch.randn(5 - (kind == "part"), requires_grad=trained)
    a = KINDS[kind](z)
    results = function(a, b)
    bits = [(t.is_conj(), t.is_neg(), t._is_view(), t.requires_grad) for t in results]
    values = [t.detach().resolve_conj().resolve_neg().clone() for t in (*results, a, z)]
    if any(t.requires_grad for t in results):
        sum(t.abs().square().sum() for t in results if t.requires_grad).backward()
        values.append(b.grad)
    return values, bits


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_conjugated_or_negated_input_that_becomes_a_result_of_gradients_is_eagers(program, kind, trained):
    function = PROGRAMS[program]
    compiled = turret.compile(function, options={"on_error": "raise"})
    values, bits = called(compiled, kind, trained)
    expected, expected_bits = called(function, kind, trained)
    torch.testing.assert_close(values, expected)
    assert bits == expected_bits


WRITES = {
    "a number to all": lambda z, x: z.view(torch.int32).copy_(x),
    "a number to some": lambda z, x: z.view(torch.int16)[1:].copy_(x),
    "a number to parts": lambda z, x: torch.view_as_real(z.view(torch.complex64)).copy_(x),
    "a number to one part": lambda z, x: torch.view_as_real(z.view(torch.complex64))[..., 0].copy_(x),
    "turned": lambda z, x: z.view(torch.int16).copy_(z.view(torch.int16).flip(0)),
    "a product": lambda z, x: z.view(torch.float32).mul_(x),
}


@pytest.mark.parametrize("shape", [(1,), (6,), (3, 4)])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_through_a_view_as_another_dtype_is_eagers(write, shape):
    function = WRITES[write]
    compiled = turret.compile(function, options={"on_error": "raise"})
    for x in (torch.tensor(2), torch.tensor(3.0)):
        mine = torch.arange(1, 1 + torch.Size(shape).numel()).view(shape)
        theirs = mine.clone()
        compiled(mine, x)
        function(theirs, x)
        assert torch.equal(mine, theirs)


def test_an_input_with_a_history_several_elements_of_which_are_one_place_is_compiled():
    def program(x, place, number):
        row = x[place]
        return row.index_fill(1, torch.tensor([number]), 1)

    memory, place = torch.arange(77.0), torch.tensor(2)
    compiled = turret.compile(program, options={"on_error": "raise"})
    for _ in range(2):
        x, y = (memory.as_strided((7, 7, 11), (11, 0, 1)).requires_grad_() for _ in "xy")
        found, expected = compiled(x, place, 0), program(y, place, 0)
        assert torch.equal(found, expected)
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(x.grad, y.grad)
