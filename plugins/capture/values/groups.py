"""Exception groups, and what ``except*`` does with them: parts of a group by kind, and what is left to raise again.

Python knows what a handler raised from what it let pass by tracebacks: parts of a group share those of the group, and
raising gives an exception another.  ``trace`` stands for the traceback here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.exceptions import ExceptionInstance
from turret.plugins.capture.values.functions import Handler

_OWN = ("derive", "split", "subgroup")


class Group(ExceptionInstance):
    """An exception group that was made in compiled code; ``members`` as they were then."""

    def __init__(self, kind: type, message: Value, given: Value, members: list[ExceptionInstance]) -> None:
        super().__init__(kind, [message, given])
        self.message, self.members = message, members
        self.part_of: Value | None = None
        """Of a part of another group: its trace when it was split off."""

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "message":
            return self.message
        if name == "exceptions":
            return t.new_tuple(list(self.members))
        if name in _OWN:
            own_methods(self.kind)
            return Handler(f"{self.kind.__name__}.{name}", getattr(self, f"m_{name}"))
        return super().get_attr(t, name)

    def m_derive(self, t: Tracer, excs: Value) -> Value:
        return new_group(t, BaseExceptionGroup, [self.message, excs])

    def m_split(self, t: Tracer, kinds: Value) -> Value:
        return t.new_tuple([_or_none(v) for v in _split(t, self, _of_kinds(t, kinds.realize()))])

    def m_subgroup(self, t: Tracer, kinds: Value) -> Value:
        return _or_none(_split(t, self, _of_kinds(t, kinds.realize()))[0])

    def real_group(self, t: Tracer) -> BaseException:
        """A group that reads like this one, of constants alone."""
        return _real(t, self)

    def rebuild(self, r: Rebuilder) -> str:
        if self.part_of is not None and self.part_of is not self.trace:
            raise Unsupported("a part of an exception group that was raised by itself and leaves compiled code")
        if list(map(_identity, self.args[1].realize().unpack(r.t))) != list(map(_identity, self.members)):
            raise Unsupported("an exception group made of a list that changed since")
        return super().rebuild(r)


def new_group(t: Tracer, kind: type, args: list[Value]) -> Group:
    """``ExceptionGroup(message, exceptions)``."""
    own_methods(kind)
    if len(args) != 2 or type(args[0].realize()) is not Constant or not isinstance(args[0].constant(), str):
        raise Unsupported(f"{kind.__name__} of something else than a text and exceptions")
    given = args[1].realize()
    members = [v.realize() for v in given.unpack(t)] if given.type() in (list, tuple) else []
    plain = all(isinstance(v, ExceptionInstance) and issubclass(v.kind, Exception) for v in members)
    if not members or not (plain or (kind is BaseExceptionGroup and all(map(_is_exception, members)))):
        raise Unsupported(f"{kind.__name__} of something else than a text and exceptions")
    if plain and kind is BaseExceptionGroup:
        kind = ExceptionGroup
    return Group(kind, args[0].realize(), given, members)  # type: ignore[arg-type]


def own_methods(kind: type) -> None:
    """Refuse classes of groups with methods of their own for taking groups apart."""
    if any(getattr(kind, name) is not getattr(BaseExceptionGroup, name) for name in _OWN):
        raise Unsupported(f"the exception group {kind.__name__}, which says itself what its parts are")


def match_star(t: Tracer, exception: Value, kinds: Value) -> tuple[Value, Value]:
    """``except* kinds``: what of an exception the handler gets, as a group, and the rest; None for nothing."""
    exception = exception.realize()
    if t.is_none(exception):
        return Constant(None), Constant(None)
    matches = _of_kinds(t, kinds)
    _known(exception)
    if matches(exception) and not isinstance(exception, Group):
        return new_group(t, BaseExceptionGroup, [Constant(""), t.new_tuple([exception])]), Constant(None)
    found, rest = _split(t, exception, matches)
    return _or_none(found), _or_none(rest)


def left_to_raise(t: Tracer, original: Value, after: list[Value]) -> Value:
    """What is raised after the last ``except*`` clause; None for nothing.

    ``after``: what each clause raised, and what no clause took.
    """
    original, realized = original.realize(), [v.realize() for v in after if not t.is_none(v)]
    whole, *found = map(_known, (original, *realized))
    if not isinstance(whole, Group):
        return found[0] if found else Constant(None)
    passed = [v for v in found if _same_trace(v, whole)]
    raised: list[Value] = [v for v in found if not _same_trace(v, whole)]
    leaves = {id(leaf) for value in passed for leaf in _leaves(value)}
    kept = _split(t, whole, lambda v: not isinstance(v, Group) and id(v) in leaves)[0] if passed else None
    if not raised:
        return _or_none(kept)
    raised += [kept] if kept is not None else []
    if len(raised) == 1 and not _GROUPS_ONE:
        return raised[0]
    return new_group(t, BaseExceptionGroup, [Constant(""), t.new_list(raised)])


def _groups_one() -> bool:
    """Whether Python makes a group of one exception that a clause raised (3.11.3 and older do)."""
    try:
        try:
            raise ExceptionGroup("", [ValueError()])
        except* ValueError:
            raise KeyError from None
    except BaseException as error:
        return isinstance(error, BaseExceptionGroup)


_GROUPS_ONE = _groups_one()


def _split(t: Tracer, value: Value, matches: Callable[[Value], bool]) -> tuple[Value | None, Value | None]:
    _known(value)
    if matches(value):
        return value, None
    if not isinstance(value, Group):
        return None, value
    pairs = [_split(t, member, matches) for member in value.members]
    found, rest = [a for a, _ in pairs if a is not None], [b for _, b in pairs if b is not None]
    return _part(t, value, found), _part(t, value, rest)


def _part(t: Tracer, group: Group, members: list[Value]) -> Group | None:
    """A group of some of a group's members, with what Python knows of the group."""
    if not members:
        return None
    if "__notes__" in group.stores:
        raise Unsupported("a part of an exception group with notes")
    made = new_group(t, BaseExceptionGroup, [group.message, t.new_list(members)])
    made.cause, made.context, made.raised, made.suppressed = group.cause, group.context, group.raised, True
    made.trace = made.part_of = group.trace
    return made


def _real(t: Tracer, value: Value) -> Any:
    value = value.realize()
    if isinstance(value, ExceptionInstance):
        if value.object is not None or value.kind.__repr__ is not BaseException.__repr__:
            raise Unsupported(f"the text of {value.describe()} in an exception group")
        return value.kind.__new__(value.kind, *(_real(t, a) for a in value.args))
    if value.type() in (list, tuple) and not value.is_constant():
        return value.type()([_real(t, item) for item in value.unpack(t)])
    return t.constant_of(value)


def _same_trace(one: ExceptionInstance, other: ExceptionInstance) -> bool:
    return one.trace is other.trace and one.cause is other.cause and one.context is other.context


def _known(value: Value) -> ExceptionInstance:
    """An exception that was made in compiled code."""
    if not isinstance(value, ExceptionInstance) or value.object is not None:
        raise Unsupported("except* of an exception that existed before")
    return value


def _is_exception(value: Value) -> bool:
    return isinstance(value, ExceptionInstance)


def _leaves(value: Value) -> list[Value]:
    if not isinstance(value, Group):
        return [value]
    return [leaf for member in value.members for leaf in _leaves(member)]


def _of_kinds(t: Tracer, kinds: Value) -> Callable[[Value], bool]:
    names: Any = t.constant_of(kinds)
    for kind in names if isinstance(names, tuple) else (names,):
        if not isinstance(kind, type) or not issubclass(kind, BaseException) or issubclass(kind, BaseExceptionGroup):
            raise Unsupported("a part of an exception group by something else than classes of plain exceptions")
    return lambda value: issubclass(value.type(), names)


def _or_none(value: Value | None) -> Value:
    return Constant(None) if value is None else value


def _identity(value: Value) -> int:
    return id(value.realize())
