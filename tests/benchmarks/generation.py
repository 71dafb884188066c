"""``generate()`` with a static cache, the model captured by Turret and by torch._dynamo: tokens, graphs, time.

    python -m tests.benchmarks.generation [NAME ...]

Small decoders of random weights (``architecture_zoo.py``); graphs run as they are, uncompiled.  Captured is
``model.forward``, set by hand (prefill and decoding), or the call that transformers itself compiles (decoding).
Greedy and sampled; two prompts of one length, then prompts of two other lengths.  Tokens must equal eager's.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.benchmarks.architecture_zoo import ARCHITECTURES, VOCABULARY
from tests.benchmarks.architectures import SYSTEMS, in_child
from tests.benchmarks.measure import table

DECODERS = ("llama", "gpt2")
TARGETS = ("forward", "call")
LENGTHS = (7, 7, 9, 11)
NEW_TOKENS = 12


def generate(model: Any, length: int, sample: bool, config: Any = None) -> torch.Tensor:
    """Tokens that a model writes after a prompt that ``length`` decides, with a seed of its own."""
    torch.manual_seed(length)
    prompt = torch.randint(3, VOCABULARY, (2, length))
    chosen = {"disable_compile": True} if config is None else {"compile_config": config}
    return model.generate(
        prompt, max_new_tokens=NEW_TOKENS, cache_implementation="static", do_sample=sample, eos_token_id=None,
        pad_token_id=0, **chosen,
    )  # fmt: skip


def capture(model: Any, target: str, compile: Callable) -> Any:
    """Have ``generate`` use a captured model; returns the configuration that it is to be given."""
    from transformers import CompileConfig

    if target == "forward":
        model.forward = compile(model.forward)
        return None
    config = CompileConfig()
    config._compile_all_devices = True  # else transformers compiles on accelerators alone
    compiled = compile(model.__call__)
    model.get_compiled_call = lambda config: compiled
    return config


def measure(name: str, target: str, sample: bool, system: str) -> dict[str, Any]:
    """All prompts, in this process; ``graphs``: so far, after each prompt."""
    model = ARCHITECTURES[name].build()
    expected = [generate(model, length, sample) for length in LENGTHS]
    watched = SYSTEMS[system]()
    config = capture(model, target, watched.compile)
    graphs, equal, seconds = [], True, []
    for length, tokens in zip(LENGTHS, expected, strict=True):
        start = time.perf_counter()
        equal &= torch.equal(generate(model, length, sample, config), tokens)
        seconds.append(time.perf_counter() - start)
        graphs.append(watched.graphs)
    return {"graphs": graphs, "equal": equal, "breaks": len(watched.breaks), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"decoders ({' '.join(DECODERS)})")
    options = parser.parse_args()
    import torch._dynamo
    import transformers

    import turret.plugins.capture  # noqa: F401

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = []
    for name in options.names or DECODERS:
        for target in TARGETS:
            for sample in (False, True):
                for system in SYSTEMS:
                    answer = in_child(lambda key=(name, target, sample, system): measure(*key))
                    if "error" in answer:
                        found: tuple = (answer["error"],)
                    else:
                        found = (
                            " ".join(map(str, answer["graphs"])), answer["breaks"], "yes" if answer["equal"] else "NO",
                            " ".join(f"{s:.2f}" for s in answer["seconds"]),
                        )  # fmt: skip
                    rows.append((name, target, "sampled" if sample else "greedy", system, *found))
    print(table(("", "captured", "", "by", "graphs so far", "breaks", "equal", "seconds"), rows))


if __name__ == "__main__":
    main()
