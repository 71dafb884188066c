"""Running the captured module under the tracer, call by call, with the provenance of each."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch.overrides import _pop_mode_temporarily
from torch.utils.checkpoint import CheckpointPolicy

from turret.errors import UnsupportedError
from turret.frames.trace_modes import is_replaced
from turret.graph.ops.host_scalars import element
from turret.plugins.joint.ops.indices import indexes_by_data
from turret.plugins.joint.repeating.replay import Replays
from turret.plugins.joint.tracer import Tracer

_region_ids = itertools.count(1)


aten = torch.ops.aten


class CapturedRun:
    """Runs captured modules; nested graph modules run the same way, so that their calls keep their provenance."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def run(self, module: fx.GraphModule, inputs: Sequence[Any], replays: Replays | None = None) -> Any:
        """The module's result on ``inputs``; ``replays`` are its repeated stretches."""
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
            values[node] = self._call(module, node, args, dict(kwargs))
            if replays is not None:
                replays.leave(position, values)
            for done in last_user.get(node, ()):
                del values[done]
        raise UnsupportedError("the captured graph has no output")

    def _call(self, module: fx.GraphModule, node: fx.Node, args: tuple, kwargs: dict[str, Any]) -> Any:
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        target = _attribute(module, node.target) if node.op == "call_module" else node.target
        if isinstance(target, fx.GraphModule):
            return self._run(target, _positional(target, args, kwargs), self.tracer.recorder.provenance)
        if isinstance(target, HigherOrderOperator):
            return self._higher_order(target, args, kwargs)
        if target in (operator.getitem, operator.setitem) and indexes_by_data(args):
            if target is operator.getitem:
                return element(*args)
            shown, value = element(args[0], args[1]), args[2]
            return shown.copy_(value) if isinstance(value, torch.Tensor) else shown.fill_(value)
        if is_replaced(target):  # under the tracer's mode it would hand on what has its name
            with _pop_mode_temporarily() as mode:
                return mode.__torch_function__(target, (), args, kwargs)
        return _CHECKED.get(target, target)(*args, **kwargs)

    def _higher_order(self, op: HigherOrderOperator, args: tuple, kwargs: dict[str, Any]) -> Any:
        rule = _HIGHER_ORDER.get(op._name)
        if rule is None:
            raise UnsupportedError(f"the higher-order op {op._name} is not supported; it would have to run eagerly")
        return rule(self, op, args, kwargs)

    def inline(self, module: fx.GraphModule, args: Sequence[Any]) -> Any:
        """Run a module in place of the call that holds it."""
        return self._run(module, args, self.tracer.recorder.provenance)


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


def _positional(module: fx.GraphModule, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    if not kwargs:
        return list(args)
    names = [n.target for n in module.graph.nodes if n.op == "placeholder"]
    return [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]


def _checkpoint(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``torch.utils.checkpoint``: run in place; what it computes is marked to be recomputed in the backward."""
    module, *rest = args
    recorder, tracer = run.tracer.recorder, run.tracer
    tags = {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": next(_region_ids)}
    outer_policy = tracer.policy
    context_fn = module.meta.get("_checkpoint_context_fn")
    if context_fn is not None:
        tracer.policy = _selective_policy(context_fn)
    given = {k: v for k, v in kwargs.items() if k not in _CHECKPOINT_OPTIONS}
    try:
        return run._run(module, _positional(module, tuple(rest), given), recorder.provenance | tags)
    finally:
        tracer.policy = outer_policy


_CHECKPOINT_OPTIONS = frozenset(
    ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
)


def _selective_policy(context_fn: Callable) -> Callable[..., CheckpointPolicy]:
    """The user's policy as a function of an op and its arguments."""
    from torch.utils.checkpoint import SelectiveCheckpointContext

    policy_fn = getattr(context_fn()[0], "policy_fn", None)
    if policy_fn is None:
        raise UnsupportedError("a checkpoint context without a policy cannot be compiled")
    context = SelectiveCheckpointContext(is_recompute=False)

    def policy(func: Any, args: tuple, kwargs: dict[str, Any]) -> CheckpointPolicy:
        answer = policy_fn(context, func, *args, **kwargs)
        if isinstance(answer, bool):
            return CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
        return answer

    return policy


def _invoke(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``invoke_subgraph(module, identifier, *operands)``: a region that the user marked; traced in place."""
    module, _, *operands = args
    return run.inline(module, operands)


def _wrapped(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    module, *operands = args
    return run.inline(module, _positional(module, tuple(operands), kwargs))


def _native(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Ops that are Python functions of their modules: run as they are, what they do is traced."""
    return op(*args, **kwargs)


def _conditional(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    from turret.plugins.joint.ops.control_flow import cond

    return cond(run.tracer, *args, **kwargs)


def _loop(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    from turret.plugins.joint.ops.control_flow import while_loop

    return while_loop(run.tracer, *args, **kwargs)


def _scan(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    from turret.plugins.joint.ops.control_flow import scan

    return scan(run.tracer, *args, **kwargs)


def _map(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    from turret.plugins.joint.ops.control_flow import map_rows

    return map_rows(run.tracer, *args, **kwargs)


_HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "tag_activation_checkpoint": _checkpoint,
    "invoke_subgraph": _invoke,
    "wrap": _wrapped,
    "autograd_function_apply": _native,
    "cond": _conditional,
    "while_loop": _loop,
    "scan": _scan,
    "map_impl": _map,
}
