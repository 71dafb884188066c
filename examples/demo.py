"""Compile a 12-layer BERT and a 12-layer GPT-2 for the CPU, check them against eager, and time them.

Random weights, nothing downloaded.  ``python examples/demo.py --quick`` takes two layers.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import turret

LARGEST_ERROR = {"inference": 1e-5, "training": 1e-4}
"""Relative error (norm) against eager, of outputs and of gradients, at which the demo fails."""


def bert(layers: int) -> tuple[torch.nn.Module, torch.Tensor]:
    config = BertConfig(num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertModel(config, add_pooling_layer=False), torch.randint(0, config.vocab_size, (4, 128))


def gpt2(layers: int) -> tuple[torch.nn.Module, torch.Tensor]:
    config = GPT2Config(n_layer=layers, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)
    return GPT2LMHeadModel(config), torch.randint(0, config.vocab_size, (2, 128))


def forward(model: Callable, tokens: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(tokens)[0]]


def train(model: torch.nn.Module, tokens: torch.Tensor) -> list[torch.Tensor]:
    """One step, and its gradients."""
    model.zero_grad(set_to_none=True)
    model(tokens)[0].square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def error(expected: list[torch.Tensor], given: list[torch.Tensor]) -> float:
    """The norm of all differences over that of all that was expected."""
    off = sum((a - b).norm() ** 2 for a, b in zip(expected, given, strict=True))
    return (off / sum(a.norm() ** 2 for a in expected)).sqrt().item()


def measure(systems: dict[str, Callable]) -> dict[str, float]:
    """Median seconds of each, in turns so that noise hits all alike.

    In every order once: pages that one system has given back cost the one that runs next (GPT-2's training step, on a
    virtual machine: 0.9 s after itself, 1.5 s after eager).
    """
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for order in itertools.permutations(systems):
        for name in order:
            start = time.perf_counter()
            systems[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(name: str, kind: str, model: torch.nn.Module, tokens: torch.Tensor, run: Callable) -> None:
    reference = copy.deepcopy(model)
    expected = run(model, tokens)
    systems: dict[str, Callable] = {"eager": lambda: run(model, tokens)}
    print(f"\n{name}, {kind}")
    for system, compiled in (("turret", turret.compile(model)), ("torch.compile", torch.compile(reference))):
        start = time.perf_counter()
        given = run(compiled, tokens)
        first = time.perf_counter() - start
        found = error(expected, given)
        print(f"  {system:14} first call {first:6.1f} s   relative error {found:.1e}", flush=True)
        if not found <= LARGEST_ERROR[kind]:
            raise SystemExit(f"{system} differs from eager by {found:.1e}, expected at most {LARGEST_ERROR[kind]:.0e}")
        systems[system] = lambda compiled=compiled: run(compiled, tokens)
    times = measure(systems)
    for system, seconds in times.items():
        print(f"  {system:14} {seconds * 1e3:8.1f} ms a call   {times['eager'] / seconds:.2f} x eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two layers instead of twelve")
    layers = 2 if parser.parse_args().quick else 12
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.manual_seed(0)
    for name, build in (("BERT", bert), ("GPT-2", gpt2)):
        model, tokens = build(layers)
        show(f"{name}, {layers} layers", "inference", model.eval(), tokens, forward)
        show(f"{name}, {layers} layers", "training", model.train(), tokens, train)


if __name__ == "__main__":
    main()
