"""Functions, "eager" and "aot_eager" as backends: Turret's capture and guards, their graphs, eager's results."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turret
from turret.errors import PluginError, StageError, TurretWarning
from turret.testing import assert_same, check, programs

pytestmark = pytest.mark.usefixtures("fresh")


class Keep:
    """A backend that runs graphs as they are, and keeps what it was given."""

    def __init__(self):
        self.graphs, self.inputs, self.keywords = [], [], []

    def __call__(self, module, example_inputs, **keywords):
        self.graphs.append(module)
        self.inputs.append(example_inputs)
        self.keywords.append(keywords)
        return module.forward


BACKENDS = {"a function": Keep(), "eager": "eager", "aot_eager": "aot_eager"}


class Stages:
    def __init__(self):
        self.started = []

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "stage_started":
            self.started.append(event.stage)


def breaks(x):
    y = x.sin()
    print(end="")
    return y + 1


def in_place(x, y):
    x.mul_(2)
    return x.add_(y).t()


def aliases(x):
    y = x + 1
    return x, x[1:], y, y.view(-1), y


def modes(x):
    with torch.no_grad():
        y = x * 2
    return y + x, torch.is_grad_enabled()


def branches(x, flag):
    return x.relu() if flag else x.tanh()


def sized(x, n):
    return x.reshape(n, -1) * n + x.shape[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def grown(rows, grad=False):
    return lambda call: (torch.randn(rows + call, 4, requires_grad=grad),)


CASES = {
    "a break": (breaks, grown(3, True)),
    "writes to an input": (in_place, lambda: (torch.randn(3, 4), torch.randn(4))),
    "results that share memory": (aliases, lambda: (torch.randn(3, 4),)),
    "modes of gradients": (modes, grown(3, True)),
    "a branch": (branches, lambda call: (torch.randn(3), call % 2 == 0)),
    "a size that is an argument": (sized, lambda call: (torch.randn(4 * (call + 1), 3), 2 * (call + 1))),
    "a model in training": (Net(), lambda call: (torch.randn(4 + call, 6),)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("case", CASES)
def test_results_are_eager_s(case, dynamic, backend):
    function, make_inputs = CASES[case]
    compiled = turret.compile(function, backend=BACKENDS[backend], dynamic=dynamic)
    assert_same(function, compiled, make_inputs, calls=4)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=5)
@given(programs(), st.integers(0, 2**32))
def test_results_of_drawn_programs_are_eager_s(backend, program, seed):
    dynamic = random.Random(seed).choice([None, True, False])
    check(program, lambda function: turret.compile(function, backend=BACKENDS[backend], dynamic=dynamic))


def test_a_function_is_given_the_graph_and_the_tensors_of_the_call():
    keep, x, w = Keep(), torch.randn(3, 4), torch.randn(4, requires_grad=True)
    turret.compile(lambda x, w: torch.softmax(x.mul_(w), -1), backend=keep)(x.clone(), w)
    (graph,), (inputs,) = keep.graphs, keep.inputs
    assert {node.op for node in graph.graph.nodes} == {"placeholder", "call_method", "call_function", "output"}
    assert any(given is w for given in inputs) and all(type(given) in (torch.Tensor, nn.Parameter) for given in inputs)
    torch.testing.assert_close(graph(*[v.clone() for v in inputs])[0].shape, x.shape)


def test_sizes_that_change_are_symbols_and_guards_are_turret_s():
    keep = Keep()
    compiled = turret.compile(lambda x: x * x.shape[0], backend=keep)
    for rows in (3, 4, 5, 6):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), x * rows)
    assert len(keep.graphs) == 2
    assert isinstance(keep.inputs[1][0].shape[0], torch.SymInt) and not isinstance(
        keep.inputs[0][0].shape[0], torch.SymInt
    )


def test_a_function_that_runs_the_graph_leaves_the_random_numbers():
    def tries(module, example_inputs):
        module(*example_inputs)
        return module.forward

    x = torch.ones(100)
    torch.manual_seed(3)
    expected = nn.functional.dropout(x)
    torch.manual_seed(3)
    torch.testing.assert_close(turret.compile(lambda v: nn.functional.dropout(v), backend=tries)(x), expected)


def test_the_graph_is_the_function_s_to_edit():
    def halves(module, example_inputs):
        for node in module.graph.nodes:
            if node.target is torch.sin:
                node.target = torch.cos
        module.recompile()
        return module

    x = torch.randn(4)
    torch.testing.assert_close(turret.compile(lambda v: torch.sin(v) + 1, backend=halves)(x), torch.cos(x) + 1)


def test_mode_and_options_are_the_function_s_own():
    keep = Keep()
    turret.compile(torch.sin, backend=keep, mode="fast")(torch.ones(2))
    turret.compile(torch.sin, backend=keep, options={"level": 3})(torch.ones(2))
    assert keep.keywords == [{"mode": "fast"}, {"options": {"level": 3}}]


@pytest.mark.parametrize(
    ("backend", "stages"), [(Keep(), {"capture", "compile_graph"}), ("eager", {"compile_graph"}), ("aot_eager", None)]
)
def test_no_later_stage_sees_what_a_backend_took(backend, stages):
    watch, x = Stages(), torch.randn(3, requires_grad=True)
    turret.compile(lambda v: torch.sin(v) * 2, backend=backend, plugins=[watch])(x).sum().backward()
    assert "compile_graph" in watch.started
    assert not {"lower", "schedule", "codegen"} & set(watch.started)
    assert ("joint" in watch.started) == (backend == "aot_eager")


def raises(module, example_inputs):
    raise ValueError("no such machine")


def gives_nothing(module, example_inputs):
    return None


def gives_a_number(module, example_inputs):
    return 7


@pytest.mark.parametrize("backend", [raises, gives_nothing, gives_a_number])
def test_a_function_that_makes_no_callable_is_named(backend, monkeypatch):
    x = torch.randn(3)
    with pytest.raises(StageError, match=rf"backend .*{backend.__name__}"):
        turret.compile(lambda v: v.sin() + 1, backend=backend)(x)
    monkeypatch.setenv("TURRET_ON_ERROR", "fallback")
    with pytest.warns(TurretWarning, match=rf"runs a graph eagerly.*{backend.__name__}"):
        torch.testing.assert_close(turret.compile(lambda v: v.sin() + 2, backend=backend)(x), x.sin() + 2)


@pytest.mark.parametrize("made", [lambda x: x, lambda x: (), lambda x: (x, x), lambda x: None])
def test_another_number_of_results_is_an_error_that_names_the_function(made):
    def gives_others(module, example_inputs):
        return made

    with pytest.raises(PluginError, match=r"gives_others.* returned .*expected a tuple or list of 1"):
        turret.compile(lambda v: v.sin() + 1, backend=gives_others)(torch.randn(3))


def test_an_error_of_the_program_is_eager_s():
    compiled = turret.compile(lambda x, i: x[i] + 1, backend=Keep())
    with pytest.raises(IndexError):
        compiled(torch.randn(3), torch.tensor([7]))


def test_a_function_that_traces_for_itself_holds_for_sizes_that_change():
    from functorch.compile import aot_module_simplified, make_boxed_func

    def traces(module, example_inputs):
        return aot_module_simplified(module, example_inputs, fw_compiler=lambda graph, _: make_boxed_func(graph))

    compiled = turret.compile(lambda x: torch.tanh(x.reshape(-1)) * x.shape[0], backend=traces)
    for rows in (3, 4, 5, 9):
        x = torch.randn(rows, 2, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        result, expected = compiled(x), torch.tanh(y.reshape(-1)) * rows
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(*(torch.autograd.grad(v.sum(), w)[0] for v, w in ((result, x), (expected, y))))


def test_a_compiled_module_shares_its_parameters():
    keep, x = Keep(), torch.randn(3, 5)
    layer = turret.compile(nn.Linear(5, 2), backend=keep)
    assert layer(x).shape == (3, 2) and len(keep.graphs) == 1
    assert list(layer.state_dict()) == ["weight", "bias"]


def reads_data(x):
    number = x.sum().item()
    return x * number, torch.nonzero(x > 0)


def chooses(x, flag):
    return torch.cond(flag, lambda v: v.sin(), lambda v: v.cos() + 1, (x,))


SPARSE = torch.eye(4).to_sparse()
STRANGE = {
    "a sparse tensor": (lambda x: torch.sparse.mm(SPARSE, x) + 1, torch.linspace(0, 1, 12).reshape(4, 3)),
    "complex numbers": (lambda x: (x * x.conj()).real.sum(), torch.randn(3, dtype=torch.complex64, requires_grad=True)),
    "unbacked symbols": (reads_data, torch.linspace(-1, 2, 6)),
    "control flow": (lambda x: chooses(x, torch.tensor(True)), torch.randn(3)),
    "autocast": (lambda x: torch.autocast("cpu", torch.bfloat16)(torch.mm)(x, x.t()), torch.randn(3, 4)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("case", STRANGE)
def test_what_kernels_are_not_made_for_is_eager_s(case, dynamic, backend):
    function, value = STRANGE[case]
    assert_same(
        function, turret.compile(function, backend=BACKENDS[backend], dynamic=dynamic), lambda: (value.clone(),)
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_numbers_that_depend_on_data_stay_in_the_graph_where_asked_for(backend):
    asked = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    compiled = turret.compile(reads_data, backend=backend, options=asked, fullgraph=True)
    for values in (torch.linspace(-1, 2, 6), torch.linspace(-1, 4, 6)):
        torch.testing.assert_close(compiled(values), reads_data(values))


@pytest.mark.parametrize("backend", [Keep(), "eager"])
def test_gradients_of_gradients_are_eager_s(backend):
    x = torch.randn(3, requires_grad=True)
    compiled = turret.compile(lambda v: v.sin().sum(), backend=backend)
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -x.sin())
