"""A partitioner that is greedy: it saves what spares the most recomputation for each byte, until a budget is spent.

The budget is an option that the plugin declares: the share of what saving everything takes.  Prints::

    budget 1.00: 100% of the bytes
    budget 0.50: at most half of the bytes
    budget 0.00: nothing but what must be saved
    gradients agree with eager's
"""

from __future__ import annotations

import math

import torch

import turret
from turret.graph import partitioning


class Greedy:
    """Takes values in order of recompute cost for a byte, as long as they fit."""

    def __init__(self):
        self.share = None

    @turret.hookimpl
    def turret_options(self):
        doc = "share of the bytes of saving everything that a greedy cut may take"
        return [turret.Option(name="greedy_budget", default=0.5, doc=doc, low=0, high=1)]

    @turret.hookimpl
    def turret_partition(self, context, joint):
        if not joint.signature.training:
            return None
        analysis, cost = partitioning.analyze(joint), partitioning.costs(context)
        everything = partitioning.complete(analysis, analysis.needed, cost)
        total = partitioning.bytes_saved(analysis, everything)
        budget = context.config.greedy_budget * total
        saved = partitioning.complete(analysis, (), cost)  # what must be
        for node in sorted(everything - saved, key=lambda node: worth(node, cost), reverse=True):
            # Saving one value may make another one superfluous, or its inputs: complete drops those.
            larger = partitioning.complete(analysis, saved | {node}, cost)
            if partitioning.bytes_saved(analysis, larger) <= budget:
                saved = larger
        spent = partitioning.bytes_saved(analysis, saved)
        self.share = spent / total if total else 0.0
        again = len(partitioning.recomputed(analysis, saved))
        return partitioning.extract(joint, analysis, saved, f"greedy: {spent} of {total} bytes, {again} calls again")


def worth(node, cost):
    """Cost of computing a value again, without what it is computed from, for each byte that saving it takes."""
    size = partitioning.tensor_bytes(node.meta["val"])
    price = cost(node)
    return math.inf if size == 0 else price / size


def network(x, w, v):
    return torch.softmax(torch.tanh(torch.nn.functional.gelu(x @ w)) @ v, -1).log()


def main() -> None:
    x, w, v = torch.randn(64, 16), torch.randn(16, 32, requires_grad=True), torch.randn(32, 16, requires_grad=True)
    expected = torch.autograd.grad(network(x, w, v).sum(), (w, v))
    for budget in (1.0, 0.5, 0.0):
        plugin = Greedy()
        compiled = turret.compile(network, plugins=[plugin], options={"greedy_budget": budget, "cache": False})
        torch.testing.assert_close(torch.autograd.grad(compiled(x, w, v).sum(), (w, v)), expected, rtol=1e-4, atol=1e-4)
        told = {1.0: f"{plugin.share:.0%} of the bytes", 0.5: "at most half of the bytes"}
        assert plugin.share <= budget or budget == 0.0
        print(f"budget {budget:.2f}: {told.get(budget, 'nothing but what must be saved')}")
    print("gradients agree with eager's")


if __name__ == "__main__":
    main()
