"""Nested containers of values taken apart into leaves and put together again, as transforms of functions need it."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.sequences import List, NamedTuple, Tuple


@attrs.frozen
class Structure:
    """The shape of a nest: ``kind`` is None for a leaf; ``keys`` of a dict."""

    kind: type | None = None
    children: tuple[Structure, ...] = ()
    keys: tuple = ()

    @property
    def leaves(self) -> int:
        return 1 if self.kind is None else sum(c.leaves for c in self.children)

    def build(self, t: Tracer, leaves: Iterator[Value]) -> Value:
        """A nest of this shape with other leaves."""
        if self.kind is None:
            return next(leaves)
        items = [child.build(t, leaves) for child in self.children]
        if self.kind is dict:
            return t.new_dict(dict(zip(self.keys, items, strict=True)))
        if self.kind is list:
            return t.new_list(items)
        return t.new_tuple(items) if self.kind is tuple else NamedTuple(items, self.kind)


LEAF = Structure()


def flatten(t: Tracer, value: Value) -> tuple[list[Value], Structure]:
    """Leaves and structure of nested tuples, lists and dicts."""
    value = value.realize()
    if isinstance(value, NamedTuple):
        return _of(t, value.items, value.kind, ())
    if type(value) in (Tuple, List):
        return _of(t, value.items, list if isinstance(value, List) else tuple, ())  # type: ignore[attr-defined]
    if isinstance(value, Dict):
        if value.kind is not dict:
            raise Unsupported(f"{value.describe()} as an argument or result of a transformed function")
        pairs = list(value.items.values())
        return _of(t, [v for _, v in pairs], dict, tuple(k.constant() for k, _ in pairs))
    return [value], LEAF


def _of(t: Tracer, items: list[Value], kind: type, keys: tuple) -> tuple[list[Value], Structure]:
    leaves: list[Value] = []
    children = []
    for item in items:
        found, structure = flatten(t, item)
        leaves += found
        children.append(structure)
    return leaves, Structure(kind, tuple(children), keys)
