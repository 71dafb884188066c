"""Outputs that are or view inputs, intermediates and each other."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.joint_harness import assert_same, compiled
from turret.graph.fakes.sizes import span
from turret.hooks.signature import OutputKind
from turret.plugins.joint import outputs
from turret.plugins.joint.outputs import is_differentiable_view

GRADIENTS = pytest.mark.parametrize("requires_grad", [False, True])


def kinds(made):
    return [o.kind for o in made.signature.outputs]


@GRADIENTS
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (x.t(), x[1:, ::2]), [OutputKind.ALIAS_OF_INPUT] * 2),
        (lambda x: (x.view(-1)[2:], x.sum(0)), [OutputKind.ALIAS_OF_INPUT, OutputKind.FRESH]),
        (lambda x: (x.detach(), x.detach()[0] * 2), [OutputKind.ALIAS_OF_INPUT, OutputKind.FRESH]),
        (lambda x: (x.expand(2, 3, 4), x * 1), [OutputKind.ALIAS_OF_INPUT, OutputKind.FRESH]),
        (lambda x: (x.unfold(1, 3, 1), x * 1), [OutputKind.ALIAS_OF_INPUT, OutputKind.FRESH]),
        (lambda x: x.unsafe_split(2), [OutputKind.ALIAS_OF_INPUT] * 2),
        (lambda x: x.unsafe_split_with_sizes([1, 2]), [OutputKind.ALIAS_OF_INPUT] * 2),
    ],
)
def test_outputs_that_are_or_view_inputs(function, expected, requires_grad):
    made = assert_same(function, [torch.randn(3, 4, requires_grad=requires_grad)])
    assert kinds(made) == expected


@GRADIENTS
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: (y.view(-1), y.t(), y))(x.sin()),
        lambda x: (lambda y: (y[0], y[1]))(x.sin()),
        lambda x: x.sin().chunk(2, 1),
        lambda x: x.sin().unbind(0),
        lambda x: (x.sum(0, keepdim=True) * 2).expand(5, 4),
        lambda x: (lambda y: (y.expand(2, 3, 4), y))(x.cos()),
        lambda x: (lambda y: (y, y.detach()))(x.exp()),
        lambda x: (lambda y: (y.detach()[0], y * 2))(x.exp()),
        lambda x: x.exp().t(),
        lambda x: x.exp()[:, ::2],
        lambda x: (x * 2).as_strided((2, 2), (1, 2), 1),
        lambda x: (x * 2).unfold(1, 2, 1),
        lambda x: torch.view_as_real(torch.complex(x, x * 2)),
    ],
)
def test_outputs_that_view_intermediates_share_their_memory_and_gradients(function, requires_grad):
    assert_same(function, [torch.randn(3, 4, requires_grad=requires_grad)])
    assert_same(function, [torch.randn(3, 4, requires_grad=requires_grad)], decompose=False)


def test_the_same_object_twice_is_one_object_and_equal_views_are_two():
    def function(x):
        y = x * 2
        return y, y, y.t(), y.t(), x, x

    made = assert_same(function, [torch.randn(3, 4)], capture="fx")
    view = OutputKind.ALIAS_OF_INTERMEDIATE
    given = OutputKind.IS_INPUT
    assert kinds(made) == [OutputKind.FRESH, OutputKind.IS_OUTPUT, view, view, given, given]


def test_two_reads_of_one_value_do_not_share_memory_unless_they_do_in_eager():
    assert_same(lambda x: (x * 1, x * 1, x.clone(), x.contiguous()), [torch.randn(3, 4)])


@GRADIENTS
def test_views_of_another_dtype_share_memory(requires_grad):
    assert_same(lambda x: (lambda y: (y, y.view(torch.int32)))(x * 2), [torch.randn(3, 4, requires_grad=requires_grad)])
    assert_same(lambda x: (x.view(torch.int16), x + 1), [torch.randn(3, 4, requires_grad=requires_grad)])
    assert_same(lambda x: (lambda y: (y.view(torch.int32), y))((x * 2).long()), [torch.randn(3, 4)])


@GRADIENTS
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.mul_(2), x[0])[1],
        lambda x: (x[1], x.mul_(2))[0],
        lambda x: (x.t()[0].zero_(), x.view(-1), x.sum())[1:],
        lambda x: (x[0], x.add_(1), x[0] * 2)[::2],
        lambda x: (x.mul_(3), x.t())[0].t(),
    ],
)
def test_views_of_inputs_that_were_written_show_the_new_values(function, requires_grad):
    assert_same(function, [torch.randn(3, 4, requires_grad=requires_grad)], prepare=lambda args: [args[0] * 1])


def test_writes_to_outputs_reach_what_they_view_and_gradients_follow():
    def function(x):
        y = x * 2
        return y, y[0], x.t()

    results = []
    for run in (function, compiled(function)):
        leaf = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
        x = leaf * 1
        y, row, transposed = run(x)
        row.mul_(2)
        transposed.mul_(3)
        (y.sum() + x.exp().sum()).backward()
        results.append((y, row, x, leaf.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


def test_numbers_constants_and_nothing_are_returned_as_they_are():
    def function(x):
        return x + 1, 3, None, "text", 2.5, True, x.shape[0]

    made = assert_same(function, [torch.randn(3, 4)], capture="fx")
    assert kinds(made)[1:6] == [OutputKind.CONSTANT] * 5


def test_sizes_are_computed_from_the_inputs_of_each_call():
    made = compiled(lambda x: (x * 2, x.shape[0] * 2 + 1), dynamic=True)
    for rows in (3, 5, 7):
        value, number = made(torch.ones(rows, 4))
        assert number == rows * 2 + 1 and value.shape == (rows, 4)
    assert len(made.joints) == 1


def test_views_with_dynamic_sizes_are_made_for_each_call():
    def function(x):
        y = x * 2
        return y.view(-1), y[1:], x.t(), x[:, 1]

    made = compiled(function, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        for one, other in zip(function(x), made(x), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
        flat, rest, *_ = made(x)
        assert flat.untyped_storage().data_ptr() == rest.untyped_storage().data_ptr()
    assert len(made.joints) == 1


def test_a_new_leaf_is_a_leaf_that_requires_gradients():
    def function(x):
        return (x * 2).detach().requires_grad_(), x + 1

    made = assert_same(function, [torch.randn(3)], capture="fx")
    assert made.signature.outputs[0].leaf
    out, _ = made(torch.randn(3))
    out.sum().backward()
    assert torch.equal(out.grad, torch.ones(3))


def test_outputs_without_gradients_of_a_differentiable_graph_do_not_require_them():
    def function(x):
        return x * 2, x.argmax(), x > 0, x.detach() + 1

    made = assert_same(function, [torch.randn(5, requires_grad=True)])
    assert [o.differentiable for o in made.signature.graph_outputs] == [True, False, False, False]


def _refused(function, *args):
    with pytest.raises(Exception, match=r"its gradient|changed its layout in place"):
        compiled(function)(*args)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_alias_of_an_input_that_gradients_reach_by_another_way_is_refused(requires_grad):
    def function(x, z):
        y = x.detach()
        y.add_(z)
        return y

    _refused(function, torch.randn(3, 3, requires_grad=requires_grad), torch.randn(3, 3, requires_grad=True))


@pytest.mark.parametrize("of_itself", [False, True])
def test_a_detached_alias_of_a_result_that_gradients_reach_by_another_way_is_refused(of_itself):
    def function(x, z):
        y = x * 2
        alias = y.detach()
        alias.add_(y * 3 if of_itself else z)
        return y, alias

    _refused(function, torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True))


def test_a_view_under_no_grad_whose_views_need_gradients_is_refused():
    def function(x):
        y = x * 2
        with torch.no_grad():
            flat = y.view(9)
        return flat[::2], y

    _refused(function, torch.randn(3, 3, requires_grad=True))


def test_a_function_of_the_users_that_returns_a_view_of_a_result_with_a_gradient_of_its_own_is_refused():
    def function(x):
        y = x * 2
        return _Reversed.apply(y), y

    _refused(function, torch.randn(3, 3, requires_grad=True))


def test_a_function_of_the_users_is_no_view_to_gradients_though_it_has_the_name_of_one():
    made = torch.ones(3, requires_grad=True) * 2
    assert is_differentiable_view(made.view(3), made)
    assert not is_differentiable_view(type("View", (_Reversed,), {}).apply(made), made)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, factor):
        return value[1:], value * factor

    @staticmethod
    def backward(ctx, rows, gradient):
        return torch.cat([gradient[:1], gradient[1:] + rows * 3]), rows.sum()


@pytest.mark.parametrize("is_leaf", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: _Reversed.apply(x),
        lambda x, w: (_Reversed.apply(x), x + w),
        lambda x, w: (_Reversed.apply(x.t()), _Reversed.apply(x)),
        lambda x, w: _Rows.apply(x, w),
        lambda x, w: _Reversed.apply(x)[1:].t(),
    ],
)
def test_a_view_of_an_input_with_a_gradient_of_its_own_lies_in_the_inputs_memory(function, dynamic, is_leaf):
    leaves = [torch.randn(4, 3, requires_grad=True), torch.randn((), requires_grad=True)]
    assert_same(function, leaves, dynamic=dynamic, prepare=lambda a: a if is_leaf else [a[0] * 2, a[1]])


def test_a_view_that_a_function_of_the_users_made_may_not_be_written_to():
    made = compiled(lambda x: _Reversed.apply(x))
    x = torch.randn(3, requires_grad=True) * 2
    view = made(x)
    assert view.data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="view"):
        view.mul_(2)


def test_a_view_whose_base_changes_its_layout_stays_the_view_that_it_was():
    def used(x):
        y = x * 2
        view = y[1:]
        y.t_()
        return view * torch.arange(6.0).view(2, 3), view.view(-1), y.mul_(3)

    def done(x):
        y = x * 2
        tripled = y[1:] * 3
        y.t_()
        return tripled, y

    assert_same(used, [torch.randn(3, 3, requires_grad=True)])
    assert_same(used, [torch.randn(3, 3)])
    assert_same(done, [torch.randn(3, 3, requires_grad=True)])


def test_a_view_of_all_of_an_input_with_gaps_is_another_tensor():
    memory = torch.randn(75)
    x = memory.as_strided((3, 1, 3), (15, 10, 1)).requires_grad_()
    assert_same(lambda x: x[:, :1], [x])


def test_a_convolution_of_images_of_any_size_is_one_dense_block():
    convolution = torch.nn.Conv2d(3, 5, 3)
    made = compiled(lambda x: convolution(x).relu(), dynamic=True)
    for sizes in ((2, 9, 9), (4, 19, 12), (1, 5, 3)):
        x = torch.randn(sizes[0], 3, *sizes[1:], requires_grad=True)
        out = made(x)
        torch.testing.assert_close(out, convolution(x).relu())
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        (wanted,) = torch.autograd.grad(convolution(x).relu().square().sum(), x)
        torch.testing.assert_close(gradient, wanted)


@GRADIENTS
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("show", [lambda r: r, lambda r: (r, r[1:]), lambda r: (r.t(), r), lambda r: r[1:, ::2]])
@pytest.mark.parametrize("stride", [(16, 1), (1, 9), (9, 2)])
@pytest.mark.thorough
def test_results_with_gaps_are_laid_out_as_the_program_made_them(stride, show, dynamic, requires_grad):
    def function(x):
        made = torch.empty_strided(x.shape, stride)
        made[:] = x * 2
        made[0] += 1
        return show(made)

    assert_same(function, [torch.randn(4, 3, requires_grad=requires_grad)], dynamic=dynamic)


@GRADIENTS
@pytest.mark.parametrize("show", [lambda r: r[1:], lambda r: (r.t()[1:], r[2]), lambda r: r.view(-1)[::2].sin()])
def test_a_view_of_memory_that_was_made_empty_and_filled(show, requires_grad):
    def function(x):
        made = torch.empty(x.shape)
        made.copy_(x * 2)
        return show(made)

    assert_same(function, [torch.randn(4, 3, requires_grad=requires_grad)])


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_as_strided_as_an_input_with_gaps_are_laid_out_like_it(dynamic):
    def function(x):
        made = torch.empty_strided(x.size(), x.stride())
        made[:] = x + x
        return made, made[1:]

    assert_same(
        function, [torch.randn(16, 16)[:, :8]], dynamic=dynamic, prepare=lambda a: [a[0].as_strided((16, 8), (16, 1))]
    )


def test_results_whose_sizes_are_sums_are_dense():
    def function(x, y):
        return torch.slice_scatter(x, y, 1, 10, -10)

    made = assert_same(function, [torch.randn(4, 30, 3), torch.randn(4, 10, 3)], dynamic=True)
    assert kinds(made) == [OutputKind.FRESH]


OF_SIZE_ONE = {
    "row": lambda x: x.as_strided((1, 2), (7, 1)),
    "column": lambda x: x.t()[:, :1],
    "nested": lambda x: x.as_strided((1, 1, 2), (5, 3, 1), 1),
    "gap": lambda x: x.as_strided((2, 1), (1, 9)),
    "column before others": lambda x: x.as_strided((1, 3, 2), (9, 1, 4)),
}


@pytest.mark.parametrize("view", sorted(OF_SIZE_ONE))
@pytest.mark.parametrize(
    "op",
    [
        torch.zeros_like,
        torch.ones_like,
        lambda v: torch.nn.functional.group_norm(v, 1),
        torch.tril,
        torch.nan_to_num,
        lambda v: v.log_softmax(0),
        lambda v: torch.threshold(v, 0.0, 0.0),
        lambda v: v.masked_fill(v > 0, 0.0),
        lambda v: v.clone().zero_(),
        lambda v: v.sin(),
    ],
)
def test_strides_of_results_are_eagers_where_the_size_is_1_too(view, op):
    assert_same(lambda x: op(OF_SIZE_ONE[view](x)), [torch.randn(6, 4)], calls=1)


@GRADIENTS
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2)[1:].add_(1),
        lambda x: (x @ x.t())[1:].zero_(),
        lambda x: (x + 1).view(-1)[3:5].mul_(2),
        lambda x: (x * 2)[:1].fill_(3),
    ],
)
def test_a_part_that_was_written_to_lies_where_it_does_in_all_that_eager_keeps(function, requires_grad):
    x = torch.randn(3, 4, requires_grad=requires_grad)
    expected, got = function(x), compiled(function)(x)
    got = got if isinstance(got, torch.Tensor) else got[0]
    torch.testing.assert_close(got, expected)
    assert got.storage_offset() == expected.storage_offset()
    assert got.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_pieces_of_one_memory_are_measured_once_each(monkeypatch):
    asked = []
    monkeypatch.setattr(outputs, "span", lambda value: asked.append(value) or span(value))
    pieces = 30
    assert_same(lambda x: (x * 2).split([1] * pieces), [torch.randn(pieces, 2)])
    assert len(asked) < 5 * pieces
