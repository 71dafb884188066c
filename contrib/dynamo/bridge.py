"""From torch._dynamo's graphs to ``CapturedGraph`` and back to its calling convention."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode

from turret import config as configuration
from turret import plugin_manager
from turret.hookspecs import hookimpl
from turret.pipeline import Compiler
from turret.products import CapturedGraph

_numbers = itertools.count()


def captured_graph(module: fx.GraphModule, example_inputs: Sequence[Any]) -> CapturedGraph:
    """A graph of torch._dynamo as a product; inputs become fake values as they were before the graph ran."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    mode, inputs = _fake_inputs(placeholders, example_inputs)
    static = frozenset(i for i, n in enumerate(placeholders) if _is_static(n, example_inputs[i]))
    return CapturedGraph(
        module=module,
        example_inputs=tuple(inputs),
        fake_mode=mode,
        static_inputs=static,
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        name=f"graph{next(_numbers)}",
    )


def _fake_inputs(placeholders: Sequence[fx.Node], example_inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A fake mode and fake inputs.

    Dynamo ran the graph on the fakes in ``example_value``, in-place operations included, so the fakes are made anew
    from the real inputs where those are at hand: in dynamo's next mode, with the symbols that it gave to their sizes.
    """
    context = TracingContext.try_get()
    if context is not None and context.fake_mode is not None:
        mode = context.fake_mode
        return mode, [_fake(mode, context, n, x) for n, x in zip(placeholders, example_inputs, strict=True)]
    fakes = [n.meta.get("example_value", x) for n, x in zip(placeholders, example_inputs, strict=True)]
    mode = detect_fake_mode(fakes)
    if mode is None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    real = [isinstance(x, torch.Tensor) and not hasattr(x, "fake_mode") for x in fakes]
    return mode, [mode.from_tensor(x, static_shapes=True) if r else x for x, r in zip(fakes, real, strict=True)]


def _fake(mode: Any, context: TracingContext, node: fx.Node, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return node.meta.get("example_value", value)
    if hasattr(value, "fake_mode"):
        return value
    symbolic = context.tensor_to_context.get(value)
    if symbolic is None:
        return mode.from_tensor(value, static_shapes=True)
    return mode.from_tensor(value, symbolic_context=symbolic, source=symbolic.tensor_source)


def _is_static(node: fx.Node, value: Any) -> bool:
    """Whether an input is a parameter or buffer: the same memory on every call."""
    if isinstance(value, torch.nn.Parameter):
        return True
    kind = getattr(value, "_dynamo_static_input_type", None) or node.meta.get("tensor_dict", {}).get(
        "_dynamo_static_input_type"
    )
    return kind is not None


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Backend of torch.compile: everything after capture, with Turret's modes and options."""
    config = configuration.resolve(mode, options)
    return Compiler(plugin_manager.default_manager(), config)(captured_graph(module, example_inputs))


@hookimpl
def turret_capture(
    target: Callable,
    compile_graph: Callable[[CapturedGraph], Callable],
    fullgraph: bool,
    dynamic: bool | None,
) -> Callable:
    """Wrap ``target`` so that torch._dynamo captures its calls."""

    def turret(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(captured_graph(module, example_inputs))

    return torch.compile(target, backend=turret, fullgraph=fullgraph, dynamic=dynamic)
