"""Add a decomposition: let the compiler see inside a custom op.

To the compiler a custom op is a closed library call between kernels.  A plugin that says what it computes makes it
part of the kernel around it.  Prints::

    without: 2 kernels, 1 extern calls
    with:    1 kernels, 0 extern calls
    results agree with eager's
"""

from __future__ import annotations

import torch

import turret


@torch.library.custom_op("example::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.tanh(x / limit) * limit


@soft_clip.register_fake
def _(x, limit):
    return torch.empty_like(x)


class OpenSoftClip:
    """What ``soft_clip`` is in ops that the compiler knows.  Its value is traced, so any torch function will do."""

    @turret.hookimpl
    def turret_decompositions(self):
        return {torch.ops.example.soft_clip.default: lambda x, limit: torch.tanh(x / limit) * limit}


def program(x):
    return soft_clip(x * 2, 3.0) + 1


def main() -> None:
    x = torch.randn(33, 65)
    for label, plugins in (("without:", []), ("with:", [OpenSoftClip()])):
        explanation = turret.explain(program, plugins=plugins)(x)
        print(f"{label:8} {explanation.kernels} kernels, {sum(explanation.externs.values())} extern calls")
        torch.testing.assert_close(turret.compile(program, plugins=plugins)(x), program(x))
    print("results agree with eager's")


if __name__ == "__main__":
    main()
