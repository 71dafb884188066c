"""Attention that is written out becomes one call where that is faster and nobody can tell; else it stays as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

import turret
from turret.plugins.graph_pass.attention import calls as attention

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Calls:
    """Plugin: counts calls of attention in the graphs that are scheduled, and says how those of the forward mask."""

    def __init__(self) -> None:
        self.count = 0
        self.kinds: list[str] = []

    @turret.hookimpl
    def turret_graph_pass(self, phase: str, module: torch.fx.GraphModule) -> bool:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        for node in module.graph.find_nodes(op="call_function", target=op) if phase == "joint" else ():
            causal = len(node.args) > 4 and node.args[4]
            masked = node.kwargs.get("attn_mask") is not None
            self.kinds.append("causal" if causal else "masked" if masked else "plain")
        return False

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.count += sum(step.kind == "attention" for step in event.product.templates)


def compiled(function: Callable, **options: Any) -> tuple[Callable, Calls]:
    calls = Calls()
    made = turret.compile(function, plugins=[calls], options={"on_error": "raise", "cache": False}, **options)
    return made, calls


def qkv(*shape: int, queries: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    found = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    return [found[0][..., :queries, :] if queries else found[0], *found[1:]]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


def scaled_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.matmul(q * 0.25, k.mT).softmax(-1)
    weights = F.dropout(weights, 0.1, training=False)
    return weights.matmul(v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def in_wider_type(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.125
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v) + 1


def viewed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q, k, v).view(-1, q.shape[-2], q.shape[-1])


@pytest.mark.parametrize("function", [plain, scaled_query, in_wider_type, viewed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("queries", [0, 65])
def test_what_is_written_out_becomes_a_call(function: Callable, queries: int) -> None:
    args = qkv(2, 3, 70, 8, queries=queries)
    made, calls = compiled(function)
    got, want = made(*args), function(*args)
    assert calls.count == 1
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_attention_over_three_dimensions_becomes_a_call() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), 2), v)

    args = qkv(6, 70, 8)
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-5, atol=1e-5)
    assert calls.count == 1


@pytest.mark.parametrize("beta", [0, 1])
def test_a_product_that_adds_is_one(beta: int) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        added = torch.empty(6, 70, 70) if beta == 0 else torch.where(m, 0.0, LEAST)
        return torch.bmm(torch.baddbmm(added, q, k.transpose(-1, -2), beta=beta, alpha=0.3).softmax(-1), v)

    args = (*qkv(6, 70, 8), (torch.arange(70) < 30).expand(6, 70, 70))
    made, calls = compiled(function)
    want = function(*args)
    if beta == 0:
        want = torch.bmm((0.3 * torch.bmm(args[0], args[1].mT)).softmax(-1), args[2])
    torch.testing.assert_close(made(*args), want, rtol=1e-5, atol=1e-5)
    assert calls.kinds == ["plain" if beta == 0 else "masked"]


def test_dynamic_sizes_are_not_guarded_on() -> None:
    made, calls = compiled(plain)
    for length in (70, 90, 5):  # the second makes it a symbol
        args = qkv(2, 3, length, 8)
        torch.testing.assert_close(made(*args), plain(*args), rtol=1e-5, atol=1e-5)
    assert calls.count == 2


def test_values_that_are_not_finite_come_out_as_written() -> None:
    q, k, v = qkv(2, 3, 70, 8)
    q[0, 0, 3, 2], v[0, 1, 4, 4], k[1, 0, 5, 1] = float("nan"), float("inf"), float("inf")
    made, calls = compiled(plain)
    torch.testing.assert_close(made(q, k, v), plain(q, k, v), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert calls.count == 1


def with_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def written_to(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.clone()
    scores = q @ k.mT
    q.mul_(2)
    return scores.softmax(-1) @ v + q


def scores_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.sum()


def of_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k[:, :1].mT, -1) @ v


@pytest.mark.parametrize(
    "function", [with_weights, over_queries, written_to, scores_twice, of_one_head], ids=lambda f: f.__name__
)
def test_what_could_be_told_apart_stays(function: Callable) -> None:
    args = qkv(2, 3, 70, 8)
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-4, atol=1e-5)
    assert calls.count == 0


INFINITE, LEAST = float("-inf"), torch.finfo(torch.float32).min


def lengths(count: int) -> Tensor:
    """A mask of two sequences, of which the first is whole."""
    return torch.arange(70) < torch.tensor([[70], [count]])


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def tril(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[-2], k.shape[-2]).tril() == 0
    return scores(q, k).masked_fill(hidden, INFINITE).softmax(-1) @ v


def compared(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2])
    sees = places[:, None] >= places[None, None, None]
    return torch.softmax(scores(q, k) + torch.where(sees, 0.0, LEAST), -1) @ v


def filled_in_place(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    mask = torch.full((70, 70), 1.0).fill_(INFINITE).triu_(1)
    found = scores(q, k)
    found += mask
    return found.softmax(-1) @ v


def hiding_nothing(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    sees = torch.ones(q.shape[0], 1, 1, 70, dtype=torch.bool)
    return torch.softmax(scores(q, k) + (1.0 - sees.float()) * LEAST, -1) @ v


def padded(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(scores(q, k) + torch.where(m[:, None, None], 0.0, LEAST), -1) @ v


def infinitely_padded(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(scores(q, k) + torch.where(m[:, None, None], 0.0, INFINITE), -1) @ v


def replaced(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(torch.where(m[:, None, None], scores(q, k), LEAST), -1) @ v


def infinitely_replaced(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return scores(q, k).masked_fill_(~m[:, None, None], INFINITE).softmax(-1) @ v


def with_bias(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    bias = torch.arange(70.0).sin() * torch.arange(3.0)[:, None, None]
    return torch.softmax(q @ k.mT + bias + torch.where(m[:, None, None], 0.0, LEAST), -1) @ v


def causally_padded(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    places = torch.arange(70)
    sees = m[:, None, None] & (places[:, None] >= places)
    return torch.softmax(scores(q, k) + torch.where(sees, 0.0, LEAST), -1) @ v


MASKED = {
    tril: "causal",
    compared: "causal",
    filled_in_place: "causal",
    hiding_nothing: "plain",
    padded: "masked",
    infinitely_padded: "masked",
    replaced: "masked",
    infinitely_replaced: "masked",
    with_bias: "masked",
    causally_padded: "masked",
}


@pytest.mark.parametrize("count", [40, 0])
@pytest.mark.parametrize("function", MASKED, ids=lambda f: f.__name__)
def test_masks_are_known_or_given_along(function: Callable, count: int) -> None:
    """With no key left a row is the mean of all values, or NaN, as the program writes it."""
    args = (*qkv(2, 3, 70, 8), lengths(count))
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert calls.kinds == [MASKED[function]]


def modest(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return scores(q, k).masked_fill(~m[:, None, None], -9.0).softmax(-1) @ v


def of_more_rows(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(scores(q, k)[:1] + torch.where(m[:, None, None], 0.0, LEAST), -1) @ v


def before_the_factor(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT + torch.where(m[:, None, None], 0.0, -3.0)) * 0.5, -1) @ v


def kept(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    masked = scores(q, k) + torch.where(m[:, None, None], 0.0, LEAST)
    return masked.softmax(-1) @ v, masked.clamp(-1)


def changed_between(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    mask = torch.zeros(70, 70)
    first = q @ k.mT
    mask[m[1].long()] = 3.0
    return torch.softmax(first + mask, -1) @ v


@pytest.mark.parametrize(
    "function", [modest, of_more_rows, before_the_factor, kept, changed_between], ids=lambda f: f.__name__
)
def test_masks_that_no_call_can_stand_for_stay(function: Callable) -> None:
    args = (*qkv(2, 3, 70, 8), lengths(40))
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-5, atol=1e-5)
    assert calls.kinds == []


class TestGradients:
    @pytest.mark.parametrize("count", [40, 0])
    @pytest.mark.parametrize("function", [tril, padded, causally_padded, with_bias], ids=lambda f: f.__name__)
    def test_they_are_those_of_what_is_written(self, function: Callable, count: int) -> None:
        args = [t.requires_grad_() for t in qkv(2, 3, 70, 8)]
        made, calls = compiled(function)
        mine, theirs = (torch.autograd.grad(f(*args, lengths(count)).square().sum(), args) for f in (made, function))
        for got, want in zip(mine, theirs, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert calls.kinds == (["causal"] if function is tril else [])  # others may leave a query no key

    def test_those_of_any_order_are_computed_op_by_op(self) -> None:
        args = [t.requires_grad_() for t in qkv(1, 2, 70, 8)]
        made, calls = compiled(plain)
        first = [torch.autograd.grad(f(*args).square().sum(), args[0], create_graph=True)[0] for f in (made, plain)]
        second = [torch.autograd.grad(g.square().sum(), args[1])[0] for g in first]
        torch.testing.assert_close(*second, rtol=1e-3, atol=1e-4)
        assert calls.kinds == ["plain"]

    def test_those_of_gradients_within_the_program_keep_it_written_out(self) -> None:
        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            (slope,) = torch.autograd.grad(plain(q, k, v).square().sum(), q, create_graph=True)
            return slope.square().sum()

        args = [t.requires_grad_() for t in qkv(1, 2, 70, 8)]
        made, calls = compiled(function)
        mine, theirs = (torch.autograd.grad(f(*args), args[1])[0] for f in (made, function))
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
        assert calls.kinds == []

    def test_rows_without_keys_have_the_gradients_of_what_is_written(self) -> None:
        args = [t.requires_grad_() for t in qkv(2, 3, 70, 8)]
        made, calls = compiled(infinitely_padded)
        mine, theirs = (torch.autograd.grad(f(*args, lengths(0)).sum(), args) for f in (made, infinitely_padded))
        for got, want in zip(mine, theirs, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert calls.kinds == []


def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    moved = torch.zeros(70)
    moved[1:] = q[0, 0, :-1, 0]  # the memory of another tensor
    return torch.softmax(scores(q, k) + torch.full((70, 70), INFINITE).triu(1), -1) @ v + moved[:, None]


def diagonal(m: Tensor, x: Tensor) -> None:
    m.diagonal().copy_(x)


def column(m: Tensor, x: Tensor) -> None:
    m.unbind(1)[3].fill_(-5.0)


def as_strided(m: Tensor, x: Tensor) -> None:
    m.as_strided((70,), (1,), 210).copy_(x)


def op_packet(m: Tensor, x: Tensor) -> None:
    torch.ops.aten.copy_(m.swapaxes(0, 1), x[:, None])


def statistics(m: Tensor, x: Tensor) -> None:
    F.batch_norm(x.expand(3, 70) + torch.arange(3)[:, None], m[0], torch.ones(70), training=True)


def old_statistics(m: Tensor, x: Tensor) -> None:
    torch.batch_norm(x.expand(3, 70), None, None, m[0], torch.ones(70), True, 0.1, 1e-5, False)


def several(m: Tensor, x: Tensor) -> None:
    torch._foreach_sub_([m[0], m[4:, 2]], [3.0, 4.0])


def out(m: Tensor, x: Tensor) -> None:
    torch.mul(x, 3.0, out=m[5])


WRITES = [diagonal, column, as_strided, op_packet, statistics, old_statistics, several, out]


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_nothing_is_known_of_memory_that_is_written_to_in_an_unknown_way(write: Callable) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.zeros(70, 70)
        write(mask, q[0, 0, :, 0] * 100)
        return torch.softmax(scores(q, k) + mask, -1) @ v

    args = qkv(2, 3, 70, 8)
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-4, atol=1e-4)
    assert "plain" not in calls.kinds


def test_other_memory_stays_known() -> None:
    args = qkv(2, 3, 70, 8)
    made, calls = compiled(shifted)
    torch.testing.assert_close(made(*args), shifted(*args), rtol=1e-4, atol=1e-4)
    assert calls.kinds == ["causal"]


def test_dropout_keeps_the_random_numbers_of_what_is_written() -> None:
    class Told:
        messages: ClassVar[list[str]] = []

        @turret.hookimpl
        def turret_event(self, event: Any) -> None:
            if event.kind == "perf_hint":
                self.messages.append(event.message)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(scores(q, k).softmax(-1), 0.5, training=True) @ v

    args, found = qkv(2, 3, 70, 8), []
    options = {"on_error": "raise", "cache": False, "fallback_random": True}
    for called in (function, turret.compile(function, plugins=[Told()], options=options)):
        torch.manual_seed(3)
        found.append(called(*args))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    assert any("random numbers" in message for message in Told.messages)


def call_with(mask: Callable[[Tensor], Tensor]) -> Callable:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(m), scale=0.3)

    return function


CALLS = {
    "plain": lambda m: m.new_ones(70, 70),
    "causal": lambda m: torch.ones(70, 70, dtype=torch.bool).tril()[None, None],
    "masked": lambda m: m[:, None, None],
}


@pytest.mark.parametrize("kind", CALLS)
def test_calls_are_told_what_is_known_of_their_mask(kind: str) -> None:
    args, function = (*qkv(2, 3, 70, 8), lengths(40)), call_with(CALLS[kind])
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-5, atol=1e-5)
    assert calls.kinds == [kind]


def on_gpu(
    call: Callable, *, changes: bool = True, **shapes: Tensor
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """A graph of one call as it is captured on a GPU, before the pass and after it, which ``changes`` it or not."""

    def value(node: torch.fx.Node) -> Any:
        return node.meta["example_value"]

    found = []
    for passed in (False, True):
        graph = torch.fx.symbolic_trace(call).graph
        with FakeTensorMode():
            for node in graph.nodes:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value)
                if node.op == "placeholder":
                    like = shapes[node.name]
                    dtype = torch.bfloat16 if like.is_floating_point() else like.dtype
                    strides = like.shape, like.stride()
                    node.meta["example_value"] = torch.empty_strided(*strides, dtype=dtype)
                elif node.op == "call_method":
                    node.meta["example_value"] = getattr(args[0], node.target)(*args[1:], **kwargs)
                elif node.op == "call_function":
                    node.meta["example_value"] = node.target(*args, **kwargs)
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        if passed:
            facts = {"_is_on_host": lambda value: False, "cudnn_attention_enabled": lambda: False}
            with mock.patch.multiple(attention, **facts):
                assert attention.run(module) == changes
            module.graph.lint()
            module.recompile()
        found.append(module)
    return found[0], found[1]


def keys_apart(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m[:, None, None].expand(2, 3, 70, 70).mT)


def odd_heads(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[..., :5], k[..., :5], v[..., :7], m[:, None, None])


def shared_heads(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    mask = m[:, None, None]
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], attn_mask=mask, enable_gqa=True)


def three_dimensions(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[0], k[0], v[0], attn_mask=m[:1, None], scale=0.5)


def turned_operands(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    turned = v.mT.contiguous().mT
    return F.scaled_dot_product_attention(q, k, turned, attn_mask=m[:, None, None])


@pytest.mark.parametrize(
    "function", [keys_apart, odd_heads, shared_heads, three_dimensions, turned_operands], ids=lambda f: f.__name__
)
def test_calls_on_gpus_take_the_form_that_a_fast_kernel_takes(function: Callable) -> None:
    q, k, v = qkv(2, 3, 70, 8)
    m = lengths(0)
    before, after = on_gpu(function, q=q, k=k, v=v, m=m)
    torch.testing.assert_close(after(q, k, v, m), before(q, k, v, m), rtol=1e-5, atol=1e-5)
    (call,) = after.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    seen: list[Tensor] = []

    class Look(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is F.scaled_dot_product_attention:
                seen.extend([*args, kwargs["attn_mask"]])
                assert not kwargs.get("enable_gqa")
            return super().call_function(target, args, kwargs)

    Look(after).run(q, k, v, m)
    assert len(call.args) == 3 and all(t.dim() == 4 and t.stride(-1) == 1 for t in seen)
    assert all(t.shape[-1] % 8 == 0 for t in seen[:3]) and len({t.shape[1] for t in seen[:3]}) == 1


HEADS, WIDTH = 3, 8
MOVED_BACK = [
    lambda out: out.transpose(1, 2).contiguous(),
    lambda out: out.transpose(1, 2).contiguous().flatten(2).mul_(2),
    lambda out: torch.transpose(out, -2, -3).reshape(2, 70, HEADS * WIDTH),
]


def heads_of(x: Tensor, factor: float = 1.0) -> Tensor:
    """Heads that a product makes side by side, copied apart."""
    made = torch.matmul(x, torch.eye(HEADS * WIDTH, dtype=x.dtype)) * factor
    return made.view(2, -1, HEADS, WIDTH).transpose(1, 2).contiguous()


def strides_of(graph: torch.fx.Graph, *args: Tensor) -> list[tuple[int, ...]]:
    """The strides of the operands of a graph's one call."""
    strides: list[tuple[int, ...]] = []

    class Look(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is F.scaled_dot_product_attention:
                strides.extend(operand.stride() for operand in args[:3])
            return super().call_function(target, args, kwargs)

    Look(torch.fx.GraphModule(torch.nn.Module(), graph)).run(*args)
    return strides


@pytest.mark.parametrize("moved_back", MOVED_BACK)
def test_heads_on_gpus_are_read_as_a_product_leaves_them(moved_back: Callable) -> None:
    def function(x: Tensor) -> Tensor:
        return moved_back(F.scaled_dot_product_attention(heads_of(x, 0.5), heads_of(x), heads_of(x)))

    x = torch.randn(2, 70, HEADS * WIDTH)
    before, after = on_gpu(function, x=x.bfloat16())
    before_call, after_call = before(x), after(x)
    torch.testing.assert_close(after_call, before_call, rtol=1e-5, atol=1e-5)
    assert after_call.stride() == before_call.stride()
    assert strides_of(after.graph, x) == [(70 * 24, 8, 24, 1)] * 3
    assert not any(node.target == "contiguous" for node in after.graph.nodes)


def of_results(x: Tensor) -> Tensor:
    """Results lie as queries do, and are seen as they lie."""
    return F.scaled_dot_product_attention(heads_of(x), heads_of(x), heads_of(x))


def of_results_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    out = F.scaled_dot_product_attention(heads_of(x), heads_of(x), heads_of(x))
    return out.transpose(1, 2).contiguous(), out.transpose(1, 2)


@pytest.mark.parametrize("function", [of_results, of_results_twice])
def test_queries_on_gpus_stay_apart_where_results_are_seen_as_they_lie(function: Callable) -> None:
    x = torch.randn(2, 70, HEADS * WIDTH)
    before, after = on_gpu(function, x=x.bfloat16())
    for got, expected in zip(after(x), before(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert got.stride() == expected.stride()
    assert strides_of(after.graph, x) == [(70 * 24, 70 * 8, 8, 1)] + [(70 * 24, 8, 24, 1)] * 2


def copied_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    q = heads_of(x)
    return F.scaled_dot_product_attention(q, q, q), q


def of_an_input(x: Tensor) -> Tensor:
    """What memory an argument lies in is the caller's."""
    q = x.view(2, -1, HEADS, WIDTH).transpose(1, 2).contiguous()
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).contiguous()


def of_odd_heads(x: Tensor) -> Tensor:
    q = (x * 2).view(2, -1, 6, 4).transpose(1, 2).contiguous()
    return F.scaled_dot_product_attention(q, (x * 2).view(2, -1, 6, 4).transpose(1, 2).contiguous(), q)


def written_before_the_call(x: Tensor) -> Tensor:
    made = x * 2
    q = made.view(2, -1, HEADS, WIDTH).transpose(1, 2).contiguous()
    made.add_(1)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).contiguous()


@pytest.mark.parametrize("function", [copied_twice, of_an_input, of_odd_heads, written_before_the_call])
def test_heads_on_gpus_that_others_have_or_that_lie_unevenly_stay_copied(function: Callable) -> None:
    on_gpu(function, changes=False, x=torch.randn(2, 70, HEADS * WIDTH).bfloat16())


def test_written_attention_on_gpus_is_given_masks_that_kernels_compute_with() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * 0.5 + m, -1) @ v

    q, k, v = qkv(2, 3, 70, 8)
    mask = torch.where(lengths(0), 0.0, torch.finfo(torch.bfloat16).min)[:, None, None]
    for hidden, low in ((mask, -1e30), (mask.masked_fill(mask < 0, INFINITE), INFINITE)):
        with torch.no_grad():
            before, after = on_gpu(function, q=q, k=k, v=v, m=hidden)
        (call,) = after.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        given: list[Tensor] = []

        class Look(torch.fx.Interpreter):
            def call_function(self, target: Any, args: Any, kwargs: Any, given: list[Tensor] = given) -> Any:
                given += [kwargs["attn_mask"]] if "attn_mask" in kwargs else []
                return super().call_function(target, args, kwargs)

        got = Look(after).run(q, k, v, hidden)
        torch.testing.assert_close(got, before(q, k, v, hidden), rtol=1e-5, atol=1e-5, equal_nan=True)
        assert given[0].min() == low and call.kwargs["scale"] == 0.5


@pytest.mark.parametrize(
    "args", [qkv(2, 3, 16, 8), qkv(2, 3, 70, 8, dtype=torch.bfloat16)], ids=["short", "bfloat16 on the host"]
)
def test_what_was_not_seen_to_be_faster_stays(args: list[Tensor]) -> None:
    made, calls = compiled(plain)
    made(*args)
    assert calls.count == 0


def test_a_program_that_chooses_its_kernels_is_left_alone() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return plain(q, k, v)

    args = qkv(2, 3, 70, 8)
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-5, atol=1e-5)
    assert calls.count == 0


def test_a_mask_whose_operands_share_one_is_erased_once(recwarn):
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        places = torch.arange(q.shape[-2]) + 0
        mask = (places[None] <= places[:, None])[None, None].expand(q.shape[0], 1, -1, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    made, calls = compiled(attend)
    tensors = qkv(2, 3, 16, 8)
    torch.testing.assert_close(made(*tensors), attend(*tensors))
    assert calls.kinds == ["causal"]
    assert not [w for w in recwarn if "already erased" in str(w.message)]
