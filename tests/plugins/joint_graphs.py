"""Joint graphs for tests: trace a functional program and its gradients with make_fx under fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pluggy
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from turret.graph.op_traits import output_nodes
from turret.hooks import hookspecs, plugin_manager
from turret.hooks.products import JointGraph
from turret.hooks.signature import GraphSignature, InputInfo, OutputInfo, OutputKind


def make_context(*plugins: Any, **config: Any) -> SimpleNamespace:
    """A stand-in for a compile context: a config with these options and the hooks of these plugins."""
    manager = pluggy.PluginManager("turret")
    manager.add_hookspecs(hookspecs)
    for plugin in plugins:
        manager.register(plugin)
    options = plugin_manager.configure(plugin_manager.default_manager(), None, config)
    return SimpleNamespace(config=options, hooks=manager.hook, emit=lambda *a, **k: None)


def functionalized(function: Callable) -> Callable:
    """``function`` run on functional tensors, so that a trace of it holds no in-place ops."""

    def unwrap(value: Any) -> Any:
        if isinstance(value, FunctionalTensor):
            torch._sync(value)
            return torch._from_functional_tensor(value.elem)
        return value

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        wrapped = FunctionalTensor.to_functional(value)
        return wrapped.requires_grad_(True) if value.requires_grad and not wrapped.requires_grad else wrapped

    def run(*args: Any) -> list:
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        with enable_python_dispatcher(), torch._C._ExcludeDispatchKeyGuard(key), FunctionalTensorMode():
            return [unwrap(value) for value in function(*map(wrap, args))]

    return run


def trace_joint(
    function: Callable,
    args: Sequence[Any],
    decompositions: dict | None = None,
    dynamic: bool = False,
) -> JointGraph:
    """The joint graph of ``function(*args) -> tuple of tensors``; gradients for the args that require them."""
    outputs = [o.detach() for o in function(*[_fresh(a) for a in args])]
    count = len(args)

    def joint(*inputs: Any) -> list:
        primals, tangents = inputs[:count], inputs[count:]
        results = function(*primals)
        wanted = [p for p in primals if isinstance(p, torch.Tensor) and p.requires_grad]
        pairs = [(r, t) for r, t in zip(results, tangents, strict=True) if r.requires_grad]
        grads = iter(
            torch.autograd.grad([r for r, _ in pairs], wanted, [t for _, t in pairs], allow_unused=True)
            if wanted and pairs
            else [None] * len(wanted)
        )
        gradients = [next(grads) if isinstance(p, torch.Tensor) and p.requires_grad else None for p in primals]
        return [*(r.detach() for r in results), *gradients]

    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None, allow_non_fake_inputs=True)
    fakes = [_fake(mode, value) for value in (*args, *outputs)]
    with mode:
        table = dict(decompositions or {})
        module = make_fx(functionalized(joint), decomposition_table=table, tracing_mode="real")(*fakes)
    signature = GraphSignature(
        inputs=tuple(InputInfo(isinstance(a, torch.Tensor) and a.requires_grad) for a in args),
        outputs=tuple(OutputInfo(OutputKind.FRESH, i) for i in range(len(outputs))),
        training=True,
    )
    assert len(output_nodes(module.graph)) == len(outputs) + count
    return JointGraph(module, signature, len(outputs), mode)


def _fresh(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return mode.from_tensor(value, static_shapes=None if mode.shape_env is not None else True)


def run_partitioned(partitioned: Any, args: Sequence[Any], tangents: Sequence[torch.Tensor]) -> tuple[list, list]:
    """Forward outputs and gradients of a cut, both graphs run by ``fx.Interpreter``."""
    with torch.no_grad():
        results = list(fx.Interpreter(partitioned.forward).run(*args))
        outputs = results[: partitioned.num_forward_outputs]
        saved = results[partitioned.num_forward_outputs :]
        tensors, sizes = saved[: len(partitioned.saved_tensors)], saved[len(partitioned.saved_tensors) :]
        gradients = list(fx.Interpreter(partitioned.backward).run(*sizes, *tensors, *tangents))
    return outputs, gradients


def run_eager(function: Callable, args: Sequence[Any], tangents: Sequence[torch.Tensor]) -> tuple[list, list]:
    """Outputs and gradients (None where not required or unused) in eager."""
    inputs = [_fresh(a) for a in args]
    outputs = function(*inputs)
    wanted = [a for a in inputs if isinstance(a, torch.Tensor) and a.requires_grad]
    pairs = [(o, t) for o, t in zip(outputs, tangents, strict=True) if o.requires_grad]
    grads = iter(
        torch.autograd.grad([o for o, _ in pairs], wanted, [t for _, t in pairs], allow_unused=True)
        if wanted and pairs
        else [None] * len(wanted)
    )
    gradients = [next(grads) if isinstance(a, torch.Tensor) and a.requires_grad else None for a in inputs]
    return [o.detach() for o in outputs], gradients


def assert_same(got: Sequence[Any], want: Sequence[Any], **tolerance: float) -> None:
    """Equal values, pairwise; None only where None is wanted or a gradient is all zero."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if b is None or a is None:
            assert a is b or not (a if b is None else b).any()
        else:
            torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
