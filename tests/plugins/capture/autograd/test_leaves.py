"""Leaves of autograd that compiled code makes: gradients reach them wherever the program sees them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.linspace(-1, 2, 6).reshape(2, 3)
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}
KEPT: list[torch.Tensor] = []


def same(program, *calls):
    """Results, their flags, and the gradients of those that are leaves, as eager has them."""
    found = []
    for call in (program, *calls):
        KEPT.clear()
        results = [*call(X.clone()), *KEPT]
        loss = sum((r * r).sum() for r in results if r.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        flags = [(type(r).__name__, r.requires_grad, r.is_leaf) for r in results]
        found.append((flags, [r.detach() for r in results], [r.grad for r in results if r.is_leaf]))
    for other in found[1:]:
        assert_same(other, found[0])


def flagged(x):
    y = x.sin().detach().requires_grad_()
    return y, y * 3


def by_attribute(x):
    y = x.exp().detach()
    y.requires_grad = True
    return y * x, y


def of_a_factory(x):
    y = torch.ones(3, requires_grad=True)
    return y, y * x, (y * 2).view(-1)


def changed_while_it_is_none(x):
    y = torch.empty(3)
    y.fill_(2.0).mul_(x[0])
    y.requires_grad_()
    with torch.no_grad():
        y.add_(1)
    return x * y, y


def a_parameter(x):
    y = nn.Parameter(x.sum(0))
    return y, (y * x).exp()


def a_frozen_parameter(x):
    y = nn.Parameter(x * 2, requires_grad=False)
    return y, y * x


def kept_elsewhere(x):
    y = nn.Parameter(x * 2)
    KEPT.append(y)
    return (y * x,)


def only_results_depend_on_it(x):
    layer = nn.Linear(3, 2)
    nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
    return (layer(x),)


def without_gradients(x):
    with torch.no_grad():
        y = nn.Parameter(x * 2)
        return y, y * x


def a_module(x):
    layer = nn.Linear(3, 2, bias=False)
    nn.init.constant_(layer.weight, 0.25)
    return layer(x), layer.weight


def a_view_leaves(x):
    y = (x * 2).requires_grad_()
    return y.t(), y * x


@pytest.mark.parametrize(
    "program",
    [
        flagged, by_attribute, of_a_factory, changed_while_it_is_none, a_parameter, a_frozen_parameter, kept_elsewhere,
        only_results_depend_on_it, without_gradients, a_module, a_view_leaves,
    ],
)  # fmt: skip
def test_leaves_that_leave_a_graph(program):
    compiled = turret.compile(program, fullgraph=True, options=OPTIONS)
    same(program, Observed(program, fullgraph=True), compiled, compiled)


def of_the_caller_s_memory(x):
    y = x.detach().requires_grad_()
    return y, y * 3


def parameters_of_parts(x):
    y, z = nn.Parameter(x[1]), nn.Parameter(x.t()[1:])
    return y, z, (y[1:] * z[0]).sin(), x[:, 1].detach().requires_grad_()


def a_parameter_of_the_caller_s_memory(x):
    y = nn.Parameter(x)
    return y, (y * x).sin(), nn.Parameter(x)


def without_gradients_of_the_caller_s_memory(x):
    with torch.no_grad():
        y = nn.Parameter(x)
        return y, y * 2


def only_results_depend_on_the_caller_s_memory(x):
    return (nn.Parameter(x) * 3,)


@pytest.mark.parametrize(
    "program",
    [
        of_the_caller_s_memory, parameters_of_parts, a_parameter_of_the_caller_s_memory, without_gradients_of_the_caller_s_memory,
        only_results_depend_on_the_caller_s_memory,
    ],
)  # fmt: skip
def test_a_leaf_in_an_argument_s_memory_lies_there(program):
    compiled = turret.compile(program, fullgraph=True, options=OPTIONS)
    same(program, Observed(program, fullgraph=True), compiled, compiled)
    x = torch.cat([X, X])[2:]
    for leaf, expected in zip(compiled(x), program(x), strict=True):
        assert not (leaf.is_leaf and leaf.requires_grad) or (leaf.data_ptr(), leaf.stride()) == (
            expected.data_ptr(),
            expected.stride(),
        )


def a_backward_to_a_parameter(x):
    y, layer = nn.Parameter(torch.ones(3)), nn.Linear(3, 2, bias=False)
    nn.init.ones_(layer.weight)
    for _ in range(2):
        (layer(y * x) ** 2).sum().backward()
    return y.grad, layer.weight.grad


def a_backward_to_a_parameter_that_results_depend_on(x):
    y = nn.Parameter(x.exp())
    (y * x).sum().backward()
    return y.grad, y.detach() * 2, y.grad * y


def a_backward_to_a_parameter_of_the_caller_s_memory(x):
    y = nn.Parameter(x[0])
    (y * y).sum().backward()
    with torch.no_grad():
        return (y - y.grad,)


@pytest.mark.parametrize(
    "program",
    [
        a_backward_to_a_parameter, a_backward_to_a_parameter_of_the_caller_s_memory,
    ],
)  # fmt: skip
def test_a_parameter_made_in_the_graph_gets_its_gradients_there(program):
    compiled = turret.compile(program, fullgraph=True, options=OPTIONS)
    same(program, Observed(program, fullgraph=True), compiled, compiled)


def test_a_parameter_with_a_gradient_that_results_depend_on_breaks_the_graph():
    observed = Observed(a_backward_to_a_parameter_that_results_depend_on)
    same(a_backward_to_a_parameter_that_results_depend_on, observed, observed)
    assert "has a gradient" in observed.breaks[0]


def test_a_parameter_that_leaves_has_its_gradient():
    def program(x):
        y = nn.Parameter(x[0])
        (y * x).sum().backward()
        return y

    compiled = turret.compile(program, fullgraph=True, options=OPTIONS)
    for _ in range(2):
        assert_same(compiled(X).grad, program(X).grad)


def of_memory_that_the_graph_changes(x):
    y = nn.Parameter(x)
    x.add_(1)
    return y, y * 3


def of_memory_that_is_used_again(x):
    z = x * 2
    y = nn.Parameter(z)
    with torch.no_grad():
        z.add_(1)
    return y, y * x, z


def a_view_of_the_caller_s_memory_that_results_depend_on(x):
    y = x[0].requires_grad_()
    return (y * 3,)


def a_part_made_without_gradients(x):
    with torch.no_grad():
        y = x.expand(2, *x.shape)[1]
    return (y.requires_grad_() * x,)


@pytest.mark.parametrize(
    "program",
    [
        of_memory_that_the_graph_changes, of_memory_that_is_used_again, a_part_made_without_gradients,
        a_view_of_the_caller_s_memory_that_results_depend_on,
    ],
)  # fmt: skip
def test_a_leaf_whose_memory_others_see_breaks_the_graph(program):
    observed = Observed(program)
    same(program, observed, observed)
    assert len(observed.breaks) == 1 and "shares its memory" in observed.breaks[0]


def test_a_leaf_that_stays_in_the_graph_is_no_input():
    def forces(x, w):
        x = x.detach().requires_grad_()
        energy = (x * w).sin().sum()
        (found,) = torch.autograd.grad(energy, x, create_graph=True)
        return found

    w = torch.ones(3, requires_grad=True)
    observed = Observed(forces, fullgraph=True)
    torch.testing.assert_close(observed(X, w), forces(X, w))
    assert "leaf" not in [n.name for n in observed.graphs[0].module.graph.nodes if n.op == "placeholder"]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_flag_of_what_is_no_leaf_is_not_set(wanted: bool):
    def program(x):
        y = x * 2
        try:
            y.requires_grad = wanted
        except RuntimeError as error:
            return y + 1, str(error)
        return y, None

    x = X.clone().requires_grad_()
    found, message = turret.compile(program, fullgraph=True, options=OPTIONS)(x)
    expected, eagers = program(x)
    assert message == eagers
    torch.testing.assert_close(found, expected)


def test_a_tensor_of_which_views_were_made_is_reshaped_in_place():
    def program(x):
        y = torch.sin(x).unsqueeze(-1)
        y.mul_(2)
        y.t_()
        column = y[:, 5]
        product = y * 3
        y.unsqueeze_(0)
        return product.sum(), column.detach()

    x = torch.linspace(-1, 1, 16).requires_grad_()
    compiled = turret.compile(program, options={"on_error": "raise", "cache": False})
    found, expected = compiled(x), program(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found[0], x), torch.autograd.grad(expected[0], x))


def whole(w, x):
    with torch.no_grad():
        return w.view(-1), w.t(), x + 1


def rows(w, x):
    with torch.no_grad():
        return [*w, *w.chunk(2), w[0] @ x]


def viewed_again(w, x):
    with torch.no_grad():
        view = w.view(-1)
        return view, view[2:], w * x


def differentiated(w, x):
    with torch.no_grad():
        view = w[1:]
    ((view * x).sum() + w.exp().sum()).backward()
    return view, w * x


def of_one_made_here(w, x):
    made = (w * 2).detach().requires_grad_()
    with torch.no_grad():
        view = made.view(-1)
    return view, made * x


def left(w, x):
    with torch.no_grad():
        view = w[0]
    view = view.detach().requires_grad_()
    return view, (view * x).sum()


@pytest.mark.parametrize("program", [whole, rows, viewed_again, differentiated, of_one_made_here, left])
def test_views_of_leaves_without_gradients_are_leaves_in_the_graph(program):
    def run(call):
        w = nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3))
        results = call(w, torch.linspace(0, 1, 3))
        seen = [(r.requires_grad, r.is_leaf, r._base is w) for r in results]
        loss = sum((r * r).sum() for r in results if r.requires_grad)
        loss.backward()
        return [r.detach() for r in results], seen, w.grad, [r.grad for r in results if r.is_leaf]

    observed = Observed(program)
    expected = run(program)
    assert_same(run(observed), expected)
    assert (len(observed.graphs), observed.fallbacks, observed.breaks) == (1, [], [])
    assert_same(run(turret.compile(program, options=OPTIONS)), expected)


def test_gradients_end_at_views_without_gradients():
    def program(w):
        with torch.no_grad():
            view = w.view(-1)
        return view, (view * 2).sum() + w.sum()

    for call in (program, Observed(program), turret.compile(program, options={"cache": False})):
        w = nn.Parameter(torch.ones(2, 3))
        view, loss = call(w)
        loss.backward()
        assert_same((view.grad, w.grad), (None, torch.ones(2, 3)))


def test_a_leaf_with_several_elements_in_one_place_is_made_by_python():
    def program(x):
        y = x.sin()
        with torch.no_grad():
            wide = y.expand(2, 2, 3)
        return wide.requires_grad_(), y * 2

    same(program, Observed(program), turret.compile(program, options=OPTIONS))


@pytest.mark.parametrize("turn_off", [lambda v: v.requires_grad_(False), lambda v: setattr(v, "requires_grad", False)])
def test_what_was_computed_of_a_leaf_keeps_its_history_when_the_flag_goes(turn_off):
    def program(x):
        leaf = x.detach().requires_grad_()
        made = leaf * 3
        turn_off(leaf)
        return leaf, made, leaf * 2

    found, expected = turret.compile(program)(torch.ones(3)), program(torch.ones(3))
    assert [(v.requires_grad, v.is_leaf) for v in found] == [(v.requires_grad, v.is_leaf) for v in expected]
