"""One part of a stage swapped from outside: what a plugin author writes, and that it is what ran."""

from __future__ import annotations

import torch

import turret
from turret.graph import partitioning
from turret.ir import Var, call, reduce


class Products:
    """Keeps what each stage handed on: of the forward (or of both) by the stage's name."""

    def __init__(self):
        self.of = {}

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "product" and not event.name.endswith(".backward"):
            self.of[event.stage] = event.product


def compiled(function, *plugins):
    """``function`` compiled with plugins of its own, and the products on the way."""
    seen = Products()
    options = {"on_error": "raise", "cache": False}
    return turret.compile(function, plugins=[*plugins, seen], options=options), seen.of


def test_a_partitioner_from_outside_decides_what_is_saved():
    class SaveLibraryCalls:
        """Hands results of library calls to the backward, which computes all else again."""

        @turret.hookimpl
        def turret_partition(self, context, joint):
            analysis = partitioning.analyze(joint)
            wanted = [node for node in analysis.candidates if partitioning.is_library_call(node)]
            saved = partitioning.complete(analysis, wanted, partitioning.costs(context))
            return partitioning.extract(joint, analysis, saved, report="ours")

    def block(x, w):
        return torch.softmax(torch.sin(x @ w), -1).cumsum(-1)

    x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    tangent = torch.randn(8, 32)
    (function, ours), (builtin, theirs) = compiled(block, SaveLibraryCalls()), compiled(block)
    grads = [torch.autograd.grad(f(x, w), w, tangent)[0] for f in (block, function, builtin)]
    saved, usually = ({v.name: v.bytes for v in p["partition"].saved_tensors} for p in (ours, theirs))
    assert saved == {"x": x.nbytes, "mm": tangent.nbytes} and sum(saved.values()) < sum(usually.values())
    torch.testing.assert_close(grads[1:], grads[:1] * 2)


@torch.library.custom_op("turret_test::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.tanh(x / limit) * limit


@soft_clip.register_fake
def _(x, limit):
    return torch.empty_like(x)


def test_a_decomposition_from_outside_opens_a_custom_op():
    class OpenSoftClip:
        @turret.hookimpl
        def turret_decompositions(self):
            return {torch.ops.turret_test.soft_clip.default: lambda x, limit: torch.tanh(x / limit) * limit}

    def program(x):
        return soft_clip(x * 2, 3.0) + 1

    x = torch.randn(33, 65)
    (function, ours), (builtin, theirs) = compiled(program, OpenSoftClip()), compiled(program)
    torch.testing.assert_close([function(x), builtin(x)], [program(x)] * 2)
    assert "soft_clip.default(" in str(theirs["joint"]) and len(theirs["schedule"].externs) == 1
    assert "soft_clip.default(" not in str(ours["joint"]) and "tanh.default(" in str(ours["joint"])
    assert len(ours["schedule"].kernels) == 1 and not ours["schedule"].externs


def test_a_lowering_from_outside_turns_a_library_call_into_a_fused_kernel():
    class DistanceLoops:
        """Pairwise Euclidean distances as a sum over the last dimension."""

        @turret.hookimpl
        def turret_lowerings(self):
            def distances(b, x, y, p, mode):
                if p != 2 or len(x.shape) != 2:
                    return NotImplemented
                k = Var("k", x.shape[1])

                def element(index):
                    i, j = index
                    difference = call("sub", x.load([i, k]), y.load([j, k]))
                    return call("sqrt", reduce("sum", (k,), call("square", difference)))

                return b.define(b.result, element)

            return {torch.ops.aten._cdist_forward.default: distances}

    def program(x, y):
        return torch.exp(-torch.cdist(x, y))

    x, y = torch.randn(7, 33), torch.randn(9, 33)
    (function, ours), (builtin, theirs) = compiled(program, DistanceLoops()), compiled(program)
    torch.testing.assert_close([function(x, y), builtin(x, y)], [program(x, y)] * 2)
    assert [str(extern.op) for extern in theirs["schedule"].externs] == ["aten._cdist_forward.default"]
    (kernel,) = ours["schedule"].kernels
    assert not ours["schedule"].externs and "exp(neg(sqrt(sum<" in str(kernel)


def test_a_stage_from_outside_finds_contractions_as_templates():
    class Claims:
        """Where a vendor's code generator would write its own kernels: it sees form, op, operands and readers."""

        def __init__(self):
            self.found = []

        @turret.hookimpl(wrapper=True)
        def turret_codegen(self, context, schedule, target):
            self.found += [(t.kind, len(t.args)) for t in schedule.templates]
            return (yield)

    def program(x, w, k):
        pixels = torch.relu(x @ w).reshape(1, 1, 8, 32)
        return torch.conv2d(pixels, k).sort(-1).values

    claims = Claims()
    x, w, k = torch.randn(8, 512), torch.randn(512, 32) / 512**0.5, torch.randn(2, 1, 3, 3)
    function, products = compiled(program, claims)
    torch.testing.assert_close(function(x, w, k), program(x, w, k))
    assert claims.found == [("matmul", 2), ("convolution", 9)]
    assert len(products["schedule"].externs) == 3
