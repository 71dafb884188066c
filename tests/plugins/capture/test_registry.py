"""The registry: tables that handlers enter themselves in, which the interpreter reads."""

from __future__ import annotations

import math
import operator
import types

import pytest
import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers import library
from turret.plugins.capture.python.signatures import parameters_of
from turret.plugins.capture.registry import Registry, handled
from turret.plugins.capture.registry import registry as filled


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_each_table_is_filled_by_its_decorator_and_holds_the_handler_under_each_key(registry):
    def handler(*args):
        return args

    entered = {
        "functions": (registry.function, (math.sqrt, math.sin)),
        "classes": (registry.kind, (int, float)),
        "instructions": (registry.instruction, ("NOP", "CACHE")),
        "modules": (registry.module, ("torch.optim",)),
        "tensor_methods": (registry.tensor_method, ("numpy",)),
        "tensor_attributes": (registry.tensor_attribute, ("_base",)),
        "tensor_setters": (registry.tensor_setter, ("data",)),
    }
    for table, (register, keys) in entered.items():
        assert register(*keys)(handler) is handler
        assert getattr(registry, table) == dict.fromkeys(keys, handler)


def test_a_function_is_found_by_itself_before_it_is_by_its_name(registry):
    def function():
        pass

    name = ("somewhere", function.__qualname__)
    registry.named[name] = by_name = lambda t: 1
    assert registry.of_function(function, "somewhere") is by_name
    assert registry.of_function(function, "elsewhere") is None
    registry.functions[function] = by_itself = lambda t: 2
    assert registry.of_function(function, "somewhere") is by_itself


@pytest.mark.parametrize(
    "module, found", {"a.b": True, "a.b.c": True, "a.b.c.d": True, "a": False, "a.bc": False, "": False}.items()
)
def test_a_handler_of_a_package_answers_for_the_modules_in_it_alone(registry, module, found):
    registry.module("a.b")(handler := lambda t, function, args, kwargs: None)
    assert registry.of_module(module) is (handler if found else None)


def test_a_handler_gets_what_it_takes_and_what_it_raises_is_not_taken_for_a_misfit():
    def handler(t, a, *, b=0):
        if b:
            raise TypeError("of the handler's own")
        return t, a

    assert handled(handler, abs, "t", [1], {}) == ("t", 1)
    with pytest.raises(Unsupported, match=r"the arguments of abs\(\)"):
        handled(handler, abs, "t", [1, 2], {})
    with pytest.raises(TypeError, match="of the handler's own"):
        handled(handler, abs, "t", [1], {"b": 1})


def test_handlers_that_are_loaded_tell_their_parameters():
    assert library.registry is filled
    tables = (filled.functions, filled.named, filled.classes, filled.tensor_methods)
    handlers = [handler for table in tables for handler in table.values()]
    assert len(handlers) > 500
    for handler in handlers:
        found = parameters_of(handler)
        assert found.positional or found.rest, handler  # the tracer comes first


def test_each_kind_of_handler_is_loaded():
    for name in ("LOAD_FAST", "RETURN_VALUE", "SEND", "RAISE_VARARGS"):  # of both families
        assert name in filled.instructions
    assert operator.add in filled.functions and torch.func.grad in filled.functions
    assert dict in filled.classes and torch.device in filled.classes
    assert {"as_subclass", "backward", "numpy", "register_hook", "retain_grad"} <= filled.tensor_methods.keys()
    assert set(filled.tensor_setters) == {"data"}
    assert set(filled.tensor_attributes) == {"_backward_hooks", "_base", "_version"}
    assert {"torch._compile", "torch._functorch", "torch.optim.optimizer"} <= filled.modules.keys()


def test_no_keyword_of_the_programs_has_the_name_of_the_tracer():
    tables = (filled.functions, filled.classes, filled.named, filled.tensor_methods)
    found = {handler for table in tables for handler in table.values()}
    named = [h for h in found if isinstance(h, types.FunctionType) and (p := parameters_of(h)).others and not p.unnamed]
    assert not named
