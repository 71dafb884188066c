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
