"""Sizes that a tensor's data give: programs that take any of them do what eager does for each, errors among it."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import turret
from turret.hooks.events import product_text


def _written(x, at, value):
    made = x.clone()
    made[at] = value
    return made


ones, zeros, arange = torch.ones, torch.zeros, torch.arange
PROGRAMS = {
    "parts": lambda x, n: (x[:n] * 2, x[n:] * 2, x[-n:] + 1, x.narrow(0, 1, n) * 2),
    "element": lambda x, n: x[n] + 1,
    "split": lambda x, n: x.split([n, x.shape[0] - n]),
    "made": lambda x, n: (zeros(n) + ones(n), torch.full((n, 2), 3.0).sum(), arange(n) * 2, torch.eye(n) + 1),
    "ranges": lambda x, n: (arange(n, 5), arange(n, 0, -1)),
    "numbers": lambda x, n: (max(n, 3), min(n, 2), n // 2, n % 3, -n, abs(n), n == 1, n >= 0, n < 2, float(n), n / 2),
    "with numbers": lambda x, n: (x * n + n, x * (n == 1), x * max(n, 1)),
    "expanded": lambda x, n: (x[:1].expand(n) * 2, x.repeat(n) + 1, ones(1, 3).expand(n, 3).contiguous()),
    "viewed": lambda x, n: (zeros(n, 6).view(-1) + 1, zeros(n * 2, 3).view(n, 6) + 1, ones(n).view(3)),
    "broadcast": lambda x, n: zeros(n) + ones(5),
    "broadcast outwards": lambda x, n: x[:n, None] * x[None, :n] + ones(n, 1) * ones(1, n),
    "beside an input": lambda x, n: ones(n) * x,
    "in place": lambda x, n: x.clone().add_(ones(n)),
    "copied": lambda x, n: x.clone().copy_(ones(n)),
    "joined": lambda x, n: (torch.cat([x[:n], x]) * 2, torch.stack([ones(n), ones(n) * 2]).sum(0)),
    "stacked": lambda x, n: torch.stack([ones(n), ones(2)]),
    "sums": lambda x, n: (x[:n].sum(), x[:n].mean(), x[:n].prod(), x[:n].cumsum(0), (x[:n] > 0).all()),
    "largest": lambda x, n: x[:n].max(),
    "largest of rows": lambda x, n: ones(n, 3).amax(0),
    "largest in rows": lambda x, n: ones(n, 3).amax(1),
    "place of the largest": lambda x, n: x[:n].argmax(),
    "middle": lambda x, n: x[:n].median(),
    "most frequent": lambda x, n: x[:n].mode()[0],
    "sorted": lambda x, n: (x[:n].sort()[0], x[:n].topk(1)[0]),
    "products": lambda x, n: (ones(n, 4) @ ones(4, 3), ones(4, n) @ ones(n, 3), torch.outer(x[:n], x)),
    "squeezed": lambda x, n: (ones(n, 3) + 1).squeeze(),
    "squeezed at one": lambda x, n: (ones(n, 3) + 1).squeeze(0),
    "squeezed at some": lambda x, n: (ones(n, 3) + 1).squeeze((0, 1)),
    "squeezed places": lambda x, n: (x < n).nonzero().squeeze(),
    "masked": lambda x, n: x[x < n].sum() + x[x < n].numel(),
    "masked, broadcast": lambda x, n: x[x < n] + ones(5),
    "masked, joined": lambda x, n: torch.stack([x[x < n], ones(5)]),
    "unique": lambda x, n: x.clamp(max=n).unique() + ones(3),
    "written to": lambda x, n: (_written(x, slice(None, n), 7.0), _written(x, slice(0, n), ones(n))),
    "written over": lambda x, n: _written(x, slice(0, 2), ones(n)),
    "scattered": lambda x, n: zeros(n + 1).slice_scatter(ones(1), 0, 1, 2),
    "indexed": lambda x, n: ones(n + 1)[torch.tensor([0, -1])],
    "embedded": lambda x, n: F.embedding(arange(n), ones(7, 2)),
    "padded": lambda x, n: (F.pad(x, (0, n)), F.pad(ones(1, 1, n + 1), (1, 1), mode="replicate")),
    "resized": lambda x, n: F.interpolate(ones(1, 1, n + 1), size=3),
    "resized to a size": lambda x, n: F.interpolate(ones(1, 1, 3), size=n),
    "resized, unread": lambda x, n: F.interpolate(ones(1, 1, 3), size=n).shape[0],
    "resized smoothly": lambda x, n: F.interpolate(ones(1, 1, n + 1, 2), size=(3, 3), mode="bilinear"),
    "pooled": lambda x, n: F.avg_pool1d(ones(1, 1, n + 1), 2),
    "convolved": lambda x, n: F.conv1d(ones(1, 1, n + 3), ones(1, 1, 3)),
    "normalised": lambda x, n: (F.layer_norm(ones(n, 4), (4,)), F.group_norm(ones(n, 4, 2), 2)),
}


def outcome(function, *args):
    """Results to the bit, or that it raised an error of Python's or torch's."""
    try:
        result = function(*args)
    except (RuntimeError, IndexError, ValueError) as error:
        assert not isinstance(error, turret.TurretError), error
        return "raised"
    shown = lambda v: (v.dtype, tuple(v.shape), repr(v.tolist())) if isinstance(v, torch.Tensor) else (type(v), v)  # noqa: E731
    return pytree.tree_map(shown, result)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_do_what_eager_does_whatever_the_size(name):
    def program(x, size):
        return PROGRAMS[name](x, size.item())

    compiled = turret.compile(program, fullgraph=True)
    for size in (3, 2, 5, 1, 0, 6, -1):
        given = torch.arange(1.0, 6.0), torch.tensor(size)
        assert outcome(compiled, *given) == outcome(program, *given), size


@pytest.mark.parametrize("correction", [1, 3])
def test_gradients_of_a_variance_without_degrees_of_freedom_are_eagers(correction):
    def program(x):
        return x.var(0, correction=correction)

    compiled = turret.compile(program, dynamic=True)
    for size in (5, 3, 4, 1):
        found, expected = [], []
        for function, kept in ((compiled, found), (program, expected)):
            x = torch.linspace(-1, 1, 2 * size).view(size, 2).requires_grad_()
            result = function(x)
            result.sum().backward()
            kept += result.detach(), x.grad
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_graphs_are_printed_whatever_their_strides_depend_on():
    texts = []

    class Watch:
        @turret.hookimpl
        def turret_event(self, event):
            texts.append(product_text(event))

    options = {"cache": False, "on_error": "raise"}
    compiled = turret.compile(
        lambda n: ones(1, 1, n.item() + 1) * 2, fullgraph=True, plugins=[Watch()], options=options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", turret.TurretWarning)
        assert compiled(torch.tensor(2)).shape == (1, 1, 3)
    assert any("strides [Max(1, " in text for text in texts)
