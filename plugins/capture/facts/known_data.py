"""Tensors whose values are known while capturing: made of plain numbers or of sizes, and what is computed of those.

``torch.tensor(x.shape)``, ``torch.arange(3)`` and the like are small, on the processor, and computed from what is known
in every call; a branch on one, or its ``item()``, needs no graph break.  Symbolic numbers among what they are made of
stay symbols until somebody reads the value: only then are they guarded to be what they are.
"""

from __future__ import annotations

import types
from typing import Any

import attrs
import torch

from turret.hooks.devices import HOST
from turret.plugins.capture.facts.versions import Versions
from turret.torch_compat.dispatch import disable_current_modes
from turret.torch_compat.programs.functions import shape_as_tensor
from turret.torch_compat.trees import pytree

LIMIT = 256
"""Larger tensors are not followed, in elements."""
_MAKERS = frozenset(
    {
        torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.arange, torch.linspace, torch.zeros, torch.ones,
        torch.full, torch.eye,
    }
)  # fmt: skip
_UNKNOWN = ("empty", "rand", "normal", "multinomial", "bernoulli", "poisson", "dropout", "requires_grad", "alias")
"""Parts of the names of calls whose results depend on more than what they are given, or that stand for something."""


@attrs.define(eq=False)
class _Held:
    """A fake tensor (kept, so that its id stays its own), which result of ``made`` it is, and its version then."""

    fake: torch.Tensor
    made: Operands
    position: int
    version: int

    def read(self) -> torch.Tensor | None:
        """What the fake tensor stands for; None where computing it fails."""
        found = self.made.results()
        real = found[self.position] if self.position < len(found) else None
        return real if _alike(real, self.fake) else None


@attrs.define(eq=False)
class _Number:
    """A fake tensor (kept, so that its id stays its own), its version then, and its first element."""

    fake: torch.Tensor
    version: int
    value: Any


@attrs.define(eq=False)
class Operands:
    """A call all of whose arguments are known: numbers, symbolic ones among them, and tensors that are held."""

    target: Any
    args: tuple
    kwargs: dict[str, Any]
    found: list[Any] | None = None

    def is_symbolic(self) -> bool:
        """Whether reading the results would guard on a symbolic number."""
        if self.found is not None:
            return False
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return any(v.made.is_symbolic() if isinstance(v, _Held) else isinstance(v, _SYMBOLIC) for v in leaves)

    def results(self) -> list[Any]:
        """What the call gives for real; symbolic numbers are guarded to be what they are."""
        if self.found is None:
            self.found = pytree.tree_leaves(_computed(self))
        return self.found


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class KnownData:
    """Values of the fake tensors of one capture, as far as they are known."""

    def __init__(self, versions: Versions) -> None:
        self.versions = versions
        self.held: dict[int, _Held] = {}
        self._numbers: dict[int, _Number] = {}

    def note_first(self, fake: torch.Tensor, number: Any) -> None:
        """The first element of a row of data is a value of capture's that is known."""
        self._numbers[id(fake)] = _Number(fake, self.versions.of(fake), number)

    def note_first_of(self, row: torch.Tensor, fake: torch.Tensor) -> None:
        """A fake tensor without dimensions is the first element of a row."""
        if (number := self.first(row)) is not None:
            self.note_first(fake, number)

    def first(self, fake: torch.Tensor) -> Any:
        """The first (or only) element of a tensor of data, where it was noted; None where it is not known any more."""
        noted = self._numbers.get(id(fake))
        return noted.value if noted is not None and noted.version == self.versions.of(fake) else None

    def of(self, fake: Any) -> torch.Tensor | None:
        """What a fake tensor holds now, or None; guards on the symbolic numbers that it is made of."""
        found = self._source(fake)
        return found.read() if isinstance(found, _Held) else found

    def elements(self, fake: torch.Tensor) -> list[Any] | None:
        """The numbers that a fake tensor holds, in order, symbolic ones as symbols; None where that is not known."""
        found = self._source(fake)
        return _elements(found) if isinstance(found, _Held) else None if found is None else _numbers_of(found)

    def _source(self, fake: Any) -> _Held | torch.Tensor | None:
        """Where the value of a fake tensor is known from: nothing is computed, and nothing guarded on."""
        found = self.held.get(id(fake))
        if found is not None:
            return found if self.versions.of(fake) == found.version else None
        constant = getattr(fake, "constant", None)
        return constant if isinstance(constant, torch.Tensor) and not fake.requires_grad else None

    def operands(self, target: Any, args: list, kwargs: dict[str, Any]) -> Operands | None:
        """The arguments of a call that is about to be made on fake values, if all of them are known."""
        if target is shape_as_tensor:
            return Operands(torch.tensor, (list(args[0].shape),), {"dtype": torch.int64})
        makes = isinstance(target, types.BuiltinFunctionType) and target in _MAKERS
        if not makes and (self._source(_first_tensor(args)) is None or not _computes(target, kwargs)):
            return None
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(v, torch.Tensor) and self._source(v) is None for v in leaves):
            return None
        args, kwargs = pytree.tree_map(lambda v: self._source(v) if isinstance(v, torch.Tensor) else v, (args, kwargs))
        return Operands(target, tuple(args), kwargs)

    def note(self, operands: Operands, result: Any) -> None:
        """Keep what a call of known operands gives, ``result`` being what it gave on fake ones."""
        fakes = pytree.tree_leaves(result)
        if any(isinstance(_as_number(v), _SYMBOLIC) for v in pytree.tree_leaves((operands.args, operands.kwargs))):
            return
        if not fakes or not all(isinstance(v, torch.Tensor) and _may_be_known(v) for v in fakes):
            return
        if operands.is_symbolic() or len(operands.results()) == len(fakes):
            for position, fake in enumerate(fakes):
                self.hold(fake, operands, position)

    def hold(self, fake: torch.Tensor, made: Operands, position: int = 0) -> None:
        """A fake tensor is one result of a call whose arguments are known."""
        held = _Held(fake, made, position, self.versions.of(fake))
        if made.is_symbolic() or held.read() is not None:
            self.held[id(fake)] = held


def _elements(held: _Held) -> list[Any] | None:
    """The numbers of a tensor that was put together from numbers; of others, where none of it is symbolic."""
    made = held.made
    if not made.is_symbolic():
        real = held.read()
        return None if real is None else _numbers_of(real)
    if made.target in _COLLECTORS and isinstance(made.args[0], list | tuple):
        parts = [_elements(part) if isinstance(part, _Held) else [part] for part in made.args[0]]
        return None if any(part is None for part in parts) else [n for part in parts for n in part or ()]
    return [made.args[0]] if made.target is torch.scalar_tensor else None


_COLLECTORS = (torch.stack, torch.tensor, torch.as_tensor)


def _numbers_of(real: torch.Tensor) -> list[Any]:
    with disable_current_modes():
        return real.flatten().tolist()


def number_of(real: torch.Tensor) -> Any:
    """The one number that a known tensor holds."""
    with disable_current_modes():
        return real.item()


def _first_tensor(args: list) -> torch.Tensor | None:
    """The first tensor among the arguments of a call or in a list that is one: most calls have one not known."""
    for value in args:
        inner = value if isinstance(value, (list, tuple)) else (value,)
        for item in inner:
            if isinstance(item, torch.Tensor):
                return item
    return None


def _computes(target: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call gives something that depends on its arguments alone, and changes none of them."""
    if not isinstance(target, (str, types.BuiltinFunctionType)) or "out" in kwargs:
        return False
    name = target if isinstance(target, str) else target.__name__
    if name.endswith("_") and not name.endswith("__"):
        return False
    return not name.startswith(("__i", "i")) and not any(part in name for part in _UNKNOWN)


def _as_number(value: Any) -> Any:
    """A size as a number, if the call that it was given to made it one (by a guard)."""
    number = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else None
    return value if number is None else number


def _may_be_known(fake: torch.Tensor) -> bool:
    plain = fake.device.type == HOST.type and fake.layout is torch.strided and not fake.requires_grad
    return plain and not any(isinstance(s, torch.SymInt) for s in fake.shape) and fake.numel() <= LIMIT


def _computed(operands: Operands) -> Any:
    """The result of a call on real tensors; None where it fails, or draws random numbers."""
    state = torch.random.get_rng_state()
    try:
        with disable_current_modes(), torch.no_grad():
            target = operands.target
            args, kwargs = pytree.tree_map(_for_real, (operands.args, operands.kwargs))
            made = getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)
            drawn = not torch.equal(torch.random.get_rng_state(), state)
    except Exception:
        return None
    if drawn:
        torch.random.set_rng_state(state)
    return None if drawn else made


def _for_real(value: Any) -> Any:
    """An operand as what it stands for; a symbolic number is guarded to be what it is."""
    if isinstance(value, _Held):
        return value.read()
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    return bool(value) if isinstance(value, torch.SymBool) else value


def _alike(real: Any, fake: torch.Tensor) -> bool:
    return isinstance(real, torch.Tensor) and (real.shape, real.dtype, real.device) == (
        fake.shape, fake.dtype, fake.device,
    )  # fmt: skip
