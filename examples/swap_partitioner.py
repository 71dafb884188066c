"""Swap the partitioner: decide yourself what the forward saves for the backward.

The plugin holds for one callable.  It keeps results of library calls (matrix products, attention) and leaves all else
to be computed again; the built-in partitioner weighs bytes against the cost of recomputing.  Prints::

    built-in:       2560 bytes in 3 tensors: x, mm, div
    library calls:  1536 bytes in 2 tensors: x, mm
    gradients agree with eager's
    a training step of GPT-2: gradients agree with eager's
"""

from __future__ import annotations

import torch

import turret
from turret.graph import partitioning


class SaveLibraryCalls:
    """Hands results of library calls to the backward, which computes all else again."""

    @turret.hookimpl
    def turret_partition(self, context, joint):
        if not joint.signature.training:
            return None  # An inference graph is not cut; leave it to the next plugin.
        analysis = partitioning.analyze(joint)
        wanted = [node for node in analysis.candidates if partitioning.is_library_call(node)]
        # What must not run twice (random numbers, effects) and the inputs that are needed are saved beside them.
        saved = partitioning.complete(analysis, wanted, partitioning.costs(context))
        return partitioning.extract(joint, analysis, saved, "saved: results of library calls")


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


def gpt2():
    """A small GPT-2 with random weights, and the loss of a batch of tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 256, "n_positions": 32}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, **tokens, use_cache=False)).train()
    return model, torch.randint(0, 256, (2, 16))


def loss(model, tokens):
    logits = model(tokens).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def check_training_step(*plugins):
    """A training step's gradients under plugins are eager's."""
    model, tokens = gpt2()
    weights = list(model.parameters())
    compiled = turret.compile(loss, plugins=plugins, fullgraph=True, options={"cache": False})
    given, expected = (torch.autograd.grad(f(model, tokens), weights) for f in (compiled, loss))
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


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
    check_training_step(SaveLibraryCalls())
    print("a training step of GPT-2: gradients agree with eager's")


if __name__ == "__main__":
    main()
