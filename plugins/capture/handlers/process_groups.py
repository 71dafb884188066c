"""What programs ask of process groups: sizes, ranks, backends.

The answers are constants, which guards ask for again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
from torch import distributed as dist

from turret.frames.sources import BoundSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.classes import written_in_c
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import List, Tuple
from turret.torch_compat.programs.collectives import resolve_group_name, resolve_process_group


def group_name(group: Any, tag: str = "") -> str:
    """The name of a process group, list of ranks or mesh; None is the default group."""
    return resolve_group_name(dist.group.WORLD if group is None else group, tag)


def plain_group(t: Tracer, group: Value) -> Any:
    """The object that names a group, which stays the same one."""
    if isinstance(group, (Tuple, List)):
        return type(group).kind([plain_group(t, v.realize()) for v in group.unpack(t)])
    if isinstance(group, Instance):
        if group.source is not None:
            t.guards.take("ID", group.source, group.object)
        return group.object
    return t.constant_of(group)


@attrs.frozen
class _Named:
    """A process group by its name: a guard keeps none alive."""

    name: str


def _answer(ask: Callable, given: tuple[Any, ...], module: Any) -> Any:
    found = ask(*(resolve_process_group(value.name) if isinstance(value, _Named) else value for value in given))
    return tuple(found) if isinstance(found, list) else found


def _asked(t: Tracer, ask: Callable, args: tuple[Value, ...]) -> Value:
    """The answer to a question about groups, assumed to stay the same."""
    plain = [plain_group(t, a.realize()) for a in args]
    given = tuple(_Named(group_name(v)) if isinstance(v, dist.ProcessGroup) else v for v in plain)
    question = functools.partial(_answer, ask, given)
    try:
        found = question(dist)
    except (RuntimeError, ValueError) as error:
        raise Unsupported(f"{ask.__name__}, which raises {error}") from None
    t.guards.take("CALL", BoundSource("torch.distributed", dist), (question, found))
    return t.made(list(found) if isinstance(found, tuple) else found)


def _size(group: Any) -> int:
    return group.size()


def _rank(group: Any) -> int:
    return group.rank()


def _group_name(group: Any) -> str:
    return group.group_name


def _register(asked: Any, ask: Callable, parameters: tuple[str, ...]) -> None:
    """Answer calls of ``asked`` with what ``ask`` says of its arguments, None for those that are left out."""

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        if len(args) > len(parameters) or not kwargs.keys() <= set(parameters[len(args) :]):
            raise Unsupported(f"the arguments of {ask.__name__}()")
        given = dict(zip(parameters, args, strict=False)) | kwargs
        return _asked(t, ask, tuple(given.get(name) or t.wrap_known(None) for name in parameters))

    registry.functions[written_in_c(asked)] = handler


for _ask in (dist.get_world_size, dist.get_rank, dist.get_backend, dist.get_process_group_ranks):
    _register(_ask, _ask, ("group",))
_register(dist.get_global_rank, dist.get_global_rank, ("group", "group_rank"))
_register(dist.get_group_rank, dist.get_group_rank, ("group", "global_rank"))
_register(dist.ProcessGroup.size, _size, ("self",))
_register(dist.ProcessGroup.rank, _rank, ("self",))
_register(vars(dist.ProcessGroup)["group_name"].fget, _group_name, ("self",))
