"""Graphs that are recorded one after the other over the same inputs, of which a higher-order op runs one or more."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.graph.fakes.either import either_of
from turret.hooks.devices import HOST
from turret.plugins.capture.branches.watched import counting_changes
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.fakes import fake_outputs
from turret.plugins.capture.record.graph import Subgraph
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.structures import Structure, flatten
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor


class BranchGraphs:
    """Functions traced one after the other over the same inputs."""

    def __init__(self, t: Tracer, name: str, carried: Items[Tensor] = ()) -> None:
        self.t, self.name, self.carried = t, name, carried
        self.conditions: tuple[int, ...] = ()
        """Which of them return one tensor, not a tuple."""
        self.regions: list[Subgraph] = []
        self.outputs: list[list[Tensor]] = []
        self.structures: list[Structure] = []

    def trace(self, function: Value, args: list[Value], carried: Structure | None = None) -> None:
        """Follow one; with ``carried``, its arguments are new inputs of that structure."""
        t = self.t
        versions = self.versions()
        with counting_changes(t, function, *args) as changed, t.recorder.region() as region:
            if carried is not None:
                made = [_carried(t, region, n, v.fake) for n, v in enumerate(self.carried)]
                args = [*carried.build(t, iter(made)).unpack(t), *args]
            for node in self.lifted():
                region.input_for(node)
            leaves, structure = flatten(t, t.call(function, args, {}))
            self.regions.append(region)
            self.outputs.append(as_tensors(leaves, f"torch.{self.name} with results that are no tensors"))
            self.structures.append(structure)
        if changed() or versions.items() - self.versions().items():
            raise Unsupported(f"torch.{self.name} whose branches have side effects")

    def versions(self) -> dict[int, int]:
        """How often tensors from before were changed in place."""
        return {
            i: self.t.recorder.versions.of(v.fake)
            for i, v in self.t.recorder.by_fake.items()
            if v.node.graph in self.around()
        }

    def around(self) -> list[fx.Graph]:
        return [self.t.recorder.root_graph, *(r.graph for r in self.t.recorder.open_regions)]

    def lifted(self) -> list[fx.Node]:
        """What any of them uses of the graph around, in the order of the inputs."""
        return list(dict.fromkeys(node for region in self.regions for node in region.lifted))

    def lift_numbers(self) -> None:
        """Have numbers come in as tensors of one element: a ``cond`` takes ints alone, and with gradients sizes."""
        t, made = self.t, dict[fx.Node, fx.Node]()
        for region in self.regions:
            for node, placeholder in list(region.lifted.items()):
                number = placeholder.meta["example_value"]
                if isinstance(number, torch.Tensor):
                    continue
                if isinstance(number, (torch.SymFloat, torch.SymBool)) or free_unbacked_symbols(number):
                    if node not in made:
                        made[node] = scalar_tensor(t, Symbolic(node, number)).node
                    given = region.input_for(made[node])
                    with region.graph.inserting_after(region.last_input):
                        copy = region.graph.call_method("clone", (given,))
                    with region.graph.inserting_after(copy):
                        item = region.graph.call_method("item", (copy,))
                    # Of the tensor itself, torch knows its number outside, which it would hand in once more.
                    copy.meta["example_value"], item.meta["example_value"] = given.meta["example_value"], number
                    region.drop(node, item)

    def drop_unused(self) -> None:
        """Have none of them take what it does not use: gradients would flow to it, of zeros."""
        for region in self.regions:
            for node, placeholder in list(region.lifted.items()):
                if not placeholder.users:
                    region.drop(node)

    def detach(self, keeps: Callable[[torch.Tensor], bool]) -> None:
        """Have all inputs come in without gradients but those that keep theirs: others would be given zeros."""
        made: dict[fx.Node, fx.Node] = {}
        for region in self.regions:
            for node, placeholder in list(region.lifted.items()):
                fake = placeholder.meta["example_value"]
                if isinstance(fake, torch.Tensor) and fake.requires_grad and not keeps(fake):
                    if node not in made:
                        value = self.t.recorder.call_method("detach", [Tensor(node, fake)], {})
                        made[node] = value.node  # type: ignore[attr-defined]
                    region.drop(node, region.input_for(made[node]))

    def line_up(self) -> None:
        """Have all of them take the same inputs in the same order."""
        for region in self.regions:
            for node in self.lifted():
                region.input_for(node)
        order = self.lifted()
        for region in self.regions:
            region.put_in_order(order)

    def close(self) -> list[fx.Node]:
        """A node of this graph for each branch, all of the same inputs."""
        self.line_up()
        ends = []
        for region, outputs in zip(self.regions, self.outputs, strict=True):
            with self.t.recorder.within(region):
                ends.append([self.t.recorder.node_here(v.node) for v in outputs])
        return self.close_at(ends)

    def close_at(self, ends: Items[list[fx.Node]]) -> list[fx.Node]:
        """The same, with the nodes in each that it returns."""
        nodes = []
        for number, (region, found) in enumerate(zip(self.regions, ends, strict=True)):
            with self.t.recorder.within(region):
                module = region.close_with(found[0]) if number in self.conditions else region.close(found)
            nodes.append(self.t.recorder.submodule(module, f"{self.name}_{number}"))
        return nodes

    def either(self) -> list[torch.Tensor]:
        """What stands for the results of the one of two that runs."""
        one, other = ([v.fake for v in outputs] for outputs in self.outputs)
        with self.t.recorder.fake_mode, torch.no_grad():
            found = [either_of(a, b, self.t.recorder.unknown_size) for a, b in zip(one, other, strict=False)]
        if len(one) != len(other) or any(value is None for value in found):
            raise Unsupported(f"torch.{self.name} whose results differ in number, rank, dtype, or in sizes and strides")
        return found  # type: ignore[return-value]

    def results(self, examples: Items[torch.Tensor], more: Items[Value] = ()) -> tuple[torch.Tensor, ...]:
        """New fake tensors of these layouts; with gradients (floats) where the branches, or ``more``, use any."""
        inputs = [n.meta["example_value"] for n in self.lifted()] + [v.fake for v in more if isinstance(v, Tensor)]
        return fake_outputs(examples, inputs, [e.is_floating_point() or e.is_complex() for e in examples])


def _carried(t: Tracer, region: Subgraph, number: int, fake: torch.Tensor) -> Tensor:
    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    made.requires_grad_(fake.requires_grad and torch.is_grad_enabled())
    return t.recorder.tensor(region.placeholder(f"carried{number}", made), made)


def scalar_tensor(t: Tracer, number: Value) -> Tensor:
    """A number as a tensor of one element on the host, of the type that torch gives such numbers."""
    dtype = {int: torch.int64, float: torch.float64, bool: torch.bool}[number.type()]
    is_condition = isinstance(number, Symbolic) and dtype is torch.bool  # of which torch makes no tensor of bools
    options: dict[str, Value] = {"dtype": Constant(torch.int64 if is_condition else dtype), "device": Constant(HOST)}
    made = t.recorder.call(torch.full, [t.new_tuple([]), number], options)
    if is_condition and made.fake.dtype is not torch.bool:  # type: ignore[attr-defined]
        made = t.recorder.call_method("ne", [made, Constant(0)], {})
    assert isinstance(made, Tensor)
    return made


def as_tensors(values: Items[Value], otherwise: str) -> list[Tensor]:
    """Values that have to be tensors; ``Unsupported`` with a reason where some are not."""
    realized = [v.realize() for v in values]
    found = [v for v in realized if isinstance(v, Tensor)]
    if len(found) < len(realized):
        raise Unsupported(otherwise)
    return found
