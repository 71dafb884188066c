"""``torch.vmap``, ``torch.func`` and gradients inside a program: one graph, equal to eager, compiled as well."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check, outcome
from tests.torch_versions import needs_torch

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, generator=torch.Generator().manual_seed(1))
NET = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


def full(program, *args, run=True, **settings):
    """One graph, equal to eager as captured and compiled."""
    check(program, *args, breaks=0, graphs=1, **settings)
    if run:
        found = turret.compile(program, fullgraph=True, options=OPTIONS)(*copy.deepcopy(args))
        torch.testing.assert_close(found, program(*copy.deepcopy(args)))


def test_vmap_over_arguments_and_results():
    full(lambda x: vmap(lambda v: v.dot(v))(x), X)
    full(lambda x, w: vmap(lambda a, b: {"d": a * b + w, "s": a.sum()}, in_dims=(0, None))(x, w), X, W, run=False)
    full(lambda x: vmap(lambda a: (a, a * 2), in_dims=1, out_dims=(0, 1))(x), X, run=False)
    full(lambda x: vmap(lambda p: p["x"] + p["y"], in_dims=({"x": 0, "y": 1},))({"x": x, "y": x.T}), X, run=False)
    full(lambda x: vmap(vmap(lambda a, b: a * b), in_dims=(0, None))(x, x[0]), X, run=False)


def test_vmap_over_no_slices():
    full(lambda x: vmap(lambda a: a * 2 + 1)(x[:0]), X, run=False)
    full(lambda x: vmap(lambda a, b: (a @ b, b.sum()), in_dims=(0, 1))(x[:0], x.T[:, :0]), X, run=False)


def test_vmap_with_a_keyword_and_a_constant():
    full(lambda x: vmap(lambda a, n, *, k: a * n + k, in_dims=(0, None))(x, 3, k=x), X, run=False)


def test_vmap_draws_random_numbers_where_it_may():
    full(lambda x: vmap(lambda v: v + torch.rand(4), randomness="different")(x).shape, X, run=False)

    def forbidden(x):
        return vmap(lambda v: v + torch.rand(4))(x)

    assert outcome(Observed(forbidden), (X,), {})[0] == "raised"


def test_wrong_dimensions_fail_as_in_eager():
    def program(x):
        return vmap(lambda v: v, in_dims=5)(x)

    assert str(outcome(Observed(program), (X,), {})[1]) == str(outcome(program, (X,), {})[1])


def test_gradients_flow_through_vmap_and_to_closures():
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    fast = turret.compile(lambda x: vmap(lambda v: (v * w).exp())(x * 2), fullgraph=True, options=OPTIONS)
    fast(x).sum().backward()
    mine = x.grad.clone(), w.grad.clone()
    x.grad = w.grad = None
    vmap(lambda v: (v * w).exp())(x * 2).sum().backward()
    torch.testing.assert_close(mine, (x.grad, w.grad))


def test_grad_with_structures_and_auxiliary_results():
    full(lambda x: grad(lambda v: (v**3).sum())(x), X)

    def program(x, y):
        gradient, extra = grad(lambda p, v: ((p["a"] * v).sum(), {"k": p["a"] + 1}), has_aux=True)({"a": x}, y)
        return gradient["a"], extra["k"]

    full(program, X, X + 1, run=False)
    full(lambda x, y: grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, y), X, X * 2, run=False)
    full(lambda x: grad_and_value(lambda v: (v**3).sum())(x), X, run=False)
    full(lambda x: grad_and_value(lambda v: ((v**3).sum(), v * 2), has_aux=True)(x), X, run=False)
    full(lambda x: grad(grad(lambda v: v**4))(x.sum()), X, run=False)


def loss(weights, sample):
    return ((weights["w"] * sample).sum() - 1) ** 2


PER_SAMPLE = vmap(grad(loss), in_dims=(None, 0))


def test_gradients_of_each_sample():
    full(lambda x, w: vmap(grad(loss), in_dims=(None, 0))({"w": w}, x)["w"], X, W)


def test_a_transform_made_before_the_call():
    full(lambda x, w: PER_SAMPLE({"w": w}, x)["w"] * 2, X, W, run=False)


def test_forward_and_reverse_derivatives():
    full(lambda x: jvp(torch.sin, (x,), (torch.ones_like(x),)), X)

    def program(x):
        out, pull = vjp(lambda v: (v.sin(), v * 2), x)
        return out, pull((x, x + 1))[0], pull((x * 2, x))[0]

    full(program, X)
    full(lambda w: (jacrev(torch.sin)(w), jacfwd(torch.cos)(w), hessian(lambda v: (v**3).sum())(w)), W)


@needs_torch(2, 12, "jacrev by several arguments of several results reads a tensor of numbers, which breaks the graph")
def test_derivatives_of_several_results_by_several_arguments():
    full(lambda w: jacrev(lambda a, b: (a * b, a.sum()), argnums=(0, 1))(w, w * 2), W, run=False)


def test_a_vjp_that_draws_random_numbers_runs_as_python():
    def program(x):
        out, pull = vjp(lambda v: v * torch.rand_like(v), x)
        return out, pull(torch.ones_like(x))[0]

    observed = Observed(program)
    out, pulled = observed(X)
    torch.testing.assert_close(out, X * pulled)
    assert "random" in observed.breaks[0]


def test_a_transformed_function_that_changes_another_tensor_fails_as_in_eager():
    total = torch.zeros(())

    def program(x):
        def function(v):
            total.add_(1)
            return v.sum()

        return grad(function)(x)

    observed = Observed(program)
    kind, error = outcome(observed, (X,), {})
    assert kind == "raised" and str(error) == str(outcome(program, (X,), {})[1])
    assert total == 0 and "grad on fake tensors" in observed.breaks[0]


def test_vmap_changes_its_argument_in_place():
    def program(x):
        y = x + 1
        return vmap(lambda v: v.mul_(2).sum())(y), y, vmap(lambda v: v.add_(1).sum())(x)

    full(program, X)


def test_a_tensor_does_not_leave_a_transformed_function_by_a_side_effect():
    def program(x):
        kept = []

        def function(v):
            kept.append(v * 2)
            return v.sum()

        return vmap(function)(x), len(kept), kept[0].shape

    check(program, X, breaks=None)


def test_functional_call_uses_other_parameters_and_puts_them_back():
    before = dict(NET.named_parameters())

    def program(x):
        return functional_call(NET, {k: v * 2 for k, v in NET.named_parameters()}, (x,)) + NET(x)

    full(program, X)
    assert all(value is before[name] for name, value in NET.named_parameters())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.second(self.first(x)))


def test_functional_call_of_a_module_that_the_frame_changed_before():
    def switched(net, x):
        net.eval()
        net.seen = 1
        return functional_call(net, {"first.weight": x.T @ x}, (x,))

    def untied(net, x):
        net.eval()
        net.second.weight = nn.Parameter(x.T @ x * 2)
        return functional_call(net, {"first.weight": x.T @ x}, (x,))

    def twice(net, x):
        net.eval()
        return functional_call(net, {"first.weight": x.T @ x}, functional_call(net, {"second.weight": x.T @ x}, x))

    for program in (switched, untied, twice):
        check(program, Tied(), X, breaks=None if program is untied else 0)


def test_functional_call_gives_a_module_an_attribute_that_it_lacks_for_that_call():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x) * getattr(self, "scale", 1)

    module = Scaled()

    def program(x):
        made = functional_call(module, {"scale": x.sum(), "inner.extra": x, "inner.bias": x[0]}, (x,))
        return made, module(x), hasattr(module, "scale"), hasattr(module.inner, "extra")

    full(program, X)
    assert "scale" not in vars(module) and "extra" not in vars(module.inner)


class Plain(nn.Module):
    """A module with tensors that are neither parameters nor buffers."""

    shared = torch.tensor(2.0)
    missing = None

    def __init__(self):
        super().__init__()
        self.weight, self.scale, self.size = nn.Parameter(torch.ones(4)), torch.tensor(2.0), 3

    def forward(self, x):
        made = x * self.weight * self.scale * self.shared
        self.scale = self.scale + 1
        return made if self.missing is None else made + self.missing


@pytest.mark.parametrize("name", ["scale", "shared", "missing", "inner.scale"])
def test_functional_call_puts_tensors_in_the_place_of_plain_attributes_for_that_call(name):
    def program(module, x):
        given = {name: x[0], f"{name.rpartition('scale')[0]}weight" if "." in name else "weight": x[1]}
        made = functional_call(module, given, (x,))
        return made, given, module(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Plain()

        def forward(self, x):
            return self.inner(x)

    # What was the class's is an attribute of the module's own from the first call on, as torch puts it back.
    graphs = 1 if "scale" in name else 2
    check(program, Outer() if "." in name else Plain(), X, breaks=0, graphs=graphs)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_modules_are_stacked_in_the_graph_and_leaves_get_their_gradients(requires_grad):
    modules = nn.ModuleList([nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(3)])
    modules.eval().requires_grad_(requires_grad)

    def program(x):
        parameters, buffers = torch.func.stack_module_state(list(modules))
        made = vmap(lambda p, b: functional_call(modules[0], (p, b), (x,)))(parameters, buffers)
        if requires_grad:
            made.square().sum().backward()
        return made.detach(), [p.grad for p in parameters.values()], buffers

    full(program, X)


@pytest.mark.parametrize("given", [{"weight": 3.0}, {"size": X}, {"forward": X}, {"scale": "text"}])
def test_functional_call_refuses_what_is_no_tensor_as_torch_does(given):
    def program(module, x):
        try:
            return functional_call(module, given, (x,))
        except TypeError as error:
            return x, "is not an instance of torch.Tensor" in str(error), module(x)

    check(program, Plain(), X, breaks=0 if "forward" not in given else None)


def test_gradients_of_each_sample_of_a_module():
    weights = {k: v.detach() for k, v in NET.named_parameters()}

    def program(x):
        def one(weights, v):
            return (functional_call(NET, weights, (v.unsqueeze(0),)) ** 2).sum()

        return vmap(grad(one), in_dims=(None, 0))(weights, x)

    full(program, X, run=False)


@pytest.mark.parametrize("run", [Observed, lambda f: turret.compile(f, fullgraph=True, options=OPTIONS)])
def test_a_gradient_penalty_trains(run):
    def program(x):
        y = NET(x).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return (gradient.norm() - 1) ** 2 + y

    found = []
    for call in (program, run(program)):
        NET.zero_grad()
        x = X.clone().requires_grad_()
        result = call(x)
        result.backward()
        found.append((result.detach(), x.grad, NET[0].weight.grad.clone()))
    torch.testing.assert_close(*found)


def test_a_loss_on_second_derivatives_trains():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    def program(x):
        laplacian = vmap(lambda v: torch.trace(hessian(lambda u: net(u).squeeze())(v)))(x)
        return (laplacian**2).mean()

    found = []
    for call in (program, turret.compile(program, fullgraph=True, options=OPTIONS)):
        net.zero_grad()
        call(X).backward()
        found.append(net[0].weight.grad.clone())
    torch.testing.assert_close(*found)


def test_an_ensemble_of_modules():
    models = [nn.Linear(4, 2) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def program(x):
        def one(parameters, buffers, x):
            return functional_call(base, (parameters, buffers), (x,))

        return vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)

    full(program, X)


def test_forces_beside_the_energy():
    def program(x):
        x = x.detach().requires_grad_(True)
        energy = NET(x).sum()
        return energy.detach(), -torch.autograd.grad(energy, x)[0]

    full(program, X)


def test_a_linearized_function_pushes_tangents_forward():
    def program(x, v):
        value, push = linearize(lambda a, b: {"sum": a + b, "wave": a.sin() * b}, x, x.cos())
        return value["wave"], push(v, v * 2), push(v.exp(), v)

    full(program, X, X + 1)


def test_tangents_that_do_not_fit_a_linearized_function_are_eagers_error():
    compiled = turret.compile(lambda x, v: linearize(torch.sin, x)[1](v), options=OPTIONS)
    for wrong in (X[0], X.double()):
        with pytest.raises(RuntimeError, match="of the corresponding primal"):
            compiled(X, wrong)


def test_what_linearize_returned_before_the_call_is_captured():
    _, push = linearize(lambda a, b: (a * b).sin(), X, X + 1)
    push(X, X)
    for program in (push, lambda v, w: push(v, w) + 1):
        found = turret.compile(program, fullgraph=True, options=OPTIONS)(X * 2, X)
        torch.testing.assert_close(found, program(X * 2, X))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_vmap_in_chunks_is_one_graph(size):
    def program(x, y):
        scaled = torch.vmap(lambda a, b: (a * b, {"sum": a + b}), in_dims=(1, None), out_dims=1, chunk_size=size)(x, y)
        return scaled, torch.vmap(torch.sin, chunk_size=size)(x)

    x, y = torch.arange(8.0).reshape(2, 4), torch.tensor(3.0)
    observed = Observed(program, fullgraph=True)
    assert_same(observed(x, y), program(x, y))


class Counting(nn.Module):
    """Replaces its buffer at each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.calls


COUNTING = Counting()
TIED = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
TIED[1].weight = TIED[0].weight


def test_functional_call_leaves_what_the_module_replaced_in_the_dict_that_was_given():
    def program(x):
        state = {"calls": torch.zeros(())}
        results = [functional_call(COUNTING, state, x), functional_call(COUNTING, (state,), (x,))]
        return results, functional_call(COUNTING, state, (x,)), state, COUNTING.calls

    full(program, X)


@pytest.mark.parametrize("names", [("weight", "bias"), ("weight",), ("weight", "bias", "other"), ("other", "bias")])
def test_functional_call_with_strict_raises_for_names_that_do_not_fit(names):
    net = nn.Linear(4, 4)

    def program(x):
        try:
            return functional_call(
                net,
                dict.fromkeys(names, x[0]) | {"weight": x} if "weight" in names else dict.fromkeys(names, x[0]),
                (x,),
                strict=True,
            )
        except RuntimeError as error:
            return x + 1, str(error)

    check(program, torch.eye(4), breaks=0, graphs=1)


def test_functional_call_with_two_values_for_one_parameter_raises():
    def program(x, tie):
        weights = {"0.weight": x.T @ x, "1.weight": x.T @ x * 2}
        try:
            return functional_call(TIED, weights, (x,), tie_weights=tie)
        except ValueError as error:
            return x + 1, str(error)

    def twice(x):
        try:
            return functional_call(NET, ({"0.bias": x[0]}, {"0.bias": x[1]}), (x,))
        except ValueError as error:
            return x + 1, str(error)

    for tie in (True, False):
        check(program, X, tie, breaks=0, graphs=1)
    check(twice, X, breaks=0, graphs=1)


def test_jvp_that_is_strict():
    full(lambda x: jvp(lambda a: (a * 2, a.sin()), (x,), (x,), strict=True), X)
    with pytest.raises(turret.TurretError, match="independent of the inputs"):
        turret.compile(lambda x: jvp(lambda a: W, (x,), (x,), strict=True), fullgraph=True, options=OPTIONS)(X)
