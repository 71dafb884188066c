"""Calls of torch's own table of operations that eager refuses: whether a compiled program refuses them, too.

    python -m tests.op_db.refused [--in-place] --out refused.txt

A line for each call that ran: the operation, what was wrong with the call, and eager's error.  Each operation runs in a
process of its own: what eager refuses may crash what does not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import turret
from turret.torch_compat.operators.opinfo import op_db

SAMPLES, MOST = 4, 80
"""Samples of an operation that are made wrong, and calls of it that are tried."""
OTHER_DTYPES = (torch.float64, torch.int64, torch.bool)
TIMEOUT = 120


@attrs.frozen(eq=False)
class Refused:
    """A call that eager refuses of an operation, or of its variant that writes to its input; ``what`` is wrong."""

    function: Callable[..., Any]
    what: str
    error: str
    args: tuple
    kwargs: dict[str, Any]


def refused(op: OpInfo, in_place: bool = False) -> Iterator[Refused]:
    """Calls of an operation with one tensor of another size, dtype or number of dimensions, as far as eager raises."""
    function = op.get_inplace() if in_place else op.op
    count = 0
    if function is None:
        return
    for what, args, kwargs in _wrong(op):
        if count >= MOST:
            return
        try:
            function(*_fresh(args), **_fresh(kwargs))
        except Exception as error:
            count += 1
            yield Refused(function, what, f"{type(error).__name__}: {error}", args, kwargs)


def runs(call: Refused) -> bool:
    """Whether the call runs as a compiled program."""
    torch.compiler.reset()
    function = turret.compile(lambda args, kwargs: call.function(*args, **kwargs), options={"cache": False})
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            function(_fresh(call.args), _fresh(call.kwargs))
    except Exception:
        return False
    return True


def _wrong(op: OpInfo) -> Iterator[tuple[str, tuple, dict[str, Any]]]:
    supported = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in supported else min(supported, key=str)
    for number, sample in enumerate(op.sample_inputs("cpu", dtype)):
        if number == SAMPLES:
            return
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                for what, changed in _changes(leaf.detach()):
                    args, kwargs = tree_unflatten([*leaves[:position], changed, *leaves[position + 1 :]], spec)
                    yield f"{what} of argument {position}", args, kwargs


def _changes(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    for dim, size in enumerate(tensor.shape):
        for other in {size + 1, size - 1, 1}:  # what is of size 1 is broadcast where it should not be
            if 0 <= other != size:
                shape = (*tensor.shape[:dim], other, *tensor.shape[dim + 1 :])
                yield f"size {other} for {size} in dimension {dim}", torch.zeros(shape, dtype=tensor.dtype)
    for dtype in OTHER_DTYPES:
        if dtype != tensor.dtype and not tensor.dtype.is_complex:
            yield f"dtype {dtype}", tensor.to(dtype)
    yield "one dimension more", tensor[None]
    if tensor.dim() and tensor.shape[0]:
        yield "one dimension less", tensor[0]


def _fresh(value: Any) -> Any:
    def cloned(leaf: Any) -> Any:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided else leaf

    return tree_map(cloned, value)


def _survey(number: int, in_place: bool, found: Any) -> None:
    for call in refused(op_db[number], in_place):
        found.put(("trying", call.what, call.error))
        if runs(call):
            found.put(("runs", call.what, call.error))
    found.put(("done", "", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="refused.txt")
    parser.add_argument("--in-place", action="store_true", help="call the variants that write to their input")
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    with open(options.out, "w") as out:
        for number, op in enumerate(op_db):
            if "sparse" in op.name or "jiterator" in op.name:
                continue
            found = context.Queue()
            process = context.Process(target=_survey, args=(number, options.in_place, found))
            process.start()
            _report(f"{op.name}.{op.variant_test_name}", process, found, out)
            out.flush()


def _report(name: str, process: Any, found: Any, out: Any) -> None:
    """Write down what ran, and what a process was at when it ended too early or did not end."""
    last, waited, seen = ("start", "", ""), 0, set()
    while last[0] != "done" and waited < TIMEOUT:
        try:
            last, waited = found.get(timeout=1), 0
        except multiprocessing.queues.Empty:
            waited += 1 if process.is_alive() else TIMEOUT
            continue
        if last[0] == "runs" and last not in seen:
            seen.add(last)
            print(name, *last[1:], sep=" | ", file=out)
    if last[0] != "done":
        print(name, *last[1:], "crashed" if not process.is_alive() else "did not end", sep=" | ", file=out)
    process.kill()
    process.join()


if __name__ == "__main__":
    main()
