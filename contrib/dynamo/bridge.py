"""From torch._dynamo's graphs to ``CapturedGraph`` and back to its calling convention."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode

from turret.hooks import plugin_manager
from turret.hooks.config import Config
from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import CapturedGraph
from turret.pipeline.driver import Compiler
from turret.pipeline.stage_calls import create_context

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
        known = context.fake_mode
        return known, [_fake(known, context, n, x) for n, x in zip(placeholders, example_inputs, strict=True)]
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


class DynamoBackend:
    """A pipeline as a backend of torch._dynamo.

    Backends of equal pipelines are equal, so that callables compiled in the same way share code and the limit of
    recompiles (twelve layers of one class, say, compiled one by one).
    """

    def __init__(self, compile_graph: Callable[[CapturedGraph], Callable], context: CompileContext) -> None:
        self.compile_graph, self.context = compile_graph, context
        self.__name__ = "turret"

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return self.compile_graph(captured_graph(module, example_inputs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DynamoBackend) and self.compile_graph == other.compile_graph

    def __hash__(self) -> int:
        return hash(self.compile_graph)


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Backend of torch.compile: everything after capture, with Turret's modes and options."""
    manager = plugin_manager.default_manager()
    return Compiler(manager, plugin_manager.configure(manager, mode, options))(captured_graph(module, example_inputs))


def _context_of(compiler: Any) -> CompileContext | None:
    """The context that hears of the breaks of a backend, found below torch._dynamo's wrappers of it."""
    while compiler is not None:
        if isinstance(compiler, DynamoBackend):
            return compiler.context
        if compiler is backend:
            return _entry_point_context()
        for attribute in ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn", "func"):
            inner = getattr(compiler, attribute, None)
            if inner is not None:
                break
        compiler = inner
    return None


@functools.cache
def _entry_point_context() -> CompileContext:
    manager = plugin_manager.default_manager()
    return create_context(plugin_manager.configure(manager), manager)


@hookimpl
def turret_capture(
    context: CompileContext,
    target: Callable,
    compile_graph: Callable[[CapturedGraph], Callable],
    fullgraph: bool,
    dynamic: bool | None,
) -> Callable:
    """Wrap ``target`` so that torch._dynamo captures its calls."""
    # Importing torch._dynamo takes a second: not before something is compiled with it.
    from turret.contrib.dynamo import observe
    from turret.contrib.dynamo.own_errors import with_own_errors
    from turret.contrib.dynamo.sound import SoundCapture

    observe.observe_breaks(_context_of)
    own = DynamoBackend(compile_graph, context)
    entry: Any = torch._dynamo.optimize(
        own,
        nopython=fullgraph,
        dynamic=dynamic,
        guard_export_fn=functools.partial(observe.emit_guards, context),
        guard_fail_fn=functools.partial(observe.emit_recompile, context),
        guard_filter_fn=observe.guard_filter(context),
    )
    entry.callback = SoundCapture(entry.callback, own, _data_dependent(context.config))
    captured = entry(_traceable(target))
    if fullgraph or context.config.on_error == "raise":
        return with_own_errors(captured, fullgraph)
    return captured


def _data_dependent(config: Config) -> dict[str, bool]:
    """The settings of torch._dynamo for unbacked symbols, where they are asked for here."""
    names = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
    return {name: True for name in names if getattr(config, name)}


def _traceable(target: Callable) -> Callable:
    """``target``, or for a module whose forward torch._dynamo would step over a function that it does not.

    It enters frames of user code alone: of a ``Sequential``, say, it would see each user-defined layer by itself.
    The function has a code object of its own, since the limit of recompiles is one of code objects.
    """
    module = getattr(target, "__self__", None)
    forward = getattr(module, "forward", None)
    if not isinstance(module, torch.nn.Module) or not isinstance(forward, types.MethodType):
        return target
    if not torch._dynamo.trace_rules.check(forward):
        return target

    def call_module(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call_module.__code__ = call_module.__code__.replace()
    return call_module
