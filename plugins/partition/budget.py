"""A memory budget: recompute more than pays in time, until what is saved fits.

The budget runs from 0 (as few bytes as any cut saves: everything that can be is recomputed from the inputs) to 1
(what is best for time).  Between, cuts that weigh memory more and more against time come close to
the limit from below, and a knapsack fills what is left with the values whose saving spares the most recomputation.
"""

from __future__ import annotations

from torch import fx

from turret.graph.partitioning.choice import recomputed
from turret.plugins.partition.min_cut import CutProblem

_SEARCH_STEPS = 12
_KNAPSACK_BINS = 512
_MAX_ITEMS = 2048
_MEMORY_ONLY = {"memory_weight": 64.0, "time_weight": 2.0**-20}


def solve_with_budget(problem: CutProblem, budget: float) -> frozenset[fx.Node]:
    """The values to save under a memory budget in [0, 1]."""
    roomy = problem.solve()
    if budget >= 1.0:
        return roomy
    tight = problem.solve(**_MEMORY_ONLY)
    least, most = problem.bytes_saved(tight), problem.bytes_saved(roomy)
    limit = least + budget * (most - least)
    if most <= limit:
        return roomy
    if budget > 0.0:
        roomy, tight = _bracket(problem, roomy, tight, limit)
    return _fill(problem, roomy, tight, limit)


def _bracket(
    problem: CutProblem, roomy: frozenset[fx.Node], tight: frozenset[fx.Node], limit: float
) -> tuple[frozenset[fx.Node], frozenset[fx.Node]]:
    """Two neighbouring cuts of the trade between time and memory, above and below the limit."""
    low, high = 2.0**-6, 2.0**14
    for _ in range(_SEARCH_STEPS):
        weight = (low * high) ** 0.5
        cut = problem.solve(memory_weight=weight)
        if problem.bytes_saved(cut) <= limit:
            high, tight = weight, cut
        else:
            low, roomy = weight, cut
    return roomy, tight


def _fill(
    problem: CutProblem, roomy: frozenset[fx.Node], tight: frozenset[fx.Node], limit: float
) -> frozenset[fx.Node]:
    """``tight`` and the most valuable of the values that only ``roomy`` saves, within the limit."""
    room = limit - problem.bytes_saved(tight)
    again = set(recomputed(problem.analysis, tight))
    items = []
    for node in sorted(roomy - tight, key=problem.analysis.order.__getitem__)[:_MAX_ITEMS]:
        if node in again and 0 < problem.memory[node] <= room:
            items.append((node, problem.memory[node], _spared(problem, node, again)))
    return tight | _knapsack(items, room)


def _spared(problem: CutProblem, node: fx.Node, recomputed: set[fx.Node]) -> float:
    """Cost of the nodes that need not be recomputed once ``node`` is saved: itself and what only it reads."""
    spared, total = {node}, problem.recompute[node]
    order, needed = problem.analysis.order, problem.analysis.needed
    pending = set(node.all_input_nodes)
    while pending:
        latest = max(pending, key=order.__getitem__)
        pending.remove(latest)
        if latest not in recomputed or latest in needed:
            continue
        if all(user in spared for user in latest.users if user in recomputed):
            spared.add(latest)
            total += problem.recompute[latest]
            pending.update(latest.all_input_nodes)
    return total


def _knapsack(items: list[tuple[fx.Node, int, float]], room: float) -> frozenset[fx.Node]:
    """Items of the largest total value whose sizes fit into ``room``; sizes are rounded up to a bin each."""
    if not items or room <= 0:
        return frozenset()
    unit = room / _KNAPSACK_BINS
    best = [0.0] * (_KNAPSACK_BINS + 1)
    taken: list[list[bool]] = []
    for _, size, value in items:
        bins = int(-(-size // unit))
        row = [False] * (_KNAPSACK_BINS + 1)
        for space in range(_KNAPSACK_BINS, bins - 1, -1):
            with_item = best[space - bins] + value
            if with_item > best[space]:
                best[space], row[space] = with_item, True
        taken.append(row)
    chosen, space = set(), _KNAPSACK_BINS
    for (node, size, _), row in zip(reversed(items), reversed(taken), strict=True):
        if row[space]:
            chosen.add(node)
            space -= int(-(-size // unit))
    return frozenset(chosen)
