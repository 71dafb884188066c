"""Recordings as a tree for people."""

from __future__ import annotations

from collections.abc import Sequence

from turret.plugins.cudagraphs.recording.node import Node

_RULE = "═" * 50


def tree_text(index: int, roots: Sequence[Node]) -> tuple[str, int]:
    """The tree of a device, and how many recordings are in it."""
    lines: list[str] = []
    _add(lines, sorted(roots, key=lambda n: n.number), "", ())
    head = [_RULE, f"CUDA Graph Tree (device {index})", f"Graphs in tree: {len(lines)}", _RULE]
    return "\n".join([*head, *lines]), len(lines)


def _add(lines: list[str], nodes: Sequence[Node], indent: str, path: tuple[Node, ...]) -> None:
    for n, node in enumerate(nodes):
        last = n == len(nodes) - 1
        lines.append(f"{indent}{'└' if last else '├'}── {_line(node, path)}")
        behind = [child for same in node.children.values() for found in same.values() for child in found]
        _add(lines, sorted(behind, key=lambda c: c.number), indent + ("    " if last else "│   "), (*path, node))


def _line(node: Node, path: tuple[Node, ...]) -> str:
    """One recording: its number, function, outputs, and which outputs before it must not live."""
    text = f"Graph[{node.number}] {node.name}() outputs={len(node.shapes.results)}"
    dead = [
        (spot.depth, n)
        for spot in node.expects_dead
        for n, result in enumerate(path[spot.depth].shapes.results)
        if result.kind == "buffer" and result.source == spot.block
    ]
    return f"{text} [expects_dead: {sorted(dead)}]" if dead else text
