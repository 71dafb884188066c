"""States of generators that attention saves for its gradient: on the host, or on the device where it was recorded.

A gradient looks for them where they would lie if its forward had run as it does: recorded or not.  One of the two may
run as it is where the other is replayed (its sizes came for the first time, or cannot be recorded), so that they are
brought there.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from turret.graph.externs import drops_out, generator_states, resolve_op
from turret.hooks.devices import HOST
from turret.hooks.products import BoxedCallable
from turret.plan import Call, Plan, SlotRef

_OF_ATTENTION = "aten::_scaled_dot_product"


@attrs.frozen
class GeneratorStates:
    """Positions of a plan's inputs that are states: ``read`` by a call, or ``unread``, since nothing is dropped out."""

    read: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()

    @classmethod
    def of(cls, plan: Plan) -> GeneratorStates:
        """Those of a plan."""
        inputs = {slot: position for position, slot in enumerate(plan.inputs) if slot is not None}
        read: set[int] = set()
        unread: set[int] = set()
        for step in plan.steps:
            if isinstance(step, Call) and step.op.startswith(_OF_ATTENTION):
                op = resolve_op(step.op)
                given = [step.args[n] for n in generator_states(op) if n < len(step.args)]
                states = {inputs[a.slot] for a in given if isinstance(a, SlotRef) and a.slot in inputs}
                (read if drops_out(op, step.args, step.kwargs) else unread).update(states)
        return cls(frozenset(read), frozenset(unread - read))

    def on_host(self, function: BoxedCallable, is_recording: Callable[[], bool]) -> BoxedCallable:
        """A plan's function as it runs without a recording, but where the program itself records."""
        if not self.read:
            return function

        def run(args: list) -> list:
            if not is_recording():
                for position in self.read:
                    args[position] = args[position].to(HOST)
            return function(args)

        run.__dict__.update(function.__dict__)
        return run  # type: ignore[return-value]
