"""``retain_grad`` of intermediate results: the gradient is the whole one, whatever else is computed from the result."""

from __future__ import annotations

import itertools

import pytest
import torch

import turret

USES = {
    "nothing": lambda v, w: w * 2,
    "one": lambda v, w: v.sin(),
    "view": lambda v, w: v.t(),
    "piece": lambda v, w: v[0] * w,
    "written copy": lambda v, w: v.clone().mul_(w),
    "detached": lambda v, w: v.detach() * w,
    "not given": lambda v, w: (v.exp(), w * 3)[1],
}
MADE = {
    "product": lambda x, w: x * w,
    "written": lambda x, w: (x * 2).add_(w),
    "copy": lambda x, w: x.clone(),
}


@pytest.mark.parametrize("after", [False, True], ids=["at once", "after its use"])
@pytest.mark.parametrize("shown", [False, True], ids=["hidden", "shown"])
@pytest.mark.parametrize(("made", "use"), itertools.product(MADE, USES))
def test_a_retained_gradient_is_the_whole_one(made, use, shown, after):
    kept = []

    def function(x, w):
        value = MADE[made](x, w)
        if not after:
            value.retain_grad()
        found = USES[use](value, w)
        if after:
            value.retain_grad()
        kept.append(value)
        return (value, found) if shown else (found,)

    def gradients(function):
        x, w = (torch.full((2, 2), n, requires_grad=True) for n in (1.0, 2.0))
        kept.clear()
        results = function(x, w)
        sum(n * r.sum() for n, r in enumerate(results, 2)).backward()
        return kept[0].grad, x.grad, w.grad

    torch.testing.assert_close(gradients(turret.compile(function)), gradients(function))
