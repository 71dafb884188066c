"""Makes a failing program smaller: statements left out, blocks put in place of what holds them, expressions made simpler."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from tests.fuzz.function_prelude import MARK

Fails = Callable[[str], bool]


def shrink(text: str, fails: Fails, attempts: int = 300) -> str:
    """The smallest program found that still ``fails``, within a number of attempts.

    The part before ``# The program.`` is left alone.
    """
    head, mark, body = text.partition(MARK)
    tree = ast.parse(body)
    left = attempts
    progress = True
    while progress and left > 0:
        progress = False
        for candidate in _smaller(tree):
            if left <= 0:
                break
            left -= 1
            written = _written(candidate)
            if written is not None and fails(head + mark + written):
                tree, progress = ast.parse(written), True
                break
    return head + mark + ast.unparse(tree) + "\n"


def _written(tree: ast.Module) -> str | None:
    try:
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        compile(text, "", "exec")
    except (SyntaxError, ValueError, TypeError):
        return None
    return text


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def _smaller(tree: ast.Module) -> Iterator[ast.Module]:
    """Smaller variants, the boldest first: chunks of statements, then blocks, then expressions."""
    blocks = [(n, f) for n in ast.walk(tree) for f in _BLOCKS if isinstance(getattr(n, f, None), list)]
    for size in (8, 4, 2, 1):
        for node, field in blocks:
            held = getattr(node, field)
            for start in range(0, len(held), size):
                if size > 1 and len(held) < size:
                    continue
                yield _with(tree, node, field, held[:start] + held[start + size :])
    for node, field in blocks:
        held = getattr(node, field)
        for number, statement in enumerate(held):
            for inner in ("body", "orelse", "finalbody"):
                content = getattr(statement, inner, None)
                if isinstance(content, list) and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                    yield _with(tree, node, field, [*held[:number], *content, *held[number + 1 :]])
    yield from _simpler_expressions(tree)


def _simpler_expressions(tree: ast.Module) -> Iterator[ast.Module]:
    for node in list(ast.walk(tree)):
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and not isinstance(value, (ast.Name, ast.Constant)):
                for part in _parts(value):
                    yield _with(tree, node, field, part)
            elif isinstance(value, list) and value and all(isinstance(v, ast.expr) for v in value):
                for number, item in enumerate(value):
                    yield _with(tree, node, field, value[:number] + value[number + 1 :])
                    for part in _parts(item):
                        yield _with(tree, node, field, [*value[:number], part, *value[number + 1 :]])


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """What might stand in place of an expression: the expressions in it, and a small number."""
    if isinstance(value, (ast.Name, ast.Constant)):
        return
    for child in ast.walk(value):
        if child is not value and isinstance(child, ast.expr) and not isinstance(child, ast.Starred):
            yield child
    yield ast.Constant(1)


def _with(tree: ast.Module, node: ast.AST, field: str, value: object) -> ast.Module:
    """A copy of the tree in which a field of one node is something else."""
    before = getattr(node, field)
    setattr(node, field, value)
    try:
        return copy.deepcopy(tree)
    finally:
        setattr(node, field, before)
