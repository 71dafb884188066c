"""Guards: the assumptions that captured code rests on, as data; and, apart from that, how they are checked.

A ``Guard`` names a kind, the source that it speaks of and what was found there.  ``KINDS`` gives for each kind the
expression that checks it; ``GuardSet.compile`` turns a set into one Python function ``check(f, *arguments)``
and ``GuardSet.explain`` says which guard failed first, and what was found instead.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy
import torch

from turret.frames.class_members import class_member, member_owner
from turret.frames.descriptions import listed, short
from turret.frames.sources import Source, SourceReader, SourceWriter, WeakSource
from turret.frames.trace_modes import AUTOCAST_DEVICES, autocast_state, modes_in_use, program_asked_nothing
from turret.torch_compat.autograd import forward_ad_level, is_leaf
from turret.torch_compat.dispatch import dispatch_keys_of
from turret.torch_compat.function_overrides import DisableTorchFunction
from turret.torch_compat.modes import (
    DeviceContext,
    cudnn_attention_enabled,
    dispatch_mode_count,
    fills_uninitialized_memory,
    flash_attention_enabled,
    function_mode_count,
    functorch_level,
    is_tracing,
    math_attention_enabled,
    memory_efficient_attention_enabled,
)


@attrs.frozen
class Guard:
    """One assumption.

    ``kind`` is a key of ``KINDS``; ``expected`` is what was found at capture; ``others`` are further sources that the
    assumption relates (identity, aliasing, sizes); ``stack`` is the user's code that relied on it.
    """

    kind: str
    source: Source | None
    expected: Any = attrs.field(default=None, eq=lambda v: v if _plain(v) else id(v))
    others: tuple[Source, ...] = ()
    stack: str = attrs.field(default="", eq=False)

    def __str__(self) -> str:
        others = "" if self.kind == "IS" else "".join(f", {o}" for o in self.others)
        expected = "" if self.expected is None else f" {short(self.expected)}"
        return f"{self.kind} {self.source if self.source is not None else ''}{others}{expected}"


def _plain(value: Any) -> bool:
    return isinstance(value, (str, int, tuple, type(None), TensorProperties)) and not isinstance(value, torch.Size)


@attrs.frozen
class TensorProperties:
    """What a captured graph assumes of a tensor; None in ``shape`` or ``stride`` where that is dynamic."""

    type: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    marks: tuple[int, ...] | None
    """Dimensions that may be marked as dynamic; None where marks do not matter."""
    keys: Any = attrs.field(eq=str)

    @classmethod
    def of(
        cls,
        value: torch.Tensor,
        dynamic: frozenset[int] = frozenset(),
        marks: frozenset[int] | None = None,
        *,
        any_stride: bool = False,
    ) -> TensorProperties:
        """Properties of a strided tensor; sizes of ``dynamic`` dimensions and all strides beside them are left out.

        ``marks``: dimensions whose marks, as dynamic ones, are taken into account.  ``any_stride``: strides are left
        out, whatever is dynamic: guards on sizes tell them.
        """
        shape = tuple(None if n in dynamic else int(s) for n, s in enumerate(value.shape))
        stride = tuple(None for _ in shape) if dynamic or any_stride else tuple(value.stride())
        keys = dispatch_keys_of(value)
        leaf = not value.requires_grad or is_leaf(value)
        known = None if marks is None else tuple(sorted(marks))
        return cls(type(value), value.dtype, value.device, value.requires_grad, leaf, shape, stride, known, keys)

    def holds(self, value: Any) -> bool:
        """Whether a value has these properties; no mode for torch's functions sees that they are asked for."""
        if function_mode_count():
            with DisableTorchFunction():
                return self._holds(value)
        return self._holds(value)

    def _holds(self, value: Any) -> bool:
        kind = type(value)
        return (
            kind is self.type
            and value.dtype is self.dtype
            and value.device == self.device
            and value.requires_grad is self.requires_grad
            and dispatch_keys_of(value) == self.keys
            and _match(value.shape, self.shape)
            and _match(value.stride(), self.stride)
            and (not value.requires_grad or is_leaf(value)) is self.is_leaf
            and (self.marks is None or dynamic_marks(value) <= frozenset(self.marks))
        )

    def difference(self, value: Any) -> str:
        """What is different, for people."""
        kind = type(value)
        if kind is not self.type:
            return f"type {kind.__name__}, expected {self.type.__name__}"
        for name in ("dtype", "device", "requires_grad"):
            if getattr(value, name) != getattr(self, name):
                return f"{name} {getattr(value, name)}, expected {getattr(self, name)}"
        for name, got, expected in (
            ("size", value.shape, self.shape),
            ("stride", value.stride(), self.stride),
        ):
            if not _match(got, expected):
                return f"{name} {list(got)}, expected {['any' if e is None else e for e in expected]}"
        if self.marks is not None and not dynamic_marks(value) <= frozenset(self.marks):
            return f"dimensions {sorted(dynamic_marks(value))} are marked as dynamic"
        return "dispatch keys or leaf state differ"


def _match(found: Sequence[int], expected: tuple[int | None, ...]) -> bool:
    if len(found) != len(expected):
        return False
    return all(e is None or f == e for f, e in zip(found, expected, strict=True))


DYNAMIC_MARKS = (
    "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
)  # fmt: skip
"""Where ``torch._dynamo.mark_dynamic`` and its kin leave what they are told."""
STATIC_MARK = "_dynamo_static_indices"


def dynamic_marks(value: Any) -> frozenset[int]:
    """Dimensions of a tensor that the program marked as dynamic, and not as static."""
    if not value.__dict__:
        return frozenset()
    marked = frozenset().union(*(getattr(value, name, None) or () for name in DYNAMIC_MARKS))
    return marked - frozenset(getattr(value, STATIC_MARK, None) or ())


def function_modes() -> tuple[str | int, ...]:
    """Torch function modes in use, outermost first: of a default device which one, else the id of the class."""
    if not function_mode_count():
        return ()
    return tuple(str(m.device) if type(m) is DeviceContext else id(type(m)) for m in modes_in_use())


def global_state() -> tuple[Any, ...]:
    """Modes of torch that a captured graph depends on and that no source leads to."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        *autocast_state(),
        torch.is_autocast_cache_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        fills_uninitialized_memory(),
        flash_attention_enabled(),
        memory_efficient_attention_enabled(),
        math_attention_enabled(),
        cudnn_attention_enabled(),
        is_tracing(),
        forward_ad_level() >= 0,
        function_modes(),
        dispatch_mode_count(),
        functorch_level(),
    )


_FUNCTION_MODES = -3
"""Where ``function_modes`` lie in the state."""

_MODES = (
    "gradients", "inference mode", "default dtype",
    *(f"autocast {what} of {kind}" for kind in AUTOCAST_DEVICES for what in ("state", "dtype")),
    "autocast cache", "deterministic algorithms", "fill_uninitialized_memory",
    *(f"{kernel} attention" for kernel in ("flash", "memory-efficient", "math", "cuDNN")),
    "torch.jit.trace", "forward-mode AD", "torch function modes", "number of torch dispatch modes",
    "level of functional transforms",
)  # fmt: skip
"""What the items of ``global_state`` are."""


def _modes_that_differ(found: tuple[Any, ...], expected: tuple[Any, ...]) -> str:
    """For people, which modes are not what was expected."""
    rows = zip(_MODES, found, expected, strict=True)
    return "torch's modes differ: " + ", ".join(f"{n} is {f}, expected {e}" for n, f, e in rows if f != e)


def same_constant(found: Any, expected: Any) -> bool:
    """Equality that tells types, signs of zero, NaN and the ends of ranges apart."""
    if type(found) is not type(expected):
        return False
    if type(expected) is float:
        if math.isnan(expected):
            return math.isnan(found)
        return found == expected and math.copysign(1, found) == math.copysign(1, expected)
    if type(expected) is complex:
        return same_constant(found.real, expected.real) and same_constant(found.imag, expected.imag)
    if type(expected) is range:
        return (found.start, found.stop, found.step) == (expected.start, expected.stop, expected.step)
    if isinstance(expected, numpy.generic):
        return bool(found.tobytes() == expected.tobytes())
    if type(expected) in (tuple, list):
        return len(found) == len(expected) and all(map(same_constant, found, expected))
    return bool(found == expected)


def same_keys(found: Any, expected: tuple[Any, ...]) -> bool:
    """Whether a dict or set has these keys, in this order."""
    return len(found) == len(expected) and all(
        k is e or (type(k) is type(e) and k == e and same_constant(k, e)) for k, e in zip(found, expected, strict=True)
    )


def own_keys(value: Any) -> Any:
    """Keys of an instance of a subclass of dict, whatever the class makes of them."""
    return dict.keys(value)


def own_length(value: Any) -> int:
    """How many items an instance of a subclass of list or tuple has, whatever the class makes of ``len``."""
    return (list if isinstance(value, list) else tuple).__len__(value)


def storage_pattern(values: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each tensor the number of the first one that lies in the same storage."""
    first: dict[int, int] = {}
    with DisableTorchFunction():
        return tuple(first.setdefault(v.untyped_storage()._cdata, n) for n, v in enumerate(values))


Check = Callable[[Guard, SourceWriter, list[str]], str]


def _check_equals(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    expected = guard.expected
    if expected is None or expected is True or expected is False or expected is Ellipsis:
        return f"{held[0]} is {expected!r}"
    if type(expected) in (int, str, bytes):
        return f"type({held[0]}) is {type(expected).__name__} and {held[0]} == {expected!r}"
    writer.scope.setdefault("same_constant", same_constant)
    return f"same_constant({held[0]}, {writer.constant(expected)})"


def _helper(name: str, function: Callable[..., Any]) -> Check:
    def check(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
        writer.scope.setdefault(name, function)
        return f"{name}({', '.join(held)}) == {writer.constant(guard.expected)}"

    return check


def _check_keys(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    if not guard.expected:
        return f"not {held[0]}"
    writer.scope.setdefault("same_keys", same_keys)
    return f"same_keys({held[0]}, {writer.constant(guard.expected)})"


def _check_own_keys(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    writer.scope.setdefault("same_keys", same_keys)
    writer.scope.setdefault("own_keys", own_keys)
    return f"same_keys(own_keys({held[0]}), {writer.constant(guard.expected)})"


def _check_tensor(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    return f"{writer.constant(guard.expected)}.holds({held[0]})"


def _check_sizes(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    """``expected`` is Python source over ``{0}``, ``{1}``, ...: the sizes that ``source`` and ``others`` name."""
    writer.scope.setdefault("math", math)
    writer.scope.setdefault("torch", torch)  # ``torch.sym_float`` and the like
    return f"({guard.expected.format(*held)})"


def _pattern(*values: torch.Tensor) -> tuple[int, ...]:
    return storage_pattern(values)


def _check_member(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    writer.scope.setdefault("class_member", class_member)
    expected = writer.constant(guard.expected)  # of the member itself a number would be another object
    return f"class_member({held[0]}, {expected}[0]) is {expected}[1]"


def _check_owner(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    name, owner = guard.expected
    writer.scope.setdefault("member_owner", member_owner)
    return f"member_owner({held[0]}, {name!r}) is {writer.constant(owner)}"


def same_classes(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Whether two tuples hold the very same classes."""
    return len(found) == len(expected) and all(f is e for f, e in zip(found, expected, strict=True))


def _check_mro(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    writer.scope.setdefault("same_classes", same_classes)
    return f"same_classes({held[0]}.__mro__, {writer.constant(guard.expected)})"


def _check_answer(guard: Guard, writer: SourceWriter, held: list[str]) -> str:
    arguments, answer = guard.expected
    writer.scope.setdefault("same_constant", same_constant)
    return f"same_constant({held[0]}(*{writer.constant(arguments)}), {writer.constant(answer)})"


KINDS: dict[str, Check] = {
    "TYPE": lambda g, w, h: f"type({h[0]}) is {w.constant(g.expected)}",
    "ID": lambda g, w, h: f"{h[0]} is {w.constant(g.expected)}",
    "EQUALS": _check_equals,
    "TENSOR": _check_tensor,
    "LENGTH": lambda g, w, h: f"len({h[0]}) == {g.expected}",
    "KEYS": _check_keys,
    "OWN_LENGTH": _helper("own_length", own_length),
    "OWN_KEYS": _check_own_keys,
    "HAS_KEY": lambda g, w, h: f"{w.constant(g.expected)} in {h[0]}",
    "NO_KEY": lambda g, w, h: f"{w.constant(g.expected)} not in {h[0]}",
    "IS": lambda g, w, h: f"{h[0]} is {h[1]}",
    "SAME": lambda g, w, h: f"{h[0]} is {h[1]}",
    "NOT_SAME": lambda g, w, h: f"{h[0]} is not {h[1]}",
    "SIZES": _check_sizes,
    "STORAGE": _helper("storage_pattern", _pattern),
    "GLOBAL_STATE": _helper("global_state", global_state),
    "MEMBER": _check_member,
    "OWNER": _check_owner,
    "MRO": _check_mro,
    "ANSWER": _check_answer,
    "NO_VIEW": lambda g, w, h: f"not {h[0]}._is_view()",
    "CALL": lambda g, w, h: f"{w.constant(g.expected[0])}({', '.join(h)}) == {w.constant(g.expected[1])}",
}
"""For each kind the Python expression that is true where the guard holds, over variables that hold its sources."""


class GuardCheck(Protocol):
    """Whether guards hold for a call of the frame's function with these arguments."""

    def __call__(self, function: Any, /, *arguments: Any) -> bool: ...

    def failed(self) -> Sequence[int]:
        """The numbers of guards at which calls have failed so far, among those of the set."""


@attrs.frozen(eq=False)
class GuardSet:
    """All guards of one compile unit, in the order in which they were taken (a parent before its children)."""

    guards: tuple[Guard, ...]
    parameters: int

    def __str__(self) -> str:
        return "\n".join(map(str, self.guards))

    def references(self) -> tuple[weakref.ref[Any], ...]:
        """Weak references to the objects without which the guards hold for no call."""
        known = (source for guard in self.guards for source in guard.others if isinstance(source, WeakSource))
        return tuple(source.reference for source in known)

    def source_text(self, numbers: Sequence[int] | None = None) -> tuple[str, dict[str, Any]]:
        """Python source of the check of some guards, or of all, and its globals."""
        scope: dict[str, Any] = {}
        writer = SourceWriter(scope)
        chosen = range(len(self.guards)) if numbers is None else numbers
        for number, guard in enumerate(self.guards[n] for n in chosen):
            sources = [s for s in (guard.source, *guard.others) if s is not None]
            test = KINDS[guard.kind](guard, writer, [writer.load(s) for s in sources])
            writer.lines.append(f"if not ({test}): return fails_at({number})")
        head = ", ".join(["f", *(f"a{n}" for n in range(self.parameters))])
        lines = [*writer.weak_lines(), *writer.lines] or ["pass"]
        if self._asks_program():
            scope["asked_nothing"] = program_asked_nothing
            lines = ["with asked_nothing():", *(f" {line}" for line in lines)]
        body = "\n  ".join(lines)
        return f"def check({head}):\n try:\n  {body}\n except Exception: return fails_at()\n return True\n", scope

    def _asks_program(self) -> bool:
        """Whether code of the program could hear a check: a mode for torch's functions, or the class of a tensor."""
        return any(
            (guard.kind == "GLOBAL_STATE" and bool(guard.expected[_FUNCTION_MODES]))
            or (guard.kind == "TENSOR" and guard.expected.type not in (torch.Tensor, torch.nn.Parameter))
            for guard in self.guards
        )

    def compile_python(self, numbers: Sequence[int] | None = None) -> GuardCheck:
        """The check of some guards, or of all, as a Python function.

        The native one (``guard_tree.check_of``) answers what this one does.

        Its attribute ``failed()`` gives the numbers of guards at which calls have failed, all where none can be named.
        """
        failed: set[int] = set()

        def fails_at(*guards: int) -> bool:
            failed.update(guards or range(len(self.guards if numbers is None else numbers)))
            return False

        text, scope = self.source_text(numbers)
        scope["fails_at"] = fails_at
        exec(compile(text, "<turret guards>", "exec"), scope)
        scope["check"].failed = lambda: sorted(failed)
        check: GuardCheck = scope["check"]
        return check

    def explain(self, function: Any, arguments: tuple[Any, ...]) -> str:
        """The first guard that does not hold, and what was found; empty where all hold."""
        guard = self.first_failing(function, arguments)
        if guard is None:
            return ""
        found = read(guard.source, function, arguments)
        where = f" (assumed at {guard.stack})" if guard.stack else ""
        if guard.kind == "TENSOR" and isinstance(found, torch.Tensor):
            return f"tensor {guard.source}: {guard.expected.difference(found)}{where}"
        if guard.kind == "SIZES":
            return f"sizes: {guard.expected.format(guard.source, *guard.others)}{where}"
        if guard.kind == "KEYS" and isinstance(found, Mapping):
            return f"{guard.kind} {guard.source}: {_keys_that_differ(tuple(found), guard.expected)}{where}"
        if guard.kind == "GLOBAL_STATE":
            return _modes_that_differ(global_state(), guard.expected)
        return f"{guard}: found {short(found)}{where}"

    def first_failing(self, function: Any, arguments: tuple[Any, ...]) -> Guard | None:
        """The first guard that does not hold for a call."""
        for number, guard in enumerate(self.guards):
            if not self.compile_python((number,))(function, *arguments):
                return guard
        return None


def _keys_that_differ(found: tuple[Any, ...], expected: tuple[Any, ...]) -> str:
    """What of a dictionary's keys is not as expected, in a few words."""
    lists = {
        "is new": [k for k in found if k not in expected],
        "is missing": [k for k in expected if k not in found],
    }
    said = [f"{listed(k)} {word if len(k) == 1 else 'are' + word[2:]}" for word, k in lists.items() if k]
    return " and ".join(said) or f"the keys are in another order: {listed(found)}, expected {listed(expected)}"


def read(source: Source | None, function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a source names in a call, or the exception that finding it raised."""
    if source is None:
        return None
    try:
        return SourceReader(function, arguments).read(source)
    except Exception as error:
        return error
