"""Recordings as a tree for people, and what memory each path through it takes."""

from __future__ import annotations

from collections.abc import Sequence

from turret.api.cudagraphs import PathReport
from turret.plugins.cudagraphs.recording.node import Node

_RULE = "═" * 50


def tree_text(index: int, roots: Sequence[Node]) -> tuple[str, int]:
    """The tree of a device, and how many recordings are in it."""
    lines: list[str] = []
    _add(lines, sorted(roots, key=lambda n: n.number), "", ())
    head = [_RULE, f"CUDA Graph Tree (device {index})", f"Graphs in tree: {len(lines)}", _RULE]
    return "\n".join([*head, *lines]), len(lines)


def paths(roots: Sequence[Node]) -> tuple[PathReport, ...]:
    """Each path from a root to a recording that none follows."""
    found: list[PathReport] = []

    def walk(path: tuple[Node, ...]) -> None:
        following = _behind(path[-1])
        for node in following:
            walk((*path, node))
        if not following:
            numbers, names = tuple(n.number for n in path), tuple(n.name for n in path)
            found.append(PathReport(numbers, names, path[-1].bytes_kept, sum(n.bytes_taken for n in path)))

    for root in sorted(roots, key=lambda n: n.number):
        walk((root,))
    return tuple(found)


def _behind(node: Node) -> list[Node]:
    """The recordings that follow one."""
    found = [child for same in node.children.values() for nodes in same.values() for child in nodes]
    return sorted(found, key=lambda c: c.number)


def _add(lines: list[str], nodes: Sequence[Node], indent: str, path: tuple[Node, ...]) -> None:
    for n, node in enumerate(nodes):
        last = n == len(nodes) - 1
        lines.append(f"{indent}{'└' if last else '├'}── {_line(node, path)}")
        _add(lines, _behind(node), indent + ("    " if last else "│   "), (*path, node))


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
