"""Swap the partitioner: decide yourself what the forward saves for the backward.

The plugin holds for one callable.  It keeps inputs and results of library calls (matrix products) and leaves all
else to be computed again; the built-in partitioner weighs bytes against the cost of recomputing.  Prints::

    built-in:       2560 bytes in 3 tensors: x, mm, div
    library calls:  1536 bytes in 2 tensors: x, mm
    gradients agree with eager's
"""

from __future__ import annotations

import math

import torch

import turret
from turret.op_traits import is_view
from turret.plugins.partition.analysis import analyze
from turret.plugins.partition.extract import extract
from turret.surface import Family, family_of


class SaveLibraryCalls:
    """Hands inputs and results of library calls to the backward, which computes all else again."""

    @turret.hookimpl
    def turret_partition(self, context, joint):
        if not joint.signature.training:
            return None  # An inference graph is not cut; leave it to the next plugin.

        def must_save(node):
            # A cost of infinity means that running the node again could give something else.
            cost = context.hooks.turret_partition_cost(context=context, node=node)
            return math.isinf(cost) or family_of(node.target) is Family.EXTERN

        analysis = analyze(joint)
        saved = frozenset(n for n in analysis.candidates if must_save(n) and not is_view(n))
        return extract(joint, analysis, saved, "saved: inputs and results of library calls")


class PrintSaved:
    """Observes: prints what each cut saves."""

    def __init__(self, label):
        self.label = label

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "product" and event.stage == "partition":
            saved = event.product.saved_tensors
            names = ", ".join(value.name for value in saved)
            print(f"{self.label:15} {sum(v.bytes for v in saved)} bytes in {len(saved)} tensors: {names}")


def block(x, w):
    return torch.softmax(torch.nn.functional.gelu(x @ w), -1)


def main() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    tangent = torch.randn(8, 32)
    (expected,) = torch.autograd.grad(block(x, w), w, tangent)
    for plugins in ([PrintSaved("built-in:")], [SaveLibraryCalls(), PrintSaved("library calls:")]):
        # Without the cache: a graph that is found there is not cut again, and nobody would see the cut.
        compiled = turret.compile(block, plugins=plugins, options={"cache": False})
        (given,) = torch.autograd.grad(compiled(x, w), w, tangent)
        torch.testing.assert_close(given, expected)
    print("gradients agree with eager's")


if __name__ == "__main__":
    main()
