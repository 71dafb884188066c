"""Products by a transposed matrix whose view nothing else uses: one call of ``linear``, which transposes by itself.

A tensor of a view costs a third of what the product costs on the host, and each linear layer of a program has one.
"""

from __future__ import annotations

from collections.abc import Mapping

from turret.plan import Call, Free, Plan, SlotRef, Step, View

_PRODUCTS = {"aten::mm.out": 2, "aten::addmm.out": 3}
"""Products by how many arguments they have; the matrix is the last of them."""


def linear_calls(plan: Plan, uses: Mapping[int, int]) -> dict[int, int]:
    """Positions of calls that ``linear`` can take the place of, each with that of the view which it makes itself.

    ``uses``: for each slot how many steps take it.  The view's base is there until the call.
    """
    views = {step.slot: at for at, step in enumerate(plan.steps) if isinstance(step, View)}
    kept = {output.slot for output in plan.outputs if isinstance(output, SlotRef)}
    found: dict[int, int] = {}
    for at, step in enumerate(plan.steps):
        slot = _matrix(step, plan)
        if slot in views and slot not in kept and uses[slot] == 1:
            view = plan.steps[views[slot]]
            assert isinstance(view, View)
            dropped = [s for step in plan.steps[views[slot] : at] if isinstance(step, Free) for s in step.slots]
            if is_transpose(view, plan) and view.base not in dropped:
                found[at] = views[slot]
    return found


def _matrix(step: Step, plan: Plan) -> int | None:
    """The slot of the matrix that a product multiplies by from the right, if ``linear`` knows such a product."""
    if not isinstance(step, Call) or step.into is None or step.kwargs or len(step.args) != _PRODUCTS.get(step.op):
        return None
    refs = [argument.slot for argument in step.args if isinstance(argument, SlotRef)]
    one_bias = len(refs) == 2 or (len(refs) == 3 and len(plan.slots[refs[0]].shape) == 1)
    return refs[-1] if len(refs) == len(step.args) and one_bias else None


def arguments(call: Call) -> tuple[SlotRef, SlotRef | None]:
    """The rows that a product multiplies, and the bias."""
    *bias, rows, _ = call.args
    return rows, bias[0] if bias else None


def is_transpose(view: View, plan: Plan) -> bool:
    """Whether a view is its base with the two dimensions exchanged."""
    made, base = plan.slots[view.slot], plan.slots[view.base]
    exchanged = (made.shape, made.stride) == (base.shape[::-1], base.stride[::-1])
    return view.offset == 0 and len(base.shape) == 2 and made.dtype == base.dtype and exchanged
