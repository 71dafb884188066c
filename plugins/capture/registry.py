"""The registry: what capture does itself in place of what the program names, for the interpreter to read.

Handlers enter themselves while their modules are loaded (``handlers.library`` loads all of them).  They import this
module and the interpreter does, too; so neither the interpreter nor the values know who answers for what.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs
import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python.signatures import by_place, takes

Handler = Callable[..., Any]
"""Of the tracer, then of what its table says."""


@attrs.define(eq=False)
class Registry:
    """Tables of handlers, and decorators that fill them."""

    instructions: dict[str, Handler] = attrs.field(factory=dict)
    """By opcode, ``handler(frame, instruction)``."""
    functions: dict[Any, Handler] = attrs.field(factory=dict)
    """By the function, ``handler(t, *args, **kwargs)``: what a call of it gives."""
    named: dict[tuple[str, str], Handler] = attrs.field(factory=dict)
    """The same of functions and classes in modules that are not imported here, by the module's name and theirs."""
    modules: dict[str, Handler] = attrs.field(factory=dict)
    """By module or package, ``handler(t, function, args, kwargs)`` for functions in it; None leaves one alone."""
    followed: set[str] = attrs.field(factory=set)
    """Qualified names of functions that are followed wherever they are from."""
    classes: dict[type, Handler] = attrs.field(factory=dict)
    """By the class, ``handler(t, *args, **kwargs)``: what a call of it gives."""
    tensor_methods: dict[str, Handler] = attrs.field(factory=dict)
    """By name, ``handler(t, tensor, *args, **kwargs)``, of methods that are no operations of the graph."""
    tensor_attributes: dict[str, Handler] = attrs.field(factory=dict)
    """By name, ``handler(t, tensor)``, of attributes of tensors that capture works out."""
    tensor_setters: dict[str, Handler] = attrs.field(factory=dict)
    """By name, ``handler(t, tensor, value)``, of attributes of tensors that can be set."""
    wrappers: dict[type, Handler] = attrs.field(factory=dict)
    """By exact type, ``handler(t, object, source)``: the value of an object that existed before."""
    base_wrappers: list[tuple[type, Handler]] = attrs.field(factory=list)
    """The same by a class that the type is derived from; the first that fits is asked."""
    named_wrappers: dict[tuple[str, str], Handler] = attrs.field(factory=dict)
    """The same by the exact type's module and name, of types in modules that are not imported here."""
    makers: dict[type, Handler] = attrs.field(factory=dict)
    """By exact type, ``handler(t, object)``: the value of an object that a pure function has made."""
    pure_owners: list[type] = attrs.field(
        factory=lambda: [
            type, str, int, float, complex, bytes, tuple, frozenset, torch.dtype, torch.finfo, re.Pattern, re.Match
        ]
    )  # fmt: skip
    """Kinds of objects whose methods in C are pure."""
    pure_modules: set[str] = attrs.field(
        factory=lambda: {
            "math", "cmath", "builtins", "_operator", "_struct", "_string", "_abc", "_statistics", "binascii",
            "unicodedata", "zlib",
        }
    )  # fmt: skip
    """Modules whose functions in C are pure."""

    def instruction(self, *names: str) -> Callable[[Handler], Handler]:
        """Register the handler of one or more opcodes."""
        return _entered(self.instructions, names)

    def function(self, *objects: Any) -> Callable[[Handler], Handler]:
        """Register the handler of one or more functions."""
        return _entered(self.functions, objects)

    def module(self, name: str) -> Callable[[Handler], Handler]:
        """Register the handler of functions in a module or package."""
        return _entered(self.modules, (name,))

    def kind(self, *classes: type) -> Callable[[Handler], Handler]:
        """Register the handler of calls of one or more classes."""
        return _entered(self.classes, classes)

    def tensor_method(self, name: str) -> Callable[[Handler], Handler]:
        """Register the handler of a method of tensors."""
        return _entered(self.tensor_methods, (name,))

    def tensor_attribute(self, name: str) -> Callable[[Handler], Handler]:
        """Register the handler of an attribute of tensors."""
        return _entered(self.tensor_attributes, (name,))

    def tensor_setter(self, name: str) -> Callable[[Handler], Handler]:
        """Register the handler of setting an attribute of tensors."""
        return _entered(self.tensor_setters, (name,))

    def of_function(self, function: Any, module: str) -> Handler | None:
        """The handler of a function of Python in a module of that name, or None."""
        return self.functions.get(function) or self.named.get((module, function.__qualname__))

    def of_class(self, kind: type) -> Handler | None:
        """The handler of calls of a class, or None."""
        return self.classes.get(kind) or self.named.get((kind.__module__, kind.__qualname__))

    def of_module(self, module: str) -> Handler | None:
        """The handler of functions in a module, by its name or that of a package around it, or None."""
        for name, handler in self.modules.items():
            if module.startswith(name) and (module == name or module[len(name)] == "."):
                return handler
        return None


def _entered(table: dict[Any, Handler], keys: Any) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        table.update(dict.fromkeys(keys, handler))
        return handler

    return enter


def handled(handler: Handler, called: Any, t: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What the handler of ``called`` gives for a call.

    Raises ``Unsupported`` for arguments that the handler does not take: these are left to Python.
    """
    if kwargs and not takes(handler, len(args) + 1, kwargs):  # it has names of its own for them
        args, kwargs = by_place(called, args, kwargs)
    if not takes(handler, len(args) + 1, kwargs):
        raise Unsupported(f"the arguments of {called.__name__}()")
    return handler(t, *args, **kwargs)


registry = Registry()
"""The one that handlers enter themselves in."""
