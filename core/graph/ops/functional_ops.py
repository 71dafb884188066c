"""Pure ops made from ops that write to their arguments and have no pure variant of their own (custom ops).

``functional_op(ns::name.overload, form)`` is ``turret::pure_<ns>__<name>__<overload>__<form>``: it copies the tensors
that the op writes to, runs the op on the copies, and returns what the op returns (without written arguments) followed
by the copies.  The name says what to make, so a stored plan finds its ops in a new process.

The form says which tensors those are, in the order of the schema, lists flattened: ``r`` a tensor that is only read,
``n`` none, ``w0`` and so on one that is written to.  Tensors with the same number are one tensor, also where one of
them is an argument that the op only reads.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import torch

_made: dict[str, tuple[Any, torch.library.Library]] = {}
"""By name the op that a pure op is of, and the library that defines the pure one."""
_PREFIX = "turret::pure_"
_KEPT_TAGS = frozenset((
    "nondeterministic_seeded", "nondeterministic_bitwise", "cudagraph_unsafe", "data_dependent_output",
    "dynamic_output_shape", "needs_exact_strides", "needs_contiguous_strides", "needs_fixed_stride_order",
))  # fmt: skip
"""What is said of an op that holds for the pure one as well."""
_TOKEN = re.compile(r"r|n|w\d+")


def functional_op(op: Any, form: str) -> Any:
    """The pure op of a writing op, for calls of one form; defined on first use, and anew for another op so named."""
    namespace, _, base = op._schema.name.partition("::")
    name = f"pure_{namespace}__{base}__{op._overloadname}__{form}"
    known = _made.get(name)
    if known is None or known[0] is not op:
        if known is not None:
            known[1]._destroy()
        _made[name] = (op, _define(op, form, name))
    return getattr(torch.ops.turret, name).default


def _define(op: Any, form: str, name: str) -> torch.library.Library:
    tokens = form_tokens(form)
    library = torch.library.Library("turret", "FRAGMENT")
    tags = tuple(tag for tag in op.tags if tag.name in _KEPT_TAGS)
    library.define(name + _signature(op, len(set(tokens) - {"r", "n"})), tags=tags)

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = bound_arguments(op, args, kwargs)
        copies: dict[str, torch.Tensor] = {}
        left = iter(tokens)
        for argument in tensor_arguments(op):
            arguments[argument] = _with_copies(arguments[argument], left, copies)
        values = [*_returned(op, op(**arguments)), *copies.values()]
        return values[0] if len(values) == 1 else tuple(values)

    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"turret::{name}", run, lib=library)
    return library


def is_functional_op(name: str) -> bool:
    """Whether a name is one that ``functional_op`` gives: behind it is an op of somebody else."""
    return name.startswith(_PREFIX)


def restore_functional_op(name: str) -> Any | None:
    """The op of a name that ``functional_op`` gave (``turret::pure_ns__name__overload__form.default``), or None."""
    if not is_functional_op(name):
        return None
    namespace, _, rest = name.removeprefix(_PREFIX).rpartition(".")[0].partition("__")
    rest, _, form = rest.rpartition("__")
    base, _, overload = rest.rpartition("__")
    return functional_op(getattr(getattr(getattr(torch.ops, namespace), base), overload), form)


def form_tokens(form: str) -> list[str]:
    """What a form says of each tensor among the arguments, in order."""
    return _TOKEN.findall(form)


@functools.cache
def tensor_arguments(op: Any) -> tuple[str, ...]:
    """The arguments of an op that are tensors or lists of them."""
    return tuple(a.name for a in op._schema.arguments if "Tensor" in str(a.type))


def bound_arguments(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults among them."""
    schema = op._schema.arguments
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return defaults | dict(zip([a.name for a in schema], args, strict=False)) | kwargs


def _signature(op: Any, written: int) -> str:
    """The schema without alias annotations, returning ``written`` tensors last."""
    text = str(op._schema)
    arguments = _ALIAS.sub("", text[text.index("(") : text.rindex(" -> ")])
    returns = [_type(str(r.type)) for r in op._schema.returns if r.alias_info is None or not r.alias_info.is_write]
    return f"{arguments} -> ({', '.join([*returns, *['Tensor'] * written])})"


_ALIAS = re.compile(r"(?<=[A-Za-z\]?])\([a-z][a-z0-9]*!?(?: -> [^)]*)?\)")
_GENERIC = re.compile(r"(List|Optional)\[(.*)\]")


def _type(name: str) -> str:
    """A type as schemas write it: ``Tensor?[]`` for ``List[Optional[Tensor]]``."""
    generic = _GENERIC.fullmatch(name)
    return name if generic is None else _type(generic[2]) + ("[]" if generic[1] == "List" else "?")


def _with_copies(value: Any, tokens: Iterator[str], copies: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_with_copies(v, tokens, copies) for v in value]
    token = next(tokens)
    if token in ("r", "n"):
        return value
    if token not in copies:
        copies[token] = value.clone()
    return copies[token]


def _returned(op: Any, result: Any) -> list[Any]:
    """Results of the op that are not written arguments."""
    returns = op._schema.returns
    results = [] if not returns else [result] if len(returns) == 1 else list(result)
    pairs = zip(results, returns, strict=True)
    return [r for r, declared in pairs if declared.alias_info is None or not declared.alias_info.is_write]
