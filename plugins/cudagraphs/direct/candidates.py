"""Which library calls of a plan can be launched by themselves, as far as the plan says."""

from __future__ import annotations

import math
import re
from typing import Any

import attrs
import torch

from turret.graph.externs import (
    drops_out,
    generator_states,
    is_trusted,
    may_return_alias,
    recorded_variant,
    resolve_op,
    unset_results,
)
from turret.graph.obstacles import why_not_recorded
from turret.graph.op_traits import is_random_op
from turret.plan import Call, Plan, SizeRef, View
from turret.plan.direct import Places, made_slots, roots
from turret.plan.plan import Step
from turret.plan.sections import size_texts, touched_slots
from turret.plan.sizes import Sizes, compile_size

_WORD = re.compile(r"[A-Za-z_]\w*")

ALIGNMENT = 16
"""Bytes: where the memory of a call begins has to be a multiple of it, as it is in the recording."""

_LARGEST = 1 << 26
"""Bytes of a tensor from which on a call is left as it is: its kernels take long, and the host does not matter."""


def at_sizes(plan: Plan, sizes: Sizes) -> Plan:
    """A plan as it is for calls of some sizes: layouts and arguments have numbers in the place of symbols.

    What depends on numbers that are known in the middle of a call stays.
    """

    def number(text: Any) -> Any:
        if not isinstance(text, str) or not set(_WORD.findall(text)) & symbols <= sizes.keys():
            return text
        return compile_size(text)(sizes)

    def filled(value: Any) -> Any:
        if isinstance(value, SizeRef):
            found = number(value.text)
            return value if isinstance(found, str) else found
        return type(value)(map(filled, value)) if isinstance(value, list | tuple) else value

    def step_at(step: Step) -> Step:
        if isinstance(step, View):
            return attrs.evolve(step, offset=number(step.offset))
        if isinstance(step, Call):
            kwargs = {name: filled(value) for name, value in step.kwargs.items()}
            return attrs.evolve(step, args=filled(step.args), kwargs=kwargs)
        return step

    symbols = frozenset(plan.size_symbols)
    if not symbols:
        return plan
    slots = (
        attrs.evolve(slot, shape=tuple(map(number, slot.shape)), stride=tuple(map(number, slot.stride)))
        for slot in plan.slots
    )
    return attrs.evolve(plan, slots=tuple(slots), steps=tuple(map(step_at, plan.steps)))


def candidates(plan: Plan) -> tuple[dict[int, Call], dict[str, str]]:
    """Calls that may be launched by themselves, by their steps; and why others may not, by the name of their op.

    They write to memory that they are given, where their ops can.
    """
    found: dict[int, Call] = {}
    reasons: dict[str, str] = {}
    if plan.check_bounds:
        return {}, {"all calls": "kernels check every access"}
    places = roots(plan)
    for number, step in enumerate(plan.steps):
        if not isinstance(step, Call):
            continue
        call = _without_states(plan, _with_memory(step))
        if reason := _why_not(plan, places, call):
            reasons.setdefault(step.op, reason)
        else:
            found[number] = call
    return found, reasons


def _with_memory(call: Call) -> Call:
    """The call that writes to memory it is given, where there is one."""
    if call.into is not None or len(call.outputs) != 1 or call.outputs[0] is None or call.symbol_bindings:
        return call
    variant = recorded_variant(resolve_op(call.op))
    return call if variant is None else attrs.evolve(call, op=variant, outputs=(), into=call.outputs[0])


def _without_states(plan: Plan, call: Call) -> Call:
    """Attention without dropout, or its gradient, with anything in the place of the states of generators, at which
    nobody looks."""
    op = resolve_op(call.op)
    unset = unset_results(op, call.args, call.kwargs)
    outputs = tuple(None if n in unset else slot for n, slot in enumerate(call.outputs))
    args = list(call.args)
    states = generator_states(op)
    for n in states if states and not drops_out(op, call.args, call.kwargs) else ():
        slot = plan.slots[args[n].slot]
        if all(isinstance(size, int) for size in slot.shape):
            args[n] = torch.zeros(tuple(map(int, slot.shape)), dtype=slot.torch_dtype, device=slot.device)
    return attrs.evolve(call, args=tuple(args), outputs=outputs)


def _draws(op: Any, call: Call) -> bool:
    """Whether a call draws random numbers, as attention with dropout does alone."""
    is_attention = bool(generator_states(op) or unset_results(op, call.args, call.kwargs))
    return drops_out(op, call.args, call.kwargs) if is_attention else is_random_op(op)


def _why_not(plan: Plan, places: Places, call: Call) -> str:
    op = resolve_op(call.op)
    if call.symbol_bindings or not made_slots(call):
        return "it gives numbers, or nothing"
    if _draws(op, call):
        return "it draws random numbers"
    if call.into is None and (may_return_alias(op) or not is_trusted(call.op)):
        return "its results may be what it is given"
    if reason := why_not_recorded(op, call.args, (), collectives=False):
        return f"it {reason}"
    if size_texts((call.args, list(call.kwargs.values()))):
        return "it takes sizes that change"
    for slot in touched_slots(call):
        if reason := _why_not_slot(plan, places, slot):
            return reason
    return ""


def _why_not_slot(plan: Plan, places: Places, slot: int) -> str:
    """Why a call that works on a slot is none that is known ahead of it."""
    root, offsets = places.get(slot, (slot, ()))
    for each in {slot, root}:
        found = plan.slots[each]
        layout = (*found.shape, *found.stride)
        if not all(isinstance(number, int) for number in (*layout, *offsets)):
            return f"the size of {found.name} changes"
        if torch.device(found.device).type != torch.device(plan.device).type:
            return f"{found.name} is on {found.device}"
        if not found.torch_dtype.is_floating_point:
            return f"{found.name} is of {found.torch_dtype}"
    if plan.slots[root].storage == "elsewhere" or root >= plan.table_slots:
        return f"where {plan.slots[root].name} lies is in no table"
    begin = sum(int(offset) for offset in offsets) * plan.slots[slot].torch_dtype.itemsize
    if plan.slots[root].storage == "arena":
        begin += plan.slots[root].number
    if begin % ALIGNMENT:
        return f"{plan.slots[slot].name} begins at no multiple of {ALIGNMENT} bytes"
    whole = plan.slots[root]
    if math.prod(int(n) for n in whole.shape) * whole.torch_dtype.itemsize > _LARGEST:
        return f"{whole.name} is large"
    return ""
