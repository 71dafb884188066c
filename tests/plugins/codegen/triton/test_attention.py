"""Attention of few queries split over the keys: kernels as eager has it, and as much of a cache read as is filled."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from tests.plugins.codegen.triton.triton_lab import compile_offline, launch, waits_before_it_touches_memory
from turret.graph.externs import resolve_op
from turret.hooks.hookspecs import hookimpl
from turret.ir import AttentionCandidate, Ref, Template, TensorDecl
from turret.plugins.codegen.triton import emit

pytest.importorskip("triton")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
OP = resolve_op("turret::attention_parts.default")


def declare(name: str, tensor: torch.Tensor) -> TensorDecl:
    return TensorDecl(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


def call_of(tensors: dict[str, torch.Tensor], scale: float, parts: int) -> tuple[Template, dict[str, TensorDecl]]:
    batch, heads, queries, width = tensors["q"].shape
    tensors["out"] = torch.full((parts, batch, heads, queries, width + 2), 77.0)
    declarations = {name: declare(name, tensor) for name, tensor in tensors.items()}
    bias = Ref("bias") if "bias" in tensors else None
    args = (Ref("q"), Ref("k"), Ref("v"), bias, scale, parts)
    return Template(OP, args, {}, (declarations["out"],), kind="attention"), declarations


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


CASES = [
    # batch, heads, queries, keys, width, parts, bias's shape
    (1, 2, 1, 64, 16, 2, (1, 64)),
    (2, 3, 1, 100, 24, 4, (2, 1, 1, 100)),
    (1, 2, 3, 70, 16, 3, (3, 70)),
    (1, 2, 1, 50, 16, 4, None),
    (2, 2, 2, 33, 12, 2, (2, 2, 2, 33)),
]


@pytest.mark.parametrize("hidden", [float("-inf"), torch.finfo(BF16).min], ids=["infinite", "least"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_are_those_of_the_definition(case: tuple, dtype: torch.dtype, hidden: float) -> None:
    batch, heads, queries, keys, width, parts, shape = case
    tensors = {"q": drawn(batch, heads, queries, width, dtype=dtype)}
    tensors["k"] = drawn(batch, keys, heads, width, dtype=dtype).transpose(1, 2)
    tensors["v"] = drawn(batch, heads, keys, width, dtype=dtype)
    if shape is not None:
        tensors["bias"] = drawn(*shape, dtype=dtype)
        tensors["bias"][..., keys // 3 :] = hidden
    template, declarations = call_of(tensors, 0.3, parts)
    flat = {n: t if t.is_contiguous() else t.transpose(1, 2).reshape(-1) for n, t in tensors.items()}
    launch(emit(template, declarations), flat, {})
    want = OP(tensors["q"], tensors["k"], tensors["v"], tensors.get("bias"), 0.3, parts)
    if math.isfinite(hidden):  # of a part that is not read nothing counts: its largest score says so
        unread = tensors["out"][..., width] == float("-inf")
        assert (want[..., width][unread] < -1e30).all()
        tensors["out"][unread] = want[unread]
    torch.testing.assert_close(tensors["out"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [float("-inf"), torch.finfo(F32).min], ids=["infinite", "least"])
def test_a_query_that_sees_no_key_has_the_mean_of_the_values_or_zeros(hidden: float) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    made = turret.compile(function, plugins=[Split(), InterpretedCodegen()], options={"on_error": "raise"})
    args = (drawn(1, 2, 1, 16, dtype=F32), *(drawn(1, 2, 80, 16, dtype=F32) for _ in range(2)))
    masks = torch.full((1, 80), hidden), torch.full((1, 80), hidden)
    masks[1][:, 70] = 0
    with torch.no_grad():
        for mask in masks:
            torch.testing.assert_close(made(*args, mask), function(*args, mask), rtol=1e-5, atol=1e-5)


def test_what_no_query_sees_is_not_read() -> None:
    """Not even where a program may read it: the interpreter would refuse an access behind the memory."""
    tensors = {"q": drawn(1, 2, 1, 16, dtype=F32), "k": drawn(1, 2, 64, 16, dtype=F32)}
    tensors["v"], tensors["bias"] = drawn(1, 2, 64, 16, dtype=F32), torch.zeros(1, 64)
    tensors["bias"][:, 20:] = float("-inf")
    template, declarations = call_of(tensors, 1.0, 4)
    for name in ("k", "v"):
        tensors[name][:, :, 20:] = float("nan")
    launch(emit(template, declarations), tensors, {})
    assert not tensors["out"].isnan().any()
    assert (tensors["out"][2:, ..., 16] == float("-inf")).all() and not tensors["out"][2:, ..., 17].any()


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_it_compiles_for_a_gpu(dtype: torch.dtype) -> None:
    tensors = {"q": drawn(1, 32, 1, 64, dtype=dtype), "k": drawn(1, 32, 1024, 64, dtype=dtype)}
    tensors["v"], tensors["bias"] = drawn(1, 32, 1024, 64, dtype=dtype), torch.zeros(1, 1024, dtype=dtype)
    (kernel,) = emit(*call_of(tensors, 0.125, 16))
    kernel = attrs.evolve(kernel, divisible=frozenset(kernel.parameters))
    compiled = compile_offline(kernel)
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    assert waits_before_it_touches_memory(compiled)
    assert "ld.global.v4" in compiled.asm["ptx"] or "ld.global.v2" in compiled.asm["ptx"]


class Split:
    """Plugin: splits whatever attention may be split."""

    def __init__(self) -> None:
        self.asked: list[AttentionCandidate] = []

    @hookimpl(tryfirst=True)
    def turret_choice_cost(self, candidate: Any) -> float | None:
        if not isinstance(candidate, AttentionCandidate):
            return None
        self.asked.append(candidate)
        return 1.0 if candidate.form == "split" else 2.0


class Cache(torch.nn.Module):
    """A step of decoding: the new key and value go to a cache, whose filled part is seen."""

    def __init__(self, heads: int, length: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(heads, length, 16))
        self.register_buffer("values", torch.zeros(heads, length, 16))
        self.register_buffer("places", torch.arange(length))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, k)
        self.values.index_copy_(1, position, v)
        mask = (self.places <= position)[None]
        found = F.scaled_dot_product_attention(q[None], self.keys[None], self.values[None], attn_mask=mask)
        return found.reshape(1, -1) + 1


@pytest.mark.parametrize("generator", [None, InterpretedCodegen], ids=["as a call", "interpreted"])
def test_a_step_of_decoding_is_eagers(generator: Any) -> None:
    split = Split()
    mine, theirs = Cache(4, 128), Cache(4, 128)
    plugins = [split] if generator is None else [split, generator()]
    made = turret.compile(mine, plugins=plugins, options={"on_error": "raise", "cache": False})
    torch.manual_seed(0)
    with torch.no_grad():
        for position in (0, 1, 40, 127):
            args = (*(torch.randn(4, 1, 16) for _ in range(3)), torch.tensor([position]))
            torch.testing.assert_close(made(*args), theirs(*args), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.keys, theirs.keys)
    (form, *_) = {candidate.form for candidate in split.asked} - {"library"}
    assert form == "split" and split.asked[0].keys == 128
