"""Running passes: plugins that rewrite a product one after the other, each on what the one before left.

A pass that fails, or leaves what breaks the contract of its phase, is taken back and named.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import attrs
import pluggy
import torch
from torch import fx

from turret.errors import StageError, VerificationError
from turret.hooks.context import CompileContext
from turret.hooks.plugin_manager import BUILTINS
from turret.hooks.products import CapturedGraph, GraphPhase, LoopPhase, NodePlacement, Placement, StageGraph, Target
from turret.hooks.registration.plugin_order import in_order

PLACEMENT = "placement"
"""Key of a call's ``meta`` in the phase ``"placed"``: its ``NodePlacement``."""


def run_graph_passes(
    manager: pluggy.PluginManager, context: CompileContext, phase: GraphPhase, module: fx.GraphModule
) -> None:
    """Run every graph pass of a phase; where one fails, the graph is as it was before that one."""
    for impl in in_order(manager, "turret_graph_pass"):
        arguments = {"context": context, "phase": phase, "module": module}
        foreign = impl.plugin_name not in BUILTINS
        before = copy.deepcopy(module.graph) if foreign else None
        try:
            impl.function(*(arguments[name] for name in impl.argnames))
            if before is not None:
                _check(before, module.graph)
        except Exception as error:
            if before is not None:
                module.graph = before  # which is what runs eagerly
            raise StageError("graph_pass", impl.plugin_name, f"{phase}: {type(error).__name__}: {error}") from error


def _check(before: fx.Graph, after: fx.Graph) -> None:
    """Refuse other inputs or another number of outputs; give new calls their values."""
    from turret.graph.fakes.values import fake_mode_of  # bring sympy, which a warm start does without
    from turret.graph.op_traits import output_nodes

    for what, count in (("inputs", _inputs), ("outputs", lambda graph: len(output_nodes(graph)))):
        if count(before) != count(after):
            raise VerificationError(f"a pass left {count(after)} {what} of {count(before)}; both must stay as they are")
    after.lint()
    mode = fake_mode_of(after)
    for node in after.nodes:
        if node.op in ("call_function", "call_method") and "val" not in node.meta and mode is not None:
            node.meta["val"] = _value(node, mode)


def _inputs(graph: fx.Graph) -> int:
    return len(graph.find_nodes(op="placeholder"))


def _value(node: fx.Node, mode: Any) -> Any:
    """What a call gives on fresh fake tensors laid out as its arguments are: it may write to what it is given."""
    copied = _copied(mode)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda source: copied(source.meta.get("val")))
    with mode, torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def give_values(captured: CapturedGraph) -> None:
    """Note every call's fake value in ``meta["val"]``, as later phases have it.

    Capture keeps them as ``example_value``; a graph that was stored, or captured from outside, may have none.  An
    input's is that of before the call.
    """
    placeholders = captured.module.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, captured.example_inputs, strict=True):
        node.meta["val"] = value
    for node in captured.module.graph.nodes:
        if "example_value" in node.meta:
            node.meta.setdefault("val", node.meta["example_value"])
    missing = [n for n in captured.module.graph.nodes if n.op.startswith("call") and "val" not in n.meta]
    if missing:
        _Values(captured).run(*map(_copied(captured.fake_mode), captured.example_inputs))


def _copied(mode: Any) -> Callable[[Any], Any]:
    """A function that gives a fake tensor's like, in memory of its own."""

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)

    return copied


class _Values(fx.Interpreter):
    """Runs a captured graph on fake inputs, and notes what its calls give."""

    def __init__(self, captured: CapturedGraph) -> None:
        super().__init__(captured.module)
        self.mode = captured.fake_mode

    def run_node(self, node: fx.Node) -> Any:
        with self.mode, torch.no_grad():
            value = super().run_node(node)
        if node.op not in ("placeholder", "output"):
            node.meta.setdefault("val", value)
        return value


def run_placed_passes(
    manager: pluggy.PluginManager,
    context: CompileContext,
    graph: StageGraph,
    placement: Placement,
    place: Callable[[], Placement],
) -> Placement:
    """Run the passes of the phase ``"placed"``; ``place`` is asked, then, about calls that they made.

    A call's placement is in its ``meta``, where a pass may change it.
    """
    calls = {node.name: node for node in graph.module.graph.nodes if node.op.startswith("call")}
    for name, node in calls.items():
        if name in placement.nodes:
            node.meta[PLACEMENT] = placement.nodes[name]
    run_graph_passes(manager, context, "placed", graph.module)
    now = [node for node in graph.module.graph.nodes if node.op.startswith("call")]
    found: dict[str, NodePlacement] = {}
    made = None
    for node in now:
        placed = node.meta.pop(PLACEMENT, None)
        if placed is None and (node.name not in calls or calls[node.name] is not node):
            made = place() if made is None else made
            placed = made.nodes.get(node.name)
        if placed is not None:
            found[node.name] = placed
    return attrs.evolve(placement, nodes=found)


def run_ir_passes(
    manager: pluggy.PluginManager, context: CompileContext, phase: LoopPhase, product: Any, target: Target
) -> Any:
    """Hand a loop program (``"lowered"``) or a schedule (``"scheduled"``) through all passes, each one's verified."""
    from turret.ir import verify

    for impl in in_order(manager, "turret_ir_pass"):
        arguments = {"context": context, "phase": phase, "product": product, "target": target}
        try:
            made = impl.function(*(arguments[name] for name in impl.argnames))
            if made is None or made is product:
                continue
            if type(made) is not type(product):
                raise VerificationError(f"a pass returned a {type(made).__name__}; expected a {type(product).__name__}")
            verify(made)
        except Exception as error:
            raise StageError("ir_pass", impl.plugin_name, f"{phase}: {type(error).__name__}: {error}") from error
        product = made
        name = getattr(product, "program", product).name
        context.emit("product", stage="ir_pass", name=name, product=product)
    return product
