"""Clusters of calls as ONNX models, run by ONNX Runtime: a compiler that knows nothing of Turret, behind its hooks.

Placement asks ``why_not`` of each call: by operator, dtype and shape.  What it accepts is handed over in clusters, each
translated to a model once, of which ONNX Runtime makes a session: a recipe, launched by its number.  The rest runs
eagerly between them.  ::

    turret.compile(model, plugins=["turret.contrib.graph_compiler"])
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime
import torch
from torch import fx

import turret
from turret.contrib.graph_compiler.model import model_of
from turret.contrib.graph_compiler.translations import RULES, why_not
from turret.hooks.products import NodePlacement, Placement, Scope

cache_key = f"turret.contrib.graph_compiler 1, ONNX Runtime {onnxruntime.__version__}"
aten = torch.ops.aten


class Recipes:
    """Sessions of ONNX Runtime by number; equal models share one."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.sessions: list[onnxruntime.InferenceSession] = []

    def compile(self, model: bytes) -> int:
        """The number of a model's session."""
        key = hashlib.sha256(model).hexdigest()
        if key not in self.numbers:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            self.sessions.append(onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
            self.numbers[key] = len(self.sessions) - 1
        return self.numbers[key]

    def launch(self, number: int, arrays: Sequence[Any]) -> list[Any]:
        """Run a session on arrays, in the order of its inputs."""
        session = self.sessions[number]
        return session.run(None, {given.name: array for given, array in zip(session.get_inputs(), arrays, strict=True)})


recipes = Recipes()


class Cluster:
    """A cluster's callable: its model, compiled when made, on tensors."""

    def __init__(self, model: bytes) -> None:
        self.model, self.number = model, recipes.compile(model)

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        arrays = [torch.as_tensor(value).detach().numpy() for value in inputs]
        return [torch.from_numpy(array) for array in recipes.launch(self.number, arrays)]

    def save(self) -> bytes:
        """The model: another process makes its session of it."""
        return self.model


@turret.hookimpl
def turret_decompositions() -> Mapping[Any, Callable]:
    """Attention as products and a softmax, which ONNX has."""
    return {aten._scaled_dot_product_flash_attention_for_cpu.default: attention}


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention, and the logarithms of the sums that its softmax divides by."""
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    if attn_mask is not None:
        scores = scores + attn_mask
    most = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - most)
    total = weights.sum(-1, keepdim=True)
    logarithms = (most + total.log()).squeeze(-1)
    return weights / total @ v, logarithms.transpose(1, 2).contiguous().transpose(1, 2)  # laid out as the kernel's


@turret.hookimpl
def turret_place(graph: Any) -> Placement:
    """Compiled where ONNX Runtime computes what eager does, else eager, with the reason."""
    calls = [node for node in graph.module.graph.nodes if node.op == "call_function"]
    reasons = {node.name: why_not(node) for node in calls}
    return Placement({n: NodePlacement("eager", r) if r else NodePlacement("compiled") for n, r in reasons.items()})


@turret.hookimpl
def turret_compile_graph(module: fx.GraphModule, scope: Scope) -> Callable | None:
    """A cluster as a recipe."""
    return Cluster(model_of(module, {op: r.translate for op, r in RULES.items()})) if scope == "cluster" else None


@turret.hookimpl
def turret_load_graph(saved: bytes) -> Callable:
    """A cluster's model again as a recipe."""
    return Cluster(saved)
