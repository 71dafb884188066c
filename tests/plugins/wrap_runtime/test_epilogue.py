"""Mutated inputs get their new values, however many there are and however their memory is to be read."""

from __future__ import annotations

import pytest
import torch

import turret

INPUTS = {
    "float": lambda: torch.arange(3.0),
    "int": lambda: torch.arange(3),
    "complex": lambda: torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)),
    "conjugated": lambda: INPUTS["complex"]().conj(),
    "negated": lambda: INPUTS["complex"]().conj().imag,
}


@pytest.mark.parametrize("last", sorted(INPUTS))
@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_several_inputs_are_written_to_as_in_eager(count, last):
    def program(*tensors):
        for tensor in tensors:
            tensor.mul_(2)
            tensor.add_(1)

    def written():
        kinds = ["float"] * (count - 1) + [last]
        return [INPUTS[kind]() for kind in kinds]

    compiled = turret.compile(program, options={"on_error": "raise"})
    for _ in range(2):
        mine, expected = written(), written()
        compiled(*mine)
        program(*expected)
        torch.testing.assert_close(mine, expected)
        assert all(tensor._version for tensor in mine)


_VIEWS = (lambda v: v.chunk(2), lambda v: v.split([1, 3]), lambda v: v.unbind(), lambda v: (v[1:], v.t()))


@pytest.mark.parametrize("outer", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("inner", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("views", _VIEWS)
def test_views_made_in_a_mode_inside_another_are_what_eager_s_are(outer, inner, views):
    def program(x):
        made = x * 2
        with inner():
            parts = views(made)
        return parts[0] + 1, *parts

    def told(value):
        return value.tolist(), value.is_inference(), value.requires_grad, value._is_view(), value.storage_offset()

    x = torch.arange(16.0).reshape(4, 4)
    with outer():
        ours, theirs = turret.compile(program, options={"on_error": "raise"})(x), program(x)
    assert [*map(told, ours)] == [*map(told, theirs)]
