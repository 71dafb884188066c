"""What is done for calls of higher-order ops: regions run in place, control flow becomes a call of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy

from turret.errors import UnsupportedError
from turret.plugins.joint.interpreter import CapturedRun, HigherOrderRule
from turret.plugins.joint.ops.higher_order.control_flow import cond, map_rows, scan, while_loop

_region_ids = itertools.count(1)


def _checkpoint(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``torch.utils.checkpoint``: run in place; what it computes is marked to be recomputed in the backward."""
    module, *rest = args
    tracer = run.tracer
    tags = {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": next(_region_ids)}
    outer_policy = tracer.policy
    context_fn = module.meta.get("_checkpoint_context_fn")
    if context_fn is not None:
        tracer.policy = _selective_policy(context_fn)
    given = {k: v for k, v in kwargs.items() if k not in _CHECKPOINT_OPTIONS}
    try:
        return run.inline(module, rest, given, tags)
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
    return run.inline(module, operands, kwargs)


def _native(run: CapturedRun, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Ops that are Python functions of their modules: run as they are, what they do is traced."""
    return op(*args, **kwargs)


def _called(function: Callable[..., Any]) -> HigherOrderRule:
    """A function of the run and the op's own arguments as a rule."""
    return lambda run, op, args, kwargs: function(run, *args, **kwargs)


HIGHER_ORDER: dict[str, HigherOrderRule] = {
    "tag_activation_checkpoint": _checkpoint,
    "invoke_subgraph": _invoke,
    "wrap": _wrapped,
    "autograd_function_apply": _native,
    "cond": _called(cond),
    "while_loop": _called(while_loop),
    "scan": _called(scan),
    "map_impl": _called(map_rows),
}
