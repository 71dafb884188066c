"""Running the captured module under the tracer, call by call, with the provenance of each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.frames.trace_modes import is_replaced
from turret.graph.op_traits import becomes_a_view, laid_out
from turret.graph.ops.host_math import element
from turret.plugins.joint.ops.indices import indexes_by_data
from turret.plugins.joint.repeating.replay import Replays
from turret.plugins.joint.tracer import JointTracer
from turret.torch_compat import settings
from turret.torch_compat.dispatch import pop_function_mode
from turret.torch_compat.operators.ops import HigherOrderOperator
from turret.torch_compat.trees import pytree

aten = torch.ops.aten

HigherOrderRule = Callable[["CapturedRun", HigherOrderOperator, tuple[Any, ...], dict[str, Any]], Any]
"""What is done for a call of a higher-order op: of the run, the op, its arguments and those by name."""


class CapturedRun:
    """Runs captured modules; nested graph modules run the same way, so that their calls keep their provenance.

    ``higher_order`` has, by name, what is done for calls of higher-order ops (``ops.higher_order``).
    """

    def __init__(self, tracer: JointTracer, higher_order: Mapping[str, HigherOrderRule]) -> None:
        self.tracer, self.higher_order = tracer, higher_order

    def under(self, tracer: JointTracer) -> CapturedRun:
        """The same under another tracer."""
        return CapturedRun(tracer, self.higher_order)

    def run(self, module: fx.GraphModule, inputs: Sequence[Any], replays: Replays | None = None) -> Any:
        """The module's result on ``inputs``; ``replays`` are its repeated segments."""
        return self._run(module, inputs, {}, replays)

    def _run(
        self, module: fx.GraphModule, inputs: Sequence[Any], outer: dict[str, Any], replays: Replays | None = None
    ) -> Any:
        recorder = self.tracer.recorder
        values: dict[fx.Node, Any] = {}
        remaining = iter(inputs)
        last_user = _last_users(module.graph)
        copied_to = 0
        for position, node in enumerate(module.graph.nodes):
            if position < copied_to:
                continue
            if node.op == "placeholder":
                values[node] = next(remaining, node.args[0] if node.args else None)
                continue
            if node.op == "output":
                return fx.node.map_arg(node.args[0], values.__getitem__)
            if node.op == "get_attr":
                values[node] = _attribute(module, node.target)
                continue
            copied = None if replays is None else replays.enter(position, values)
            if copied is not None:
                copied_to = copied.end
                for call in copied.calls:
                    for done in last_user.get(call, ()):
                        values.pop(done, None)
                continue
            recorder.enter_call(node, outer)
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            try:
                if _is_laid_out(node, args, inputs):
                    _replace(values, args[0], laid_out(str(node.target), *args, **kwargs))
                    values[node] = values[node.args[0]]
                else:
                    values[node] = self._call(module, node, args, dict(kwargs))
            except UnsupportedError as refusal:
                _note_call(refusal, node)
                raise
            if replays is not None:
                replays.leave(position, values)
            for done in last_user.get(node, ()):
                del values[done]
        raise UnsupportedError("the captured graph has no output")

    def _call(self, module: fx.GraphModule, node: fx.Node, args: tuple, kwargs: dict[str, Any]) -> Any:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        target = _attribute(module, str(node.target)) if node.op == "call_module" else node.target
        if isinstance(target, fx.GraphModule):
            return self.inline(target, args, kwargs)
        if isinstance(target, HigherOrderOperator):
            return self._higher_order(target, args, kwargs)
        if target in (operator.getitem, operator.setitem) and indexes_by_data(args):
            if target is operator.getitem:
                return element(*args)
            shown, value = element(args[0], args[1]), args[2]
            return shown.copy_(value) if isinstance(value, torch.Tensor) else shown.fill_(value)
        if node.op == "call_function" and target in settings.setters:
            raise UnsupportedError(f"{target.__name__} between calls that cannot be compiled apart")
        if is_replaced(target):  # under the tracer's mode it would hand on what has its name
            with pop_function_mode() as mode:
                return mode.__torch_function__(target, (), args, kwargs)
        if target is torch.autograd.grad:
            return self._gradients(args, kwargs)
        return _CHECKED.get(target, target)(*args, **kwargs)

    def _gradients(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Gradients that the program takes; what is recorded for them is marked."""
        graph = self.tracer.recorder.graph
        before = next(iter(reversed(graph.nodes)), None)
        found = torch.autograd.grad(*args, **kwargs)
        for node in reversed(graph.nodes):
            if node is before:
                break
            node.meta["of_backward"] = True
        return found

    def _higher_order(self, op: HigherOrderOperator, args: tuple, kwargs: dict[str, Any]) -> Any:
        rule = self.higher_order.get(op._name)
        if rule is None:
            raise UnsupportedError(f"the higher-order op {op._name} is not supported; it would have to run eagerly")
        return rule(self, op, args, kwargs)

    def inline(
        self,
        module: fx.GraphModule,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a module in place of the call that holds it; what it records has ``tags`` in its ``meta``, too."""
        return self._run(
            module, _positional(module, args, kwargs or {}), {**self.tracer.recorder.provenance, **(tags or {})}
        )


def _note_call(refusal: UnsupportedError, node: fx.Node) -> None:
    """Say which call was refused: of nested ones each in turn, so that it is the outermost module's at last.

    Eager's control flow calls torch's compiler, so that no Python takes its place.
    """
    target = node.target
    if isinstance(target, HigherOrderOperator) and target._name != "tag_activation_checkpoint":
        refusal.is_of_control_flow = True
    refusal.call = None if refusal.is_of_control_flow else node.name


def _is_laid_out(node: fx.Node, args: Sequence[Any], inputs: Sequence[Any]) -> bool:
    """Whether a call changes the layout in place of a tensor that the module made and that becomes a view by that."""
    if node.op != "call_method" or not becomes_a_view(node.target, args[0]):
        return False
    return not any(args[0] is value for value in inputs)


def _replace(values: dict[fx.Node, Any], old: torch.Tensor, new: torch.Tensor) -> None:
    """Let all that was one tensor be another."""
    for node, value in values.items():
        if value is old:
            values[node] = new
        elif isinstance(value, (list, tuple)) and any(part is old for part in value):
            values[node] = pytree.tree_map(lambda part: new if part is old else part, value)


def _last_users(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Per call, the values that nobody reads after it; freeing them early keeps autograd's view of liveness eager's."""
    seen: set[fx.Node] = set()
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for source in (*node.all_input_nodes, node):
            if source not in seen:
                seen.add(source)
                if node.op not in ("placeholder", "output", "get_attr"):
                    found.setdefault(node, []).append(source)
    return found


_CHECKED: dict[Any, Any] = {
    aten._unsafe_index: aten.index,
    aten._unsafe_index.Tensor: aten.index.Tensor,
    aten._unsafe_index_put: aten.index_put,
    aten._unsafe_index_put.default: aten.index_put.default,
}
"""Ops that kernels take unchecked where a decomposition has made the index; eager checks those that a program calls."""


def _attribute(module: torch.nn.Module, target: str) -> Any:
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    return value


def _positional(module: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    if not kwargs:
        return list(args)
    names = [n.target for n in module.graph.nodes if n.op == "placeholder"]
    return [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
