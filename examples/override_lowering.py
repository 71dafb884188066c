"""Override a lowering: turn a library call into loops that fuse with what surrounds them.

``cdist`` is a library call to the built-in lowerings.  The plugin writes it as loops: one element of the result as a
sum over ``k``.  The scheduler then fuses the exponential after it.  Prints::

    schedule graph0.inference:  # 1 kernels, 0 externs
      kernel k0__cdist_forward_exp (_cdist_forward, exp): for i0 < 7; for i1 < 9; row k < 33  ...
    results agree with eager's
"""

from __future__ import annotations

import torch

import turret
from turret.ir import Var, call, reduce


def distances(b, x, y, p, mode):
    """Lowering of ``aten._cdist_forward(x, y, p, mode)``: ``b`` builds; tensors are read at an index."""
    if p != 2 or len(x.shape) != 2:
        return NotImplemented  # This call stays a library call.
    k = Var("k", x.shape[1])

    def element(index):
        i, j = index
        difference = call("sub", x.load([i, k]), y.load([j, k]))
        return call("sqrt", reduce("sum", (k,), call("square", difference)))

    return b.define(b.result, element)


class DistanceLoops:
    @turret.hookimpl
    def turret_lowerings(self):
        return {torch.ops.aten._cdist_forward.default: distances}


class PrintSchedule:
    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "product" and event.stage == "schedule":
            print("\n".join(str(event.product).splitlines()[:2]))


def program(x, y):
    return torch.exp(-torch.cdist(x, y))


def main() -> None:
    x, y = torch.randn(7, 33), torch.randn(9, 33)
    compiled = turret.compile(program, plugins=[DistanceLoops(), PrintSchedule()])
    torch.testing.assert_close(compiled(x, y), program(x, y))
    print("results agree with eager's")


if __name__ == "__main__":
    main()
