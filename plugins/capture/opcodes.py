"""What each instruction does to a frame: one short function an opcode, in families.

CPython 3.11 to 3.13; instructions that only some versions have are marked in ``VERSIONS`` at the end.
"""

from __future__ import annotations

import dis
import operator
import types
from collections.abc import Callable
from typing import Any

from turret.plugins.capture.bytecode import VERSION, Instruction
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.frame import RETURNED, YIELDED, Frame, Generator, Signal
from turret.plugins.capture.values.base import NULL, PREVIOUS, Constant, Value
from turret.plugins.capture.values.functions import Cell, Function, Method, NestedFunction
from turret.plugins.capture.values.mappings import Dict, Set
from turret.plugins.capture.values.objects import ExceptionInstance
from turret.plugins.capture.values.sequences import List, Slice, Tuple

Handler = Callable[[Frame, Instruction], "Signal | None"]
HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register the handler of one or more opcodes."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


# Nothing, stack movement, constants.


@opcode("NOP", "RESUME", "CACHE", "PRECALL", "EXTENDED_ARG", "COPY_FREE_VARS_DONE", "RESUME_CHECK", "SETUP_ANNOTATIONS")
def nothing(f: Frame, i: Instruction) -> None:
    pass


@opcode("POP_TOP", "END_FOR")
def pop_top(f: Frame, i: Instruction) -> None:
    f.stack.pop()
    if i.name == "END_FOR" and VERSION == (3, 12):
        f.stack.pop()


@opcode("PUSH_NULL")
def push_null(f: Frame, i: Instruction) -> None:
    f.push(NULL)


@opcode("COPY")
def copy(f: Frame, i: Instruction) -> None:
    f.push(f.stack[-i.arg])


@opcode("SWAP")
def swap(f: Frame, i: Instruction) -> None:
    f.stack[-1], f.stack[-i.arg] = f.stack[-i.arg], f.stack[-1]


@opcode("LOAD_CONST", "RETURN_CONST")
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


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE", "LOAD_FAST_BORROW")
def load_fast(f: Frame, i: Instruction) -> None:
    load_slot(f, i.arg)


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(f: Frame, i: Instruction) -> None:
    load_slot(f, i.arg >> 4)
    load_slot(f, i.arg & 15)


@opcode("STORE_FAST")
def store_fast(f: Frame, i: Instruction) -> None:
    f.locals[i.arg] = f.stack.pop()


@opcode("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(f: Frame, i: Instruction) -> None:
    f.locals[i.arg >> 4] = f.stack.pop()
    load_slot(f, i.arg & 15)


@opcode("STORE_FAST_STORE_FAST")
def store_fast_store_fast(f: Frame, i: Instruction) -> None:
    f.locals[i.arg >> 4] = f.stack.pop()
    f.locals[i.arg & 15] = f.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(f: Frame, i: Instruction) -> None:
    load_slot(f, i.arg)
    f.stack.pop()
    f.locals[i.arg] = None


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(f: Frame, i: Instruction) -> None:
    value = f.locals[i.arg]
    f.push(NULL if value is None else value)
    f.locals[i.arg] = None


@opcode("MAKE_CELL")
def make_cell(f: Frame, i: Instruction) -> None:
    f.locals[i.arg] = Cell(f.locals[i.arg])


@opcode("COPY_FREE_VARS")
def copy_free_vars(f: Frame, i: Instruction) -> None:
    f.locals[len(f.locals) - i.arg :] = f.closure


@opcode("LOAD_DEREF", "LOAD_CLASSDEREF")
def load_deref(f: Frame, i: Instruction) -> None:
    value = f.cell(i.arg).get(f.tracer)
    if value is None:
        name = f.decoded.slots[i.arg]
        if name in f.code.co_freevars:
            message = f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
            raise f.tracer.raised(NameError, message)
        message = f"cannot access local variable {name!r} where it is not associated with a value"
        raise f.tracer.raised(UnboundLocalError, message)
    f.push(value)


@opcode("STORE_DEREF")
def store_deref(f: Frame, i: Instruction) -> None:
    f.cell(i.arg).set(f.tracer, f.stack.pop())


@opcode("DELETE_DEREF")
def delete_deref(f: Frame, i: Instruction) -> None:
    f.cell(i.arg).set(f.tracer, None)


@opcode("LOAD_GLOBAL")
def load_global(f: Frame, i: Instruction) -> None:
    null, name = i.arg & 1, f.code.co_names[i.arg >> 1]
    value = f.tracer.global_variable(f, name)
    if null and VERSION < (3, 13):
        f.push(NULL)
    f.push(value)
    if null and VERSION >= (3, 13):
        f.push(NULL)


@opcode("STORE_GLOBAL")
def store_global(f: Frame, i: Instruction) -> None:
    f.tracer.effects.set_global(f.scope, f.code.co_names[i.arg], f.stack.pop())


@opcode("DELETE_GLOBAL")
def delete_global(f: Frame, i: Instruction) -> None:
    f.tracer.global_variable(f, f.code.co_names[i.arg])
    f.tracer.effects.set_global(f.scope, f.code.co_names[i.arg], None)


# Operators.


def _binary_operations() -> list[tuple[Callable, bool]]:
    symbols = {
        "+": operator.add, "&": operator.and_, "//": operator.floordiv, "<<": operator.lshift, "@": operator.matmul,
        "*": operator.mul, "%": operator.mod, "|": operator.or_, "**": operator.pow, ">>": operator.rshift,
        "-": operator.sub, "/": operator.truediv, "^": operator.xor, "[]": operator.getitem,
    }  # fmt: skip
    return [(symbols[s.removesuffix("=")], s.endswith("=")) for _, s in dis._nb_ops]  # type: ignore[attr-defined]


_BINARY = _binary_operations()


@opcode("BINARY_OP")
def binary_op(f: Frame, i: Instruction) -> None:
    operation, inplace = _BINARY[i.arg]
    right, left = f.pop(), f.pop()
    f.push(f.tracer.binary(operation, left, right, inplace))


@opcode("BINARY_SUBSCR")
def binary_subscr(f: Frame, i: Instruction) -> None:
    key, container = f.pop(), f.pop()
    f.push(f.tracer.get_item(container, key))


@opcode("STORE_SUBSCR")
def store_subscr(f: Frame, i: Instruction) -> None:
    key, container, value = f.pop(), f.pop(), f.stack.pop()
    container.set_item(f.tracer, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(f: Frame, i: Instruction) -> None:
    key, container = f.pop(), f.pop()
    container.del_item(f.tracer, key)


@opcode("BINARY_SLICE")
def binary_slice(f: Frame, i: Instruction) -> None:
    stop, start, container = f.pop(), f.pop(), f.pop()
    f.push(f.tracer.get_item(container, Slice([start, stop, Constant(None)])))


@opcode("STORE_SLICE")
def store_slice(f: Frame, i: Instruction) -> None:
    stop, start, container, value = f.pop(), f.pop(), f.pop(), f.stack.pop()
    container.set_item(f.tracer, Slice([start, stop, Constant(None)]), value)


@opcode("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def unary(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.unary(i.name.removeprefix("UNARY_").lower(), f.pop()))


@opcode("UNARY_NOT", "TO_BOOL")
def unary_not(f: Frame, i: Instruction) -> None:
    truth = f.tracer.truth(f.pop())
    f.push(Constant(truth if i.name == "TO_BOOL" else not truth))


@opcode("COMPARE_OP")
def compare_op(f: Frame, i: Instruction) -> None:
    right, left = f.pop(), f.pop()
    number = i.arg if VERSION < (3, 12) else i.arg >> (4 if VERSION < (3, 13) else 5)
    result = f.tracer.compare(dis.cmp_op[number], left, right)
    if VERSION >= (3, 13) and i.arg & 16:
        result = Constant(f.tracer.truth(result))
    f.push(result)


@opcode("IS_OP")
def is_op(f: Frame, i: Instruction) -> None:
    right, left = f.stack.pop(), f.stack.pop()
    f.push(Constant(f.tracer.is_same(left, right) != bool(i.arg)))


@opcode("CONTAINS_OP")
def contains_op(f: Frame, i: Instruction) -> None:
    container, item = f.pop(), f.stack.pop()
    found = container.contains(f.tracer, item)
    f.push(Constant(f.tracer.truth(found) != bool(i.arg)))


# Attributes and names.


@opcode("LOAD_ATTR")
def load_attr(f: Frame, i: Instruction) -> None:
    name = f.code.co_names[i.arg if VERSION < (3, 12) else i.arg >> 1]
    owner = f.pop()
    value = owner.get_attr(f.tracer, name)
    if VERSION < (3, 12) or not i.arg & 1:
        f.push(value)
    elif VERSION >= (3, 13):
        f.push(value)
        f.push(NULL)
    else:
        f.push(NULL)
        f.push(value)


@opcode("LOAD_METHOD")
def load_method(f: Frame, i: Instruction) -> None:
    owner = f.pop()
    f.push(NULL)
    f.push(owner.get_attr(f.tracer, f.code.co_names[i.arg]))


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(f: Frame, i: Instruction) -> None:
    owner, kind, function = f.pop(), f.pop(), f.pop()
    made = f.tracer.call(function, [kind, owner] if i.arg & 2 else [], {})
    value = made.get_attr(f.tracer, f.code.co_names[i.arg >> 2])
    if not i.arg & 1:
        f.push(value)
    elif VERSION >= (3, 13):
        f.push(value)
        f.push(NULL)
    else:
        f.push(NULL)
        f.push(value)


@opcode("STORE_ATTR")
def store_attr(f: Frame, i: Instruction) -> None:
    owner, value = f.pop(), f.stack.pop()
    owner.set_attr(f.tracer, f.code.co_names[i.arg], value)


@opcode("DELETE_ATTR")
def delete_attr(f: Frame, i: Instruction) -> None:
    f.pop().del_attr(f.tracer, f.code.co_names[i.arg])


@opcode("IMPORT_NAME")
def import_name(f: Frame, i: Instruction) -> None:
    names, level = f.pop(), f.pop()
    name = f.code.co_names[i.arg]
    f.push(f.tracer.import_module(f, name, names.constant(), level.constant()))


@opcode("IMPORT_FROM")
def import_from(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.import_from(f.stack[-1].realize(), f.code.co_names[i.arg]))


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.wrap_known(AssertionError))


# Making containers.


@opcode("BUILD_TUPLE")
def build_tuple(f: Frame, i: Instruction) -> None:
    f.push(Tuple(f.popn(i.arg)))


@opcode("BUILD_LIST")
def build_list(f: Frame, i: Instruction) -> None:
    f.push(List(f.popn(i.arg)))


@opcode("BUILD_SET")
def build_set(f: Frame, i: Instruction) -> None:
    f.push(Set.of(f.tracer, f.popn(i.arg)))


@opcode("BUILD_MAP")
def build_map(f: Frame, i: Instruction) -> None:
    flat = f.popn(2 * i.arg)
    made = Dict()
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        made.set_item(f.tracer, key, value)
    f.push(made)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(f: Frame, i: Instruction) -> None:
    keys = f.pop().constant()
    made = Dict()
    for key, value in zip(keys, f.popn(i.arg), strict=True):
        made.set_item(f.tracer, f.tracer.wrap_known(key), value)
    f.push(made)


@opcode("BUILD_SLICE")
def build_slice(f: Frame, i: Instruction) -> None:
    parts = f.popn(i.arg)
    f.push(Slice(parts if i.arg == 3 else [*parts, Constant(None)]))


@opcode("BUILD_STRING")
def build_string(f: Frame, i: Instruction) -> None:
    f.push(Constant("".join(f.tracer.constant_of(v) for v in f.popn(i.arg))))


_CONVERSIONS: dict[int, Any] = {0: None, 1: str, 2: repr, 3: ascii}


@opcode("FORMAT_VALUE")
def format_value(f: Frame, i: Instruction) -> None:
    spec = f.pop() if i.arg & 4 else Constant("")
    _format(f, _CONVERSIONS[i.arg & 3], f.pop(), spec)


@opcode("CONVERT_VALUE")
def convert_value(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.call(f.tracer.wrap_known(_CONVERSIONS[i.arg]), [f.pop()], {}))


@opcode("FORMAT_SIMPLE", "FORMAT_WITH_SPEC")
def format_simple(f: Frame, i: Instruction) -> None:
    spec = f.pop() if i.name == "FORMAT_WITH_SPEC" else Constant("")
    _format(f, None, f.pop(), spec)


def _format(f: Frame, conversion: Any, value: Value, spec: Value) -> None:
    if conversion is not None:
        value = f.tracer.call(f.tracer.wrap_known(conversion), [value], {})
    f.push(f.tracer.call(f.tracer.wrap_known(format), [value, spec], {}))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(f: Frame, i: Instruction) -> None:
    f.push(Tuple(list(f.pop().items)))  # type: ignore[attr-defined]


@opcode("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE")
def extend(f: Frame, i: Instruction) -> None:
    more = f.pop()
    target = f.stack[-i.arg].realize()
    target.call_method(f.tracer, "extend" if i.name == "LIST_EXTEND" else "update", [more], {})


@opcode("DICT_MERGE")
def dict_merge(f: Frame, i: Instruction) -> None:
    more = f.pop()
    target = f.stack[-i.arg].realize()
    for key, value in f.tracer.pairs(more):
        if f.tracer.truth(target.contains(f.tracer, key)):
            raise f.tracer.raised(TypeError, f"got multiple values for keyword argument {key.constant()!r}")
        target.set_item(f.tracer, key, value)


@opcode("LIST_APPEND", "SET_ADD")
def append(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-i.arg].call_method(f.tracer, "append" if i.name == "LIST_APPEND" else "add", [value], {})


@opcode("MAP_ADD")
def map_add(f: Frame, i: Instruction) -> None:
    value, key = f.stack.pop(), f.pop()
    f.stack[-i.arg].set_item(f.tracer, key, value)


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(f: Frame, i: Instruction) -> None:
    items = f.tracer.unpack_exactly(f.pop(), i.arg)
    f.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(f: Frame, i: Instruction) -> None:
    before, after = i.arg & 255, i.arg >> 8
    items = f.pop().unpack(f.tracer)
    if len(items) < before + after:
        message = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise f.tracer.raised(ValueError, message)
    end = len(items) - after
    f.stack.extend(reversed([*items[:before], List(items[before:end]), *items[end:]]))


# Jumps and loops.


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(f: Frame, i: Instruction) -> None:
    if i.name != "JUMP_FORWARD":
        f.tracer.count_loop()
    f.index = i.target


@opcode(
    "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
)  # fmt: skip
def pop_jump_if(f: Frame, i: Instruction) -> None:
    if f.tracer.truth(f.pop()) == i.name.endswith("TRUE"):
        f.index = i.target


@opcode(
    "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE",
    "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
)  # fmt: skip
def pop_jump_if_none(f: Frame, i: Instruction) -> None:
    if f.tracer.is_none(f.stack.pop()) != ("NOT" in i.name):
        f.index = i.target


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_if_or_pop(f: Frame, i: Instruction) -> None:
    if f.tracer.truth(f.stack[-1].realize()) == ("TRUE" in i.name):
        f.index = i.target
    else:
        f.stack.pop()


@opcode("GET_ITER")
def get_iter(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.iterate(f.pop()))


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.iterate(f.pop()))


@opcode("FOR_ITER")
def for_iter(f: Frame, i: Instruction) -> None:
    item = f.tracer.next_or_none(f.stack[-1].realize())
    if item is not None:
        f.push(item)
        return
    if VERSION < (3, 12):
        f.stack.pop()
        f.index = i.target
    else:
        f.stack.pop()
        f.index = i.target + 1  # past END_FOR
        if VERSION >= (3, 13):
            f.index = i.target + 2  # and the POP_TOP of the iterator


@opcode("GET_LEN")
def get_len(f: Frame, i: Instruction) -> None:
    f.push(f.stack[-1].realize().length(f.tracer))


# Pattern matching.


@opcode("MATCH_MAPPING", "MATCH_SEQUENCE")
def match_kind(f: Frame, i: Instruction) -> None:
    f.push(Constant(f.tracer.matches(f.stack[-1].realize(), i.name == "MATCH_MAPPING")))


@opcode("MATCH_KEYS")
def match_keys(f: Frame, i: Instruction) -> None:
    keys, subject = f.stack[-1].realize().unpack(f.tracer), f.stack[-2].realize()
    if all(f.tracer.truth(subject.contains(f.tracer, k)) for k in keys):
        f.push(Tuple([subject.get_item(f.tracer, k) for k in keys]))
    else:
        f.push(Constant(None))


@opcode("MATCH_CLASS")
def match_class(f: Frame, i: Instruction) -> None:
    names, kind, subject = f.pop(), f.pop(), f.pop()
    f.push(f.tracer.match_class(subject, kind, i.arg, names.constant()))


# Calls.


@opcode("KW_NAMES")
def kw_names(f: Frame, i: Instruction) -> None:
    f.keyword_names = f.code.co_consts[i.arg]


@opcode("CALL", "CALL_KW")
def call(f: Frame, i: Instruction) -> None:
    function, args, kwargs = read_call(f, i)
    f.push(f.tracer.call(function, args, kwargs))


def read_call(f: Frame, i: Instruction) -> tuple[Value, list[Value], dict[str, Value]]:
    """Take the operands of a call off the stack."""
    if i.name == "CALL_KW":
        names = f.pop().constant()
    else:
        names, f.keyword_names = f.keyword_names, ()
    args = f.popn(i.arg)
    if VERSION >= (3, 13):
        own, function = f.stack.pop(), f.stack.pop()
        if own is not NULL:
            args.insert(0, own)
    else:
        second, first = f.stack.pop(), f.stack.pop()
        if first is NULL:
            function = second
        else:
            function = first
            args.insert(0, second)
    kwargs: dict[str, Value] = {}
    if names:
        kwargs = dict(zip(names, args[len(args) - len(names) :], strict=True))
        del args[len(args) - len(names) :]
    return function.realize(), args, kwargs


@opcode("CALL_FUNCTION_EX")
def call_function_ex(f: Frame, i: Instruction) -> None:
    function, args, kwargs = read_call_ex(f, i)
    values = args.unpack(f.tracer)
    named = {} if kwargs is None else {f.tracer.constant_of(k): v for k, v in f.tracer.pairs(kwargs)}
    f.push(f.tracer.call(function, values, named))


def read_call_ex(f: Frame, i: Instruction) -> tuple[Value, Value, Value | None]:
    """Take the operands of a call with ``*`` and ``**`` off the stack."""
    kwargs = f.pop() if i.arg & 1 else None
    args = f.pop()
    if VERSION >= (3, 13):
        f.stack.pop()
        return f.pop(), args, kwargs
    function = f.pop()
    if f.stack and f.stack[-1] is NULL:
        f.stack.pop()
    return function, args, kwargs


@opcode("CALL_INTRINSIC_1")
def call_intrinsic(f: Frame, i: Instruction) -> None:
    if i.arg == 3:  # StopIteration out of a generator
        value = f.pop()
        if isinstance(value, ExceptionInstance) and issubclass(value.kind, StopIteration):
            value = f.tracer.new_exception(RuntimeError, "generator raised StopIteration")
        f.push(value)
    elif i.arg == 5:
        f.push(f.tracer.unary("positive", f.pop()))
    elif i.arg == 6:
        f.push(Tuple(list(f.pop().items)))  # type: ignore[attr-defined]
    else:
        raise Unsupported(f"the instruction {i.name} {i.arg}")


@opcode("MAKE_FUNCTION")
def make_function(f: Frame, i: Instruction) -> None:
    code = f.pop().constant()
    closure, annotations, keyword, defaults = [], None, {}, []
    if VERSION < (3, 13):
        if i.arg & 8:
            closure = list(f.pop().items)  # type: ignore[attr-defined]
        if i.arg & 4:
            annotations = f.pop()
        if i.arg & 2:
            keyword = {k.constant(): v for k, v in f.tracer.pairs(f.pop())}
        if i.arg & 1:
            defaults = f.pop().unpack(f.tracer)
    del annotations  # only introspection reads them
    f.push(NestedFunction(code, f.scope, f.scope_source, defaults, keyword, closure))


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(f: Frame, i: Instruction) -> None:
    function, value = f.pop(), f.pop()
    assert isinstance(function, NestedFunction)
    if i.arg == 8:
        function.closure = list(value.items)  # type: ignore[attr-defined]
    elif i.arg == 2:
        function.keyword_defaults = {k.constant(): v for k, v in f.tracer.pairs(value)}
    elif i.arg == 1:
        function.defaults = value.unpack(f.tracer)
    f.push(function)


@opcode("RETURN_VALUE")
def return_value(f: Frame, i: Instruction) -> Signal:
    f.result = f.stack.pop()
    return RETURNED


# Generators.


@opcode("RETURN_GENERATOR")
def return_generator(f: Frame, i: Instruction) -> Signal:
    f.result = Generator(f)
    return RETURNED


@opcode("YIELD_VALUE")
def yield_value(f: Frame, i: Instruction) -> Signal:
    f.result = f.stack.pop()
    return YIELDED


@opcode("SEND")
def send(f: Frame, i: Instruction) -> None:
    value, receiver = f.stack.pop(), f.stack[-1].realize()
    try:
        if isinstance(receiver, Generator):
            result = receiver.send(f.tracer, value)
        elif f.tracer.is_none(value):
            result = receiver.next(f.tracer)
        else:
            result = receiver.call_method(f.tracer, "send", [value], {})
    except Raised as raised:
        if raised.value.kind is not StopIteration:
            raise
        arguments = raised.value.args
        if VERSION < (3, 12):
            f.stack.pop()
        f.push(arguments[0] if arguments else Constant(None))
        f.index = i.target
        return
    f.push(result)


@opcode("END_SEND")
def end_send(f: Frame, i: Instruction) -> None:
    del f.stack[-2]


# Exceptions and with.


@opcode("PUSH_EXC_INFO")
def push_exc_info(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.push(PREVIOUS)
    f.push(value)
    f.handling.append(value)


@opcode("POP_EXCEPT")
def pop_except(f: Frame, i: Instruction) -> None:
    f.stack.pop()
    f.handling.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(f: Frame, i: Instruction) -> None:
    kinds = f.pop()
    f.push(Constant(f.tracer.exception_matches(f.stack[-1].realize(), kinds)))


@opcode("RERAISE")
def reraise(f: Frame, i: Instruction) -> None:
    raise Raised(f.pop())


@opcode("RAISE_VARARGS")
def raise_varargs(f: Frame, i: Instruction) -> None:
    if i.arg == 0:
        handled = f.handling[-1] if f.handling else f.tracer.handled_outside(f)
        if handled is None:
            raise f.tracer.raised(RuntimeError, "No active exception to reraise")
        raise Raised(handled)
    cause = f.pop() if i.arg == 2 else None
    exception = f.tracer.exception_of(f.pop())
    if cause is not None:
        exception.cause = None if f.tracer.is_none(cause) else f.tracer.exception_of(cause)
    raise Raised(exception)


@opcode("BEFORE_WITH")
def before_with(f: Frame, i: Instruction) -> None:
    manager = f.pop()
    leave = f.tracer.special_method(manager, "__exit__")
    enter = f.tracer.special_method(manager, "__enter__")
    f.push(leave)
    f.push(f.tracer.call(enter, [], {}))


@opcode("WITH_EXCEPT_START")
def with_except_start(f: Frame, i: Instruction) -> None:
    exception = f.stack[-1].realize()
    leave = f.stack[-4]
    kind = f.tracer.wrap_known(exception.type())
    f.push(f.tracer.call(leave, [kind, exception, f.tracer.traceback()], {}))


@opcode("CLEANUP_THROW")
def cleanup_throw(f: Frame, i: Instruction) -> None:
    exception = f.pop()
    if isinstance(exception, ExceptionInstance) and exception.kind is StopIteration:
        del f.stack[-2:]
        f.push(Constant(None))
        f.push(exception.args[0] if exception.args else Constant(None))
        return
    raise Raised(exception)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(f: Frame, i: Instruction) -> None:
    raise Unsupported("a class defined in compiled code")


@opcode("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR")
def asynchronous(f: Frame, i: Instruction) -> None:
    raise Unsupported("async code")


def known_function(value: Value) -> types.FunctionType | None:
    """The Python function behind a value, where it existed before."""
    if isinstance(value, Method):
        value = value.function
    return value.object if isinstance(value, Function) else None
