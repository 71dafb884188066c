"""``torch.cond`` and ``while_loop``: each branch becomes a graph, all of it one call of the higher-order op."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._higher_order_ops.while_loop import while_loop as while_loop_function

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.graph import Region
from turret.plugins.capture.handlers import function
from turret.plugins.capture.structures import Structure, flatten
from turret.plugins.capture.values.base import Value
from turret.plugins.capture.values.tensors import Symbolic, Tensor

if TYPE_CHECKING:
    from turret.plugins.capture.tracer import Tracer


class _Branches:
    """Functions traced one after the other over the same inputs."""

    def __init__(self, t: Tracer, name: str, carried: Items[Tensor] = ()) -> None:
        self.t, self.name, self.carried = t, name, carried
        self.conditions: tuple[int, ...] = ()
        """Which of them return one tensor, not a tuple."""
        self.regions: list[Region] = []
        self.outputs: list[list[Tensor]] = []
        self.structures: list[Structure] = []

    def trace(self, function: Value, args: list[Value], carried: Structure | None = None) -> None:
        """Follow one; with ``carried``, its arguments are new inputs of that structure."""
        t = self.t
        effects, versions = t.effects.count, self.versions()
        with t.region() as region:
            if carried is not None:
                made = [_carried(t, region, n, v.fake) for n, v in enumerate(self.carried)]
                args = carried.build(t, iter(made)).unpack(t)
            for node in self.lifted():
                region.input_for(node)
            leaves, structure = flatten(t, t.call(function, args, {}))
            found = [v.realize() for v in leaves]
            if not all(isinstance(v, Tensor) for v in found):
                raise Unsupported(f"torch.{self.name} with results that are no tensors")
            self.regions.append(region)
            self.outputs.append(found)  # type: ignore[arg-type]
            self.structures.append(structure)
        if t.effects.count != effects or versions.items() - self.versions().items():
            raise Unsupported(f"torch.{self.name} whose branches have side effects")

    def versions(self) -> dict[int, int]:
        """How often tensors from before were changed in place."""
        return {i: v.fake._version for i, v in self.t.by_fake.items() if v.node.graph in self.around()}

    def around(self) -> list[fx.Graph]:
        return [self.t.root_graph, *(r.graph for r in self.t.open_regions)]

    def lifted(self) -> list[fx.Node]:
        """What any of them uses of the graph around, in the order of the inputs."""
        return list(dict.fromkeys(node for region in self.regions for node in region.lifted))

    def close(self) -> list[fx.Node]:
        """A node of this graph for each branch, all of the same inputs."""
        t, lifted, nodes = self.t, self.lifted(), []
        for number, (region, outputs) in enumerate(zip(self.regions, self.outputs, strict=True)):
            for node in lifted:
                region.input_for(node)
            if list(region.lifted) != lifted:
                raise Unsupported(f"torch.{self.name} whose branches take their inputs in different orders")
            with t.within(region):
                ends = [t.node_here(v.node) for v in outputs]
                module = region.close_with(ends[0]) if number in self.conditions else region.close(ends)
            nodes.append(t.submodule(module, f"{self.name}_{number}"))
        return nodes

    def results(self, number: int) -> tuple[torch.Tensor, ...]:
        """New fake tensors like those that a branch returns."""
        return tuple(_like(v.fake) for v in self.outputs[number])


def _like(fake: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def _carried(t: Tracer, region: Region, number: int, fake: torch.Tensor) -> Tensor:
    made = _like(fake)
    return t.tensor(region.placeholder(f"carried{number}", made), made)


def _same(name: str, one: Items[Any], other: Items[Any]) -> None:
    """Refuse results that differ in number, shape or dtype."""
    if len(one) != len(other) or any(
        a.fake.dtype != b.fake.dtype or tuple(a.fake.shape) != tuple(b.fake.shape)
        for a, b in zip(one, other, strict=False)
    ):
        raise Unsupported(f"torch.{name} whose results differ in number, shape or dtype")


@function(torch.cond, torch.ops.higher_order.cond)
def cond(t: Tracer, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None) -> Value:
    """``torch.cond``; a predicate that is known takes its branch alone."""
    pred = pred.realize()
    args = [] if operands is None else operands.realize().unpack(t)
    if not isinstance(pred, Tensor):
        return t.call(true_fn if t.truth(pred) else false_fn, args, {})
    branches = _Branches(t, "cond")
    for branch in (true_fn, false_fn):
        branches.trace(branch, args)
    _same("cond", *branches.outputs)
    if branches.structures[0] != branches.structures[1]:
        raise Unsupported("torch.cond whose results differ in structure")
    modules, lifted = branches.close(), branches.lifted()
    wanted = torch.is_grad_enabled() and any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in (n.meta["example_value"] for n in lifted)
    )
    if wanted:
        raise Unsupported("gradients through torch.cond", "compute both branches and choose with torch.where")
    results = branches.results(0)
    operator = torch.ops.higher_order.cond
    arguments = (t.argument(pred)[0], *modules, tuple(map(t.node_here, lifted)))
    found = t.unpacked(t.record("call_function", operator, arguments, {}, results), results)
    return branches.structures[0].build(t, iter(found.unpack(t)))


@function(while_loop_function, torch.ops.higher_order.while_loop)
def while_loop(
    t: Tracer, cond_fn: Value, body_fn: Value, carried_inputs: Value, additional_inputs: Value | None = None
) -> Value:
    """``while_loop`` over tensors."""
    carried, structure = flatten(t, carried_inputs)
    values = [v.realize() for v in carried]
    if not all(isinstance(v, Tensor) for v in values) or any(isinstance(v, Symbolic) for v in values):
        raise Unsupported("while_loop that carries something else than tensors")
    extra = [] if additional_inputs is None else additional_inputs.realize().unpack(t)
    if extra:
        raise Unsupported("while_loop with additional_inputs")
    if torch.is_grad_enabled() and any(v.fake.requires_grad for v in values):  # type: ignore[attr-defined]
        raise Unsupported("gradients through while_loop")
    branches = _Branches(t, "while_loop", values)  # type: ignore[arg-type]
    branches.conditions = (0,)
    branches.trace(cond_fn, [], structure)
    branches.trace(body_fn, [], structure)
    _same("while_loop", branches.outputs[1], values)
    modules = branches.close()
    if torch.is_grad_enabled() and any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in (n.meta["example_value"] for n in branches.lifted())
    ):
        raise Unsupported("gradients through while_loop")
    results = branches.results(1)
    starts = tuple(t.argument(v)[0] for v in values)
    arguments = (*modules, starts, tuple(map(t.node_here, branches.lifted())))
    node = t.record("call_function", torch.ops.higher_order.while_loop, arguments, {}, results)
    return structure.build(t, iter(t.unpacked(node, results).unpack(t)))
