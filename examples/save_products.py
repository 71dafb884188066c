"""A partitioner that saves nothing but products: results of matrix products, convolutions and attention.

They cost the most to compute again; everything between them is arithmetic, which the backward repeats.  The three
stages that a cut runs through are called one by one.  Prints::

    min_cut  saves 3 tensors, 10.0 KiB
    products saves 2 tensors, 6.0 KiB
    gradients agree with eager's
"""

from __future__ import annotations

import torch

import turret
from turret.graph import partitioning

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_cudnn_attention.default,
}  # fmt: skip


class SaveProducts:
    """Saves products, and with them only what the backward cannot be right without."""

    @turret.hookimpl
    def turret_partition(self, context, joint):
        if not joint.signature.training:
            return None
        analysis = partitioning.analyze(joint)
        # Attention gives several results: naming the call means those of them that the backward reads.
        wanted = [node for node in analysis.candidates if node.target in PRODUCTS]
        saved = partitioning.complete(analysis, wanted, partitioning.costs(context))
        return partitioning.extract(joint, analysis, saved, "saved: products")


def network(x, w, v):
    return torch.softmax(torch.tanh(torch.nn.functional.gelu(x @ w)) @ v, -1)


def main() -> None:
    x, w, v = torch.randn(32, 16), torch.randn(16, 32, requires_grad=True), torch.randn(32, 16, requires_grad=True)
    joint = turret.joint_graph(network, x, w, v)
    for name, plugins in (("min_cut", []), ("products", [SaveProducts()])):
        parts = turret.partition(joint, plugins=plugins)
        saved = [value for value in parts.saved_tensors if value.reason != "input"]
        print(f"{name:8} saves {len(saved)} tensors, {sum(value.bytes for value in saved) / 1024:.1f} KiB")
    run = turret.assemble(parts, *(plan(parts, role) for role in ("forward", "backward")))
    given, expected = (torch.autograd.grad(f(x, w, v).square().sum(), (w, v)) for f in (lambda *a: run(*a)[0], network))
    torch.testing.assert_close(given, expected)
    print("gradients agree with eager's")


def plan(parts, role):
    return turret.codegen(turret.schedule(turret.lower(parts, role)))


if __name__ == "__main__":
    main()
