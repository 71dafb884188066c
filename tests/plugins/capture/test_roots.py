"""What users hand to ``turret.compile``: captured, or said not to be, once and with the reason."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.tensor([0.5, -1.5, 2.5])
OPTIONS = {"cache": False, "on_error": "raise"}


def cube(x):
    return (x**3).sum()


@pytest.mark.parametrize(
    "target",
    [
        torch.vmap(torch.sin),
        torch.vmap(lambda x: x * 2 + 1),
        torch.func.grad(cube),
        torch.func.grad_and_value(cube),
        torch.func.jacrev(lambda x: torch.sin(x) * 2),
        torch.func.jacfwd(lambda x: torch.sin(x) * 2),
        torch.func.hessian(cube),
        torch.vmap(torch.func.grad(lambda x: torch.sin(x) * x)),
        torch.func.grad(lambda x: torch.func.grad(cube)(x).sum()),
        functools.partial(torch.func.vmap(lambda a, x: a * x), torch.ones(3)),
        torch.nn.functional.softplus,
        torch.sin,
    ],
)
def test_functions_of_torch_are_one_graph(target):
    observed = Observed(target)
    for _ in range(2):
        assert_same(observed(X), target(X))
    assert len(observed.graphs) == 1 and not observed.breaks


def test_jvp_is_one_graph():
    observed = Observed(functools.partial(torch.func.jvp, torch.sin))
    assert_same(observed((X,), (X,)), torch.func.jvp(torch.sin, (X,), (X,)))
    assert len(observed.graphs) == 1 and not observed.breaks


class Plain:
    def method(self, x):
        return x + 1

    @classmethod
    def of_class(cls, x):
        return x + 2

    @staticmethod
    def static(x):
        return x + 3

    def __call__(self, x):
        return x + 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    @torch.no_grad()
    def forward(self, x):
        return self.layers[1](torch.relu(self.layers[0](x)))

    def loss(self, x):
        return self(x).square().sum()


@functools.wraps(cube)
def wrapped(*args):
    return cube(*args) + 1


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))


@pytest.mark.parametrize(
    "target",
    [
        Plain().method, Plain.of_class, Plain.static, Plain(), functools.partial(lambda a, x: a * x, 2.0), wrapped,
        functools.lru_cache(cube), torch.no_grad()(cube), [lambda x, n=n: x * n for n in range(3)][2],
        Model().loss, Model().layers[0].forward, normed().__call__, torch.inference_mode()(cube),
        torch.autocast("cpu", torch.bfloat16)(lambda x: torch.outer(x, x) @ torch.outer(x, x)),
    ],
)  # fmt: skip
def test_callables_of_every_kind_are_captured(target):
    observed = Observed(target)
    for _ in range(2):
        assert_same(observed(X), target(X))
    assert observed.graphs and not observed.fallbacks


def breaking_hook(module: nn.Module, inputs: Any, output: Any) -> None:
    print(end="")


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3), nn.Tanh()))


@pytest.mark.parametrize("path", ["", "2", "0"])
def test_a_library_module_with_a_hook_that_breaks_has_its_parts_captured(path):
    module = stack()
    module.get_submodule(path).register_forward_hook(breaking_hook)
    observed = Observed(module.__call__)
    for _ in range(2):
        assert_same(observed(X), module(X))
    called = {str(n.target) for g in observed.graphs for n in g.module.graph.nodes if n.op == "call_function"}
    assert {"relu", "tanh", "linear"} <= {c.rpartition(".")[2].split(" ")[-1] for c in called} or len(called) >= 3


def test_an_encoder_layer_with_a_hook_that_breaks_is_captured():
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    module.register_forward_pre_hook(lambda *_: print(end=""))
    x = torch.randn(2, 4, 8)
    observed = Observed(module.__call__)
    assert_same(observed(x), module(x))
    assert observed.graphs


@pytest.mark.parametrize("remake", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_a_compiled_module_are_compiled(remake):
    module = turret.compile(stack(), options={"cache": False})
    again = remake(module)
    torch.testing.assert_close(again(X), module(X))
    assert type(again) is type(module)


def test_data_parallel_and_averaged_models():
    model = nn.Linear(3, 3)
    for wrapper in (nn.DataParallel(model), torch.optim.swa_utils.AveragedModel(model)):
        observed = Observed(wrapper.__call__)
        assert_same(observed(X), wrapper(X))
        assert observed.graphs


# Nothing captured.


def generator(x):
    yield x + 1


async def coroutine(x):
    return x + 1


def reads_a_value(x):
    return x.tolist()


def evaluates(x):
    return eval("x + 1")


def said(target: Callable, *args: Any, calls: int = 3) -> list[warnings.WarningMessage]:
    """The warnings that nothing was captured, of several calls."""
    compiled = turret.compile(target, options={"cache": False})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(calls):
            result = compiled(*args)
            if hasattr(result, "close"):
                result.close()
    return [w for w in seen if issubclass(w.category, turret.TurretWarning) and "nothing of" in str(w.message)]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (generator, "generator function"),
        (coroutine, "coroutine"),
        (reads_a_value, "tolist reads"),
        (evaluates, "eval"),
        (lambda x: x.to_sparse() * 2, "sparse"),
    ],
)
def test_a_callable_of_which_nothing_is_captured_says_so_once(target, reason):
    (warning,) = said(target, X)
    assert reason in str(warning.message) and target.__qualname__ in str(warning.message)
    assert warning.filename == __file__


def test_the_line_is_that_of_the_program():
    (warning,) = said(reads_a_value, X)
    line = reads_a_value.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in reads_a_value" in str(warning.message)


def test_a_scripted_module_says_so():
    (warning,) = said(torch.jit.script(nn.Linear(3, 3)), X)
    assert "RecursiveScriptModule" in str(warning.message)


PARAMETER = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (lambda: None, ()),
        (lambda: print(end=""), ()),
        (lambda x: x, (X,)),
        (lambda x: x.shape[0] * 2, (X,)),
        (turret.disable(lambda x: x + 1), (X,)),
        (nn.Identity(), (X,)),
        (Plain, ()),
        (torch.optim.SGD([PARAMETER]).step, ()),
        (torch.optim.SGD([PARAMETER]).zero_grad, ()),
        (lambda x: x + 1, (X,)),
        (lambda x: (x + 1).tolist(), (X,)),
    ],
)
def test_nothing_is_said_where_nothing_is_missed(target, args):
    assert not said(target, *args)


def test_nothing_is_said_of_a_callable_given_back_as_it_is_nor_of_an_error():
    assert turret.compile(reads_a_value, disable=True) is reads_a_value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(turret.TurretError):
            turret.compile(evaluates, fullgraph=True, options=OPTIONS)(X)


def test_a_program_that_raises_says_nothing_and_one_that_recovers_is_looked_at_again():
    def program(x, fail):
        if fail:
            raise ValueError("no")
        return x + 1

    compiled = turret.compile(program, options=OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="no"):
            compiled(X, True)
        assert_same(compiled(X, False), X + 1)


def test_every_warning_has_turrets_category():
    assert issubclass(turret.TurretWarning, UserWarning)
    compiled = turret.compile(lambda x, n: x * len(n), options={"cache": False, "recompile_limit": 1})
    with pytest.warns(turret.TurretWarning, match="recompile_limit"):
        for number in range(3):
            compiled(X, "a" * number)


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def test_the_apply_of_an_autograd_function():
    x = X.clone().requires_grad_()
    observed = Observed(Tripled.apply)
    result = observed(x)
    assert_same(result, Tripled.apply(x))
    result.sum().backward()
    assert_same(x.grad, torch.full_like(X, 3.0))
    assert len(observed.graphs) == 1 and not observed.breaks


class Table(dict):
    @classmethod
    def of(cls, x):
        turret.graph_break()
        return super().fromkeys(["a"], x + 1)


def test_a_classmethod_written_in_c_behind_a_break():
    observed = Observed(lambda x: Table.of(x)["a"] * 2)
    assert_same(observed(X), (X + 1) * 2)
