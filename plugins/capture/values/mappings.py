"""Dicts and their views."""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from turret.frames.class_members import member_owner
from turret.frames.sources import DictSource, ItemSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import (
    Answer,
    Constant,
    Rebuilder,
    Tracer,
    Unread,
    Value,
    refuse_to_drop,
    spelled,
)
from turret.plugins.capture.values.iterators import Iterator
from turret.plugins.capture.values.sequences import Tuple, folded


def is_among(t: Tracer, item: Value, others: Iterable[Value]) -> bool:
    """Whether an object that hashes by its address is one of some others: assumed of those that existed before."""
    item = item.realize()
    if isinstance(item, Constant) or item.source is None:
        return False
    return any(t.is_same(item, other) for other in others if other.realize().type() is item.type())


class Dict(Value):
    """A dict, OrderedDict or defaultdict; ``items`` maps hashable keys to (key, value)."""

    def __init__(
        self,
        items: dict[Any, tuple[Value, Value]] | None = None,
        kind: type = dict,
        source: Source | None = None,
        factory: Value | None = None,
        object: Any = None,
        assume_keys: Callable[[], None] | None = None,
    ) -> None:
        """``assume_keys``: guards which keys there are, once the program depends on more than some that it names."""
        self.held = items if items is not None else {}
        self.kind, self.source, self.factory, self.object = kind, source, factory, object
        self.assume_keys = assume_keys
        self.asked: dict[Any, bool] = {}
        """Keys that the program named before it depended on all of them, and whether each was there at first."""
        self.removed: dict[Any, None] = {}
        """Those of them that were there, and that it deleted, perhaps to set them again."""
        self.written: set[Any] = set()
        self.stores: dict[str, Value] = {}
        """Attributes that the program set; an ``OrderedDict`` takes some, beside its items."""

    @property
    def items(self) -> dict[Any, tuple[Value, Value]]:
        if self.assume_keys is not None:
            self.assume_keys()
            self.assume_keys = None
            for key in self.unread():
                self.tell_apart(key, (k for k, _ in self.held.values() if k is not key))
        return self.held

    @items.setter
    def items(self, items: dict[Any, tuple[Value, Value]]) -> None:
        self.held = items

    def type(self) -> type:
        return self.kind

    def key(self, t: Tracer) -> Any:
        raise t.raised(TypeError, f"unhashable type: {spelled(self.kind)!r}")

    def folded(self) -> Any:
        """A Python copy with all values constant; raises ``NotConstant``."""
        made = {folded(k): folded(v) for k, v in self.items.values()}
        if self.kind is collections.defaultdict:
            return collections.defaultdict(None if self.factory is None else folded(self.factory), made)
        return made if self.kind is dict else self.kind(made)

    def contents(self) -> list[Value]:
        """Keys and values that are in it now, of which nothing is assumed."""
        return [v for pair in self.held.values() for v in pair]

    def changed(self, t: Tracer, dropped: Iterable[Value] | None = None) -> None:
        """To be called before any change, with the values that it lets go of (None: any)."""
        refuse_to_drop(self, (v for _, v in self.held.values()), dropped)
        t.effects.note(self)

    def hashed(self, t: Tracer, key: Value) -> Any:
        """What a key is found by among the others; one that nobody can read yet has to differ from them for sure."""
        if not isinstance(key, Unread) and not t.has_unread_keys:
            return key.realize().key(t)
        for other in self.keys():
            if isinstance(key, Unread) and key.is_same(other):
                return other
            unread, beside = (key, other) if isinstance(key, Unread) else (other, key)
            if isinstance(unread, Unread) and not unread.differs_from(beside):
                unread.realize()
        t.has_unread_keys |= isinstance(key, Unread)
        return key if isinstance(key, Unread) else key.realize().key(t)

    def unread(self) -> list[Unread]:
        """Keys that nobody can read yet."""
        return [k for k, _ in self.held.values() if isinstance(k, Unread)]

    def tell_apart(self, unread: Unread, others: Iterable[Value]) -> None:
        """Have a key that nobody can read yet differ from others for sure."""
        if not all(map(unread.differs_from, others)):
            unread.realize()

    def place_unread(self, t: Tracer, key: Unread) -> Any:
        """What a key that nobody can read yet is set by in a dict of which only some keys are known."""
        named = (self.held[name][0] if name in self.held else Constant(name) for name in self.asked)
        others = [*self.unread(), *named]
        known = next((other for other in others if key.is_same(other)), None)
        if known is not None:
            return known
        self.tell_apart(key, others)
        t.has_unread_keys = True
        return key

    def place(self, t: Tracer, key: Value) -> tuple[Any, dict[Any, tuple[Value, Value]]]:
        """What a key is found by, and where.

        Of a dict that the program has asked for keys by name alone, the guard is on this one: others may come and go.
        """
        named = None if isinstance(key, Unread) else key.realize()
        if self.assume_keys is None or not isinstance(named, Constant) or type(named.value) not in (str, int):
            return self.hashed(t, key), self.items
        name, source = named.value, self.source
        for unread in self.unread():
            self.tell_apart(unread, [named])
        if name not in self.asked:
            self.asked[name] = name in self.held
            assert source is not None
            t.guards.take("HAS_KEY" if self.asked[name] else "NO_KEY", source, name)
        return name, self.held

    def find(self, t: Tracer, key: Value) -> Value | None:
        """The value of a key, or None."""
        if isinstance(key, Unread) and self.assume_keys is not None:
            known = next(filter(key.is_same, self.unread()), None)
            if known is not None:
                return self.held[known][1]
        hashed, items = self.place(t, key)
        found = items.get(hashed)
        if found is None and self.assume_keys is None and self.source is not None and not isinstance(key, Unread):
            is_among(t, key, self.keys())
        return None if found is None else found[1]

    def get_item(self, t: Tracer, key: Value) -> Value:
        found = self.find(t, key)
        if found is not None:
            return found
        if self.factory is not None and not (self.factory.is_constant() and self.factory.constant() is None):
            made = t.call(self.factory, [], {})
            self.set_item(t, key, made)
            return made
        raise t.raised(KeyError, key)

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        if isinstance(key, Unread) and self.assume_keys is not None:
            hashed, items = self.place_unread(t, key), self.held
        else:
            hashed, items = self.place(t, key)
        known = items.get(hashed)
        self.changed(t, () if known is None else known[1:])
        items[hashed] = (known[0] if known is not None else key, value)
        self.written.add(hashed)

    def del_item(self, t: Tracer, key: Value) -> None:
        hashed, items = self.place(t, key)
        if hashed not in items:
            raise t.raised(KeyError, key)
        self.changed(t, items[hashed][1:])
        del items[hashed]
        if self.asked.get(hashed):
            self.removed[hashed] = None

    def contains(self, t: Tracer, item: Value) -> Value:
        return Constant(self.find(t, item) is not None)

    def keys(self) -> list[Value]:
        return [k for k, _ in self.items.values()]

    def iterate(self, t: Tracer) -> Value:
        return DictIterator(self, "keys")

    def unpack(self, t: Tracer) -> list[Value]:
        return self.keys()

    def length(self, t: Tracer) -> Value:
        return Constant(len(self.items))

    def truth(self, t: Tracer) -> bool:
        return bool(self.items)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if t.has_unread_keys:
            for key in (*self.keys(), *(other.keys() if isinstance(other, Dict) else ())):
                key.realize()
        if symbol not in ("==", "!=") or not isinstance(other, Dict):
            return self.not_implemented_unless(other, dict) if symbol in ("==", "!=") else NotImplemented
        if collections.OrderedDict in (self.kind, other.kind) and self.kind is other.kind:
            same = list(self.items) == list(other.items)
        else:
            same = self.items.keys() == other.items.keys()
        same = same and all(t.equals_item(v, other.items[k][1]) for k, (_, v) in self.items.items())
        return Constant(same == (symbol == "=="))

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if operation is not operator.or_ or not isinstance(other, Dict):
            return super().binary(t, operation, other, inplace)
        if inplace:
            target = self
        else:  # the right side answers for a class that derives from the left one's
            first = other if issubclass(other.kind, self.kind) and "__ror__" in vars(other.kind) else self
            target = Dict(dict(self.items), first.kind, None, first.factory)
        target.m_update(t, other)
        return target

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "default_factory" and self.factory is not None:
            return self.factory
        if self.kind is collections.OrderedDict and not hasattr(self.kind, name):
            found = self.attribute(t, name)
            if found is not None:
                return found
        return super().get_attr(t, name)

    def attribute(self, t: Tracer, name: str) -> Value | None:
        """An attribute that was set on the dict, or None."""
        if name in self.stores or self.object is None or self.source is None:
            return self.stores.get(name)
        held = DictSource(self.source)
        if name not in vars(self.object):
            t.guards.take("NO_KEY", held, name)
            return None
        return t.wrap(vars(self.object)[name], ItemSource(held, name))

    def attributes(self, t: Tracer) -> dict[str, Value]:
        """All attributes that were set on the dict."""
        held = {} if self.kind is not collections.OrderedDict or self.object is None else vars(self.object)
        if self.source is not None and self.kind is collections.OrderedDict:
            t.guards.take("KEYS", DictSource(self.source), tuple(held))
        return {n: v for n in (*held, *self.stores) if (v := self.attribute(t, n)) is not None}

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        if self.kind is not collections.OrderedDict or hasattr(self.kind, name):
            super().set_attr(t, name, value)
        self.changed(t)
        self.stores[name] = value

    def m_get(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        found = self.find(t, key)
        return found if found is not None else default if default is not None else Constant(None)

    def m_keys(self, t: Tracer) -> Value:
        return DictView(self, "keys")

    def m_values(self, t: Tracer) -> Value:
        return DictView(self, "values")

    def m_items(self, t: Tracer) -> Value:
        return DictView(self, "items")

    def m_copy(self, t: Tracer) -> Dict:
        return Dict(dict(self.items), self.kind, None, self.factory)

    def m_update(self, t: Tracer, /, *others: Value, **more: Value) -> Value:
        if len(others) > 1:
            raise Unsupported(f"{len(others)} arguments of {self.kind.__name__}.update()")
        for other in others:
            for key, value in t.pairs(other.realize()):
                self.set_item(t, key, value)
        for name, value in more.items():
            self.set_item(t, Constant(name), value)
        return Constant(None)

    def m___init__(self, t: Tracer, /, *others: Value, **more: Value) -> Value:
        if self.kind is collections.defaultdict:
            self.factory, *rest = map(Value.realize, others or (Constant(None),))
            if not t.is_none(self.factory) and member_owner(self.factory.type(), "__call__") is None:
                raise t.raised(TypeError, "first argument must be callable or None")
            others = tuple(rest)
        return self.m_update(t, *others, **more)

    def m_setdefault(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        found = self.find(t, key)
        if found is None:
            found = default if default is not None else Constant(None)
            self.set_item(t, key, found)
        return found

    def m_pop(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        found = self.find(t, key)
        if found is not None:
            self.del_item(t, key)
            return found
        if default is not None:
            return default
        raise t.raised(KeyError, key)

    def m_popitem(self, t: Tracer, last: Value | None = None) -> Value:
        if last is not None and not issubclass(self.kind, collections.OrderedDict):
            raise Unsupported(f"an argument of {self.kind.__name__}.popitem()")
        if not self.items:
            ordered = issubclass(self.kind, collections.OrderedDict)
            raise t.raised(KeyError, "dictionary is empty" if ordered else "popitem(): dictionary is empty")
        self.changed(t)
        end = -1 if last is None or t.truth(last) else 0
        key, value = self.items.pop(list(self.items)[end])
        return t.new_tuple([key, value])

    def m_move_to_end(self, t: Tracer, key: Value, last: Value | None = None) -> Value:
        hashed = self.hashed(t, key)
        if hashed not in self.items:
            raise t.raised(KeyError, key)
        self.changed(t, ())
        pair = self.items.pop(hashed)
        if last is None or t.truth(last):
            self.items[hashed] = pair
        else:
            rest = dict(self.items)
            self.items.clear()
            self.items[hashed] = pair
            self.items.update(rest)
        return Constant(None)

    def m_clear(self, t: Tracer) -> Value:
        self.changed(t)
        self.items.clear()
        return Constant(None)

    def m_fromkeys(self, t: Tracer, keys: Value, value: Value | None = None) -> Value:
        return t.from_keys(self.kind, keys, value)

    def m___getitem__(self, t: Tracer, key: Value) -> Value:
        return self.get_item(t, key)

    def m___setitem__(self, t: Tracer, key: Value, value: Value) -> Value:
        self.set_item(t, key, value)
        return Constant(None)

    def m___delitem__(self, t: Tracer, key: Value) -> Value:
        self.del_item(t, key)
        return Constant(None)

    def m___contains__(self, t: Tracer, item: Value) -> Value:
        return self.contains(t, item)

    def m___len__(self, t: Tracer) -> Value:
        return self.length(t)

    def m___iter__(self, t: Tracer) -> Value:
        return self.iterate(t)

    def rebuild(self, r: Rebuilder) -> str:
        if self.kind is dict:
            made = "{}"
        elif self.kind is collections.defaultdict:
            made = f"{r.constant(self.kind)}({'None' if self.factory is None else r.load(self.factory)})"
        else:
            made = f"{r.constant(self.kind)}()"
        name = r.remember(self, r.assign(made))
        self.fill(r, name)
        return name

    def fill(self, r: Rebuilder, name: str) -> None:
        for key, value in self.items.values():
            r.line(f"{name}[{r.load(key)}] = {r.load(value)}")
        for attribute, value in self.stores.items():
            r.line(f"{name}.{attribute} = {r.load(value)}")

    def replay(self, r: Rebuilder) -> None:
        held, some = r.load(self), self.assume_keys is not None
        written = [pair for key, pair in self.held.items() if key in self.written or not some]
        pairs = "".join(f"({r.load(k)}, {r.load(v)})," for k, v in written)
        base = r.constant(self.kind)  # past what a subclass makes of these methods: a Counter's would count
        for key in self.removed if some else ():
            r.effect(f"{base}.__delitem__({held}, {r.constant(key)})")
        if not some:
            r.effect(f"{base}.clear({held})")
        r.effect(f"{base}.update({held}, ({pairs}))")
        for attribute, value in self.stores.items():
            r.effect(f"{held}.{attribute} = {r.load(value)}")


class DictIterator(Iterator):
    """Over keys, values or items of a dict; notices that the dict changed its size."""

    def __init__(self, owner: Dict, part: str) -> None:
        self.owner, self.part, self.order, self.position = owner, part, list(owner.items), 0
        self.is_at_end = False
        self.kind = type(iter(DictView(owner, part).like()))

    def next(self, t: Tracer) -> Value:
        if self.is_at_end:
            raise t.raised(StopIteration)
        if len(self.owner.items) != len(self.order):
            raise t.raised(RuntimeError, "dictionary changed size during iteration")
        if self.position == len(self.order):
            self.check_order()
            self.is_at_end = True
            raise t.raised(StopIteration)
        key = self.order[self.position]
        if key not in self.owner.items or next(reversed(self.owner.items)) != self.order[-1]:
            self.check_order()
        self.position += 1
        return _shown(self.owner.items[key], self.part)

    def check_order(self) -> None:
        """Refuse where keys have gone and others came: how the interpreter goes on depends on its table."""
        if list(self.owner.items) != self.order:
            raise Unsupported("a dict of which keys change while it is iterated over")

    def rebuild(self, r: Rebuilder) -> str:
        if self.is_at_end:
            return r.assign(f"{r.constant(iter)}(())")
        self.check_order()
        name = r.assign(f"{r.constant(iter)}({r.load(self.owner)}.{self.part}())")
        if self.position:
            r.after_effects(f"{r.constant(lookups.advance)}({name}, {self.position})")
        return name


def view_items(owner: Dict, part: str) -> list[Value]:
    """What a view shows, in order."""
    return owner.keys() if part == "keys" else [_shown(pair, part) for pair in owner.items.values()]


def _shown(pair: tuple[Value, Value], part: str) -> Value:
    """What a view shows of a key and its value."""
    return Tuple(list(pair)) if part == "items" else pair[part == "values"]


class DictView(Value):
    """``d.keys()``, ``d.values()`` or ``d.items()``."""

    def __init__(self, owner: Dict, part: str, source: Source | None = None) -> None:
        self.owner, self.part, self.source = owner, part, source

    def type(self) -> type:
        return type(self.like())

    def like(self) -> Any:
        """A view of this class, of an empty dict."""
        base: type = collections.OrderedDict if self.owner.kind is collections.OrderedDict else dict
        return getattr(base(), self.part)()

    def iterate(self, t: Tracer) -> Value:
        return DictIterator(self.owner, self.part)

    def unpack(self, t: Tracer) -> list[Value]:
        return view_items(self.owner, self.part)

    def length(self, t: Tracer) -> Value:
        return Constant(len(self.owner.items))

    def truth(self, t: Tracer) -> bool:
        return bool(self.owner.items)

    def contains(self, t: Tracer, item: Value) -> Value:
        return self.owner.contains(t, item) if self.part == "keys" else super().contains(t, item)

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        answer = t.combine_sets(operation, self, other)
        return super().binary(t, operation, other, inplace) if answer is NotImplemented else answer

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        return t.compare_sets(symbol, self, other)

    def m___iter__(self, t: Tracer) -> Value:
        return self.iterate(t)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.load(self.owner)}.{self.part}()")


class MappingProxy(Dict):
    """A ``mappingproxy``: it shows what is in its dict at any time."""

    def __init__(self, owner: Dict, source: Source | None = None) -> None:
        super().__init__(owner.items, types.MappingProxyType, source)
        self.owner = owner

    def find(self, t: Tracer, key: Value) -> Value | None:
        return self.owner.find(t, key)

    def get_item(self, t: Tracer, key: Value) -> Value:
        return self.owner.get_item(t, key)

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        raise t.raised(TypeError, "'mappingproxy' object does not support item assignment")

    def del_item(self, t: Tracer, key: Value) -> None:
        raise t.raised(TypeError, "'mappingproxy' object does not support item deletion")

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if inplace:
            raise Unsupported("a change of a mappingproxy, which takes none")
        return self.owner.binary(t, operation, other.owner if isinstance(other, MappingProxy) else other, False)

    def m_copy(self, t: Tracer) -> Dict:
        return self.owner.m_copy(t)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(types.MappingProxyType)}({r.load(self.owner)})")


class DictByKey(Value):
    """A dict of the interpreter's or a module's own, each answer of which is assumed by itself."""

    def type(self) -> type:
        return dict

    def find(self, t: Tracer, key: Value) -> Value | None:
        """What a key leads to, or None."""
        raise NotImplementedError

    def contains(self, t: Tracer, item: Value) -> Value:
        return Constant(self.find(t, item) is not None)

    def get_item(self, t: Tracer, key: Value) -> Value:
        found = self.find(t, key)
        if found is None:
            raise t.raised(KeyError, key)
        return found

    def m_get(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        return self.find(t, key) or default or Constant(None)


class LoadedModules(DictByKey):
    """``sys.modules``: each answer is assumed, and nothing of the other modules."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def find(self, t: Tracer, key: Value) -> Value | None:
        text = t.constant_of(key)
        if text not in sys.modules:
            t.guards.take("NO_KEY", self.source, text)  # type: ignore[arg-type]
            return None
        return t.wrap(sys.modules[text], ItemSource(self.source, text))  # type: ignore[arg-type]
