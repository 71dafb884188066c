"""Unbacked symbols in the joint graph: bound where they are made, checked where they are assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.plugins.joint_graphs import make_context
from turret.errors import UnsupportedError
from turret.graph.fakes.sizes import is_dense
from turret.graph.op_traits import SYMBOL_BINDINGS, defines_unbacked_symbols
from turret.graph.ops.host_scalars import bound_of_slice, position_of_element
from turret.hooks.products import CapturedGraph, JointGraph
from turret.plugins import partition
from turret.plugins.decompositions.table import decomposition_table
from turret.plugins.joint import turret_joint

aten = torch.ops.aten
X = torch.tensor([[1.0, -2, 3], [0.5, 4, -1], [-3, 2, 2], [0, 1, -1]])


def trace(function: Callable, *examples: torch.Tensor, decompositions: Any = None) -> JointGraph:
    """The joint graph of a function of tensors; it trains where one requires a gradient."""
    env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{n}") for n in range(len(examples))]
    result = graph.call_function(function, tuple(inputs))
    count = len(function(*(e.detach().clone() for e in examples)))
    parts = tuple(graph.call_function(lambda r, n: r[n], (result, n)) for n in range(count))
    graph.output(parts)
    fakes = tuple(mode.from_tensor(e, static_shapes=True) for e in examples)
    captured = CapturedGraph(fx.GraphModule({}, graph), fakes, mode)
    return turret_joint(make_context(), captured, decomposition_table() if decompositions is None else decompositions)


def calls(joint: JointGraph, target: Any = None) -> list[fx.Node]:
    nodes = [n for n in joint.module.graph.nodes if n.op == "call_function"]
    return [n for n in nodes if target is None or n.target is target]


def interpreted(joint: JointGraph, *args: torch.Tensor) -> list[Any]:
    return list(fx.Interpreter(joint.module).run(*args))


def agrees(function: Callable, joint: JointGraph, *args: torch.Tensor) -> None:
    for found, expected in zip(interpreted(joint, *args), function(*args), strict=False):
        torch.testing.assert_close(found, expected)


def test_a_call_is_described_with_the_numbers_that_it_gives():
    joint = trace(lambda x: (x[x > 0] * 2, torch.nonzero(x), torch.unique(x, return_counts=True)[1]), X)
    bound = [n for n in calls(joint) if defines_unbacked_symbols(n)]
    assert [n.target for n in bound] == [aten.index.Tensor, aten.nonzero.default, aten._unique2.default]
    assert [[(b.output, b.dimension) for b in n.meta[SYMBOL_BINDINGS]] for n in bound] == [[(0, 0)]] * 3
    symbols = [b.symbol for n in bound for b in n.meta[SYMBOL_BINDINGS]]
    assert len(set(symbols)) == len(symbols) == 3
    assert str(bound[0].meta["val"].shape[0]) == symbols[0]


def test_the_item_of_a_bool_is_an_int_that_is_compared():
    def program(x):
        return x * 2, (x > 0).any().item(), x.sum().item()

    joint = trace(program, X)
    first, second = calls(joint, aten._local_scalar_dense.default)
    assert [b.is_float for n in (first, second) for b in n.meta[SYMBOL_BINDINGS]] == [False, True]
    assert first.args[0].meta["val"].dtype == torch.int64
    for x in (X, -X.abs()):
        assert interpreted(joint, x)[1:] == [bool((x > 0).any()), float(x.sum())]


def test_what_is_asserted_is_checked_before_the_next_call():
    def program(x):
        n = (x > 0).sum().item()
        torch._check(n >= 2, lambda: "too few")
        return (x * n,)

    joint = trace(program, X)
    order = [n.target for n in calls(joint)]
    (check,) = calls(joint, aten._assert_scalar.default)
    assert order.index(aten._local_scalar_dense.default) < order.index(check.target) < order.index(aten.mul.Tensor)
    agrees(program, joint, X)
    with pytest.raises(RuntimeError):
        interpreted(joint, -X.abs())


def test_an_assertion_of_the_captured_graph_keeps_its_message():
    def program(x):
        n = (x > 0).sum().item()
        aten._assert_scalar.default(n != 3, "not three")
        return (x * n,)

    (check,) = calls(trace(program, X), aten._assert_scalar.default)
    assert check.args[1] == "not three" and "3" in str(check.meta["condition"])


def test_shapes_that_must_agree_are_an_assertion():
    joint = trace(lambda x, y: (x[x > 0] + y[y > 0],), X, X * 2)
    (check,) = calls(joint, aten._assert_scalar.default)
    assert len(check.meta["condition"].free_symbols) == 2
    with pytest.raises(RuntimeError):
        interpreted(joint, X, -X)


def test_a_decomposition_assumes_no_more_than_its_op():
    joint = trace(lambda x: (x[x > 0].softmax(0),), X)
    assert not calls(joint, aten._assert_scalar.default) and calls(joint, aten.amax.default)
    (check,) = calls(trace(lambda x: (x[x > 0].amax(0),), X), aten._assert_scalar.default)
    assert check.meta["condition"].free_symbols


def test_a_decomposition_that_assumes_more_is_refused():
    def fussy(x):
        torch._check(x.shape[0] > 2)
        return aten.cos.default(x)

    with pytest.raises(UnsupportedError, match=r"decomposition of aten\.sin\.default assumes more"):
        trace(lambda x: (x[x > 0].sin(),), X, decompositions={aten.sin.default: fussy})


@pytest.mark.parametrize("around", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("least", [torch.amin, torch.amax])
def test_what_a_decomposition_need_not_assume_the_program_assumes_still(around, least):
    def program(x):
        positive = x[x > 0]
        return around(positive, 0).sum(), least(positive)

    joint = trace(program, X)
    agrees(program, joint, X)
    (check,) = calls(joint, aten._assert_scalar.default)
    assert "0 < u" in check.args[1]


def slices(x, i):
    n = i.item()
    y = x.clone()
    y[:n] = 7.0
    y[n:] *= 2
    return x[n:] * 2, x[:n].sum(0), x[n : n + 2] * 1, x[:, :n] + 0, y


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9, -1, -4, -9])
def test_slices_are_pythons_wherever_they_start_and_end(n):
    agrees(slices, trace(slices, X, torch.tensor(1)), X, torch.tensor(n))


def test_equal_indices_into_equal_sizes_are_one_number():
    def program(x, i):
        n = i.item()
        return x[:n] + x[:n], x[0:n] * x.flip(0)[:n]

    joint = trace(program, X, torch.tensor(1))
    assert len(calls(joint, bound_of_slice)) == 1
    assert all(str(n.meta["val"].shape[0]).startswith("u") for n in calls(joint, aten.slice.Tensor))


def test_an_index_that_is_known_to_fit_is_taken_as_it_is():
    def program(x, i):
        n = i.item()
        torch._check(n >= 0)
        torch._check(n < 4)
        return x[:n] * 1, x.select(0, n) * 1

    joint = trace(program, X, torch.tensor(1))
    assert not calls(joint, bound_of_slice) and not calls(joint, position_of_element)
    agrees(program, joint, X, torch.tensor(3))


def gathered(x, i):
    n = i.item()
    y = x[x[:, 0] > 0]
    return y.sin(), x[n:].cos(), x.select(0, n) * n, y.t()


@pytest.mark.parametrize("partitioner", ["min_cut", "save_all"])
def test_the_backward_is_handed_the_numbers_and_gives_eagers_gradients(partitioner):
    joint = trace(gathered, X.clone().requires_grad_(), torch.tensor(1))
    cut = partition.turret_partition(make_context(partition, partitioner=partitioner), joint)
    assert cut.saved_sizes and not any(defines_unbacked_symbols(n) for n in cut.backward.graph.nodes)
    for data in (X, -X.abs(), X.abs() + 1):
        for n in (0, 2, -1):
            x = data.clone().requires_grad_()
            expected = gathered(x, torch.tensor(n))
            results = list(fx.Interpreter(cut.forward).run(data, torch.tensor(n)))
            saved = results[cut.num_forward_outputs :]
            tensors, sizes = saved[: len(cut.saved_tensors)], saved[len(cut.saved_tensors) :]
            described = cut.signature.graph_outputs
            tangents = [torch.ones_like(r) for r, d in zip(results, described, strict=False) if d.differentiable]
            grads = fx.Interpreter(cut.backward).run(*sizes, *tensors, *tangents)
            torch.testing.assert_close(grads[0], torch.autograd.grad(sum(e.sum() for e in expected), x)[0])


def test_views_among_the_outputs_say_which_numbers_lay_them_out():
    joint = trace(lambda x: (y := x[x[:, 0] > 0].sin(), y.t(), y[:, 1]), X)
    numbers = joint.signature.numbers
    (symbol,) = numbers
    results = interpreted(joint, X)
    assert results[numbers[symbol]] == 2
    assert any(symbol in map(str, o.layout.shape) for o in joint.signature.outputs if o.layout is not None)


def test_memory_of_symbolic_sizes_is_known_to_be_dense_whichever_symbol_is_larger():
    rest = 6 - ShapeEnv().create_unbacked_symint()
    assert is_dense((rest, rest), (rest, 1)) and is_dense((3, rest, 100), (100 * rest, 100, 1))
    assert is_dense((rest, 100), (1, rest)) and is_dense((1, rest), (7, 1))
    assert not is_dense((rest, 100), (200, 1)) and not is_dense((rest, rest), (1, 1))
    assert is_dense((2, 3), (3, 1)) and not is_dense((2, 3), (1, 1)) and not is_dense((2, 2), (2, 2))


@given(st.lists(st.sampled_from(["rows", "columns", "picked", 2]), min_size=1, max_size=3), st.booleans())
@settings(max_examples=15, deadline=None)
def test_what_depends_on_data_is_repeated_as_often_as_data_say(times, flat):
    def program(x, rows, columns):
        picked = x[x[:, 0] > 0]
        value = picked.flatten() if flat else picked
        counts = {"rows": rows.item(), "columns": columns.item(), "picked": picked.shape[0], 2: 2}
        repeats = [1] * (value.dim() - len(times)) + [counts[t] for t in times]
        return (value.repeat(*repeats),)

    joint = trace(program, X, torch.tensor(2), torch.tensor(3))
    for rows, columns in ((2, 3), (0, 1), (1, 0)):
        agrees(program, joint, X, torch.tensor(rows), torch.tensor(columns))
        agrees(program, joint, -X.abs(), torch.tensor(rows), torch.tensor(columns))


def test_a_negative_count_of_repeats_is_an_error():
    joint = trace(lambda x, n: (x[x > 0].repeat(n.item()),), X, torch.tensor(2))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        interpreted(joint, X, torch.tensor(-1))
