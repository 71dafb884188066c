"""Functions of torch that are not recorded as they were called."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed

CHOICES = {
    "function": lambda m, x: torch.where(m, x, -x),
    "number": lambda m, x: torch.where(m, x, 0.5),
    "names": lambda m, x: torch.where(condition=m, input=x, other=-x),
    "method": lambda m, x: x.where(m, -x),
    "method, names": lambda m, x: x.where(condition=m, other=2.0),
    "places": lambda m, x: torch.where(m),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
@pytest.mark.parametrize("name", CHOICES)
def test_elements_are_chosen_by_masks_of_bytes_too(name, dtype):
    observed = Observed(CHOICES[name], fullgraph=True)
    for values in ([0, 1, 2], [1, 0, 0]):
        mask, x = torch.tensor(values).to(dtype), torch.arange(3.0)
        torch.testing.assert_close(observed(mask, x), CHOICES[name](mask, x))


def test_requires_grad_that_is_set_to_what_it_is_changes_nothing():
    def program(x, w):
        x.requires_grad = False
        w.requires_grad = True
        return (x * w).sum()

    observed, w = Observed(program, fullgraph=True), torch.ones(3, requires_grad=True)
    x = torch.arange(3.0)
    observed(x, w).backward()
    assert torch.equal(w.grad, x) and not x.requires_grad and not observed.fallbacks


@pytest.mark.parametrize("sizes", [(2, 3), (4, 5)])
def test_sizes_that_a_tensor_holds_are_those_of_a_reshape_and_of_a_split(sizes):
    def program(x):
        shape = torch.onnx.operators.shape_as_tensor(x)
        flat = torch.onnx.operators.reshape_from_tensor_shape(
            x, torch.cat([torch.tensor([-1]), shape[1:].prod()[None]])
        )
        return flat, *torch.tensor_split(x, torch.tensor([1])), *x.tensor_split(torch.tensor(2))

    observed = Observed(program, fullgraph=True)
    for x in (torch.randn(sizes), torch.randn(sizes)):
        found, expected = observed(x), program(x)
        torch.testing.assert_close(found, expected)
        assert all(y._is_view() for y in found)
