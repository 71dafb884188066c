"""The Llama of ``device_models`` as a JAX program, beside the same model under the systems, in one process.

    python -m tests.benchmarks.jax_llama --systems eager,inductor:reduce-overhead,turret:reduce-overhead

Weights and inputs are the same, and losses and gradients are compared with eager's.  A training step is the forward,
the mean of the cross entropy, and all gradients; inference gives the logits.  JAX's step is one call of ``jax.jit``,
whose attention is cuDNN's on a GPU.  JAX is no dependency of the project: install it beside.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy
import torch

from tests.benchmarks import bench, device_models, measure, systems
from tests.benchmarks.models import Workload

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

EPSILON, BASE = 1e-6, 10000.0
"""What ``LlamaConfig`` has by default: of the norms, and of the rotary embedding."""


class JaxLlama:
    """Weights of a torch Llama as JAX arrays, and its computation; ``size`` is that of the model."""

    def __init__(self, module: torch.nn.Module, size: device_models.Size) -> None:
        import jax
        from jax import numpy as jnp

        self.jax, self.np, self.size, self.heads = jax, jnp, size, size.hidden // 64
        self.attention = "cudnn" if jax.default_backend() == "gpu" else "xla"
        self.weights = {name.removeprefix("model."): self.array(p) for name, p in module.named_parameters()}

    def array(self, tensor: torch.Tensor) -> Any:
        """A JAX array with the values of a tensor, in its dtype."""
        floating = tensor.is_floating_point()
        host = tensor.detach().cpu()
        values = (host.float() if floating else host).numpy()
        return self.np.asarray(values, dtype=str(tensor.dtype).removeprefix("torch.") if floating else "int32")

    def logits(self, weights: dict[str, Any], ids: Any) -> Any:
        x = weights["model.embed_tokens.weight"][ids]
        cos, sin = self._rotary(ids.shape[1], x.dtype)
        for layer in range(self.size.layers):
            x = self._layer(weights, f"model.layers.{layer}", x, cos, sin)
        return self._norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T

    def loss(self, weights: dict[str, Any], ids: Any, labels: Any) -> Any:
        logits = self.logits(weights, ids)[:, :-1].astype("float32")
        picked = self.np.take_along_axis(logits, labels[:, 1:, None], axis=-1)[..., 0]
        return (self.jax.nn.logsumexp(logits, axis=-1) - picked).mean()

    def _layer(self, weights: dict[str, Any], name: str, x: Any, cos: Any, sin: Any) -> Any:
        def linear(x: Any, part: str) -> Any:
            return x @ weights[f"{name}.{part}.weight"].T

        h = self._norm(x, weights[f"{name}.input_layernorm.weight"])
        q, k, v = (linear(h, f"self_attn.{p}_proj").reshape(*h.shape[:2], self.heads, 64) for p in "qkv")
        q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
        attended = self.jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=self.attention)
        x = x + linear(attended.reshape(x.shape), "self_attn.o_proj")
        h = self._norm(x, weights[f"{name}.post_attention_layernorm.weight"])
        return x + linear(self.jax.nn.silu(linear(h, "mlp.gate_proj")) * linear(h, "mlp.up_proj"), "mlp.down_proj")

    def _norm(self, x: Any, weight: Any) -> Any:
        wide = x.astype("float32")
        scale = self.jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)
        return weight * (wide * scale).astype(x.dtype)

    def _rotary(self, length: int, dtype: Any) -> tuple[Any, Any]:
        np = self.np
        frequencies = 1.0 / BASE ** (np.arange(0, 64, 2, dtype="float32") / 64)
        angles = np.tile(np.arange(length, dtype="float32")[:, None] * frequencies, (1, 2))[None, :, None]
        return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)

    def _turned(self, x: Any, cos: Any, sin: Any) -> Any:
        first, second = self.np.split(x, 2, axis=-1)
        return x * cos + self.np.concatenate([-second, first], axis=-1) * sin


def jax_step(workload: Workload, size: device_models.Size, training: bool) -> tuple[Callable[[], Any], JaxLlama]:
    """A step of the model in JAX, which returns before the device is done."""
    llama = JaxLlama(workload.module, size)
    inputs = [llama.array(t) for t in (workload.training_inputs if training else workload.inputs)]
    compiled = llama.jax.jit(llama.jax.value_and_grad(llama.loss) if training else llama.logits)
    return lambda: compiled(llama.weights, *inputs), llama


def error_of(workload: Workload, got: Any, training: bool) -> float:
    """The relative error of JAX's loss and gradients (logits, in inference) beside eager's."""
    expected = bench.subject(workload, "eager", training).observe()
    names = [name.removeprefix("model.") for name, _ in workload.module.named_parameters()]
    arrays = [got[0], *(got[1][name] for name in names)] if training else [got]
    wanted = [*expected["output"], *(expected["gradient"] if training else ())]
    found = [torch.from_numpy(numpy.array(a, dtype="float32")) for a in arrays]
    return measure.relative_error(found, [w.detach().cpu().float() for w in wanted])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="eager,inductor:reduce-overhead,turret:reduce-overhead")
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each kind")
    parser.add_argument("--tiny", action="store_true", help="a size to see on a CPU that it runs")
    options = parser.parse_args()
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    size = device_models.TINY if options.tiny else device_models.Size()
    for kind in options.kinds.split(","):
        training = kind == "training"
        torch.manual_seed(0)
        workload = device_models.build("llama", size, training, device, dtype)
        step, llama = jax_step(workload, size, training)
        error = error_of(workload, step(), training)

        def waits(step: Callable[[], Any], llama: JaxLlama = llama) -> Callable[[], Any]:
            return lambda: llama.jax.block_until_ready(step())

        def waits_for_torch(step: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: (step(), torch.cuda.synchronize() if device == "cuda" else None)

        steps = {"jax": waits(step)}
        for system in options.systems.split(","):
            systems.import_of(system)
            made = bench.subject(workload, system, training)
            for _ in range(5):
                made.step()
            steps[system] = waits_for_torch(made.step)
        times = measure.interleaved(steps, seconds=options.seconds)
        print(f"llama {kind}, {device} {dtype}; jax differs from eager by {error:.1e}")
        for system, samples in times.items():
            print(f"  {system:28s} {sorted(samples)[len(samples) // 2] * 1e3:8.3f} ms")


if __name__ == "__main__":
    main()
