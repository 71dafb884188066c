"""Sums over a row of which one element at most is not zero: the element itself, without walking the row.

``sum over r of where(r == k, v, 0)`` is ``v`` where ``k`` is in the row.  Such sums come from comparisons with all
classes: the gradient of a loss is one, and the gradient of the softmax below it adds it up along the classes.
"""

from __future__ import annotations

import torch

from turret.ir import Expr, Index, Var, call, cast, constant, index_value, rewrite, size_value, walk


def fold_one_hot_sums(expr: Expr) -> Expr:
    """``expr`` with the sums of one element replaced by that element."""
    if not any(node.op == "reduce" for node in walk(expr)):
        return expr
    return rewrite(expr, replace=_element)


def _element(node: Expr) -> Expr | None:
    """The only element that a sum adds, or None where more of them may differ from zero."""
    if node.op != "reduce" or node.payload.kind != "sum" or len(node.payload.variables) != 1:
        return None
    (row,) = node.payload.variables
    conditions, value = _selection(node.args[0])
    places = [place for c in conditions if (place := _place(c, row)) is not None]
    if value is None or row in value.variables or len(places) != 1:
        return None
    others = [c for c in conditions if _place(c, row) is None]
    if any(row in c.variables for c in others):
        return None
    (place,) = places
    zero = constant(0, node.dtype)
    inside = _all_of(
        [
            *others,
            call("ge", place, constant(0, place.dtype)),
            call("lt", cast(place, torch.int64), size_value(row.extent)),
        ]
    )
    # A sum begins with zero, which turns -0.0 into 0.0.
    total = call("add", value, zero) if node.dtype.is_floating_point else value
    return call("where", inside, total, zero)


def _selection(expr: Expr) -> tuple[list[Expr], Expr | None]:
    """Conditions under which a value is not zero, and what it is then; None for a value without such conditions."""
    match expr.op:
        case "cast":
            conditions, value = _selection(expr.args[0])
            return conditions, value and cast(value, expr.dtype, bool(expr.payload))
        case "where" if _is_zero(expr.args[2]):
            conditions = _conjuncts(expr.args[0])
            inner, value = _selection(expr.args[1])
            return [*conditions, *inner], value or expr.args[1]
        case "logical_and" | "eq":
            return _conjuncts(expr), constant(True, expr.dtype)
        case _:
            return [], None


def _conjuncts(condition: Expr) -> list[Expr]:
    if condition.op == "logical_and":
        return [part for arg in condition.args for part in _conjuncts(arg)]
    return [condition]


def _place(condition: Expr, row: Var) -> Expr | None:
    """``k`` of ``row == k``, in a dtype that holds both."""
    if condition.op != "eq":
        return None
    own = index_value(Index.wrap(row))
    for one, other in (condition.args, condition.args[::-1]):
        if one is own and row not in other.variables:
            return other
    return None


def _all_of(conditions: list[Expr]) -> Expr:
    result = conditions[0]
    for condition in conditions[1:]:
        result = call("logical_and", result, condition)
    return result


def _is_zero(expr: Expr) -> bool:
    return expr.op == "const" and expr.payload == 0
