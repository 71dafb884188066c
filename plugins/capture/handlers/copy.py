"""``copy.copy`` and ``copy.deepcopy``."""

from __future__ import annotations

import collections
import copy
import types
from typing import Any

import torch

from turret.frames.sources import DictSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.classes import look_up
from turret.plugins.capture.values.functions import Known, Method, NestedFunction
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.modules import Module
from turret.plugins.capture.values.objects import Instance, InstanceDict
from turret.plugins.capture.values.sequences import List, NamedTuple, Range, Tuple
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor


@registry.function(copy.copy)
def copy_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, (List, Dict, Set)):
        copied = value.call_method(t, "copy", [], {})
        if isinstance(value, Dict) and isinstance(copied, Dict):
            copied.stores.update(value.attributes(t))
        return copied
    if isinstance(value, NamedTuple) and hasattr(value.kind, "_fields"):
        return NamedTuple(list(value.items), value.kind)
    if isinstance(value, (Constant, Tuple, Known, NestedFunction, Range)):
        return value
    if type(value) is Instance and isinstance(look_up(t, value.kind, "__copy__")[1], types.FunctionType):
        return value.call_method(t, "__copy__", [], {})
    if type(value) is Instance and (made := _reduced(t, value)) is not None:
        return made
    plain = type(value) is Instance and value.payload is None
    if plain and not any(_customised(t, value.type(), n) for n in ("__copy__", *_MADE_BY)):
        return _restored(t, value)  # type: ignore[arg-type]
    raise Unsupported(f"copy.copy of {value.describe()}")


def _restored(t: Tracer, value: Instance) -> Value:
    """An instance with the state of another, by the methods that the class may have for that."""
    made = t.blank(value.kind, [])
    if not _customised(t, value.kind, "__getstate__") and look_up(t, value.kind, "__setstate__")[0] is None:
        made.stores.update({n: value.own(t, n) for n in InstanceDict(value).names(t)})
        return made
    state = (
        value.call_method(t, "__getstate__", [], {}).realize() if _customised(t, value.kind, "__getstate__") else None
    )
    state = InstanceDict(value).as_dict(t) if state is None else state
    if not isinstance(state, Dict) or not all(isinstance(k, str) for k in state.items):
        raise Unsupported(f"copy.copy of {value.describe()}, whose state is no dict of attributes")
    return _in_state(t, made, state)


def _in_state(t: Tracer, made: Instance, state: Dict) -> Instance:
    """A new instance with a state."""
    if state.items and look_up(t, made.kind, "__setstate__")[0] is not None:
        made.call_method(t, "__setstate__", [state], {})
    else:
        InstanceDict(made).m_update(t, state)
    return made


def _reduced(t: Tracer, value: Instance) -> Value | None:
    """An object made of what ``__reduce__`` of its class gives; None for a class that has none of its own."""
    if not isinstance(look_up(t, value.kind, "__reduce__")[1], types.FunctionType):
        return None
    parts = value.call_method(t, "__reduce__", [], {}).realize()
    if not isinstance(parts, Tuple) or len(parts.items) != 2:
        raise Unsupported(f"copy.copy of {value.describe()}, which gives a state beside what it is made of")
    return t.call(parts.items[0], parts.items[1].unpack(t), {})


class Memo(Value):
    """What ``__deepcopy__`` is handed, and hands on."""

    def __init__(self, done: dict[int, Value]) -> None:
        self.done = done

    def type(self) -> type:
        return dict


@registry.function(copy.deepcopy)
def deepcopy(t: Tracer, x: Value, memo: Value | None = None) -> Value:
    known = None if memo is None else memo.realize()
    if known is not None and not isinstance(known, Memo) and not t.is_none(known):
        raise Unsupported("copy.deepcopy with a memo of the program's")
    return _deep(t, x.realize(), known.done if isinstance(known, Memo) else {})


def _deep(t: Tracer, value: Value, done: dict[int, Value]) -> Value:
    """A deep copy; ``done`` holds what was copied already, so that shared parts stay shared."""
    value = value.realize()
    if isinstance(value, (Constant, Known, NestedFunction, Range, Symbolic)):
        return value
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        _check_memory(value, done)
        made = done[id(value)] = _tensor(t, value)
        return made
    if isinstance(value, Method):
        return Method(value.function, _deep(t, value.owner, done))
    if isinstance(value, InstanceDict):
        value = value.as_dict(t)
    copied = _container(t, value, done)
    if copied is not None:
        return copied
    if isinstance(value, Instance) and isinstance(look_up(t, value.kind, "__deepcopy__")[1], types.FunctionType):
        made = done[id(value)] = value.call_method(t, "__deepcopy__", [Memo(done)], {}).realize()
        return made
    if (type(value) is Instance or isinstance(value, Module)) and _is_plain(t, value):
        return _instance(t, value, done)
    raise Unsupported(f"copy.deepcopy of {value.describe()}")


def _container(t: Tracer, value: Value, done: dict[int, Value]) -> Value | None:
    """A deep copy of a container; None for what is none."""
    if type(value) is Tuple:
        return _tuple(t, value, done)
    if type(value) is NamedTuple and hasattr(value.kind, "_fields"):
        named = done[id(value)] = NamedTuple(_deep_all(t, value.items, done), value.kind)
        return named
    if isinstance(value, Set):
        made = done[id(value)] = Set.of(t, _deep_all(t, value.unpack(t), done), value.kind)
        return made
    if isinstance(value, List):
        same = done[id(value)] = value.call_method(t, "copy", [], {})
        same.items = _deep_all(t, value.items, done)  # type: ignore[attr-defined]
        return same
    if isinstance(value, Dict) and value.kind in _COPIED_DICTS:
        same = done[id(value)] = value.call_method(t, "copy", [], {})
        same.items = _deep_items(t, value.items, done)  # type: ignore[attr-defined]
        same.stores.update({n: _deep(t, v, done) for n, v in value.attributes(t).items()})  # type: ignore[attr-defined]
        return same
    return None


def _tuple(t: Tracer, value: Tuple, done: dict[int, Value]) -> Value:
    """The tuple itself where copies of its items are the items; one that holds itself is copied on the way."""
    items = _deep_all(t, value.items, done)
    if id(value) not in done:
        same = all(new is old.realize() for new, old in zip(items, value.items, strict=True))
        done[id(value)] = value if same else Tuple(items)
    return done[id(value)]


def _is_plain(t: Tracer, value: Instance) -> bool:
    """Whether an instance is copied by its attributes alone."""
    return value.payload is None and not any(_customised(t, value.kind, n) for n in _COPY_HOOKS)


def _instance(t: Tracer, value: Instance, done: dict[int, Value]) -> Value:
    """An instance with a copy of the state of another, by the methods that the class may have for that."""
    made = done[id(value)] = t.blank(value.kind, [])
    state = InstanceDict(value).as_dict(t)
    if _customised(t, value.kind, "__getstate__"):
        state = value.call_method(t, "__getstate__", [], {}).realize()
    if not isinstance(state, Dict) or state.kind is not dict or not all(isinstance(k, str) for k in state.items):
        raise Unsupported(f"copy.deepcopy of {value.describe()}, whose state is no dict of attributes")
    return _in_state(t, made, Dict(_deep_items(t, state.items, done)))


def _tensor(t: Tracer, value: Tensor) -> Value:
    """A parameter, or a tensor without a gradient, whose memory is its own and has no gaps."""
    fake, kind = value.fake, value.type()
    plain = kind is torch.Tensor and not fake.requires_grad and not value.stores and _has_no_attributes(t, value)
    if not plain and kind is not torch.nn.Parameter:
        raise Unsupported(f"copy.deepcopy of {value.describe()}")
    copied = t.recorder.call_method("clone", [t.recorder.call_method("detach", [value], {})], {})
    assert isinstance(copied, Tensor)
    if copied.fake.stride() != fake.stride():
        raise Unsupported(f"copy.deepcopy of {value.describe()}, whose memory has gaps or repeats")
    if plain:
        return copied
    return t.call(t.wrap_known(torch.nn.Parameter), [copied, Constant(fake.requires_grad)], {})


def _check_memory(value: Tensor, done: dict[int, Value]) -> None:
    """Refuse a tensor in the memory of another that was copied: copies of plain tensors share theirs, too."""
    for memory in [value.fake.untyped_storage(), *([] if value.real is None else [value.real.untyped_storage()])]:
        if done.setdefault(memory._cdata, value) is not value:
            raise Unsupported("copy.deepcopy of tensors that share memory")


def _has_no_attributes(t: Tracer, value: Tensor) -> bool:
    """Whether nothing was set on a tensor, which would be copied, too: assumed of one that existed before."""
    if value.source is None:
        return True
    t.guards.take("KEYS", DictSource(value.source), ())
    return not vars(value.real)


_COPIED_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_MADE_BY = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")
_COPY_HOOKS = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__new__", "__slots__")


def _customised(t: Tracer, cls: type, name: str) -> bool:
    return look_up(t, cls, name)[0] not in (None, object)


def _deep_all(t: Tracer, items: list[Value], done: dict[int, Value]) -> list[Value]:
    return [_deep(t, v, done) for v in items]


def _deep_items(t: Tracer, items: dict[Any, tuple[Value, Value]], done: dict[int, Value]) -> dict[Any, Any]:
    copied: dict[Any, Any] = {}
    for known, item in items.values():
        value, key = _deep(t, item, done), _deep(t, known, done)
        copied[key.key(t)] = key, value
    return copied
