"""Each FX pass alone: what it must remove or keep, and that results stay eager's to the bit."""

from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import CheckpointPolicy

from tests.plugins.joint_graphs import functionalized, make_context
from turret.graph.op_traits import output_nodes
from turret.plugins import graph_pass
from turret.plugins.decompositions.table import decomposition_table
from turret.plugins.graph_pass.memory_order import peak_bytes

aten, prims = torch.ops.aten, torch.ops.prims
convert = prims.convert_element_type.default


def trace(function, *args):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(a) for a in args]
    return make_fx(functionalized(function), decomposition_table=decomposition_table(), tracing_mode="real")(*fakes)


def raw(function, *args):
    """A trace without functionalization or decompositions: the ops as they are written."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return make_fx(lambda *xs: list(function(*xs)), tracing_mode="real")(*map(mode.from_tensor, args))


def apply(name, module, **config):
    changed = importlib.import_module(f"turret.plugins.graph_pass.{name}").run(module, make_context(**config))
    module.graph.lint()
    module.recompile()
    return changed


def ops(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def bits(x):
    return x.contiguous().view(torch.uint8)


def assert_unchanged_by(name, function, *args):
    """Run the pass on a trace of ``function``; outputs must be eager's bits and strides.  Returns the module."""
    module = raw(function, *args)
    apply(name, module)
    want, got = list(function(*args)), list(fx.Interpreter(module).run(*args))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(bits(a), bits(b))
    return module


SPECIAL = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.5, 1e-45])


# dead_code


def test_dead_code_goes_and_effects_stay():
    def function(x):
        x.exp()
        aten._assert_async.msg(x.sum() > 0, "positive")
        return [x + 1]

    module = raw(function, torch.ones(3))
    assert apply("dead_code", module)
    assert aten.exp.default not in ops(module) and aten._assert_async.msg in ops(module)
    assert not apply("dead_code", module)


# simplify


@pytest.mark.parametrize(
    "identity",
    [
        lambda x: aten.mul.Tensor(x, 1),
        lambda x: aten.mul.Tensor(x, 1.0),
        lambda x: aten.div.Tensor(x, 1),
        lambda x: aten.sub.Tensor(x, 0),
        lambda x: aten.add.Tensor(x, -0.0),
        lambda x: aten.pow.Tensor_Scalar(x, 1),
        lambda x: aten.clone.default(x),
        lambda x: aten.alias.default(x),
        lambda x: aten.view.default(x, [8]),
        lambda x: aten.slice.Tensor(x, 0, 0, 8),
        lambda x: aten.permute.default(x, [0]),
        lambda x: convert(convert(x, torch.float64), torch.float32),
    ],
)
def test_ops_that_change_nothing_are_removed(identity):
    module = assert_unchanged_by("simplify", lambda x: [identity(x.neg()).neg()], SPECIAL)
    apply("dead_code", module)
    assert ops(module) == [aten.neg.default, aten.neg.default]


@pytest.mark.parametrize(
    "changing",
    [
        lambda x: aten.add.Tensor(x, 0),  # -0.0 + 0 is +0.0
        lambda x: aten.add.Tensor(x, 0.0),
        lambda x: aten.sub.Tensor(x, -0.0),
        lambda x: aten.mul.Tensor(x, True) * 2,
        lambda x: aten.mul.Tensor(x, -1),
        lambda x: convert(convert(x, torch.bfloat16), torch.float32),
        lambda x: convert(convert(x, torch.int32), torch.float32),
        lambda x: aten.slice.Tensor(x, 0, 1, 8),
        lambda x: aten.expand.default(x, [2, 8]),
    ],
)
def test_ops_that_change_a_bit_are_kept(changing):
    finite = SPECIAL.nan_to_num(1.0, 2.0, -2.0)
    module = assert_unchanged_by("simplify", lambda x: [changing(x.neg()).neg()], finite)
    assert len(ops(module)) > 2


@pytest.mark.parametrize(("dtype", "removed"), [(torch.int32, True), (torch.float32, False)])
def test_adding_zero_goes_for_integers_alone(dtype, removed):
    module = assert_unchanged_by("simplify", lambda x: [(x.neg() + 0).neg()], torch.arange(4).to(dtype))
    assert (aten.add.Tensor in ops(module)) is not removed


@pytest.mark.parametrize(
    ("narrow", "wide", "exact"),
    [
        (torch.bfloat16, torch.float32, True),
        (torch.float16, torch.float32, True),
        (torch.float16, torch.bfloat16, False),
        (torch.bfloat16, torch.float16, False),
        (torch.int8, torch.float16, True),
        (torch.int32, torch.float32, False),
        (torch.int32, torch.float64, True),
        (torch.uint8, torch.int8, False),
        (torch.uint8, torch.int16, True),
        (torch.bool, torch.float32, True),
        (torch.int64, torch.int32, False),
    ],
)
def test_conversion_chains_fold_only_through_dtypes_that_hold_every_value(narrow, wide, exact):
    x = torch.tensor([0, 1, 3, 100, 7]).to(narrow)
    module = assert_unchanged_by("simplify", lambda x: [convert(convert(x, wide), torch.float64).neg()], x)
    apply("dead_code", module)
    expected = 1 if exact and wide != torch.float64 else len([d for d in (wide, torch.float64) if d])
    assert ops(module).count(convert) == (expected if wide != torch.float64 else 1)


def test_view_chains_fold():
    def function(x):
        y = x.neg()
        return [
            y.view(2, 12).view(6, 4).neg(),
            aten.permute.default(aten.permute.default(y, [2, 0, 1]), [1, 2, 0]).neg(),
        ]

    module = assert_unchanged_by("simplify", function, torch.randn(2, 3, 4))
    apply("dead_code", module)
    assert ops(module).count(aten.view.default) == 1 and aten.permute.default not in ops(module)


def test_copies_that_the_user_sees_stay_apart():
    def function(x):
        y = x.exp()
        return [y, y.clone(), x.clone(), x * 1]

    x = torch.randn(4)
    module = assert_unchanged_by("simplify", function, x)
    results = [x, *fx.Interpreter(module).run(x)]
    assert len({r.untyped_storage().data_ptr() for r in results}) == 5


def test_visible_copy_of_a_value_that_is_read_elsewhere_stays():
    """The reader may be the backward: an in-place op on the copy must not reach what was saved."""
    module = raw(lambda x: [(y := x.exp()).clone(), y.sin()], torch.randn(4))
    assert not apply("simplify", module)


def test_copy_of_an_input_that_is_written_to_stays():
    def function(x):
        old = x.clone()
        x.copy_(x * 2)
        return [old * 3]

    module = raw(function, torch.randn(4))
    assert not apply("simplify", module)


def test_clone_that_changes_strides_stays():
    def function(x):
        return [aten.clone.default(x.t(), memory_format=torch.contiguous_format).view(12).neg()]

    assert aten.clone.default in ops(assert_unchanged_by("simplify", function, torch.randn(3, 4)))


# common_subexpressions


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), (2.0, 3.0)])
def test_constants_of_another_kind_or_sign_are_not_merged(a, b):
    module = raw(lambda x: [x.mul(a).neg() + x.mul(b).neg()], torch.tensor([1, 2]))
    apply("common_subexpressions", module)
    assert ops(module).count(aten.mul.Tensor) == 2


def test_nan_constants_are_merged():
    module = raw(lambda x: [x.mul(float("nan")).neg() + x.mul(float("nan")).neg()], torch.ones(2))
    apply("common_subexpressions", module)
    assert ops(module).count(aten.mul.Tensor) == 1


def test_equal_outputs_keep_their_own_storage():
    x = torch.randn(3)
    module = assert_unchanged_by("common_subexpressions", lambda x: [x + 1, x + 1, (x + 1).view(3, 1)], x)
    results = fx.Interpreter(module).run(x)
    assert len({r.untyped_storage().data_ptr() for r in results}) == 3


def test_calls_with_other_checkpoint_tags_are_not_merged():
    module = raw(lambda x: [x.sin().neg() + x.sin().neg()], torch.randn(3))
    first = next(n for n in module.graph.nodes if n.target is aten.sin.default)
    first.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    apply("common_subexpressions", module)
    assert ops(module).count(aten.sin.default) == 2


# constants


def test_uniform_values_fold_to_one_full():
    def function(x):
        scale = torch.full((3, 1), 2.0) * torch.full((1, 3), 0.5) + 1
        return [x * scale.sqrt()]

    module = assert_unchanged_by("constants", function, torch.randn(3, 3))
    apply("dead_code", module)
    assert ops(module) == [aten.full.default, aten.mul.Tensor]


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.bool, torch.float64])
def test_folding_rounds_and_wraps_as_eager(dtype):
    def function(x):
        c = torch.full((3,), 1, dtype=dtype)
        return [x + (c + c * 100) * 3]

    assert_unchanged_by("constants", function, torch.zeros(3, dtype=dtype))


def test_values_that_vary_are_not_folded():
    module = raw(lambda x: [x + torch.arange(3) * 2], torch.zeros(3, dtype=torch.int64))
    assert not apply("constants", module)


# replayable_random


def random_program(x):
    y = torch.rand(4, 5) + torch.randn_like(x)
    return [
        torch.nn.functional.dropout(y, 0.25),
        torch.randint(-3, 4, (6,)),
        torch.randint(7, (2,)),
        torch.rand_like(x),
    ]


def test_random_ops_become_functions_of_one_seed():
    module = trace(random_program, torch.randn(4, 5))
    assert apply("replayable_random", module)
    apply("dead_code", module)
    names = [str(t) for t in ops(module)]
    assert names.count("turret.seed.default") == 1 and names.count("turret.random.default") == 6
    streams = [n.args[2] for n in module.graph.nodes if str(n.target) == "turret.random.default"]
    assert len(set(streams)) == 6
    torch.manual_seed(3)
    first = fx.Interpreter(module).run(torch.zeros(4, 5))
    torch.manual_seed(3)
    again = fx.Interpreter(module).run(torch.zeros(4, 5))
    other = fx.Interpreter(module).run(torch.zeros(4, 5))
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], other[0])
    assert first[1].dtype == torch.int64 and first[1].min() >= -3 and first[1].max() <= 3 and first[2].max() < 7


def test_dropout_keeps_the_right_share():
    module = trace(lambda x: [torch.nn.functional.dropout(x, 0.25)], torch.ones(200, 200))
    apply("replayable_random", module)
    (y,) = fx.Interpreter(module).run(torch.ones(200, 200))
    assert abs((y != 0).float().mean() - 0.75) < 0.01 and set(y.unique().tolist()) == {
        0.0,
        torch.tensor(1 / 0.75).item(),
    }


def test_shapes_and_ranges_may_be_symbolic():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(6, 3), static_shapes=False)

    def function(x):
        return [torch.rand_like(x), torch.randint(x.shape[0], (x.shape[1],)), torch.rand(x.shape[0], 2)]

    with mode:
        module = make_fx(function)(x)
    assert apply("replayable_random", module)
    names = [str(t) for t in ops(module)]
    assert names.count("turret.random.default") == 2 and "aten.randint.default" in names
    results = fx.Interpreter(module).run(torch.randn(5, 4))
    assert [tuple(r.shape) for r in results] == [(5, 4), (4,), (5, 2)]


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 62), st.integers(2, 15), st.integers(-(2**62), 2**60))
@example(32, 12, 0)
@example(31, 13, -5)
def test_integers_of_every_range_are_equally_likely(exponent, sixteenths, low):
    extent, count = 2**exponent * sixteenths // 16 + 1, 20_000
    module = trace(lambda x: [x.long() + torch.randint(low, low + extent, (count,))], torch.zeros(1))
    apply("replayable_random", module)
    torch.manual_seed(0)
    (drawn,) = fx.Interpreter(module).run(torch.zeros(1))
    assert low <= drawn.min() and drawn.max() < low + extent
    lower = (drawn < low + extent // 2).double().mean()
    expected = extent // 2 / extent
    share_of_remainder = 2**-4 if extent < 2**28 else 2**-15 if extent < 2**48 else extent / 2**64
    assert abs(lower - expected) < 6 / (2 * count**0.5) + share_of_remainder


def test_fallback_random_keeps_eager_ops():
    module = trace(random_program, torch.randn(4, 5))
    assert not apply("replayable_random", module, fallback_random=True)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="before 2.12 a graph cannot hold a generator")
def test_generators_keep_eager_ops():
    generator = torch.Generator()
    module = raw(lambda x: [aten.rand.generator([3], generator=generator) + x], torch.ones(3))
    assert not apply("replayable_random", module)


def test_probabilities_that_eager_checks_stay_eager():
    module = raw(lambda x: [torch.bernoulli(x)], torch.rand(3))
    assert not apply("replayable_random", module)


# memory_order


def test_order_lowers_the_peak_and_keeps_the_results():
    def function(x):
        wide = [x.unsqueeze(0).expand(100, -1) * i for i in range(1, 6)]
        return [sum(w.sum(0) for w in wide)]

    x = torch.randn(50)
    module = raw(function, x)
    before = peak_bytes(module.graph)
    want = fx.Interpreter(module).run(x)
    assert apply("memory_order", module)
    assert peak_bytes(module.graph) < before / 2
    assert torch.equal(fx.Interpreter(module).run(x)[0], want[0])
    assert not apply("memory_order", module)


def test_writes_stay_after_the_reads_before_them():
    def function(x, big):
        a = x.sin()
        b = (big * 2).sum()
        x.copy_(a + b)
        return [x + 1, a * 2]

    args = (torch.randn(4), torch.randn(1000))
    module = raw(function, *args)
    apply("memory_order", module)
    want_x = args[0].clone()
    want = function(want_x, args[1])
    got_x = args[0].clone()
    got = fx.Interpreter(module).run(got_x, args[1])
    assert torch.equal(got_x, want_x) and all(map(torch.equal, got, want))


def test_random_draws_keep_their_order():
    def function(x):
        big = torch.rand(1000)
        small = torch.rand(2)
        return [small + x.sum(), big.sum() + x.sum()]

    module = raw(function, torch.ones(3))
    apply("memory_order", module)
    sizes = [n.args[0] for n in module.graph.nodes if n.target is aten.rand.default]
    assert sizes == [[1000], [2]]


# channels_last


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 1)
        self.norm, self.head = torch.nn.BatchNorm2d(8), torch.nn.Linear(8 * 36, 4)

    def forward(self, x):
        y = torch.relu(self.norm(self.a(x)))
        y = y + self.b(y)
        return [self.head(y.flatten(1)), y]


@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last])
def test_convolutions_run_channels_last_and_outputs_keep_their_strides(fmt):
    torch.manual_seed(0)
    block = Block().eval()
    x = torch.randn(2, 3, 6, 6).to(memory_format=fmt)
    with torch.no_grad():
        module = trace(lambda x, *p: block(x), x)
        want = block(x)
        apply("convolutions.channels_last", module)
        got = fx.Interpreter(module).run(x)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    images = [n.args[0].meta["val"] for n in module.graph.nodes if n.target is aten.convolution.default]
    assert len(images) == 2 and all(v.is_contiguous(memory_format=torch.channels_last) for v in images)
    copies = [n for n in module.graph.nodes if n.target is aten.clone.default]
    assert len(copies) <= 3


def test_values_have_the_strides_that_the_ops_really_give():
    block = Block().eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        module = trace(lambda x: block(x), x)
        apply("convolutions.channels_last", module)

        class Checks(fx.Interpreter):
            def run_node(self, node):
                value = super().run_node(node)
                if isinstance(value, torch.Tensor) and node.op == "call_function":
                    assert value.stride() == node.meta["val"].stride(), node
                return value

        Checks(module).run(x)


def test_one_convolution_or_strided_reads_leave_the_graph_alone():
    w = torch.randn(4, 3, 1, 1)
    x = torch.randn(1, 3, 5, 5)

    def strided(x):
        y = torch.conv2d(torch.conv2d(x, w), torch.randn(4, 4, 1, 1))
        return [torch.as_strided(y, (2, 2), (1, 1))]

    for function in (lambda x: [torch.conv2d(x, w)], strided):
        assert not apply("convolutions.channels_last", trace(function, x))


def test_convolutions_with_more_weight_than_image_keep_their_layout():
    layers = torch.nn.Sequential(*(torch.nn.Conv2d(*c) for c in [(3, 32, 3), (32, 32, 3, 4), (32, 256, 3, 4)]))
    with torch.no_grad():
        x = torch.randn(1, 3, 64, 64)
        module = trace(lambda x: [layers(x)], x)
        assert apply("convolutions.channels_last", module)
        torch.testing.assert_close(fx.Interpreter(module).run(x)[0], layers(x))
    images = [n.args[0].meta["val"] for n in module.graph.nodes if n.target is aten.convolution.default]
    assert [v.is_contiguous(memory_format=torch.channels_last) for v in images] == [True, True, False]


def test_group_norms_keep_their_convolutions_contiguous():
    layers = torch.nn.Sequential(*(m for _ in range(3) for m in (torch.nn.Conv2d(8, 8, 3), torch.nn.GroupNorm(2, 8))))
    with torch.no_grad():
        assert not apply("convolutions.channels_last", trace(lambda x: [layers(x)], torch.randn(1, 8, 32, 32)))


# the hook


def test_passes_of_the_joint_phase_keep_outputs_and_inputs():
    def function(x):
        y = x.clone() * 1
        return [torch.softmax(y, -1) + torch.softmax(y, -1), x.t().t()]

    x = torch.randn(4, 4)
    module = trace(function, x)
    count = len(output_nodes(module.graph))
    assert graph_pass.turret_graph_pass(make_context(), "joint", module)
    assert len(output_nodes(module.graph)) == count
    torch.testing.assert_close(fx.Interpreter(module).run(x), function(x))
    assert not graph_pass.turret_graph_pass(make_context(), "captured", module)
    assert all("val" in n.meta for n in module.graph.nodes if n.op in ("call_function", "placeholder"))
