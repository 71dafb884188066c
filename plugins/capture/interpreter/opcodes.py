"""What each instruction does to a frame: one short function an opcode, in families.

How versions of CPython differ in what instructions mean is in ``python/instructions.py``.
"""

from __future__ import annotations

from typing import Any

import torch

from turret.plugins.capture.interpreter.frame import RETURNED, Frame, Signal
from turret.plugins.capture.python.instructions import (
    BINARY_OPERATIONS,
    CONVERSIONS,
    NULL_IS_ABOVE,
    VALUES_OF_END_FOR,
    Instruction,
    around_star,
    comparison,
    formatting,
    has_arguments_of_super,
    name_of,
    two_slots,
)
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import NULL, Constant, Tracer, Unread, Value, spelled
from turret.plugins.capture.values.classes import look_up
from turret.plugins.capture.values.functions import Cell, called_as
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.objects import InstanceDict
from turret.plugins.capture.values.sequences import List, Slice, Tuple
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor

# Nothing, stack movement, constants.


@registry.instruction(
    "NOP", "RESUME", "CACHE", "PRECALL", "EXTENDED_ARG", "COPY_FREE_VARS_DONE", "RESUME_CHECK", "SETUP_ANNOTATIONS"
)
def nothing(f: Frame, i: Instruction) -> None:
    pass


@registry.instruction("POP_TOP")
def pop_top(f: Frame, i: Instruction) -> None:
    f.stack.pop()


@registry.instruction("END_FOR")
def end_for(f: Frame, i: Instruction) -> None:
    del f.stack[-VALUES_OF_END_FOR:]


@registry.instruction("PUSH_NULL")
def push_null(f: Frame, i: Instruction) -> None:
    f.push(NULL)


@registry.instruction("COPY")
def copy(f: Frame, i: Instruction) -> None:
    f.push(f.stack[-i.arg])


@registry.instruction("SWAP")
def swap(f: Frame, i: Instruction) -> None:
    f.stack[-1], f.stack[-i.arg] = f.stack[-i.arg], f.stack[-1]


@registry.instruction("LOAD_CONST", "RETURN_CONST")
def load_const(f: Frame, i: Instruction) -> Signal | None:
    value = f.tracer.wrap_known(f.code.co_consts[i.arg])
    if i.name == "RETURN_CONST":
        f.result = value
        return RETURNED
    f.push(value)
    return None


# Variables.


def load_slot(f: Frame, slot: int) -> None:
    value = f.locals[slot]
    if value is None:
        name = f.decoded.slots[slot]
        raise f.tracer.raised(
            UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with a value"
        )
    f.push(value)


def store_slot(f: Frame, slot: int) -> None:
    value = f.stack.pop()
    f.locals[slot] = None if value is NULL else value  # NULL: a variable that a comprehension put aside was unbound


@registry.instruction("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE", "LOAD_FAST_BORROW")
def load_fast(f: Frame, i: Instruction) -> None:
    load_slot(f, i.arg)


@registry.instruction("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(f: Frame, i: Instruction) -> None:
    for slot in two_slots(i):
        load_slot(f, slot)


@registry.instruction("STORE_FAST")
def store_fast(f: Frame, i: Instruction) -> None:
    store_slot(f, i.arg)


@registry.instruction("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(f: Frame, i: Instruction) -> None:
    stored, loaded = two_slots(i)
    store_slot(f, stored)
    load_slot(f, loaded)


@registry.instruction("STORE_FAST_STORE_FAST")
def store_fast_store_fast(f: Frame, i: Instruction) -> None:
    for slot in two_slots(i):
        store_slot(f, slot)


@registry.instruction("DELETE_FAST")
def delete_fast(f: Frame, i: Instruction) -> None:
    load_slot(f, i.arg)
    f.stack.pop()
    f.locals[i.arg] = None


@registry.instruction("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(f: Frame, i: Instruction) -> None:
    value = f.locals[i.arg]
    f.push(NULL if value is None else value)
    f.locals[i.arg] = None


@registry.instruction("MAKE_CELL")
def make_cell(f: Frame, i: Instruction) -> None:
    f.locals[i.arg] = Cell(f.locals[i.arg])


@registry.instruction("COPY_FREE_VARS")
def copy_free_vars(f: Frame, i: Instruction) -> None:
    f.locals[len(f.locals) - i.arg :] = f.closure


@registry.instruction("LOAD_DEREF", "LOAD_CLASSDEREF")
def load_deref(f: Frame, i: Instruction) -> None:
    value = f.cell(i.arg).get(f.tracer)
    if value is None:
        name = f.decoded.slots[i.arg]
        if i.arg >= len(f.decoded.slots) - len(f.code.co_freevars):
            message = f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
            raise f.tracer.raised(NameError, message, name=Constant(name))
        message = f"cannot access local variable {name!r} where it is not associated with a value"
        raise f.tracer.raised(UnboundLocalError, message)
    f.push(value)


@registry.instruction("STORE_DEREF")
def store_deref(f: Frame, i: Instruction) -> None:
    f.cell(i.arg).set(f.tracer, f.stack.pop())


@registry.instruction("DELETE_DEREF")
def delete_deref(f: Frame, i: Instruction) -> None:
    f.cell(i.arg).set(f.tracer, None)


@registry.instruction("LOAD_GLOBAL")
def load_global(f: Frame, i: Instruction) -> None:
    number, null = name_of(i)
    push_found(f, f.tracer.namespaces.variable(f, f.code.co_names[number]), null)


def push_found(f: Frame, value: Value, null: bool) -> None:
    """What a name stands for, with NULL for the receiver where it is to be called."""
    if null and not NULL_IS_ABOVE:
        f.push(NULL)
    f.push(value)
    if null and NULL_IS_ABOVE:
        f.push(NULL)


@registry.instruction("STORE_GLOBAL")
def store_global(f: Frame, i: Instruction) -> None:
    f.tracer.effects.set_global(f.scope, f.code.co_names[i.arg], f.stack.pop())


@registry.instruction("DELETE_GLOBAL")
def delete_global(f: Frame, i: Instruction) -> None:
    f.tracer.namespaces.variable(f, f.code.co_names[i.arg])
    f.tracer.effects.set_global(f.scope, f.code.co_names[i.arg], None)


# Operators.


@registry.instruction("BINARY_OP")
def binary_op(f: Frame, i: Instruction) -> None:
    operation, inplace = BINARY_OPERATIONS[i.arg]
    right, left = (v if isinstance(v, Unread) else v.realize() for v in reversed(f.popn(2)))
    f.push(f.tracer.binary(operation, left, right, inplace))


@registry.instruction("BINARY_SUBSCR")
def binary_subscr(f: Frame, i: Instruction) -> None:
    key, container = f.pop_key()
    f.push(f.tracer.get_item(container, key))


@registry.instruction("STORE_SUBSCR")
def store_subscr(f: Frame, i: Instruction) -> None:
    (key, container), value = f.pop_key(), f.stack.pop()
    container.set_item(f.tracer, key, value)


@registry.instruction("DELETE_SUBSCR")
def delete_subscr(f: Frame, i: Instruction) -> None:
    key, container = f.pop_key()
    container.del_item(f.tracer, key)


@registry.instruction("BINARY_SLICE")
def binary_slice(f: Frame, i: Instruction) -> None:
    stop, start, container = f.pop(), f.pop(), f.pop()
    f.push(f.tracer.get_item(container, Slice([start, stop, Constant(None)])))


@registry.instruction("STORE_SLICE")
def store_slice(f: Frame, i: Instruction) -> None:
    stop, start, container, value = f.pop(), f.pop(), f.pop(), f.stack.pop()
    container.set_item(f.tracer, Slice([start, stop, Constant(None)]), value)


@registry.instruction("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def unary(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.unary(i.name.removeprefix("UNARY_").lower(), f.pop()))


@registry.instruction("UNARY_NOT")
def unary_not(f: Frame, i: Instruction) -> None:
    truth = truth_as_value(f, f.pop())
    negated = isinstance(truth, Symbolic)  # data decide
    f.push(f.tracer.recorder.call(torch.sym_not, [truth], {}) if negated else Constant(not f.tracer.truth(truth)))


@registry.instruction("TO_BOOL")
def to_bool(f: Frame, i: Instruction) -> None:
    push_truth(f, f.pop())


@registry.instruction("COMPARE_OP")
def compare_op(f: Frame, i: Instruction) -> None:
    right, left = f.pop(), f.pop()
    symbol, as_truth = comparison(i)
    result = f.tracer.compare(symbol, left, right)
    if as_truth:
        push_truth(f, result.realize())
    else:
        f.push(result)


def push_truth(f: Frame, value: Value) -> None:
    """The truth of a value; but for a branch and for ``not``, which come next, and ask for it themselves."""
    following = f.instructions[f.index].name
    if following == "UNARY_NOT" or following.startswith("POP_JUMP"):
        f.push(value)
    else:
        f.push(truth_as_value(f, value))


def truth_as_value(f: Frame, value: Value) -> Value:
    """``bool`` of a value, which the graph computes where data decide."""
    t = f.tracer
    if t.policy.data_dependent and isinstance(value, (Tensor, Symbolic)):
        return t.call(t.wrap_known(bool), [value], {}).realize()
    return Constant(t.truth(value))


@registry.instruction("IS_OP")
def is_op(f: Frame, i: Instruction) -> None:
    right, left = f.stack.pop(), f.stack.pop()
    f.push(Constant(f.tracer.is_same(left, right) != bool(i.arg)))


@registry.instruction("CONTAINS_OP")
def contains_op(f: Frame, i: Instruction) -> None:
    container, item = f.pop(), f.stack.pop()
    found = container.contains(f.tracer, item).realize()
    if isinstance(found, Symbolic):
        f.push(f.tracer.recorder.call(torch.sym_not, [found], {}) if i.arg else found)  # data decide
    else:
        f.push(Constant(f.tracer.truth(found) != bool(i.arg)))


# Attributes and names.


@registry.instruction("LOAD_ATTR")
def load_attr(f: Frame, i: Instruction) -> None:
    number, null = name_of(i)
    push_found(f, f.tracer.get_attr(f.stack.pop(), f.code.co_names[number]), null)


@registry.instruction("LOAD_METHOD")
def load_method(f: Frame, i: Instruction) -> None:
    owner = f.stack.pop()
    f.push(NULL)
    f.push(f.tracer.get_attr(owner, f.code.co_names[i.arg]))


@registry.instruction("LOAD_SUPER_ATTR")
def load_super_attr(f: Frame, i: Instruction) -> None:
    owner, kind, function = f.pop(), f.pop(), f.pop()
    made = f.tracer.call(function, [kind, owner] if has_arguments_of_super(i) else [], {})
    number, null = name_of(i)
    push_found(f, f.tracer.get_attr(made, f.code.co_names[number]), null)


@registry.instruction("STORE_ATTR")
def store_attr(f: Frame, i: Instruction) -> None:
    owner, value = f.pop(), f.stack.pop()
    owner.set_attr(f.tracer, f.code.co_names[i.arg], value)


@registry.instruction("DELETE_ATTR")
def delete_attr(f: Frame, i: Instruction) -> None:
    f.pop().del_attr(f.tracer, f.code.co_names[i.arg])


@registry.instruction("IMPORT_NAME")
def import_name(f: Frame, i: Instruction) -> None:
    names, level = f.pop(), f.pop()
    name = f.code.co_names[i.arg]
    f.push(f.tracer.namespaces.import_module(f, name, names.constant(), level.constant()))


@registry.instruction("IMPORT_FROM")
def import_from(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.namespaces.import_from(f.stack[-1].realize(), f.code.co_names[i.arg]))


@registry.instruction("LOAD_ASSERTION_ERROR")
def load_assertion_error(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.wrap_known(AssertionError))


# Making containers.


@registry.instruction("BUILD_TUPLE")
def build_tuple(f: Frame, i: Instruction) -> None:
    f.push(Tuple(f.popn(i.arg)))


@registry.instruction("BUILD_LIST")
def build_list(f: Frame, i: Instruction) -> None:
    f.push(List(f.popn(i.arg)))


@registry.instruction("BUILD_SET")
def build_set(f: Frame, i: Instruction) -> None:
    f.push(Set.of(f.tracer, f.popn(i.arg)))


@registry.instruction("BUILD_MAP")
def build_map(f: Frame, i: Instruction) -> None:
    flat = f.popn(2 * i.arg)
    made = Dict()
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        made.set_item(f.tracer, key, value)
    f.push(made)


@registry.instruction("BUILD_CONST_KEY_MAP")
def build_const_key_map(f: Frame, i: Instruction) -> None:
    keys = f.pop().constant()
    made = Dict()
    for key, value in zip(keys, f.popn(i.arg), strict=True):
        made.set_item(f.tracer, f.tracer.wrap_known(key), value)
    f.push(made)


@registry.instruction("BUILD_SLICE")
def build_slice(f: Frame, i: Instruction) -> None:
    parts = f.popn(i.arg)
    f.push(Slice(parts if i.arg == 3 else [*parts, Constant(None)]))


@registry.instruction("BUILD_STRING")
def build_string(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.text(str.join, [Constant(""), Tuple(f.popn(i.arg))], {}))


@registry.instruction("CONVERT_VALUE")
def convert_value(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.call(f.tracer.wrap_known(CONVERSIONS[i.arg]), [f.pop()], {}))


@registry.instruction("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC")
def format_value(f: Frame, i: Instruction) -> None:
    conversion, has_spec = formatting(i)
    spec = f.pop() if has_spec else Constant("")
    (value,) = f.popn(1)
    _format(f, conversion, value, spec)


def _format(f: Frame, conversion: Any, value: Value, spec: Value) -> None:
    if conversion is not None:
        value = f.tracer.call(f.tracer.wrap_known(conversion), [value], {})
    f.push(f.tracer.call(f.tracer.wrap_known(format), [value, spec], {}))


@registry.instruction("LIST_TO_TUPLE")
def list_to_tuple(f: Frame, i: Instruction) -> None:
    f.push(Tuple(list(f.pop().items)))  # type: ignore[attr-defined]


@registry.instruction("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE")
def extend(f: Frame, i: Instruction) -> None:
    more = f.pop()
    target = f.stack[-i.arg].realize()
    if i.name == "LIST_EXTEND" and not f.tracer.has_items(more):
        raise f.tracer.raised(TypeError, f"Value after * must be an iterable, not {spelled(more.type())}")
    if i.name == "DICT_UPDATE" and not _is_mapping(f.tracer, more):
        raise f.tracer.raised(TypeError, f"{spelled(more.type())!r} object is not a mapping")
    target.call_method(f.tracer, "extend" if i.name == "LIST_EXTEND" else "update", [more], {})


def _is_mapping(t: Tracer, value: Value) -> bool:
    return isinstance(value, InstanceDict) or look_up(t, value.type(), "keys")[1] is not None


@registry.instruction("DICT_MERGE")
def dict_merge(f: Frame, i: Instruction) -> None:
    more = f.pop()
    target = f.stack[-i.arg].realize()
    below = f.stack[: -i.arg - 1]
    called = below[-2 if NULL_IS_ABOVE else -1].realize()
    if not _is_mapping(f.tracer, more):
        named = f"{called_as(f.tracer, called)} argument after ** must be a mapping, not {spelled(more.type())}"
        raise f.tracer.raised(TypeError, named)
    for key, value in f.tracer.pairs(more):
        if f.tracer.truth(target.contains(f.tracer, key)):
            twice = (
                f"{called_as(f.tracer, called)} got multiple values for keyword argument {f.tracer.constant_of(key)!r}"
            )
            raise f.tracer.raised(TypeError, twice)
        target.set_item(f.tracer, key, value)


@registry.instruction("LIST_APPEND", "SET_ADD")
def append(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-i.arg].call_method(f.tracer, "append" if i.name == "LIST_APPEND" else "add", [value], {})


@registry.instruction("MAP_ADD")
def map_add(f: Frame, i: Instruction) -> None:
    value, key = f.stack.pop(), f.stack.pop()
    f.stack[-i.arg].set_item(f.tracer, key, value)


@registry.instruction("UNPACK_SEQUENCE")
def unpack_sequence(f: Frame, i: Instruction) -> None:
    items = f.tracer.unpack_exactly(f.pop(), i.arg)
    f.stack.extend(reversed(items))


@registry.instruction("UNPACK_EX")
def unpack_ex(f: Frame, i: Instruction) -> None:
    before, after = around_star(i)
    items = f.tracer.unpacked(f.pop())
    if len(items) < before + after:
        message = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise f.tracer.raised(ValueError, message)
    end = len(items) - after
    f.stack.extend(reversed([*items[:before], List(items[before:end]), *items[end:]]))
