"""``torch.utils.checkpoint``: what it computes is tagged for the partitioner to compute it again in the backward."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy, check_backward_validity

from turret.plugins.capture.autograd.later import reachable
from turret.plugins.capture.branches.watched import counting_changes
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.autograd import own_results
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.functions import Callable_, Known, NestedFunction, Partial
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.structures import flatten
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.modes import DeviceContext
from turret.torch_compat.programs.functions import CHECKPOINT_SAVES_BY_FUNCTION

_OPTIONS = frozenset({"preserve_rng_state", "determinism_check", "debug", "early_stop"})


@registry.function(torch.utils.checkpoint.checkpoint)
def checkpoint(
    t: Tracer, /, function: Value, *args: Value, use_reentrant: Value | None = None, **kwargs: Value
) -> Value:
    """Followed like any call; with a ``context_fn``, a graph of its own that the op for it is called with."""
    if t.hooks_refused:
        raise Unsupported("torch.utils.checkpoint where hooks on saved tensors are refused")
    reentrant = use_reentrant is None or t.is_none(use_reentrant) or t.truth(use_reentrant)
    _check_transforms(t, reentrant)
    _check_can_be_saved(args)
    _check_nobody_hears(t)
    policy = kwargs.pop("context_fn", None)
    named = {k: v for k, v in kwargs.items() if k not in _OPTIONS}
    if reentrant and (named or policy is not None):
        raise Unsupported("a reentrant torch.utils.checkpoint with keyword arguments, which it refuses")
    if reentrant and not (torch.is_grad_enabled() and _wants_gradients(args)):
        return _unrecorded(t, function, list(args))
    if policy is not None:
        return _selective(t, function, list(args), named, _plain(t, policy.realize()))
    outer = t.recorder.tags
    t.recorder.regions += 1
    t.recorder.tags = {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": t.recorder.regions}
    differentiable = torch.is_grad_enabled()
    with _refusing_changes(t, function, *args, *kwargs.values()) if differentiable else contextlib.nullcontext():
        try:
            result = t.call(function, list(args), named)
        finally:
            t.recorder.tags = outer
    if differentiable:
        _keep_what_is_saved(t, result)
    return result


@contextlib.contextmanager
def _refusing_changes(t: Tracer, *held: Value) -> Iterator[None]:
    """Refuse what a checkpointed function changes from before: its backward calls it again."""
    writes = _writes(t)
    with counting_changes(t, *held) as changed:
        yield
    if changed():
        raise Unsupported("torch.utils.checkpoint of a function with side effects, which the backward has again")
    if any(count != writes.get(node, 0) for node, count in _writes(t).items()):
        raise Unsupported("torch.utils.checkpoint of a function that writes to tensors from before: the backward, too")


def _writes(t: Tracer) -> dict[fx.Node, int]:
    """Writes so far to tensors from before, by input of the graph."""
    given = [i for i in t.recorder.inputs if isinstance(i.example, torch.Tensor)]
    return {i.node: t.recorder.versions.of(i.example) for i in given}


def _keep_what_is_saved(t: Tracer, result: Value) -> None:
    """Refuse writes to results that operations save for their backward.

    In eager these are computed again, so that the program may write to them; in a graph that runs eagerly they are not.
    """
    for value in reachable([result.realize()]).values():
        if isinstance(value, Tensor) and _is_saved(value.fake):
            t.recorder.versions.keep("the backward of a checkpointed function", value.fake)


def _is_saved(fake: torch.Tensor) -> bool:
    """Whether the operation that made a tensor, or the one that it is a view of, keeps it for its backward."""
    made = [tensor.grad_fn for tensor in (fake, fake._base) if tensor is not None]
    saved = [getattr(node, name) for node in made for name in dir(node) if name.startswith("_saved_")]
    return any(isinstance(v, torch.Tensor) and _share(v, fake) for v in saved)


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _check_transforms(t: Tracer, reentrant: bool) -> None:
    """Transforms refuse hooks on saved tensors, or the ``autograd.Function`` that a form is, or saves with."""
    if under := t.recorder.gradient_transform():
        raise Unsupported(f"torch.utils.checkpoint under torch.func.{under}, which refuses hooks on saved tensors")
    if (reentrant or CHECKPOINT_SAVES_BY_FUNCTION) and (names := t.recorder.transforms()):
        raise Unsupported(f"torch.utils.checkpoint, as an autograd.Function, under torch.func.{names[-1]}")


def _check_can_be_saved(args: tuple[Value, ...]) -> None:
    """Both forms save their arguments for the backward, which those made in inference mode refuse.

    In inference mode, up to torch 2.11, one of them is made by the checkpoint itself.
    """
    found = [a.realize() for a in args]
    if torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.fake.is_inference() for v in found):
        raise Unsupported("torch.utils.checkpoint of a tensor that was made in inference mode")
    if torch.is_grad_enabled() and torch.is_inference_mode_enabled():
        raise Unsupported("torch.utils.checkpoint in inference mode with gradients on")


def _wants_gradients(args: tuple[Value, ...]) -> bool:
    return any(isinstance(v, Tensor) and v.fake.requires_grad for v in (a.realize() for a in args))


def _unrecorded(t: Tracer, function: Value, args: list[Value]) -> Value:
    """The reentrant form, which gives gradients only for those of its arguments, where there are none to give.

    It says so where gradients are on.  (It would where they are off, too: there it goes without saying.)
    """
    if torch.is_grad_enabled():
        t.follow(t.wrap_known(check_backward_validity), [t.new_tuple(args)], {})
    result = t.call(t.wrap_known(polyfills.call_without_gradients), [function, *args], {}).realize()
    return own_results(t, [a.realize() for a in args], [], result)


def _check_nobody_hears(t: Tracer) -> None:
    """Which calls a checkpoint makes of its own differs from version to version; function modes hear all of them."""
    if t.overrides.sees_all() and any(mode.realize().type() is not DeviceContext for mode in t.overrides.modes):
        raise Unsupported("torch.utils.checkpoint under a function mode, which hears the calls that it makes")


def _plain(t: Tracer, value: Value) -> Any:
    """The context function as the Python object that it is."""
    if isinstance(value, Known):
        return value.object
    if isinstance(value, Partial):
        args = [plain_argument(t, v) for v in value.args]
        named = {k: plain_argument(t, v) for k, v in value.kwargs.items()}
        return functools.partial(plain_argument(t, value.function), *args, **named)
    if isinstance(value, NestedFunction):
        made = t.call(value, [], {}).realize()
        if isinstance(made, _Contexts):
            return _plain(t, made.maker)
    raise Unsupported(f"torch.utils.checkpoint with {value.describe()} as its context_fn")


def plain_argument(t: Tracer, value: Value) -> Any:
    """A constant, or a function of constants, as the object that it is outside of compiled code."""
    value = value.realize()
    if isinstance(value, Partial):
        return _plain(t, value)
    if isinstance(value, NestedFunction):
        return _made(t, value)
    if isinstance(value, Known):
        return value.constant()
    if isinstance(value, Set):
        return value.kind(t.constant_of(v) for v in value.items.values())
    return t.constant_of(value)


def _made(t: Tracer, value: NestedFunction) -> Any:
    """A function that was made in compiled code, of constants alone, as one that stands outside of it."""
    cells = [types.CellType(plain_argument(t, c.content)) for c in value.closure if c.content is not None]
    if len(cells) < len(value.closure) or value.attributes:
        raise Unsupported(f"torch.utils.checkpoint with {value.describe()} in its context_fn")
    defaults = tuple(plain_argument(t, v) for v in value.defaults)
    made = types.FunctionType(value.code, value.scope, value.code.co_name, defaults, tuple(cells))
    made.__kwdefaults__ = {k: plain_argument(t, v) for k, v in value.keyword_defaults.items()}
    return made


class _Contexts(Callable_):
    """What a context function gives that was made in compiled code; ``maker`` gives the like at each call."""

    def __init__(self, maker: Partial) -> None:
        self.maker = maker

    def type(self) -> type:
        return tuple


@registry.function(torch.utils.checkpoint.create_selective_checkpoint_contexts)
def create_contexts(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    function = t.wrap_known(torch.utils.checkpoint.create_selective_checkpoint_contexts)
    return _Contexts(Partial(function, list(args), kwargs))


def _selective(t: Tracer, function: Value, args: list[Value], kwargs: dict[str, Value], context_fn: Any) -> Value:
    with t.recorder.region() as region:
        with _refusing_changes(t, function, *args, *kwargs.values()):
            leaves, structure = flatten(t, t.call(function, args, kwargs))
        values = [v.realize() for v in leaves]
        if not all(isinstance(v, Tensor) for v in values):
            raise Unsupported("a selective checkpoint with results that are no tensors")
        graph = region.close([t.recorder.argument(v)[0] for v in values])
    graph.meta["_checkpoint_context_fn"] = context_fn
    lifted = list(region.lifted)
    results = tuple(graph(*(node.meta["example_value"] for node in lifted)))
    arguments = (t.recorder.submodule(graph, "checkpoint"), *map(t.recorder.node_here, lifted))
    node = t.recorder.record("call_function", torch.ops.higher_order.tag_activation_checkpoint, arguments, {}, results)
    return structure.build(t, iter(t.recorder.unpacked(node, results).unpack(t)))
