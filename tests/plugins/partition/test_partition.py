"""The cut of a joint graph: equal to eager, and what is saved and recomputed is as it should be."""

from __future__ import annotations

import math
import re
import warnings

import attrs
import pytest
import torch
from torch.nn.functional import mish
from torch.utils.checkpoint import CheckpointPolicy

import turret
from tests.plugins.joint_graphs import assert_same, make_context, run_eager, run_partitioned, trace_joint
from turret.errors import OptionError, VerificationError
from turret.graph.op_traits import output_nodes
from turret.graph.partitioning.analysis import analyze
from turret.hooks.hookspecs import hookimpl
from turret.hooks.signature import GraphSignature, InputInfo, Mutation
from turret.plugins import graph_pass, partition
from turret.plugins.decompositions.table import decomposition_table

CONFIGS = [
    {},
    {"partitioner": "save_all"},
    {"memory_budget": 0.6},
    {"memory_budget": 0.3},
    {"memory_budget": 0.0},
]


def cut(joint, *plugins, passes=True, **config):
    context = make_context(partition, graph_pass, *plugins, **config)
    if passes:
        graph_pass.turret_graph_pass(context, "joint", joint.module)
    return context.hooks.turret_partition(context=context, joint=joint)


def check(function, args, dynamic=False, **config):
    joint = trace_joint(function, args, decomposition_table(), dynamic=dynamic)
    partitioned = cut(joint, **config)
    tangents = [torch.randn_like(o) if o.is_floating_point() else torch.zeros_like(o) for o in function(*args)]
    want = run_eager(function, args, tangents)
    got = run_partitioned(partitioned, args, tangents)
    assert_same(got[0], want[0])
    assert_same(got[1], want[1], rtol=1e-4, atol=1e-5)
    return partitioned


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def saved_ops(partitioned):
    """Op names of the saved activations."""
    outputs = output_nodes(partitioned.forward.graph)[partitioned.num_forward_outputs :]
    return [
        n.target._schema.name.split("::")[-1] if n.op == "call_function" else n.op
        for n in outputs
        if n.op != "get_attr"
    ]


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def mlp(x, w, b, w2, b2):
    hidden = torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))
    return (torch.nn.functional.layer_norm(torch.nn.functional.linear(hidden, w2, b2) + x, (32,)).softmax(-1),)


def mlp_args():
    return [leaf(16, 32), leaf(128, 32), leaf(128), leaf(32, 128), leaf(32)]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_mlp_equals_eager_under_every_option(config):
    check(mlp, mlp_args(), **config)


def test_pointwise_chain_is_recomputed_from_the_input():
    partitioned = check(lambda x: (x.sin().cos().exp().tanh(),), [leaf(100, 10)])
    assert [s.reason for s in partitioned.saved_tensors if s.reason != "output"] == ["input"]


def test_matmuls_and_reductions_are_not_recomputed_by_default():
    partitioned = check(mlp, mlp_args())
    ops = torch.ops.aten
    forbidden = {ops.addmm.default, ops.amax.default, ops.var_mean.correction}
    assert forbidden <= set(targets(partitioned.forward))
    assert not forbidden & set(targets(partitioned.backward))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_where_the_minimum_of_a_rounded_function_lies_is_found_once(config):
    partitioned = check(lambda x: (x.sinh().min(), x * 2), [leaf(33, 1)], **config)
    assert torch.ops.aten.eq.Tensor not in targets(partitioned.backward)


def test_lower_budget_saves_no_more_and_zero_recomputes_matmuls():
    saved = []
    for budget in (1.0, 0.7, 0.4, 0.1, 0.0):
        partitioned = check(mlp, mlp_args(), memory_budget=budget)
        saved.append(sum(s.bytes for s in partitioned.saved_tensors if s.reason == "activation"))
    assert saved == sorted(saved, reverse=True) and saved[-1] == 0 < saved[0]
    assert torch.ops.aten.addmm.default in targets(partitioned.backward)


def test_budget_is_kept():
    full = check(mlp, mlp_args())
    half = check(mlp, mlp_args(), memory_budget=0.5)

    def activations(p):
        return sum(s.bytes for s in p.saved_tensors if s.reason == "activation")

    assert activations(half) <= activations(full) / 2


def test_views_are_recomputed_and_their_base_is_saved():
    def function(x, w):
        y = x @ w
        return ((y.view(4, 2, 8).transpose(0, 1) * 3).sin(),)

    partitioned = check(function, [leaf(4, 16), leaf(16, 16)])
    assert not {"view", "permute", "expand"} & set(saved_ops(partitioned))


def test_narrow_view_of_a_large_base_is_saved_as_a_copy():
    def function(x, w, v):
        y = x @ w
        return (y[:, :2] * v,)

    partitioned = check(function, [leaf(64, 64), leaf(64, 64), leaf(64, 2)])
    (copied,) = [s for s in partitioned.saved_tensors if s.reason == "copy of a part of its base"]
    assert copied.bytes == 64 * 2 * 4
    assert "clone" in saved_ops(partitioned)


def test_random_draw_is_replayed_not_repeated():
    def function(x):
        return (torch.nn.functional.dropout(x.sin(), 0.5),)

    x = leaf(64, 64)
    for config in ({}, {"memory_budget": 0.0}, {"fallback_random": True}):
        joint = trace_joint(function, [x], decomposition_table())
        partitioned = cut(joint, **config)
        outputs, (grad,) = run_partitioned(partitioned, [x], [torch.ones(64, 64)])
        kept = outputs[0] != 0
        assert torch.equal(grad != 0, kept) and 0.4 < kept.float().mean() < 0.6
        torch.testing.assert_close(grad, torch.where(kept, x.detach().cos() * 2, 0))
        names = [str(t) for t in targets(partitioned.backward)]
        assert "aten.bernoulli.p" not in names and "turret.seed.default" not in names
        if config.get("memory_budget") == 0.0:
            assert "turret.random.default" in names


def test_sizes_are_saved_as_sizes_under_dynamic_shapes():
    def function(x, w):
        y = (x @ w).view(x.shape[0] * 2, -1)
        return (y.sum(0).expand(x.shape[0], -1) * 2,)

    partitioned = check(function, [leaf(6, 8), leaf(8, 8)], dynamic=True)
    assert partitioned.saved_sizes
    placeholders = [n for n in partitioned.backward.graph.nodes if n.op == "placeholder"]
    assert all(isinstance(n.meta["val"], torch.SymInt) for n in placeholders[: len(partitioned.saved_sizes)])


def test_symbols_of_the_backward_are_passed_even_where_no_node_reads_them():
    partitioned = check(lambda x: (x.sin() * 2,), [leaf(5, 7)], dynamic=True)
    symbols = set()
    for node in partitioned.backward.graph.nodes:
        value = node.meta.get("val")
        for size in getattr(value, "shape", ()):
            symbols |= size.node.expr.free_symbols if isinstance(size, torch.SymInt) else set()
    given = {
        n.meta["val"].node.expr for n in partitioned.backward.graph.nodes if isinstance(n.meta.get("val"), torch.SymInt)
    }
    assert symbols and symbols <= given


def test_the_symbols_of_a_saved_number_are_passed_with_it():
    """Lowering writes a number that is an expression in its symbols, so the backward has to have them."""
    step = turret.compile(lambda x, n: mish(x - n % 3), dynamic=True, options={"cache": False})
    for n in (4, -1, 9):
        x = leaf(5)
        (expected,) = torch.autograd.grad(mish(x - n % 3).sum(), x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (found,) = torch.autograd.grad(step(x, n).sum(), x)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_gradient_without_tangent_and_unused_inputs(config):
    check(lambda x, y, z: (x * 2 + 1, y.sum() * 3), [leaf(4), leaf(3, 3), leaf(2)], **config)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_output_that_the_backward_needs_is_handed_over_twice(config):
    partitioned = check(lambda x: (x.exp(), x.detach() + 1), [leaf(8, 8)], **config)
    if config.get("memory_budget", 1.0) > 0:
        assert [s.reason for s in partitioned.saved_tensors] == ["output"]


def mutating_joint(in_graph):
    """A joint graph whose forward writes a new value over ``x``, which the backward reads."""

    def function(x, w):
        return ((x * 2).detach(), (x.sin() * w))

    x, w = torch.randn(16), leaf(16)
    joint = trace_joint(function, [x, w], decomposition_table())
    graph = joint.module.graph
    inputs = (InputInfo(False, Mutation.IN_GRAPH if in_graph else Mutation.DATA), InputInfo(True))
    if in_graph:
        placeholder = next(iter(graph.nodes))
        new_value = output_nodes(graph)[0]
        with graph.inserting_before(graph.output_node()):
            written = graph.call_function(torch.ops.aten.copy_.default, (placeholder, new_value))
            written.meta["val"] = placeholder.meta["val"]
        joint.module.recompile()
    signature = GraphSignature(inputs, joint.signature.outputs, training=True)
    return attrs.evolve(joint, signature=signature), function, x, w


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_backward_reads_the_value_that_a_mutated_input_had(in_graph, config):
    joint, function, x, w = mutating_joint(in_graph)
    partitioned = cut(joint, **config)
    tangents = [torch.zeros(16), torch.randn(16)]
    want = run_eager(function, [x, w], tangents)
    primal = x.clone()
    with torch.no_grad():
        results = list(torch.fx.Interpreter(partitioned.forward).run(primal, w))
        if in_graph:
            assert torch.equal(primal, x * 2)
        else:
            primal.copy_(results[0])
        saved = results[partitioned.num_forward_outputs :]
        assert all(t.untyped_storage().data_ptr() != primal.untyped_storage().data_ptr() for t in saved)
        grads = list(torch.fx.Interpreter(partitioned.backward).run(*saved, *tangents))
    assert_same(grads, want[1])


def tagged(policy, function, args, region=0):
    joint = trace_joint(function, args, decomposition_table())
    graph_pass.turret_graph_pass(make_context(), "joint", joint.module)
    for node in joint.module.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.mm.default and node.args[0].op == "placeholder":
            node.meta["recompute"], node.meta["ac_graph_id"] = policy, region
    return cut(joint, passes=False)


def product(x, w):
    return ((x @ w).sin().sum(),)


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE, True, 2])
def test_checkpoint_tag_recomputes_a_matmul(policy):
    partitioned = tagged(policy, product, [leaf(8, 8), leaf(8, 8)])
    assert targets(partitioned.backward).count(torch.ops.aten.mm.default) == 3


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE, False, None])
def test_checkpoint_tag_saves_a_matmul(policy):
    partitioned = tagged(policy, product, [leaf(8, 8), leaf(8, 8)])
    assert targets(partitioned.backward).count(torch.ops.aten.mm.default) == 2
    assert "mm" in saved_ops(partitioned)


def test_interior_of_a_checkpointed_region_is_never_saved():
    joint = trace_joint(lambda x, w: (((x @ w).sin() @ w).sum(),), [leaf(8, 8), leaf(8, 8)], decomposition_table())
    graph_pass.turret_graph_pass(make_context(), "joint", joint.module)
    for node in analyze(joint).required:
        if node.op == "call_function":
            node.meta["recompute"], node.meta["ac_graph_id"] = CheckpointPolicy.MUST_RECOMPUTE, 1
    partitioned = cut(joint, passes=False)
    assert {s.reason for s in partitioned.saved_tensors} == {"input"}


def test_cost_hook_of_a_plugin_decides():
    class SinIsDear:
        @hookimpl
        def turret_partition_cost(self, node):
            return math.inf if node.target is torch.ops.aten.sin.default else None

    def function(x):
        y = x.sin()
        return (y * y * y,)

    sin = torch.ops.aten.sin.default
    plain = cut(trace_joint(function, [leaf(32)], decomposition_table()))
    priced = cut(trace_joint(function, [leaf(32)], decomposition_table()), SinIsDear())
    assert sin in targets(plain.backward)
    assert sin not in targets(priced.backward) and "sin" in saved_ops(priced)


def test_inference_graph_is_the_forward():
    joint = trace_joint(lambda x: (x.sin(),), [torch.randn(3)])
    joint = attrs.evolve(joint, signature=attrs.evolve(joint.signature, training=False))
    partitioned = cut(joint, passes=False)
    assert partitioned.backward is None and partitioned.forward is joint.module


def test_report_gives_bytes_of_both_partitioners():
    partitioned = check(mlp, mlp_args())
    assert re.search(
        r"saved for backward: [\d.]+ \w+ in \d+ activations \(\d+% of saving everything\)", partitioned.report
    )
    assert re.search(r"saving everything:  [\d.]+ KiB in \d+ activations", partitioned.report)
    assert partitioned.report in str(partitioned)


@pytest.mark.parametrize("config", [{"partitioner": "greedy"}, {"memory_budget": 1.5}])
def test_bad_options_are_named(config):
    joint = trace_joint(lambda x: (x.sin(),), [leaf(3)])
    with pytest.raises(OptionError, match=next(iter(config))):
        partition.turret_partition(make_context(partition, **config), joint)


def test_forward_output_that_depends_on_a_tangent_is_refused():
    joint = trace_joint(lambda x: (x.sin(),), [leaf(3)])
    output = joint.module.graph.output_node()
    results = output_nodes(joint.module.graph)
    output.args = ((results[1], results[1]),)
    with pytest.raises(VerificationError, match="depends on a tangent"):
        partition.turret_partition(make_context(partition), joint)
