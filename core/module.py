"""A compiled module: the module's own state and type, with a compiled call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn


class CompiledModule(nn.Module):
    """Mixed into a subclass of the module's class by ``wrap_module``.

    The wrapper shares its ``__dict__`` with the original: parameters, buffers, submodules, hooks, the training
    flag and every attribute are the same objects, so ``state_dict`` keys, ``train()`` and assignments need
    no forwarding.  Only the call differs.
    """

    __slots__ = ("_turret_call", "_turret_compile", "_turret_original")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._turret_call(*args, **kwargs)

    def __deepcopy__(self, memo: dict) -> nn.Module:
        return self._turret_compile(copy.deepcopy(self._turret_original, memo))

    def __copy__(self) -> nn.Module:
        return self._turret_compile(copy.copy(self._turret_original))

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return (_rebuild, (self._turret_original, self._turret_compile))


def _rebuild(original: nn.Module, compile_again: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return compile_again(original)


def _compiled_class(cls: type) -> type:
    """The compiled subclass of a module's class, kept with that class so that both are freed together."""
    known = cls.__dict__.get(_KEPT)
    if known is None:
        contents = {
            "__slots__": (),
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
            "__qualname__": cls.__qualname__,
        }
        known = type(cls.__name__, (CompiledModule, cls), contents)
        setattr(cls, _KEPT, known)
    return known


_KEPT = "_turret_compiled_class"


def wrap_module(original: nn.Module, call: Callable, compile_again: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A compiled twin of ``original``: ``isinstance`` of its class, sharing its state, calling ``call``.

    ``compile_again`` (picklable) compiles a copy of the original in the same way.
    """
    cls = _compiled_class(type(original))
    wrapper = object.__new__(cls)
    object.__setattr__(wrapper, "__dict__", original.__dict__)
    for name, value in (("_turret_call", call), ("_turret_compile", compile_again), ("_turret_original", original)):
        getattr(CompiledModule, name).__set__(wrapper, value)
    return wrapper
