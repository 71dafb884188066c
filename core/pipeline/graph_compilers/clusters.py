"""A placed graph as an outer graph of eager calls whose clusters, the calls placed as compiled, are submodules.

Calls of one compiler belong to one cluster unless an eager call lies on a way between them: each call has a level, the
number of changes from compiled to eager on the longest way to it, and a cluster is what has one level.  So there are as
few clusters as one pass over the graph can tell, and no two of them wait for each other.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import attrs
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.op_traits import SYMBOL_BINDINGS, is_effectful, is_mutating_op, is_random_op
from turret.hooks.products import Placement
from turret.pipeline.graph_compilers.attributes import set_attribute
from turret.storage.source_lines import new_graph_module
from turret.torch_compat.operators.ops import OpOverload
from turret.torch_compat.trees import pytree


@attrs.frozen(eq=False)
class Cluster:
    """One submodule of the outer graph; ``placement`` are its calls', ``eager_inputs`` those that eager calls gave."""

    name: str
    module: fx.GraphModule
    placement: Placement
    eager_inputs: tuple[int, ...]


@attrs.frozen(eq=False)
class Clustered:
    """The outer graph, and its clusters in the order that they run in."""

    module: fx.GraphModule
    clusters: tuple[Cluster, ...]


def clustered(module: fx.GraphModule, placement: Placement) -> Clustered:
    """Group the calls that ``placement`` compiles; the graph that is given stays as it is."""
    compiled, levels = _levels(module, placement)
    return _Splitter(module, placement, compiled, levels).split()


def _levels(module: fx.GraphModule, placement: Placement) -> tuple[set[fx.Node], dict[fx.Node, int]]:
    """The calls that belong to clusters, and every node's level.

    What writes to its inputs waits for all calls before it, and those behind it wait for it; effects and draws of
    random numbers keep their order among themselves.
    """
    compiled: set[fx.Node] = set()
    levels: dict[fx.Node, int] = {}
    floor = last_effect = highest = 0
    for node in module.graph.nodes:
        if not node.op.startswith("call"):
            levels[node] = 0
            continue
        inside = _belongs(node, placement, compiled)
        level = max([floor, *(levels[n] + (not inside and n in compiled) for n in node.all_input_nodes)])
        if inside and node.target is operator.getitem:
            level = levels[node.args[0]]
        if not inside and (is_effectful(node) or is_random_op(node.target)):
            level = last_effect = max(level, last_effect)
        if is_mutating_op(node.target):
            level = floor = last_effect = max(level, highest + 1)
        if inside:
            compiled.add(node)
        levels[node], highest = level, max(highest, level)
    return compiled, levels


def _belongs(node: fx.Node, placement: Placement, compiled: set[fx.Node]) -> bool:
    """Whether a call is part of a cluster: one of an operator on tensors, or a part of its results."""
    if node.target is operator.getitem:
        return node.args[0] in compiled
    placed = placement.nodes.get(node.name)
    if placed is None or placed.where != "compiled" or node.op != "call_function":
        return False
    if not isinstance(node.target, OpOverload) or is_mutating_op(node.target) or node.meta.get(SYMBOL_BINDINGS):
        return False
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(v, torch.Tensor) for v in values) and not any(isinstance(v, torch.SymInt) for v in values)


class _Splitter:
    def __init__(
        self, module: fx.GraphModule, placement: Placement, compiled: set[fx.Node], levels: dict[fx.Node, int]
    ) -> None:
        self.module, self.placement = module, placement
        self.compiled, self.levels = compiled, levels
        self.outer, self.root = fx.Graph(), torch.nn.Module()
        self.made: dict[fx.Node, fx.Node] = {}
        self.sizes: dict[str, fx.Node] = {}
        """By the name of a symbol, the node of the outer graph that is it."""
        self.clusters: list[Cluster] = []

    def split(self) -> Clustered:
        nodes = list(self.module.graph.nodes)
        eager: dict[int, list[fx.Node]] = {}
        inside: dict[int, list[fx.Node]] = {}
        for node in nodes:
            if node.op != "output":
                (inside if node in self.compiled else eager).setdefault(self.levels[node], []).append(node)
        for level in range(1 + max(self.levels.values(), default=0)):
            for node in eager.get(level, ()):
                self.copy(node)
            if level in inside:
                self.add_cluster(inside[level])
        self.copy(nodes[-1])
        return Clustered(new_graph_module(self.root, self.outer), tuple(self.clusters))

    def copy(self, node: fx.Node) -> None:
        """An eager call, an input or the output as a node of the outer graph."""
        _refuse_symbols(node)
        made = self.made[node] = self.outer.node_copy(node, self.made.__getitem__)
        if node.op == "get_attr":
            set_attribute(self.root, str(made.target), operator.attrgetter(str(node.target))(self.module))

    def add_cluster(self, nodes: Sequence[fx.Node]) -> None:
        members = set(nodes)
        name = f"cluster_{len(self.clusters)}"
        inputs = list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in members))
        sizes = self.missing_sizes(nodes, inputs)
        outputs = [n for n in nodes if any(user not in members for user in n.users) and _is_whole(n)]
        inner, copies = _graph_of(nodes, inputs, sizes)
        inner.output(tuple(copies[n] for n in outputs))
        module = new_graph_module(torch.nn.Module(), inner, name)
        placed = {copies[n].name: self.placement.nodes.get(n.name) for n in nodes if n.target is not operator.getitem}
        own = Placement({name: where for name, where in placed.items() if where is not None})
        eager = tuple(k for k, n in enumerate(inputs) if n.op.startswith("call") and n not in self.compiled)
        self.clusters.append(Cluster(name, module, own, eager))
        setattr(self.root, name, module)
        call = self.outer.call_module(name, (*(self.made[n] for n in inputs), *sizes))
        call.meta["val"] = tuple(n.meta.get("val") for n in outputs)
        for number, node in enumerate(outputs):
            part = self.made[node] = self.outer.call_function(operator.getitem, (call, number))
            part.meta.update(node.meta)

    def missing_sizes(self, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> list[fx.Node]:
        """Nodes of the outer graph for the symbols in a cluster's sizes that none of its inputs has for a size."""
        needed = {symbol for node in (*nodes, *inputs) for size in _sizes(node) for symbol in _symbols(size)}
        if not needed:
            return []
        given = {_symbol(size) for node in inputs for size in _sizes(node)}
        return [self.size_node(symbol) for symbol in sorted(needed - given)]

    def size_node(self, symbol: str) -> fx.Node:
        """The node of the outer graph that is a symbol: a number, or a size of a tensor that is there by now."""
        if symbol not in self.sizes:
            for node, made in list(self.made.items()):
                value = node.meta.get("val")
                for number, size in enumerate(() if isinstance(value, (tuple, list)) else _sizes(node)):
                    if _symbol(size) == symbol:
                        self.sizes[symbol] = self.read_size(made, value, number, size)
                        return self.sizes[symbol]
            raise UnsupportedError(f"no value of the graph tells the size {symbol}")
        return self.sizes[symbol]

    def read_size(self, made: fx.Node, value: object, number: int, size: object) -> fx.Node:
        if not isinstance(value, torch.Tensor):
            return made
        read = torch.ops.aten.sym_size.int if number < value.dim() else torch.ops.aten.sym_stride.int
        node = self.outer.call_function(read, (made, number % value.dim()))
        node.meta["val"] = size
        return node


def _sizes(node: fx.Node) -> list[object]:
    """The number that a node is, or the sizes and then the strides of its tensor."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return [size for v in value if isinstance(v, torch.Tensor) for size in _of_tensor(v)]
    return _of_tensor(value) if isinstance(value, torch.Tensor) else [value]


def _of_tensor(value: torch.Tensor) -> list[object]:
    return [*value.shape, *(value.stride() if value.layout is torch.strided else ())]


def _symbols(size: object) -> set[str]:
    return {s.name for s in size.node.expr.free_symbols} if isinstance(size, torch.SymInt) else set()


def _symbol(size: object) -> str:
    """The name of the symbol that a size is; empty for any other."""
    return size.node.expr.name if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol else ""


def _is_whole(node: fx.Node) -> bool:
    """Whether a node is one value, which a cluster can return; of several the parts are."""
    return not isinstance(node.meta.get("val"), (tuple, list))


def _refuse_symbols(node: fx.Node) -> None:
    """Raise for a call of a symbol that is no node: nobody could run it."""
    for value in pytree.tree_leaves((node.args, node.kwargs)):
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise UnsupportedError(f"{node.format_node()} names the size {value}, which no node of the graph is")


def _graph_of(
    nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], sizes: Sequence[fx.Node]
) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A graph of some nodes, which takes other nodes' values, then sizes; the copies of nodes and inputs in it."""
    graph = fx.Graph()
    copies = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for size in sizes:
        graph.placeholder(size.name).meta["val"] = size.meta["val"]
    for node in nodes:
        _refuse_symbols(node)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies
