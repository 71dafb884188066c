"""Pure ops made from ops that write to their arguments and have no pure variant of their own (custom ops).

``functional_op(ns::name.overload)`` is ``turret::pure_<ns>__<name>__<overload>``: it copies the arguments that the op
writes to, runs the op on the copies, and returns what the op returns (without written arguments) followed
by the copies.  The name says what to make, so a stored plan finds its ops in a new process.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_library = torch.library.Library("turret", "FRAGMENT")
_PREFIX = "turret::pure_"


@functools.cache
def functional_op(op: Any) -> Any:
    """The pure op of a writing op; defined on first use."""
    namespace, _, base = op._schema.name.partition("::")
    name = f"pure_{namespace}__{base}__{op._overloadname}"
    written = [a.name for a in op._schema.arguments if a.is_write]
    _library.define(name + _signature(op))

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = _bind(op, args, kwargs)
        for argument in written:
            arguments[argument] = _copy(arguments[argument])
        result = op(**arguments)
        kept = _returned(op, result)
        values = [*kept, *(arguments[a] for a in written)]
        if returns_flat(op):
            return [tensor for tensor in tree_leaves(values) if tensor is not None]
        return values[0] if len(values) == 1 else tuple(values)

    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"turret::{name}", run, lib=_library)
    return getattr(torch.ops.turret, name).default


def returns_flat(op: Any) -> bool:
    """Whether the pure op of ``op`` returns one list: of several results, some of which are lists of their own."""
    returned = _returned_types(op)
    return len(returned) > 1 and "Tensor[]" in returned


def is_functional_op(name: str) -> bool:
    """Whether a name is one that ``functional_op`` gives: behind it is an op of somebody else."""
    return name.startswith(_PREFIX)


def restore_functional_op(name: str) -> Any | None:
    """The op of a name (``turret::pure_ns__name__overload.default``) that ``functional_op`` would give, or None."""
    if not is_functional_op(name):
        return None
    namespace, base, overload = name.removeprefix(_PREFIX).rpartition(".")[0].split("__", 2)
    base, _, overload = f"{base}__{overload}".rpartition("__")
    return functional_op(getattr(getattr(getattr(torch.ops, namespace), base), overload))


def _signature(op: Any) -> str:
    """The schema without alias annotations, returning the written arguments last."""
    text = str(op._schema)
    arguments = _ALIAS.sub("", text[text.index("(") : text.rindex(" -> ")])
    return f"{arguments} -> Tensor[]" if returns_flat(op) else f"{arguments} -> ({', '.join(_returned_types(op))})"


def _returned_types(op: Any) -> list[str]:
    """Types of what the pure op returns: results of the op, then written arguments."""
    returns = [_type(r) for r in op._schema.returns if r.alias_info is None or not r.alias_info.is_write]
    return returns + [_type(a) for a in op._schema.arguments if a.is_write]


_ALIAS = re.compile(r"(?<=[A-Za-z\]?])\([a-z][a-z0-9]*!?(?: -> [^)]*)?\)")


def _type(argument: Any) -> str:
    return str(argument.type).replace("List[Tensor]", "Tensor[]").replace("Optional[Tensor]", "Tensor?")


def _bind(op: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [a.name for a in op._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _copy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copy(v) for v in value]
    return None if value is None else value.clone()


def _returned(op: Any, result: Any) -> list[Any]:
    """Results of the op that are not written arguments."""
    returns = op._schema.returns
    results = [] if not returns else [result] if len(returns) == 1 else list(result)
    pairs = zip(results, returns, strict=True)
    return [r for r, declared in pairs if declared.alias_info is None or not declared.alias_info.is_write]
