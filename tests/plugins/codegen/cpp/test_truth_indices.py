"""Elements that truth values point to: an index may be one as a number, or be computed from some."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import turret

TRUTHS: dict[str, Callable] = {
    "greater": lambda b, h: b > 0,
    "not": lambda b, h: ~(b > 0),
    "and": lambda b, h: (b > 0) & (h > 0),
    "sign bit": lambda b, h: torch.signbit(b),
    "read": lambda b, h: (b > 0).clone(),
    "nan": lambda b, h: b.isnan(),
}
NUMBERS: dict[str, Callable] = {
    "long": lambda t: t.long(),
    "by int8": lambda t: t.to(torch.int8).long(),
    "by float": lambda t: t.float().long(),
    "next": lambda t: t.long() + 1,
    "multiple": lambda t: t.long() * 2,
    "chosen": lambda t: torch.where(t, 1, 0),
    "other way": lambda t: torch.where(t, 0, 1),
    "from the end": lambda t: t.long() - 2,
    "product": lambda t: t.long() * t.flip(0).long(),
}
READS: dict[str, Callable] = {
    "gather": lambda h, i: h.gather(1, i % h.shape[1]),
    "row": lambda h, i: h[0][i],
    "rows": lambda h, i: h[i],
    "flat": lambda h, i: h.flatten()[i],
    "written": lambda h, i: torch.zeros_like(h).scatter(1, i % h.shape[1], 1.0),
    "added": lambda h, i: torch.zeros_like(h).index_put((i.flatten(),), h[0], accumulate=True),
}


@pytest.mark.thorough
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("truth", TRUTHS)
def test_elements_that_truth_values_point_to_are_eagers(truth: str, read: str) -> None:
    def function(b: torch.Tensor, h: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        return [READS[read](source, number(TRUTHS[truth](b, h))) for number in NUMBERS.values()]

    for size in (3, 16):
        b, h, source = torch.randn(3, size, size, generator=torch.Generator().manual_seed(size))
        found = turret.compile(function, dynamic=False, options={"on_error": "raise"})(b, h, source)
        torch.testing.assert_close(found, function(b, h, source))
