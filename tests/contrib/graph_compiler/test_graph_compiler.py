"""Clusters run by ONNX Runtime: eager's results, recipes made once, and eager itself for what it computes otherwise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.testing import assert_same, check, programs

NEEDS = "clusters are run by ONNX Runtime: pip install turret[onnx]"
onnx = pytest.importorskip("onnx", reason=NEEDS)
onnxruntime = pytest.importorskip("onnxruntime", reason=NEEDS)

from turret.contrib import graph_compiler  # noqa: E402 (it imports both)
from turret.contrib.graph_compiler.translations import ANY, BOOL, RULES  # noqa: E402

PLUGIN = "turret.contrib.graph_compiler"
OPTIONS = {"cache": False, "on_error": "raise"}
aten, prims = torch.ops.aten, torch.ops.prims
LATER = {"lower", "schedule", "codegen"}


class Watch:
    def __init__(self):
        self.stages, self.placed, self.hits = [], {}, []

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "stage_started":
            self.stages.append(event.stage)
        elif event.kind == "product" and event.stage == "place":
            self.placed |= event.product.nodes
        elif event.kind == "cache_hit":
            self.hits.append(event.stage)


@pytest.fixture(autouse=True)
def recipes(monkeypatch):
    """Recipes of this test alone, and the numbers that were launched."""
    made = graph_compiler.Recipes()
    launched = []
    launch = made.launch
    made.launch = lambda number, arrays: launched.append(number) or launch(number, arrays)
    made.launched = launched
    monkeypatch.setattr(graph_compiler, "recipes", made)
    return made


def compiled_with(watch, function, **arguments):
    return turret.compile(function, plugins=[PLUGIN, watch], options=OPTIONS, **arguments)


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    model = transformers.BertModel(config).eval()

    def inputs(length):
        mask = torch.ones(2, length, dtype=torch.int64)
        mask[0, length // 2 :] = 0
        return torch.randint(0, 100, (2, length)), mask

    return model, lambda ids, mask: model(ids, attention_mask=mask).last_hidden_state, inputs


@pytest.mark.parametrize("dynamic", [False, None, True])
def test_bert_gives_what_eager_gives_in_recipes_made_once(recipes, dynamic):
    torch.manual_seed(0)
    _, function, inputs = bert()
    watch = Watch()
    compiled = compiled_with(watch, function, dynamic=dynamic)
    counts = []
    with torch.no_grad():
        for length in (9, 9, 12, 12, 20):
            ids, mask = inputs(length)
            torch.testing.assert_close(compiled(ids, mask), function(ids, mask), rtol=1e-4, atol=1e-5)
            counts.append(len(recipes.sessions))
    assert counts[0] == counts[1] and counts[2] == counts[3]
    assert dynamic is False or counts[2] == counts[4]  # other sizes, the same recipes
    assert set(recipes.launched) == set(range(len(recipes.sessions)))
    assert not LATER & set(watch.stages)
    eager = {name for name, placed in watch.placed.items() if placed.where == "eager"}
    assert any("embedding" in name for name in eager) and not any(
        "addmm" in name for name in watch.placed if name in eager
    )


def test_resnet_gives_what_eager_gives(recipes):
    from tests.benchmarks.models import ResNet  # tests/benchmarks

    torch.manual_seed(0)
    model, x, watch = ResNet((2, 2, 2, 2), bottleneck=False).eval(), torch.randn(2, 3, 64, 64), Watch()
    with torch.no_grad():
        compiled = compiled_with(watch, model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(recipes.sessions) == 2 and len(recipes.launched) == 4  # before the pooling, and after it
    assert not LATER & set(watch.stages)


def test_a_model_trains():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    assert_same(model, compiled_with(Watch(), model), lambda: (torch.randn(3, 4),))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_trains(causal):
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def make(call):
        drawn = torch.Generator().manual_seed(call)
        return [torch.randn(2, 3, 5, 8, generator=drawn, requires_grad=True) for _ in range(3)]

    assert_same(attend, compiled_with(Watch(), attend), make)


SPECIAL = torch.tensor([[0.0, -0.0, 1.5, float("nan")], [float("inf"), -2.0, 0.3, float("-inf")], [1.0, 2.0, 3.0, 4.0]])
INTEGERS = torch.tensor([[0, -3, 7], [2, 2, -1]])
FLAGS = torch.tensor([[True, False, True, False]])
PLAIN = torch.linspace(-2, 2, 12).reshape(3, 4)
IMAGE = torch.linspace(-1, 1, 2 * 4 * 5 * 5).reshape(2, 4, 5, 5)
SAMPLES = {
    aten.clone.default: (lambda v: v.clone() + 1, SPECIAL),
    aten.bitwise_not.default: (lambda v: ~v, FLAGS),
    aten.bitwise_and.Tensor: (lambda v: v & v.flip(0), FLAGS),
    aten.where.self: (lambda v: torch.where(v > 0, v, v + 1), SPECIAL),
    prims.convert_element_type.default: (lambda v: v.to(torch.float32) + v.bool().to(torch.int64), INTEGERS),
    aten.view.default: (lambda v: (v + 1).view(2, -1), PLAIN),
    aten.permute.default: (lambda v: (v + 1).permute(-1, 0) + 1, PLAIN),
    aten.unsqueeze.default: (lambda v: v.unsqueeze(-1) + v.unsqueeze(0).permute(1, 2, 0), PLAIN),
    aten.expand.default: (lambda v: v[:, None].expand(3, 2, 4) + v[:, None].expand(-1, 5, -1)[:, :1], PLAIN),
    aten.slice.Tensor: (lambda v: v[1:, ::2] + v[:-1, -3:-1], PLAIN),
    aten.select.int: (lambda v: v[:, -1] + v.select(-1, 0), PLAIN),
    aten.cat.default: (lambda v: torch.cat([v, v + 1], -1), SPECIAL),
    aten.sum.dim_IntList: (lambda v: v.sum(-1) + v.sum((0, 1)), SPECIAL),
    aten.amax.default: (lambda v: v.amax(-1, keepdim=True) + v, SPECIAL),
    aten.var_mean.correction: (lambda v: torch.stack(torch.var_mean(v, 1, correction=0)), PLAIN),
    aten.mm.default: (lambda v: v @ v.t(), PLAIN),
    aten.bmm.default: (lambda v: v[None] @ v.t()[None], PLAIN),
    aten.addmm.default: (lambda v: torch.addmm(v[:, 0], v, v.t(), beta=0.5, alpha=2), PLAIN),
    aten.convolution.default: (lambda v: torch.conv2d(v, v[:, :2, :3, :3], None, 2, 1, 1, 2), IMAGE),
    aten.relu.default: (torch.relu, SPECIAL),
    aten.rsqrt.default: (torch.rsqrt, SPECIAL),
}  # fmt: skip

for _name in ("neg", "exp", "log", "sqrt", "reciprocal", "sigmoid", "tanh", "erf"):
    SAMPLES[getattr(aten, _name).default] = (getattr(torch, _name), SPECIAL)
for _name in ("add", "sub", "mul", "div", "ge", "gt", "le", "lt", "eq"):
    _value = INTEGERS if _name in ("add", "sub", "gt") else SPECIAL
    SAMPLES[getattr(aten, _name).Tensor] = (lambda v, f=getattr(torch, _name): f(v, v[:1])), _value  # noqa: B008
    SAMPLES[getattr(aten, _name).Scalar] = (lambda v, f=getattr(torch, _name): f(v, 2)), _value  # noqa: B008


def test_every_translation_has_a_sample():
    assert SAMPLES.keys() == RULES.keys()


@pytest.mark.parametrize("op", SAMPLES, ids=str)
def test_a_translation_computes_what_eager_does(op, recipes):
    function, value = SAMPLES[op]
    watch = Watch()
    assert_same(lambda v: function(v), compiled_with(watch, lambda v: function(v)), lambda: (value.clone(),))
    assert recipes.launched, watch.placed


@pytest.mark.parametrize(
    ("function", "value", "reason"),
    [
        (lambda v: v * 2, PLAIN.double(), "torch.float64 of aten.mul"),
        (lambda v: v + 1, PLAIN.bfloat16(), "torch.bfloat16 of aten.add"),
        (lambda v: v + 1, PLAIN.to(torch.complex64), "torch.complex64 of aten.add"),
        (lambda v: v.cumsum(0), PLAIN, "no translation of aten.cumsum"),
        (lambda v: torch.where(v, ~v, v.flip(0)), FLAGS, "a choice between bools"),
        (lambda v: v + 1, PLAIN[:0], "a tensor of shape (0, 4)"),
        (lambda v: v + PLAIN, torch.ones(4, dtype=torch.int64), "operands"),
        (
            lambda v: torch.nn.functional.conv_transpose2d(v, IMAGE[:, :, :3, :3].permute(1, 0, 2, 3)),
            IMAGE,
            "transposed",
        ),
        (lambda v: v.to(torch.int32), torch.tensor([2**40]), "torch.int64 to torch.int32"),
    ],
)
def test_what_it_computes_otherwise_or_not_at_all_is_eager_s(function, value, reason):
    watch = Watch()
    assert_same(function, compiled_with(watch, function), lambda: (value.clone(),))
    assert any(reason in p.reason for p in watch.placed.values() if p.where == "eager"), watch.placed


@settings(max_examples=12)
@given(programs(), st.integers(0, 2**32))
def test_drawn_programs_give_what_eager_gives(program, seed):
    dynamic = random.Random(seed).choice([None, False, True])
    check(program, lambda f: turret.compile(f, plugins=[PLUGIN], options={"cache": False}, dynamic=dynamic))


def test_models_are_stored_and_loaded(recipes, tmp_path):
    options = {"cache_dir": str(tmp_path), "on_error": "raise"}
    x = torch.randn(3, 4)
    with torch.no_grad():
        for again in (False, True):
            watch = Watch()
            function = lambda v: torch.softmax(v @ v.t(), -1).cumsum(0) * 2  # noqa: E731
            compiled = turret.compile(function, plugins=[PLUGIN, watch], options=options)
            torch.testing.assert_close(compiled(x), function(x))
            assert ("place" in watch.stages) is not again and ("graph" in watch.hits) is again
            turret.reset()
    assert len(recipes.sessions) == 2


def test_arguments_may_have_any_name(recipes):
    def function(t0, c0, out0, constant_0):
        return t0 * 2 + c0, out0 + constant_0

    values = [torch.randn(3, 4) for _ in range(4)]
    torch.testing.assert_close(compiled_with(Watch(), function)(*values), function(*values))
    assert recipes.launched


def test_equal_clusters_are_one_recipe(recipes):
    with torch.no_grad():
        compiled = compiled_with(Watch(), lambda v: torch.tanh(torch.tanh(v).cumsum(0)).cumsum(0))
        compiled(torch.randn(3, 4))
    assert len(recipes.launched) == 2


def test_it_is_small_and_imports_public_names_alone():
    folder = Path(graph_compiler.__file__).parent
    lines = [line for file in folder.glob("*.py") for line in file.read_text().splitlines()]
    assert len(lines) <= 400
    imported = {line.split()[1] for line in lines if line.startswith(("from turret", "import turret"))}
    assert {n for n in imported if not n.startswith("turret.contrib")} <= {"turret", "turret.hooks.products"}
    assert BOOL < ANY
