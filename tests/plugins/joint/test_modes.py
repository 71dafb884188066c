"""Grad mode, inference mode, autocast, dropout, checkpoints: what the modes of the program leave in the graph."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import turret
from tests.plugins.joint_harness import assert_same, compiled


def test_a_graph_without_gradients_is_traced_for_inference():
    weight = torch.randn(4, 4, requires_grad=True)
    made = compiled(lambda x, w: (x @ w).sin())
    with torch.no_grad():
        value = made(torch.ones(3, 4), weight)
    assert not made.signature.training and not value.requires_grad
    made(torch.ones(3, 4), weight)
    assert made.signature.training


def test_inference_mode_gives_inference_tensors_and_no_backward():
    made = compiled(lambda x, w: (x @ w).sin())
    with torch.inference_mode():
        value = made(torch.ones(3, 4), torch.ones(4, 4, requires_grad=True))
        assert value.is_inference() and not made.signature.training


def test_inference_tensors_may_be_written_to_in_inference_mode():
    with torch.inference_mode():
        assert_same(lambda x: (x.add_(1), x * 2)[1], [torch.ones(3)], backward=False)


def test_parts_under_no_grad_and_enable_grad():
    def function(x, y):
        with torch.no_grad():
            frozen = x * y
            with torch.enable_grad():
                live = x.sin() * 2
        return frozen, live, x * y.detach(), frozen * y

    made = assert_same(function, [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)])
    assert [o.requires_grad for o in made.signature.outputs] == [False, True, True, True]


def test_enable_grad_inside_a_call_without_gradients():
    def function(x):
        with torch.enable_grad():
            y = x.sin()
        return y, x * 2

    with torch.no_grad():
        made = assert_same(function, [torch.randn(3, requires_grad=True)])
    assert made.signature.training and not made.signature.grad_enabled


def viewed_with_gradients(x):
    with torch.enable_grad():
        return x.view(-1)


def viewed_without_and_then_with(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        return y.view(-1), x[0]


def viewed_beside_a_result(x):
    with torch.enable_grad():
        y = x.view(-1)
        return y, y * 2


def viewed_twice(x):
    with torch.enable_grad():
        y = x.transpose(0, 1)
    return y, y.detach()[0], x.detach().view(-1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("kind", ["leaf", "computed", "plain"])
@pytest.mark.parametrize(
    "function", [viewed_with_gradients, viewed_without_and_then_with, viewed_beside_a_result, viewed_twice]
)
def test_views_of_an_input_have_the_history_of_the_mode_that_they_were_made_in(function, kind, mode):
    seen = []
    for run in (function, compiled(function)):
        leaf = torch.ones(2, 2, requires_grad=kind != "plain")
        with mode():
            made = run(leaf * 1 if kind == "computed" else leaf)
        made = made if isinstance(made, tuple) else (made,)
        live = [v.sum() for v in made if v.requires_grad]
        grads = torch.autograd.grad(live, leaf, allow_unused=True) if live else ()
        seen.append(([(v.requires_grad, v.is_leaf) for v in made], [None if g is None else g.tolist() for g in grads]))
    assert seen[0] == seen[1]


def test_a_grad_mode_left_behind_holds_for_the_caller():
    def function(x):
        y = x * 2
        torch._C._set_grad_enabled(False)
        return y, x * 3

    made, seen = compiled(function), []
    for run in (function, made):
        try:
            seen.append(([v.requires_grad for v in run(torch.randn(3, requires_grad=True))], torch.is_grad_enabled()))
        finally:
            torch.set_grad_enabled(True)
    assert made.signature.grad_enabled_after is False
    assert seen[0] == seen[1] == ([True, False], False)


def test_gradients_are_computed_only_where_needed():
    def function(x, w, frozen):
        return ((x @ w) @ frozen).relu()

    args = [torch.randn(3, 4), torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)]
    made = assert_same(function, args)
    backward = [n for n in made.joint.module.graph.nodes if n.meta.get("partitioner_tag") == "is_backward"]
    assert sum(n.target is torch.ops.aten.mm.default for n in backward) == 2
    gradients = made.joint.module.graph.output_node().args[0][made.joint.num_forward_outputs :]
    assert [g is None for g in gradients] == [True, False, True]


def test_inputs_that_no_gradient_reaches_get_none():
    def function(x, unused, integer):
        return x * 2 + integer, unused.detach() + 1

    args = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True), torch.arange(3)]
    assert_same(function, args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_and_inside(dtype):
    def inside(x, w):
        with torch.autocast("cpu", dtype=dtype):
            y = x @ w
        return y.float().sin(), y

    def around(x, w):
        return torch.nn.functional.layer_norm((x @ w), (4,)) + x.sum()

    args = [torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    assert_same(inside, args, tolerance=2e-2)
    made = compiled(around)
    with torch.autocast("cpu", dtype=dtype):
        expected, actual = around(*args), made(*args)
    assert expected.dtype == actual.dtype
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    actual.sum().backward()


def test_a_weight_cast_twice_under_autocast_gets_both_gradients():
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w).sum().float() + (x.sin() @ w).sum().float()

    assert_same(function, [torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)], tolerance=2e-2)


def test_dropout_draws_the_same_in_forward_and_backward():
    def function(x):
        return torch.nn.functional.dropout(x.sin(), 0.5).exp()

    made = compiled(function)
    x = torch.linspace(0.1, 1, 1000).requires_grad_()
    y = made(x)
    y.sum().backward()
    kept = y.detach() != 1
    assert 300 < kept.sum() < 700
    expected = torch.where(kept, y.detach() * 2 * x.detach().cos(), 0.0)
    torch.testing.assert_close(x.grad, expected)
    assert not torch.equal(made(x) != 1, kept)


def test_a_checkpoint_with_dropout_recomputes_the_same_mask():
    def block(x):
        return torch.nn.functional.dropout(x.sin(), 0.5).exp()

    made = compiled(lambda x: checkpoint(block, x, use_reentrant=False) * 3)
    x = torch.linspace(0.1, 1, 1000).requires_grad_()
    y = made(x)
    y.sum().backward()
    kept = (y.detach() / 3 - 1).abs() > 1e-6
    expected = torch.where(kept, y.detach() * 2 * x.detach().cos(), 0.0)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)


def test_the_generator_moves_as_in_eager_where_nothing_is_drawn():
    state = torch.get_rng_state()
    made = compiled(lambda x: torch.nn.functional.dropout(x, 0.5, training=False) * 2)
    made(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_tracing_draws_no_random_numbers():
    made = compiled(lambda x: torch.rand_like(x) + x, decompose=False)
    torch.manual_seed(3)
    first = made(torch.zeros(4))
    torch.manual_seed(3)
    assert torch.equal(made(torch.zeros(4)), first)


def test_backward_nodes_name_the_line_of_the_forward():
    def function(x):
        return x.sin().exp()

    made = assert_same(function, [torch.randn(3, requires_grad=True)])
    traces = [
        n.meta.get("stack_trace", "")
        for n in made.joint.module.graph.nodes
        if n.op == "call_function" and n.meta["partitioner_tag"] == "is_backward"
    ]
    assert traces and all("x.sin().exp()" in t for t in traces)


UNINITIALIZED = {
    "empty": lambda x: torch.empty(3),
    "of ints": lambda x: (torch.empty(3, dtype=torch.int32), torch.empty(2, dtype=torch.uint8)),
    "of truth": lambda x: torch.empty(3, dtype=torch.bool),
    "complex": lambda x: torch.empty(3, dtype=torch.complex64),
    "half": lambda x: torch.empty(2, dtype=torch.bfloat16),
    "like": lambda x: torch.empty_like(x).add_(x),
    "strided": lambda x: torch.empty_strided((2, 2), (1, 2)),
    "permuted": lambda x: torch.empty_permuted((2, 3), (1, 0)),
    "new": lambda x: (x.new_empty(4), x.new_empty_strided((2,), (1,))),
    "old": lambda x: torch.Tensor(3),
    "resized": lambda x: (torch.ones(2).resize_(4), x.clone().resize_(8), x.clone().resize_(1)),
    "set": lambda x: torch.empty(2).fill_(3) * x,
    "an output": lambda x: torch.add(x, x, out=torch.empty(0)),
    "a part of": lambda x: torch.empty(4)[1:3] * x,
}


@pytest.mark.parametrize("name", UNINITIALIZED)
def test_with_deterministic_algorithms_memory_that_nobody_set_holds_what_eagers_does(name):
    program, x = UNINITIALIZED[name], torch.ones(2)
    fast = turret.compile(program, options={"cache": False, "on_error": "raise"})
    fast(x)
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(fast(x), program(x), equal_nan=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        fast(x)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.testing.assert_close(fast(x), program(x), equal_nan=True)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


REFUSED = {
    "put": lambda x, i: x.put(i, x[:2]),
    "put_": lambda x, i: x.clone().put_(i, x[:2]) + 1,
    "put, accumulated": lambda x, i: x.put(i, x[:2], accumulate=True),
    "max_unpool1d": lambda x, i: torch.nn.functional.max_unpool1d(x[None, None, :2], i[None, None], 2),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("warn_only", [False, True])
def test_what_has_no_deterministic_algorithm_is_refused_as_in_eager(name, warn_only, torchs_settings):
    def outcome(function):
        try:
            return function(torch.arange(6.0), torch.tensor([1, 3])).tolist()
        except RuntimeError as error:
            return str(error)

    compiled = turret.compile(REFUSED[name], options={"cache": False, "on_error": "raise"})
    assert outcome(compiled) == outcome(REFUSED[name])
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    assert outcome(compiled) == outcome(REFUSED[name])
