"""Partitioners from outside: any cut that keeps what may not run twice gives eager's gradients."""

from __future__ import annotations

import math
import random
import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turret
from turret.hookspecs import hookimpl
from turret.plugins.partition.analysis import analyze
from turret.plugins.partition.extract import extract
from turret.testing import assert_same, check, programs

EXAMPLE = Path(__file__).parents[3] / "examples" / "swap_partitioner.py"


class SaveAtRandom:
    """Saves whatever may not run twice, and of all else (views, sizes, calls with several results) some."""

    def __init__(self, seed):
        self.seed, self.cuts = seed, 0

    @hookimpl
    def turret_partition(self, context, joint):
        if not joint.signature.training:
            return None
        analysis, draw = analyze(joint), random.Random(self.seed)
        share, saved = draw.random(), []
        for node in analysis.candidates:
            once = node.op == "placeholder" or math.isinf(
                context.hooks.turret_partition_cost(context=context, node=node)
            )
            if once or (node.op != "get_attr" and draw.random() < share):
                saved.append(node)
        self.cuts += 1
        return extract(joint, analysis, frozenset(saved), "at random")


def compiler_with(plugin):
    return lambda function: turret.compile(function, plugins=[plugin], options={"cache": False, "on_error": "raise"})


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.project(mixed), 0.0, self.training)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def heads():
    return tuple(torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))


def topk(x):
    values, indices = torch.topk(torch.sin(x), 3)
    return values * indices, torch.sort(x)[0]


def plugins_of(seed):
    return SaveAtRandom(seed) if seed else runpy.run_path(str(EXAMPLE))["SaveLibraryCalls"]()


@pytest.mark.parametrize("seed", range(4))
def test_calls_with_several_results_can_be_saved(seed):
    assert_same(attention, compiler_with(plugins_of(seed))(attention), heads)
    assert_same(topk, compiler_with(plugins_of(seed))(topk), lambda: (torch.randn(4, 6, requires_grad=True),))


@pytest.mark.parametrize("seed", range(2))
def test_a_transformers_layer_trains_with_any_cut(seed):
    torch.manual_seed(0)
    block = Block()
    inputs = lambda: (torch.randn(2, 5, 16, requires_grad=True),)  # noqa: E731
    assert_same(block, compiler_with(plugins_of(seed))(block), inputs)


@settings(max_examples=15)
@given(programs(), st.integers(1, 2**32))
def test_any_cut_of_a_program_gives_eager_s_gradients(program, seed):
    check(program, compiler_with(SaveAtRandom(seed)))
