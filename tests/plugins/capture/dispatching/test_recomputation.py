"""Compiled functions under eager checkpoints: the recomputation does what the forward did, whatever came between."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import turret
from turret.errors import RecomputationError

OPTIONS = {"on_error": "raise", "cache": False, "fallback_random": True}
compiled = functools.partial(turret.compile, options=OPTIONS)
region = functools.partial(checkpoint, use_reentrant=False)


def chain(x, w):
    return torch.sin(torch.sin(x @ w).relu() @ w) * 2


def random(x, w):
    return nn.functional.dropout(torch.sin(x @ w), 0.5) * torch.rand(4)


def broken(x, w):
    y = torch.sin(x @ w).exp()
    turret.graph_break()
    return torch.tanh(y @ w) * y.shape[0]


def branching(x, w):
    y = torch.cos(x @ w)
    return torch.tanh(y @ w) * y if y.sum() > 0 else y.exp()


def viewing(x, w):
    return torch.tanh(x.t() @ x).exp() @ w.t()[:4] + x.mean()


def writing(x, w):
    y = x * 1
    y[0] = w[0]
    return y.mul_(w.sum()).sin() @ w


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 4))

    def forward(self, x, w):
        return self.layers(x) @ w


PIECES = {f.__name__: f for f in (chain, random, broken, branching, viewing, writing)}


def gradients(call, x, w, times=1):
    """What a call gives, and its gradients; the state of the random generator is part of it."""
    torch.manual_seed(7)
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    out = call(x, w)
    state = torch.get_rng_state()
    for left in reversed(range(times)):
        out.sum().backward(retain_graph=left > 0)
    assert torch.equal(state, torch.get_rng_state())
    return out.detach(), x.grad, w.grad, torch.rand(2)


def keep_products(context, op, *args, **kwargs):
    keep = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Callable:
    """A piece that is an object: its ``__call__`` is what is compiled."""

    def __call__(self, x, w):
        return chain(x, w)


def several(make):
    a, b = make(chain), make(viewing)

    def call(x, w):
        y = a(x, w)
        return a(b(y.sin() @ w, w) + 1, w) * y

    return lambda x, w: region(call, x, w)


def nested(make):
    a, b = make(chain), make(random)
    return lambda x, w: region(lambda x, w: region(lambda x, w: b(a(x, w), w) * x, a(x, w), w) + b(x, w), x, w)


def closures(make):
    return lambda x, w: region(make(lambda x: torch.sin(x @ w).exp()), x)


def inner_gradient(make):
    fast = make(chain)

    def call(x, w):
        y = fast(x, w)
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        return y * gradient.detach()

    return lambda x, w: region(call, x * 1, w, early_stop=False)


def in_sequence(make):
    torch.manual_seed(3)
    layers = nn.Sequential(*(make(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) for _ in range(4)))
    return lambda x, w: checkpoint_sequential(layers, 2, x @ w, use_reentrant=False)


def modules(make):
    torch.manual_seed(3)
    block = make(Block())
    return lambda x, w: region(block, region(block, x, w), w)


def through(**options):
    return lambda make: functools.partial(region, make(chain), **options)


def nothing_changed():
    return contextlib.nullcontext(), contextlib.nullcontext()


CASES = {
    **{name: lambda make, piece=piece: functools.partial(region, make(piece)) for name, piece in PIECES.items()},
    "without a determinism check": through(determinism_check="none"),
    "without an early stop": through(early_stop=False),
    "selective": through(context_fn=functools.partial(create_selective_checkpoint_contexts, keep_products)),
    "with contexts": through(context_fn=nothing_changed),
    "with a mode in the forward alone": through(context_fn=lambda: (Watching(), contextlib.nullcontext())),
    "without random numbers": through(preserve_rng_state=False),
    "reentrant": lambda make: functools.partial(checkpoint, make(random), use_reentrant=True),
    "several pieces": several,
    "nested": nested,
    "an object": lambda make: functools.partial(region, make(Callable())),
    "a closure compiled inside": closures,
    "gradients taken inside": inner_gradient,
    "sequential": in_sequence,
    "modules": modules,
    "nothing saved": lambda make: functools.partial(region, make(lambda x, w: x * 2 + w.sum())),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_under_a_checkpoint_are_those_of_eager(name):
    eager, fast = CASES[name](lambda f: f), CASES[name](compiled)
    once = name in ("selective", "reentrant")
    for times in (1, 1, 1 if once else 2):
        x, w = torch.randn(4, 4), torch.randn(4, 4)
        torch.testing.assert_close(gradients(fast, x, w, times), gradients(eager, x, w, times), rtol=1e-3, atol=1e-4)


def test_autocast_is_what_it_was_in_the_forward():
    def under(call, dtype):
        def run(x, w):
            with torch.autocast("cpu", dtype=dtype):
                return region(call, x, w)

        return run

    fast, x, w = compiled(chain), torch.randn(4, 4), torch.randn(4, 4)
    found = [gradients(under(fast, dtype), x, w)[0] for dtype in (torch.bfloat16, torch.float16)]
    wanted = [gradients(under(chain, dtype), x, w)[0] for dtype in (torch.bfloat16, torch.float16)]
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.1)


def test_a_size_that_becomes_dynamic_in_between_does_not_change_what_is_recomputed():
    def sized(x):
        y = torch.sin(x)
        return torch.where(y > 0, y.exp(), y * x.shape[0]).cumsum(0)

    fast, leaves, results = compiled(sized), [], []
    for size in (3, 5, 7, 3, 5):
        leaves.append(torch.randn(size, 4, requires_grad=True))
        results.append(region(fast, leaves[-1]))
    for leaf, result in reversed(list(zip(leaves, results, strict=True))):
        result.sum().backward()
        (wanted,) = torch.autograd.grad(sized(leaf).sum(), leaf)
        torch.testing.assert_close(leaf.grad, wanted)


def test_what_the_forward_ran_as_python_is_recomputed_as_python():
    fast, x, w = compiled(chain), torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    with Watching():
        first = region(fast, x, w)
    region(fast, x, w)
    first.sum().backward()
    (wanted,) = torch.autograd.grad(chain(x, w).sum(), x)
    torch.testing.assert_close(x.grad, wanted)


def test_a_recomputation_that_cannot_be_the_same_is_an_error_that_says_why():
    fast, x, w = compiled(chain), torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    out = region(fast, x, w, context_fn=lambda: (contextlib.nullcontext(), Watching()))
    with pytest.raises(RecomputationError, match="number of torch dispatch modes is 1, expected 0"):
        out.sum().backward()


def test_a_recomputation_that_calls_something_else_is_an_error_that_says_what():
    first, second, x = compiled(lambda x: x.sin()), compiled(lambda x: x.exp()), torch.randn(4, requires_grad=True)
    which = [first]
    out = region(lambda x: which[0](x), x)
    which[0] = second
    with pytest.raises(RecomputationError, match="did not call at this point"):
        out.sum().backward()


class Counting(nn.Module):
    """Its forward leaves traces in Python objects: some that it reads again, and some that it does not."""

    def __init__(self, reads):
        super().__init__()
        self.layer, self.calls, self.seen, self.reads, self.loss = nn.Linear(4, 4), 0, [], reads, None

    def forward(self, x, w):
        y = torch.sin(self.layer(x)) @ w
        self.loss = y.mean()
        if self.reads:
            self.calls += 1
            self.seen.append(self.calls)
            y = y * self.calls
        return y.exp()


@pytest.mark.parametrize("reads", [False, True])
def test_a_function_that_changes_what_it_reads_is_recomputed_as_in_eager(reads):
    found, graphs = [], []

    class Watch:
        @turret.hookimpl
        def turret_event(self, event):
            if event.kind == "fallback":
                graphs.append(event.message)

    for make in (lambda m: m, functools.partial(turret.compile, options=OPTIONS, plugins=[Watch()])):
        torch.manual_seed(2)
        module = Counting(reads)
        fast, w = make(module), torch.randn(4, 4)
        for _ in range(3):
            x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
            region(fast, x, w).sum().backward()
            found.append((x.grad, module.calls, list(module.seen), module.loss.detach()))
    torch.testing.assert_close(found[3:], found[:3])
    assert bool(graphs) == reads


def test_an_exception_of_the_forward_is_eagers():
    def indexing(x, n):
        return (x.exp() @ x)[n]

    fast, x = compiled(indexing), torch.randn(4, 4, requires_grad=True)
    index = torch.tensor(9)
    for call in (indexing, fast):
        with pytest.raises(IndexError):
            region(call, x, index)
    region(fast, x, torch.tensor(1)).sum().backward()


def test_nothing_outlives_a_region():
    fast, w = compiled(chain), torch.randn(4, 4)
    x = torch.randn(4, 4, requires_grad=True)
    out = region(fast, x, w)
    held = weakref.ref(out.grad_fn)
    out.sum().backward()
    del out
    gc.collect()
    assert held() is None


@st.composite
def regions(draw, depth=2):
    """A region: its pieces in order, each compiled or not, or a region of its own."""
    inner = regions(depth=depth - 1) if depth else st.nothing()
    pieces = st.tuples(st.sampled_from(sorted(PIECES)), st.booleans())
    return (
        draw(st.lists(pieces | inner, min_size=1, max_size=3)),
        {"early_stop": draw(st.booleans()), "determinism_check": draw(st.sampled_from(["default", "none"]))},
    )


FAST = {name: compiled(piece) for name, piece in PIECES.items()}


def run(part, x, w, fast):
    """A drawn piece or region."""
    if isinstance(part[0], str):
        name, wanted = part
        return torch.tanh((FAST[name] if wanted and fast else PIECES[name])(x, w))
    pieces, options = part

    def body(x, w):
        for piece in pieces:
            x = run(piece, x, w, fast) + x
        return x

    return region(body, x, w, **options)


@settings(deadline=None, max_examples=25)
@given(st.lists(regions(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_random_regions_have_the_gradients_of_eager_in_any_order_of_backward(drawn, order):
    inputs = [(torch.randn(n + 4, 4).double()[n:], torch.randn(4, 4).double() / 2) for n in range(len(drawn))]
    turns = list(range(len(drawn)))
    order.shuffle(turns)
    found = []
    for fast in (False, True):
        torch.manual_seed(1)
        leaves = [(x.clone().requires_grad_(), w.clone().requires_grad_()) for x, w in inputs]
        results = [run(part, *leaf, fast) for part, leaf in zip(drawn, leaves, strict=True)]
        for turn in turns:
            results[turn].sum().backward()
        found.append([(r.detach(), x.grad, w.grad) for r, (x, w) in zip(results, leaves, strict=True)])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)
