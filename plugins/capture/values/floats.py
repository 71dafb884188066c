"""Floats that were seen to change from call to call: inputs of the graph, on which decisions leave a guard."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from turret.frames.sources import CallSource, Source
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.graph import GraphInput, input_name
from turret.plugins.capture.values.base import Constant
from turret.plugins.capture.values.tensors import Symbolic

if TYPE_CHECKING:
    from turret.plugins.capture.interpreter.tracer import Tracer


def as_scalar_tensor(number: float) -> torch.Tensor:
    """A float as the tensor that a graph takes it in."""
    return torch.tensor(number, dtype=torch.float64)


class ChangingFloat(Symbolic):
    """A float that is another one on other calls; it becomes an input of the graph where the graph needs it.

    It comes in as a tensor of one element, and ``item()`` of that is its number: beside tensors it then counts as the
    Python number that it is.
    """

    def __init__(self, t: Tracer, value: float, source: Source) -> None:
        self.t, self.value, self.source = t, value, source
        self.made: tuple[fx.Node, Any] | None = None

    def type(self) -> type:
        return float

    def describe(self) -> str:
        return f"the float {self.source}"

    def is_known(self) -> bool:
        return False

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        return self.in_graph()[0]

    @property
    def number(self) -> Any:  # type: ignore[override]
        return self.in_graph()[1]

    def in_graph(self) -> tuple[fx.Node, Any]:
        """The node and the symbol that stand for the float, made at first use."""
        if self.made is None:
            t, name = self.t, input_name(self.source)
            with t.fake_mode:
                example = torch.empty((), dtype=torch.float64, device=HOST)
            given = t.placeholder(name, example)
            t.inputs.append(GraphInput(given, CallSource(self.source, as_scalar_tensor), example, static=False))
            number = t.shape_env.create_unbacked_symfloat()
            t.shape_env.pending_fresh_unbacked_symbols.clear()
            node = t.root_graph.create_node("call_method", "item", (given,), {})
            node.meta["example_value"] = number
            t.floats[node] = self
            self.made = node, number
        return self.made

    def truth(self, t: Tracer) -> bool:
        return t.truth(t.compare("!=", self, Constant(0.0)))

    def fixed(self) -> Any:
        raise Unsupported(f"{self.describe()}, which changes, where a constant is needed")


def decide(t: Tracer, condition: Symbolic) -> bool:
    """Whether a condition on changing floats holds in this call; assumed to be so in others.

    It is computed as Python computes it, and not from the symbol's expression, which is rearranged.  Raises
    ``Unsupported`` where other numbers that depend on data are part of it.
    """
    used: dict[Source, float] = {}
    text = _text(t, condition.node, used)
    held = bool(eval(text.format(*used.values()), {"inf": math.inf, "nan": math.nan}))
    first, *others = used
    t.guard("SIZES", first, text if held else f"not ({text})", tuple(others))
    return held


def _text(t: Tracer, node: Any, used: dict[Source, float]) -> str:
    """A node's value as an expression of Python with placeholders for sources; ``used``: these, with their values."""
    if not isinstance(node, fx.Node):
        if type(node) in (int, float, bool) and math.isfinite(node):
            return repr(node)
        raise Unsupported(f"a branch on a number that depends on {node!r}")
    changing = t.floats.get(node)
    if changing is not None:
        used.setdefault(changing.source, changing.value)  # type: ignore[arg-type]
        return f"{{{list(used).index(changing.source)}}}"
    form = _FORMS.get(node.target) if node.op == "call_function" and not node.kwargs else None
    if form is None:
        raise Unsupported("a branch on a number that depends on data")
    return form.format(*(_text(t, a, used) for a in node.args)).join("()")


_FORMS: dict[Any, str] = {
    operator.add: "{} + {}", operator.sub: "{} - {}", operator.mul: "{} * {}", operator.truediv: "{} / {}",
    operator.floordiv: "{} // {}", operator.mod: "{} % {}", operator.pow: "{} ** {}", operator.neg: "-{}",
    operator.pos: "+{}", operator.eq: "{} == {}", operator.ne: "{} != {}", operator.lt: "{} < {}",
    operator.le: "{} <= {}", operator.gt: "{} > {}", operator.ge: "{} >= {}",
}  # fmt: skip
"""Operations on floats as Python writes them."""
