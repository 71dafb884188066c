"""Recomputation inside one graph: of a step whose backward is part of it, as between a forward and its backward.

The graph is cut in thought where its backward begins.  What the cut would not save is computed once more, in front of
the first call of the backward that reads it, and need not be in memory in between.
"""

from __future__ import annotations

from torch import fx

from turret.graph.lazy_module import lazy_module
from turret.graph.op_traits import erase_unread, is_effectful, output_nodes, storage_roots
from turret.graph.partitioning.analysis import JointAnalysis, ancestors, reachable_from, runs_once
from turret.graph.partitioning.choice import costs, recomputed
from turret.graph.partitioning.tags import RECOMPUTED
from turret.hooks.context import CompileContext
from turret.hooks.products import JointGraph
from turret.plugins.partition.budget import solve_with_budget
from turret.plugins.partition.min_cut import build_problem


def recompute_within(context: CompileContext, joint: JointGraph) -> fx.GraphModule:
    """The module of an inference graph, with calls made again in the backwards inside it; as it is without any."""
    analysis = _analyze(joint)
    if context.config.partitioner == "save_all" or not analysis.needed:
        return joint.module
    saved = solve_with_budget(build_problem(analysis, costs(context)), context.config.memory_budget)
    again = {node for node in recomputed(analysis, saved) if node.op == "call_function"}
    if not again or any(map(runs_once, again)):
        return joint.module
    return _Copying(joint, analysis, again).run()


def _analyze(joint: JointGraph) -> JointAnalysis:
    """What is computed before the backwards inside a graph, and what with or after them."""
    graph = joint.module.graph
    order = {node: i for i, node in enumerate(graph.nodes)}
    primals = tuple(node for node in graph.nodes if node.op == "placeholder")
    marked = (n for n in graph.nodes if n.op == "call_function" and n.meta.get("of_backward"))
    late = reachable_from(graph, marked)  # with all that reads what the backwards give
    outputs = [o for o in output_nodes(graph) if isinstance(o, fx.Node)]
    effects = [node for node in graph.nodes if is_effectful(node)]
    live = ancestors([*outputs, *effects])
    backward = tuple(node for node in graph.nodes if node in live and node in late)
    needed = frozenset(source for node in backward for source in node.all_input_nodes if source not in late)
    before = ancestors(needed)
    candidates = tuple(node for node in graph.nodes if node in before)
    early = [node for node in (*outputs, *effects) if node not in late]
    return JointAnalysis(
        primals=primals,
        tangents=(),
        forward_outputs=tuple(o for o in outputs if o not in late),
        gradients=(None,) * len(primals),
        backward=backward,
        needed=needed,
        candidates=candidates,
        effects=tuple(node for node in effects if node not in late),
        required=frozenset(ancestors(early)).union(candidates),
        mutated=frozenset(),
        held=frozenset({*primals} | storage_roots(early)),
        late=frozenset(late),
        order=order,
    )


class _Copying:
    """A graph like another in which the backwards read copies of some calls."""

    def __init__(self, joint: JointGraph, analysis: JointAnalysis, again: set[fx.Node]) -> None:
        self.joint, self.analysis, self.again = joint, analysis, again
        self.graph = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.copies: dict[fx.Node, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """The module of the new graph."""
        backward = set(self.analysis.backward)
        for node in self.joint.module.graph.nodes:
            if node in backward:
                for source in node.all_input_nodes:
                    self.copy(source)
                self.made[node] = self.graph.node_copy(node, self.in_backward)
            else:
                self.made[node] = self.graph.node_copy(node, self.made.__getitem__)
        erase_unread(self.graph)
        return lazy_module(self.joint.module, self.graph, "Joint")

    def copy(self, wanted: fx.Node) -> None:
        """Make a call once more, and before it what it reads of such calls."""
        missing: set[fx.Node] = set()
        stack = [wanted]
        while stack:
            node = stack.pop()
            if node in self.again and node not in self.copies and node not in missing:
                missing.add(node)
                stack.extend(node.all_input_nodes)
        for node in sorted(missing, key=self.analysis.order.__getitem__):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.in_backward)
            name = f"{node.name}{RECOMPUTED}"
            made = self.copies[node] = self.graph.create_node(node.op, node.target, args, dict(kwargs), name=name)
            made.meta = dict(node.meta)

    def in_backward(self, node: fx.Node) -> fx.Node:
        """What a node's value is called in the backward."""
        return self.copies.get(node) or self.made[node]
