"""Explain: what a call compiles to, before you measure anything.

``turret.explain(f)(*args)`` compiles ``f`` for these arguments, runs it once and says what became of it: captured
graphs, kernels, library calls, where capture left the graph, and what had to run eagerly.  Prints::

    one_graph: 1 graph(s), 1 kernel(s), library calls {'aten.mm.default': 1}
    two_graphs: 2 graph(s), 2 kernel(s), library calls {'aten.mm.default': 1}

and below each, one line for each break and each fallback with the reason.  ``print(explanation)`` has all of it.
"""

from __future__ import annotations

import torch

import turret


def one_graph(x, w):
    return torch.softmax(torch.relu(x @ w), -1)


def two_graphs(x, w):
    y = torch.relu(x @ w)
    if y.sum() > 0:  # Python must know the value: the graph ends here and another begins.
        y = y * 2
    return torch.softmax(y, -1)


def main() -> None:
    x, w = torch.randn(32, 64), torch.randn(64, 128)
    for function in (one_graph, two_graphs):
        seen = turret.explain(function)(x, w)
        print(
            f"{function.__name__}: {seen.graphs} graph(s), {seen.kernels} kernel(s), library calls {seen.externs}",
            *seen.breaks,
            *seen.fallbacks,
            sep="\n  ",
        )


if __name__ == "__main__":
    main()
