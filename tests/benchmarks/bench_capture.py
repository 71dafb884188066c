"""Capture of BERT and GPT-2 by Turret and by torch._dynamo: graphs, equality with eager, time.

    python -m tests.benchmarks.bench_capture --layers 12

Each capture runs in a process of its own, after one capture of a small function that loads what is loaded once; the
graphs are not compiled.  ``cpu`` is the time that the process had a processor, on a machine that others use as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch

MODELS = ("bert", "gpt2")


def build(name: str, attention: str, layers: int) -> torch.nn.Module:
    """A model of small width with random weights, for inference."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    if name == "bert":
        config: Any = BertConfig(
            hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=128, vocab_size=100,
            attn_implementation=attention,
        )  # fmt: skip
        return BertModel(config).eval()
    config = GPT2Config(
        n_embd=64, n_layer=layers, n_head=4, vocab_size=100, n_positions=64, attn_implementation=attention,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def small(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x @ x.T, (4,)).relu()


def capture_with(system: str, graphs: list) -> Any:
    """A compile function of one system whose graphs run as they are."""
    if system == "dynamo":

        def keep(module: Any, inputs: Any) -> Any:
            graphs.append(module)
            return module.forward

        return lambda f: torch.compile(f, backend=keep)
    from turret.hooks import plugin_manager
    from turret.pipeline.stage_calls import create_context
    from turret.plugins.capture import turret_capture

    manager = plugin_manager.create()
    options = {"on_error": "raise"}
    context = create_context(plugin_manager.configure(manager, None, options), manager)

    def keep_captured(captured: Any) -> Any:
        graphs.append(captured)
        return captured.module

    def compile(f: Any) -> Any:
        target = f.__call__ if isinstance(f, torch.nn.Module) else f
        return turret_capture(
            context=context, target=target, compile_graph=keep_captured, fullgraph=False, dynamic=None
        )  # fmt: skip

    return compile


def measure(system: str, name: str, attention: str, layers: int) -> dict[str, Any]:
    """One capture in this process."""
    graphs: list = []
    compile = capture_with(system, graphs)
    model = build(name, attention, layers)
    tokens = torch.randint(0, 100, (2, 16))
    with torch.no_grad():
        expected = model(tokens)[0]
        compile(small)(torch.randn(4, 4))
        graphs.clear()
        compiled = compile(model)
        start, cpu = time.perf_counter(), time.process_time()
        found = compiled(tokens)[0]
        first, cpu = time.perf_counter() - start, time.process_time() - cpu
        start = time.perf_counter()
        for _ in range(10):
            compiled(tokens)
        again = (time.perf_counter() - start) / 10
    return {
        "system": system, "model": name, "attention": attention, "graphs": len(graphs), "seconds": first, "cpu": cpu,
        "next_call_ms": again * 1e3, "error": float((found - expected).abs().max()),
    }  # fmt: skip


def run(systems: tuple[str, ...], layers: int) -> list[dict[str, Any]]:
    """All captures, each in its own process."""
    rows = []
    cases = [(name, attention) for name in MODELS for attention in ("eager", "sdpa")]
    for name, attention in cases:
        for system in systems:
            command = [sys.executable, "-m", __spec__.name, "--one", system, name, attention, str(layers)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--one", nargs=4, metavar=("SYSTEM", "MODEL", "ATTENTION", "LAYERS"))
    options = parser.parse_args()
    if options.one:
        system, name, attention, layers = options.one
        print(json.dumps(measure(system, name, attention, int(layers))))
        return
    for row in run(("turret", "dynamo"), options.layers):
        print(
            f"{row['model']:6}{row['attention']:7}{row['system']:8}{row['graphs']} graphs, captured in "
            f"{row['seconds']:.3f} s (cpu {row['cpu']:.3f}), next calls {row['next_call_ms']:.2f} ms, "
            f"error {row['error']:.1e}"
        )


if __name__ == "__main__":
    main()
