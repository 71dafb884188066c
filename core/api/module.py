"""A compiled module: the module's own state and type, with a compiled call."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from turret.errors import OptionError


class CompiledModule(nn.Module):
    """Mixed into a subclass of the module's class by ``wrap_module``.

    The wrapper shares its ``__dict__`` with the original: parameters, buffers, submodules, hooks, the training
    flag and every attribute are the same objects, so ``state_dict`` keys, ``train()`` and assignments need
    no forwarding; attributes in ``__slots__`` are forwarded.  Only the call differs.
    """

    __slots__ = ()
    _turret_call: Callable[..., Any]
    _turret_compile: Callable[[nn.Module], nn.Module]
    _turret_original: nn.Module

    def __init_subclass__(cls, **keywords: Any) -> None:
        """What the module's class does for subclasses is for those that the program writes: none of it happens."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._turret_call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[Any, Any]) -> nn.Module:
        return self._turret_compile(copy.deepcopy(self._turret_original, memo))

    def __copy__(self) -> nn.Module:
        return self._turret_compile(copy.copy(self._turret_original))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (_rebuild, (self._turret_original, self._turret_compile))


def _rebuild(original: nn.Module, compile_again: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return compile_again(original)


def _compiled_class(cls: type) -> type:
    """The compiled subclass of a module's class, kept with that class so that both are freed together."""
    known = cls.__dict__.get(_KEPT)
    if known is None:
        contents = {
            # Not those of CompiledModule: a class may have one base with slots only, and that may be the user's.
            "__slots__": _OWN,
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
            "__qualname__": cls.__qualname__,
            **_forwarded_slots(cls),
        }
        known = type(cls.__name__, (CompiledModule, cls), contents)
        type.__setattr__(cls, _KEPT, known)
    return known


_KEPT = "_turret_compiled_class"
_OWN = ("_turret_call", "_turret_compile", "_turret_original")


def _forwarded_slots(cls: type) -> dict[str, property]:
    """Properties that read and write a module's slots in the original, which has them."""
    slots: dict[str, property] = {}
    for base in cls.__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType):
                slots.setdefault(name, _forwarded(slot))
    return slots


def _forwarded(slot: types.MemberDescriptorType) -> property:
    return property(
        lambda wrapper: slot.__get__(wrapper._turret_original),
        lambda wrapper, value: slot.__set__(wrapper._turret_original, value),
        lambda wrapper: slot.__delete__(wrapper._turret_original),
    )


def wrap_module(
    original: nn.Module, call: Callable[..., Any], compile_again: Callable[[nn.Module], nn.Module]
) -> nn.Module:
    """A compiled twin of ``original``: ``isinstance`` of its class, sharing its state, calling ``call``.

    ``compile_again`` (picklable) compiles a copy of the original in the same way.  ``OptionError`` where no class can
    be derived from that of the original.
    """
    try:
        cls = _compiled_class(type(original))
        wrapper: nn.Module = object.__new__(cls)
    except Exception as error:
        raise OptionError(
            f"turret.compile was given a module of {type(original).__qualname__}, and no class can be derived from "
            f"that as from other modules ({type(error).__name__}: {error}); compile its forward method"
        ) from error
    object.__setattr__(wrapper, "__dict__", original.__dict__)
    for name, value in zip(_OWN, (call, compile_again, original), strict=True):
        cls.__dict__[name].__set__(wrapper, value)
    return wrapper
