"""Instructions that decide what comes next: jumps, loops, pattern matching, calls, generators, exceptions, ``with``."""

from __future__ import annotations

import builtins

from turret.plugins.capture.branches.conditional import Way, branch_on_data
from turret.plugins.capture.errors import DecidedByData, Raised, Unsupported
from turret.plugins.capture.interpreter import matching
from turret.plugins.capture.interpreter.frame import RETURNED, YIELDED, Frame, Generator, Signal
from turret.plugins.capture.python.instructions import (
    ANNOTATIONS,
    CLOSURE,
    DEFAULTS,
    FUNCTION_PARTS_ARE_OPERANDS,
    KEYWORD_DEFAULTS,
    LIST_TO_TUPLE,
    NULL_IS_ABOVE,
    PREPARE_RERAISE,
    SEND_KEEPS_RECEIVER,
    SET_FUNCTION_TYPE_PARAMS,
    STOP_ITERATION_ERROR,
    TYPE_PARAMETERS,
    UNARY_POSITIVE,
    Instruction,
    behind_loop,
    has_keywords,
)
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import NULL, PREVIOUS, Constant, Value, spelled
from turret.plugins.capture.values.exceptions import ExceptionInstance, caught
from turret.plugins.capture.values.functions import NestedFunction, called_as
from turret.plugins.capture.values.groups import left_to_raise, match_star
from turret.plugins.capture.values.sequences import Tuple
from turret.plugins.capture.values.type_parameters import TypeParameter, of_syntax

# Jumps and loops.


@registry.instruction("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(f: Frame, i: Instruction) -> None:
    if i.name != "JUMP_FORWARD":
        f.tracer.call_stack.count_loop()
    f.index = i.target


@registry.instruction(
    "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
)  # fmt: skip
def pop_jump_if(f: Frame, i: Instruction) -> Signal | None:
    value, jumps_if = f.pop(), i.name.endswith("TRUE")
    ways = (f.current + 1, list(f.stack)), (i.target, list(f.stack))
    return _branch(f, value, ways, jumps_if)


def _branch(f: Frame, value: Value, ways: tuple[Way, Way], jumps_if: bool) -> Signal | None:
    """Go on where a condition has it, or behind both ways: the one of the next instruction, and that of the jump."""
    try:
        f.index, f.stack[:] = ways[f.tracer.truth(value) is jumps_if]
        return None
    except DecidedByData as refusal:
        yes, no = (ways[jumps_if], ways[not jumps_if])
        result = branch_on_data(f, value.realize(), yes, no, refusal)
    if result is None:
        return None
    f.result = result
    return RETURNED


@registry.instruction(
    "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE",
    "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
)  # fmt: skip
def pop_jump_if_none(f: Frame, i: Instruction) -> None:
    if f.tracer.is_none(f.stack.pop()) != ("NOT" in i.name):
        f.index = i.target


@registry.instruction("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_if_or_pop(f: Frame, i: Instruction) -> Signal | None:
    value = f.stack[-1].realize()
    ways = (f.current + 1, f.stack[:-1]), (i.target, list(f.stack))
    return _branch(f, value, ways, "TRUE" in i.name)


@registry.instruction("GET_ITER")
def get_iter(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.iterate(f.pop()))


@registry.instruction("GET_YIELD_FROM_ITER")
def get_yield_from_iter(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.iterate(f.pop()))


@registry.instruction("FOR_ITER")
def for_iter(f: Frame, i: Instruction) -> None:
    item = f.tracer.next_or_none(f.stack[-1].realize())
    if item is not None:
        f.push(item)
        return
    f.stack.pop()
    f.index = behind_loop(i.target)


@registry.instruction("GET_LEN")
def get_len(f: Frame, i: Instruction) -> None:
    f.push(f.stack[-1].realize().length(f.tracer))


# Pattern matching.


@registry.instruction("MATCH_MAPPING")
def match_mapping(f: Frame, i: Instruction) -> None:
    f.push(Constant(matching.is_mapping(f.stack[-1].realize())))


@registry.instruction("MATCH_SEQUENCE")
def match_sequence(f: Frame, i: Instruction) -> None:
    f.push(Constant(matching.is_sequence(f.stack[-1].realize())))


@registry.instruction("MATCH_KEYS")
def match_keys(f: Frame, i: Instruction) -> None:
    keys, subject = f.stack[-1].realize().unpack(f.tracer), f.stack[-2].realize()
    if all(f.tracer.truth(subject.contains(f.tracer, k)) for k in keys):
        f.push(Tuple([subject.get_item(f.tracer, k) for k in keys]))
    else:
        f.push(Constant(None))


@registry.instruction("MATCH_CLASS")
def match_class(f: Frame, i: Instruction) -> None:
    names, kind, subject = f.pop(), f.pop(), f.pop()
    f.push(matching.match_class(f.tracer, subject, kind, i.arg, names.constant()))


# Calls.


@registry.instruction("KW_NAMES")
def kw_names(f: Frame, i: Instruction) -> None:
    f.keyword_names = f.code.co_consts[i.arg]


@registry.instruction("CALL", "CALL_KW")
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
    if NULL_IS_ABOVE:
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


@registry.instruction("CALL_FUNCTION_EX")
def call_function_ex(f: Frame, i: Instruction) -> None:
    function, args, kwargs = read_call_ex(f, i)
    if not f.tracer.has_items(args):
        called = called_as(f.tracer, function)
        raise f.tracer.raised(TypeError, f"{called} argument after * must be an iterable, not {spelled(args.type())}")
    values = f.tracer.all_items(args)
    named = {} if kwargs is None else {f.tracer.constant_of(k): v for k, v in f.tracer.pairs(kwargs)}
    if not all(isinstance(name, str) for name in named):
        raise f.tracer.raised(TypeError, "keywords must be strings")
    f.push(f.tracer.call(function, values, named))


def read_call_ex(f: Frame, i: Instruction) -> tuple[Value, Value, Value | None]:
    """Take the operands of a call with ``*`` and ``**`` off the stack."""
    kwargs = f.pop() if has_keywords(i) else None
    args = f.pop()
    if NULL_IS_ABOVE:
        f.stack.pop()
        return f.pop(), args, kwargs
    function = f.pop()
    if f.stack and f.stack[-1] is NULL:
        f.stack.pop()
    return function, args, kwargs


@registry.instruction("CALL_INTRINSIC_1")
def call_intrinsic(f: Frame, i: Instruction) -> None:
    if i.arg == STOP_ITERATION_ERROR:
        value = f.pop()
        if isinstance(value, ExceptionInstance) and issubclass(value.kind, StopIteration):
            value = f.tracer.stopped_inside(value)
        f.push(value)
    elif i.arg == UNARY_POSITIVE:
        f.push(f.tracer.unary("positive", f.pop()))
    elif i.arg == LIST_TO_TUPLE:
        f.push(Tuple(list(f.pop().items)))  # type: ignore[attr-defined]
    elif i.arg in TYPE_PARAMETERS:
        f.push(TypeParameter(of_syntax, (TYPE_PARAMETERS[i.arg], f.pop().constant()), {}, "typing"))
    else:
        raise Unsupported(f"the instruction {i.name} {i.arg}")


@registry.instruction("MAKE_FUNCTION")
def make_function(f: Frame, i: Instruction) -> None:
    code = f.pop().constant()
    function = NestedFunction(code, f.scope, f.scope_source, [], {}, [])
    if FUNCTION_PARTS_ARE_OPERANDS:
        for part in (CLOSURE, ANNOTATIONS, KEYWORD_DEFAULTS, DEFAULTS):
            if i.arg & part:
                _set_part(f, function, part, f.pop())
    f.push(function)


@registry.instruction("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(f: Frame, i: Instruction) -> None:
    function, value = f.pop(), f.pop()
    assert isinstance(function, NestedFunction)
    _set_part(f, function, i.arg, value)
    f.push(function)


def _set_part(f: Frame, function: NestedFunction, part: int, value: Value) -> None:
    if part == CLOSURE:
        function.closure = list(value.items)  # type: ignore[attr-defined]
    elif part == KEYWORD_DEFAULTS:
        function.keyword_defaults = {k.constant(): v for k, v in f.tracer.pairs(value)}
    elif part == DEFAULTS:
        function.defaults = value.unpack(f.tracer)
    elif part == ANNOTATIONS:
        names, values = (value.unpack(f.tracer)[start::2] for start in (0, 1))
        found = {f.tracer.constant_of(n): v for n, v in zip(names, values, strict=True)}
        function.annotations = f.tracer.new_dict(found)


@registry.instruction("RETURN_VALUE")
def return_value(f: Frame, i: Instruction) -> Signal:
    f.result = f.stack.pop()
    return RETURNED


# Generators.


@registry.instruction("RETURN_GENERATOR")
def return_generator(f: Frame, i: Instruction) -> Signal:
    f.result = Generator(f)
    return RETURNED


@registry.instruction("YIELD_VALUE")
def yield_value(f: Frame, i: Instruction) -> Signal:
    f.result = f.stack.pop()
    return YIELDED


@registry.instruction("SEND")
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
        if not SEND_KEEPS_RECEIVER:
            f.stack.pop()
        f.push(arguments[0] if arguments else Constant(None))
        f.index = i.target
        return
    f.push(result)


@registry.instruction("END_SEND")
def end_send(f: Frame, i: Instruction) -> None:
    del f.stack[-2]


# Exceptions and with.


@registry.instruction("PUSH_EXC_INFO")
def push_exc_info(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.push(PREVIOUS)
    f.push(value)
    f.handling.append(value)


@registry.instruction("POP_EXCEPT")
def pop_except(f: Frame, i: Instruction) -> None:
    f.stack.pop()
    f.handling.pop()


@registry.instruction("CHECK_EXC_MATCH")
def check_exc_match(f: Frame, i: Instruction) -> None:
    kinds = f.pop()
    f.push(Constant(f.tracer.exception_matches(f.stack[-1].realize(), kinds)))


@registry.instruction("CHECK_EG_MATCH")
def check_eg_match(f: Frame, i: Instruction) -> None:
    kinds = f.pop()
    found, rest = match_star(f.tracer, f.pop(), kinds)
    f.push(rest)
    f.push(found)
    if not f.tracer.is_none(found):
        f.handling[-1] = found


@registry.instruction("PREP_RERAISE_STAR")
def prep_reraise_star(f: Frame, i: Instruction) -> None:
    after, original = f.pop().unpack(f.tracer), f.pop()
    f.push(left_to_raise(f.tracer, original, after))


@registry.instruction("CALL_INTRINSIC_2")
def call_intrinsic_of_two(f: Frame, i: Instruction) -> None:
    if i.arg == PREPARE_RERAISE:
        prep_reraise_star(f, i)
    elif i.arg == SET_FUNCTION_TYPE_PARAMS:
        parameters = f.pop()
        f.stack[-1].set_attr(f.tracer, "__type_params__", parameters)
    else:
        raise Unsupported(f"the instruction {i.name} {i.arg}")


@registry.instruction("RERAISE")
def reraise(f: Frame, i: Instruction) -> None:
    raise Raised(f.pop())


@registry.instruction("RAISE_VARARGS")
def raise_varargs(f: Frame, i: Instruction) -> None:
    if i.arg == 0:
        handled = f.tracer.call_stack.handled()
        if handled is None:
            raise Unsupported("raising again what the caller handles")
        raise Raised(handled)
    cause = f.pop() if i.arg == 2 else None
    exception = f.tracer.exception_of(f.pop())
    if cause is not None:
        known = cause if f.tracer.is_none(cause) else f.tracer.exception_of(cause, "exception causes")
        exception.set_cause(f.tracer, known)
    exception.settled = False
    raise Raised(exception)


@registry.instruction("BEFORE_WITH")
def before_with(f: Frame, i: Instruction) -> None:
    manager = f.pop()
    leave = f.tracer.special_method(manager, "__exit__")
    enter = f.tracer.special_method(manager, "__enter__")
    f.push(leave)
    f.push(f.tracer.call(enter, [], {}))


@registry.instruction("WITH_EXCEPT_START")
def with_except_start(f: Frame, i: Instruction) -> None:
    exception = caught(f.stack[-1])
    leave = f.stack[-4]
    kind = f.tracer.wrap_known(exception.type())
    f.push(f.tracer.call(leave, [kind, exception, exception.traceback(f.tracer)], {}))


@registry.instruction("CLEANUP_THROW")
def cleanup_throw(f: Frame, i: Instruction) -> None:
    exception = f.pop()
    if isinstance(exception, ExceptionInstance) and exception.kind is StopIteration:
        del f.stack[-2:]
        f.push(Constant(None))
        f.push(exception.args[0] if exception.args else Constant(None))
        return
    raise Raised(exception)


@registry.instruction("LOAD_BUILD_CLASS")
def load_build_class(f: Frame, i: Instruction) -> None:
    f.push(f.tracer.wrap_known(builtins.__build_class__))


@registry.instruction("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR")
def asynchronous(f: Frame, i: Instruction) -> None:
    raise Unsupported("async code")
