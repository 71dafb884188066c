"""Mutated inputs: values, versions, layouts and aliases are as in eager."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.joint_harness import assert_same, compiled
from turret.hooks.signature import Mutation, OutputKind
from turret.plugins.wrap_runtime import epilogue

DECOMPOSE = pytest.mark.parametrize("decompose", [False, True])


@DECOMPOSE
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.mul_(2).sum(),
        lambda x: (x.add_(1), x.sin())[1],
        lambda x: (x[0].zero_(), x.sum())[1],
        lambda x: (x[:, 1].copy_(x[:, 2]), x * 2)[1],
        lambda x: (x.t()[1:3].fill_(3.0), x + 1)[1],
        lambda x: (x.view(-1)[2:9].mul_(3), x[1])[1].sin(),
        lambda x: (x.unsqueeze(0).squeeze(0).transpose(0, 1).sub_(1), x.cos())[1],
        lambda x: (x.diagonal().add_(5), x.exp())[1],
        lambda x: ([c.mul_(n + 2) for n, c in enumerate(x.chunk(2, 1))], x.sum())[1],
        lambda x: ([c.mul_(n + 2) for n, c in enumerate(x.unbind(0))], x.sum())[1],
        lambda x: (x.split([1, 3], 1)[1].neg_(), x.sum())[1],
        lambda x: (x.as_strided((2, 2), (1, 2), 1).add_(10), x.sum())[1],
        lambda x: (x.unfold(1, 2, 2)[:, 0].add_(7), x.sum(0))[1],
        lambda x: (x[x > 0].sum() if False else x.masked_fill_(x > 0, 1.0)).cos(),
        lambda x: x.index_put_((torch.tensor([0, 2]),), torch.ones(4)).sin(),
        lambda x: (x.__setitem__((slice(None), 1), 4.0), x.sum())[1],
        lambda x: torch.add(x, 1, out=torch.empty(3, 4)) + x.clamp_(min=0),
        lambda x: (x.view(torch.int32).bitwise_and_(-2), x.sum())[1],
        lambda x: x.copy_(torch.arange(4)).sum(),
        lambda x: (torch._foreach_mul_([x[0], x[1]], 3.0), x.sum())[1],
        lambda x: x.pow_(3).sum(),
        lambda x: x.pow_(torch.tensor(2.0)).sum(),
        lambda x: x.ldexp_(torch.tensor(2)).sum(),
    ],
)
def test_data_written_through_views_reaches_the_input_and_later_readers(function, decompose):
    made = assert_same(function, [torch.randn(3, 4)], decompose=decompose)
    assert made.signature.inputs[0].mutation is Mutation.DATA


@DECOMPOSE
def test_a_write_to_a_base_is_seen_by_views_made_before(decompose):
    def function(x):
        y = x * 1
        view = y[1:]
        column = y.t()[0]
        y.mul_(2)
        view.add_(1)
        return view.sum(), column.sin(), y + 1

    assert_same(function, [torch.randn(3, 4)], decompose=decompose)
    assert_same(function, [torch.randn(3, 4, requires_grad=True)], decompose=decompose)


def test_gradients_flow_through_writes_to_intermediates():
    def function(x, w):
        y = torch.zeros(3, 4)
        y[0] = x[0] * w[0]
        y[1:].copy_(x[1:])
        y[:, 2].mul_(w[:3, 2].exp())
        y.view(-1)[3:5].sigmoid_()
        return y.sum(0), (y * 2)[1]

    assert_same(function, [torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)])


@pytest.mark.parametrize("write", [lambda x: x.mul_(3), lambda x: x[0].exp_(), lambda x: x.t().tanh_()])
def test_a_tracked_write_to_an_input_that_is_not_a_leaf_joins_its_autograd_history(write):
    def function(x, w):
        write(x)
        return (x @ w).sum()

    made = assert_same(
        function,
        [torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)],
        prepare=lambda args: [args[0] * 1, args[1]],
    )
    assert made.signature.inputs[0].tracked


def test_a_write_of_something_with_gradients_makes_the_input_require_them():
    def function(buffer, w):
        buffer.mul_(w)
        return buffer.sum() * 2

    made = assert_same(function, [torch.randn(4), torch.randn(4, requires_grad=True)])
    assert made.signature.inputs[0].tracked and not made.signature.inputs[0].requires_grad


def test_a_write_under_no_grad_leaves_autograd_alone():
    def function(parameter, x):
        y = (parameter * x).sum()
        with torch.no_grad():
            parameter.mul_(0.5)
        return y

    # Eager's backward of the product needs the old parameter, so only the sum that keeps it out is differentiated.
    def safe(parameter, x):
        y = (parameter + x).sin()
        with torch.no_grad():
            parameter.mul_(0.5)
        return y

    made = assert_same(safe, [torch.randn(4, requires_grad=True), torch.randn(4)])
    info = made.signature.inputs[0]
    assert info.mutation is Mutation.DATA and not info.tracked
    with pytest.raises(Exception, match="modified by an inplace operation"):
        compiled(function)(torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True))


def test_a_write_to_a_leaf_that_requires_grad_is_the_users_error():
    def function(x):
        x.mul_(2)
        return x.sum()

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        function(x)
    with pytest.raises(Exception, match="leaf Variable that requires grad"):
        compiled(function)(x)


def test_version_counters_move_where_eagers_do():
    def function(a, b, c, w):
        a.mul_(2)
        b.detach().add_(1)
        with torch.no_grad():
            c.sub_(1)
        return (w * 2).sum()

    args = [torch.randn(3), torch.randn(3), torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]
    for grad in (True, False):
        given = [*args[:3], args[3].detach().requires_grad_(grad)]
        made = compiled(function)
        made(*given)
        before = [a._version for a in given]
        made(*given)
        assert [a._version > v for a, v in zip(given, before, strict=True)] == [True, True, True, False]


def test_running_statistics_change_without_moving_their_version():
    layer = torch.nn.BatchNorm1d(4)
    reference = torch.nn.BatchNorm1d(4)
    made = compiled(layer)
    for _ in range(3):
        x = torch.randn(5, 4)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        ours, eagers = made(a), reference(b)
        torch.testing.assert_close(ours, eagers)
        ours.sin().sum().backward()
        eagers.sin().sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(layer, name), getattr(reference, name))
        assert getattr(layer, name)._version == getattr(reference, name)._version, name
    torch.testing.assert_close(layer.weight.grad, reference.weight.grad, rtol=1e-4, atol=1e-5)
    layer.eval()
    reference.eval()
    torch.testing.assert_close(made(x), reference(x))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: (x.t_(), x * 2)[1], Mutation.METADATA),
        (lambda x: (x.unsqueeze_(1), x * 2)[1], Mutation.METADATA),
        (lambda x: (x.transpose_(0, 1), x.add_(1), x[0].sin())[2], Mutation.DATA_AND_METADATA),
        (lambda x: (x.add_(1), x.t_(), x[:2])[2].cos(), Mutation.DATA_AND_METADATA),
        (lambda x: (x.squeeze_(), x * 1)[1], Mutation.NONE),
        (lambda x: (x.t_(), x.t_(), x * 3)[2], Mutation.NONE),
        (lambda x: (x.as_strided_((2, 3), (4, 1)), x + 1)[1], Mutation.METADATA),
    ],
)
def test_layouts_changed_in_place_are_changed_for_the_caller(function, kind):
    made = assert_same(function, [torch.randn(3, 4)], capture="fx")
    assert made.signature.inputs[0].mutation is kind


def test_layout_changes_of_intermediates_carry_views_and_gradients():
    def function(x):
        y = x * 2
        view = y[0]
        y.t_()
        y.mul_(3)
        return y.sin(), view + 1

    def without_view(x):
        y = x * 2
        y.t_()
        y[0].mul_(3)
        y.unsqueeze_(0)
        return y.sin()

    def returned(x):
        y = x * 2
        view = y[None]
        y.t_()
        return y, view, y.sin()

    def after_a_write(x):
        y = x.cummax(-1)[0]
        y.relu_()
        y.unsqueeze_(0)
        return y

    made = assert_same(after_a_write, [torch.randn(7)])
    first = next(n for n in made.joint.module.graph.nodes if n.target is torch.ops.aten.cummax.default)
    assert [tuple(v.shape) for v in first.meta["val"]] == [(7,), (7,)]
    assert_same(returned, [torch.randn(3, 4)], capture="fx")
    assert_same(returned, [torch.randn(3, 4)])
    assert_same(function, [torch.randn(3, 4)], capture="fx")
    assert_same(without_view, [torch.randn(3, 4, requires_grad=True)], capture="fx")


def test_an_input_given_other_memory_by_set_shares_it_afterwards():
    def function(x, y):
        z = y * 2
        x.set_(y)
        x.add_(1)
        return z

    made = assert_same(function, [torch.randn(3), torch.randn(5)], calls=1, capture="fx")
    assert made.signature.inputs[0].replaced_by.kind is OutputKind.IS_INPUT or (
        made.signature.inputs[0].replaced_by.kind is OutputKind.ALIAS_OF_INPUT
    )


def test_an_input_set_to_a_result_shares_memory_with_that_output():
    def function(x, y):
        z = y * 2
        x.set_(z)
        return z

    x, y = torch.randn(3), torch.randn(5)
    (out,) = compiled(function, capture="fx")(x, y)
    assert x.data_ptr() == out.data_ptr() and torch.equal(x, y * 2)


@pytest.mark.parametrize("size", [(2, 3), (12,), (6, 2)])
def test_resize_of_an_intermediate_or_input_to_no_more_elements(size):
    assert_same(lambda x: (x * 2).resize_(size).sin(), [torch.randn(3, 4)], capture="fx")
    assert_same(lambda x: (x.resize_(size), x + 1)[1], [torch.randn(3, 4)], capture="fx")
    template = [torch.randn(3, 4), torch.randn(size)]
    assert_same(lambda x, y: (x * 2).resize_as_(y) + y, template, capture="fx")
    assert_same(lambda x, y: (x.resize_as_(y), x + 1)[1], template, capture="fx")


def test_inputs_that_swap_their_values():
    def function(x, y):
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)
        return x + 1

    assert_same(function, [torch.randn(4), torch.randn(4)])
    assert_same(function, [torch.randn(4), torch.randn(4)], decompose=False)


def test_custom_ops_that_write_become_pure_calls():
    @torch.library.custom_op("turret_tests::scale_into", mutates_args=("out",))
    def scale_into(x: torch.Tensor, factor: float, out: torch.Tensor) -> torch.Tensor:
        out.copy_(x * factor)
        return x + factor

    @scale_into.register_fake
    def _(x, factor, out):
        return torch.empty_like(x)

    def function(x, out):
        y = scale_into(x, 2.0, out[1:])
        return y * 2, out.sum()

    made = assert_same(function, [torch.randn(3), torch.randn(4)])
    assert any("pure_turret_tests__scale_into" in op for op in made.ops())

    from turret.graph.externs import op_name, resolve_op

    op = next(n.target for n in made.joint.module.graph.nodes if "pure_turret_tests" in str(n.target))
    assert resolve_op(op_name(op)) is op


def test_copies_to_many_small_buffers_are_made_at_once(monkeypatch):
    calls = []
    original = epilogue.copy_each
    monkeypatch.setattr(epilogue, "copy_each", lambda *a: (calls.append(len(a[0])), original(*a))[1])

    def function(*buffers):
        for number, buffer in enumerate(buffers):
            buffer.add_(number + 1)
        return buffers[0] * 2

    made = compiled(function)
    buffers = [torch.zeros(3) for _ in range(6)]
    made(*buffers)
    assert calls == [6]
    assert [b[0].item() for b in buffers] == [1, 2, 3, 4, 5, 6]


def test_a_write_to_the_memory_of_an_input_whose_own_elements_overlap_is_refused():
    memory = torch.arange(8.0)

    def function(x, y):
        y.add_(1)
        return x * 2

    with pytest.raises(Exception, match="several elements in one place"):
        compiled(function)(memory.as_strided((17, 8), (0, 1)), memory[:4])


@pytest.mark.parametrize("probability", [(), (0.5,), (0.25,)])
def test_random_numbers_written_with_eagers_default_probability(probability):
    """Calls leave out an argument that equals its default, which the pure variant may not have."""

    def function(x):
        return x.bernoulli_(*probability) + 0

    made = compiled(function)
    x = torch.zeros(2000)
    result = made(x)
    assert torch.equal(result, x)
    assert set(result.tolist()) == {0.0, 1.0}
    assert abs(result.mean().item() - (probability or (0.5,))[0]) < 0.1


def test_a_write_to_an_empty_tensor_seen_as_another_dtype():
    def function(x):
        x.view(torch.int32).unsqueeze(-1).mul_(2)
        return x.sum()

    assert_same(function, [torch.empty(0, dtype=torch.int64).as_strided((3, 26, 0, 1), (26, 1, 1, 1))])


def test_custom_ops_that_write_to_lists_and_tensors_become_pure_calls():
    @torch.library.custom_op("turret_tests::scale_all", mutates_args=("tensors", "total"))
    def scale_all(tensors: list[torch.Tensor], total: torch.Tensor, scale: float) -> torch.Tensor:
        for tensor in tensors:
            tensor.mul_(scale)
        total.add_(1)
        return total * 2

    scale_all.register_fake(lambda tensors, total, scale: torch.empty_like(total))

    def function(x, y, total):
        result = scale_all([x, y], total, 3.0)
        return result + x.sum(), y * 2

    assert_same(function, [torch.randn(3), torch.randn(2, 2), torch.randn(4)])
