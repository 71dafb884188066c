"""Start collectives as soon as what they send is there, and wait for them where their results are first read.

What is computed in between runs while data is on its way.  Collectives are started in the order in which the program
starts them, on all processes alike: the new order depends on what reads what, and not on sizes.
"""

from __future__ import annotations

from torch import fx

from turret.graph.op_traits import is_collective, is_effectful, is_random_call, is_view, is_wait
from turret.hooks.context import CompileContext


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Move collectives and waits in place; returns True when the order changed."""
    original = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    if not any(is_collective(node.target) for node in original):
        return False
    order = _start_early(_wait_late(original))
    if order == original:
        return False
    end = module.graph.output_node()
    for node in order:
        end.prepend(node)
    return True


def _wait_late(order: list[fx.Node]) -> list[fx.Node]:
    """Waits, and views of what is waited for, right before the first call that reads them."""
    order = list(order)
    late: set[fx.Node] = set()
    for node in order:
        if is_wait(node.target) or (is_view(node) and not late.isdisjoint(node.all_input_nodes)):
            late.add(node)
    for node in [n for n in reversed(order) if n in late]:
        place = {other: n for n, other in enumerate(order)}
        here = place[node]
        ends = [place[user] for user in node.users if user in place]
        ends += [n for other, n in place.items() if n > here and _keeps_its_place(other)]
        if ends and min(ends) > here + 1:
            order.insert(min(ends) - 1, order.pop(here))
    return order


def _start_early(order: list[fx.Node]) -> list[fx.Node]:
    """Collectives, and the views that they send, right behind what they are made of and the collective before."""
    order = list(order)
    before: fx.Node | None = None
    for start in [n for n in order if is_collective(n.target) and not is_wait(n.target)]:
        for node in (*_views_behind(start), start):
            place = {other: n for n, other in enumerate(order)}
            here = place[node]
            bounds = [place[source] for source in node.all_input_nodes if source in place]
            bounds += [n for other, n in place.items() if n < here and _keeps_its_place(other)]
            if node is start and before is not None:
                bounds.append(place[before])
            order.insert(max(bounds, default=-1) + 1, order.pop(here))
        before = start
    return order


def _views_behind(node: fx.Node) -> list[fx.Node]:
    """The views that a call reads, through views alone, first made first."""
    found: list[fx.Node] = []
    for source in node.all_input_nodes:
        if is_view(source):
            found += [*_views_behind(source), source]
    return list(dict.fromkeys(found))


def _keeps_its_place(node: fx.Node) -> bool:
    """Whether a call may write to what another reads, or has an effect that others can see."""
    return (is_effectful(node) or is_random_call(node)) and not is_collective(node.target)
