"""What a program can see of its state, as a value: contents, types, and which objects are one and the same."""

from __future__ import annotations

import collections
import enum
import functools
import random
import types
from typing import Any

import torch
from torch import nn

_ATOMS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    enum.Enum,
)
_ITERATORS = ("generator", "list_iterator", "tuple_iterator", "range_iterator", "enumerate", "zip", "map", "filter", "chain",
              "list_reverseiterator", "reversed", "dict_itemiterator", "dict_keyiterator", "count", "islice")  # fmt: skip
_LIMIT = 4000
_TORCHS = (RuntimeError, IndexError, NotImplementedError)
_LONGEST_OF_PROGRAMS = 25
"""Characters of the longest message that a program gives to an error of a type that torch raises, too."""


class Snapshot:
    """The state below ``root`` as nested tuples; an object seen before is its number.

    Tensors are copied.  Iterators are run to their end (both worlds do so alike).  ``module`` names the module that the
    program was written into, whose functions and classes are known by name.
    """

    def __init__(self, root: Any, module: str) -> None:
        self.module = module
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.kept: list[Any] = []
        self.content = self.of(root)

    def of(self, value: Any) -> Any:
        """The value as data."""
        if isinstance(value, _ATOMS):
            return (type(value).__name__, repr(value) if isinstance(value, (float, complex)) else str(value))
        if isinstance(value, type):
            return ("class", value.__qualname__, self.of_class(value) if value.__module__ == self.module else None)
        known = self.numbers.get(id(value))
        if known is not None:
            return ("same", known)
        if isinstance(value, tuple) and type(value) is tuple:
            return ("tuple", [self.of(v) for v in value])
        self.numbers[id(value)] = len(self.numbers)
        self.kept.append(value)
        if len(self.numbers) > _LIMIT:
            return ("too much",)
        return (type(value).__name__, *self.parts(value))

    def parts(self, value: Any) -> tuple:
        if isinstance(value, torch.Tensor):
            return self.of_tensor(value)
        if isinstance(value, types.FunctionType):
            return self.of_function(value)
        if isinstance(value, types.MethodType):
            return (self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            return (self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, types.CellType):
            return (self.cell(value),)
        if isinstance(value, BaseException):
            return self.of_exception(value)
        if isinstance(value, random.Random):
            return (hash(value.getstate()),)
        if type(value).__name__ in _ITERATORS:
            return (self.drained(value),)
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType, types.CodeType)):
            return (getattr(value, "__name__", ""),)
        return self.of_container(value)

    def of_container(self, value: Any) -> tuple:
        made: list[Any] = []
        if isinstance(value, dict):
            made.append([(self.of(k), self.of(v)) for k, v in value.items()])
            if isinstance(value, collections.defaultdict):
                made.append(self.of(value.default_factory))
        elif isinstance(value, (set, frozenset)):
            made.append(sorted(map(str, map(self.of, value))))
        elif isinstance(value, (list, tuple, collections.deque)):
            made.append([self.of(v) for v in value])
            made.append(getattr(value, "maxlen", None))
        elif isinstance(value, (slice, range)):
            made.append(str(value))
        elif isinstance(value, (type({}.keys()), type({}.values()), type({}.items()))):
            made.append([self.of(v) for v in value])
        if isinstance(value, nn.Module):
            hidden = {k: v for k, v in vars(value).items() if "hook" not in k}
            return (*made, [(k, self.of(v)) for k, v in hidden.items()])
        if hasattr(value, "__dict__"):
            made.append([(k, self.of(v)) for k, v in vars(value).items()])
        for name in getattr(type(value), "__slots__", ()):
            made.append((name, self.of(getattr(value, name, None))))
        return tuple(made)

    def of_class(self, value: type) -> Any:
        """Attributes of a class of the program that are plain data."""
        if id(value) in self.numbers or issubclass(value, enum.Enum):
            return None
        self.numbers[id(value)] = len(self.numbers)
        plain = {
            k: v for k, v in vars(value).items() if not k.startswith("_") and isinstance(v, (int, str, list, dict))
        }
        return [(k, self.of(v)) for k, v in plain.items()]

    def of_tensor(self, value: torch.Tensor) -> tuple:
        storage = self.storages.setdefault(value.untyped_storage()._cdata, len(self.storages)) if value.numel() else -1
        extra = [(k, self.of(v)) for k, v in vars(value).items() if not k.startswith("_")]
        try:
            grad = self.of(value.grad) if value.is_leaf and value.grad is not None else None
        except RuntimeError:  # a view that was changed where autograd forbids it
            return ("forbidden",)
        kept = (
            tuple(value.shape),
            tuple(value.stride()),
            str(value.dtype),
            value.requires_grad,
            value.is_leaf,
            value.is_inference(),
            storage,
        )
        return (Data(value), kept, value.storage_offset(), grad, extra)

    def of_function(self, value: types.FunctionType) -> tuple:
        if value.__module__ != self.module:
            return (value.__qualname__,)
        cells = [self.cell(c) for c in value.__closure__ or ()]
        defaults = (self.of(value.__defaults__), self.of(value.__kwdefaults__))
        attributes = [
            (k, self.of(v)) for k, v in vars(value).items() if k != "__wrapped__" and not k.startswith("_torch")
        ]
        return (value.__qualname__, value.__name__, defaults, cells, attributes)

    def cell(self, cell: types.CellType) -> Any:
        known = self.numbers.get(id(cell))
        if known is not None:
            return ("same cell", known)
        self.numbers[id(cell)] = len(self.numbers)
        self.kept.append(cell)
        try:
            return ("cell", self.of(cell.cell_contents))
        except ValueError:
            return ("empty cell",)

    def of_exception(self, value: BaseException) -> tuple:
        notes = getattr(value, "__notes__", None)
        chain = (self.of(value.__cause__), self.of(value.__context__), value.__suppress_context__)
        attributes = [(k, self.of(v)) for k, v in vars(value).items() if k != "obj"]
        if isinstance(value, _TORCHS) and len(str(value)) > _LONGEST_OF_PROGRAMS:
            return ("of torch", attributes, notes)  # whose messages, and what was handled before, are its own
        return (self.of(value.args), str(value), attributes, chain, notes)

    def drained(self, value: Any) -> Any:
        """What an iterator still had to give."""
        items: list[Any] = []
        try:
            for item in value:
                items.append(self.of(item))
                if len(items) > 20:
                    break
        except Exception as error:
            items.append(("raised", type(error).__name__, str(error)))
        return items


class Data:
    """The numbers of a tensor."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value.detach().clone()

    def __repr__(self) -> str:
        return str(self.value.tolist())

    def equals(self, other: Data, exact: bool) -> bool:
        if self.value.shape != other.value.shape or self.value.dtype != other.value.dtype:
            return False
        if exact and not self.value.is_floating_point():
            return bool(torch.equal(self.value, other.value))
        loose = {} if not exact else {"rtol": 0.0, "atol": 0.0}
        try:
            torch.testing.assert_close(self.value, other.value, equal_nan=True, **loose)
        except AssertionError:
            return False
        return True


def difference_of(found: Snapshot, expected: Snapshot, exact: bool) -> str | None:
    """Where two snapshots differ, or None."""
    return _difference(found.content, expected.content, exact, "")


def _difference(found: Any, expected: Any, exact: bool, where: str) -> str | None:
    if isinstance(found, Data) and isinstance(expected, Data):
        return None if found.equals(expected, exact) else f"{where}: {found} is not {expected}"
    if isinstance(found, (tuple, list)) and type(found) is type(expected):
        if len(found) != len(expected):
            return f"{where}: {_short(found)} is not {_short(expected)}"
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            label = str(found[0]) if number and isinstance(found[0], str) else str(number)
            if isinstance(found[0], tuple) and len(found) == 2 and number:
                label = str(found[0][-1])
            message = _difference(
                mine, theirs, exact, f"{where}.{label}" if number or not isinstance(mine, str) else where
            )
            if message is not None:
                return message
        return None
    return (
        None
        if type(found) is type(expected) and found == expected
        else f"{where}: {_short(found)} is not {_short(expected)}"
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 300 else text[:300] + "..."
