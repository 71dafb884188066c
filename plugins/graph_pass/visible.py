"""Which values leave the graph, so that a rewrite keeps what can be seen of them from outside.

Two results that are separate tensors in eager must stay separate: an in-place op on one must not reach the
other, nor a value that the backward has saved.
"""

from __future__ import annotations

from torch import fx

from turret.graph.op_traits import is_mutating_op, looks_at_memory, output_nodes, storage_root


class VisibleStorage:
    """Storage roots of a graph's outputs and inputs; kept up to date by ``replace``."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._outputs = {n for n in output_nodes(graph) if isinstance(n, fx.Node)}
        self._roots = {storage_root(n) for n in self._outputs}
        self._written = _written_roots(graph)

    def is_visible(self, node: fx.Node) -> bool:
        """Whether a node's storage leaves the graph."""
        return storage_root(node) in self._roots

    def can_merge(self, node: fx.Node, other: fx.Node) -> bool:
        """Whether two equal values may become one: neither's storage is visible, or both share one already."""
        if node in self._outputs or other in self._outputs:
            return False
        return storage_root(node) is storage_root(other) or not (self.is_visible(node) or self.is_visible(other))

    def can_forward(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether readers of ``node`` may read ``source`` instead, an equal value in another storage or a base.

        A visible copy stays, unless nothing else can see or save its source; so does a copy of what is written to.
        """
        root = storage_root(source)
        if any(looks_at_memory(user.target) for user in node.users):
            return False
        if storage_root(node) is root:
            return node not in self._outputs
        if root in self._written:
            return False
        if not self.is_visible(node):
            return True
        return root is source and source.op == "call_function" and len(source.users) == 1 and source not in self._roots

    def replace(self, node: fx.Node, source: fx.Node) -> None:
        """Make all readers of ``node`` read ``source`` and erase ``node``."""
        visible = self.is_visible(node)
        node.replace_all_uses_with(source)
        self._graph.erase_node(node)
        self._roots.discard(node)
        if visible:
            self._roots.add(storage_root(source))
        if node in self._outputs:
            self._outputs.discard(node)
            self._outputs.add(source)


def _written_roots(graph: fx.Graph) -> set[fx.Node]:
    """Roots of the storage that calls of the graph write to."""
    roots: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and is_mutating_op(node.target):
            for value, argument in zip(node.args, node.target._schema.arguments, strict=False):
                if argument.is_write and isinstance(value, fx.Node):
                    roots.add(storage_root(value))
    return roots
