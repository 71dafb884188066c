"""Checks one case of torch's table of operations through a compiler."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

import turret
from turret.testing import Mismatch, assert_same
from turret.testing.comparison.compare import summary_of
from turret.testing.comparison.observe import observe
from turret.testing.corpus.op_table import Case, samples, skip_reason, with_derived_sizes
from turret.testing.kit.subject import Observer


class Subject:
    """A compiler with a count of what it made of the programs since the last ``reset``; ``dynamic``: every size that is
    not 0 or 1 is a symbol of its own from the first call on."""

    def __init__(self, name: str, options: dict[str, Any], dynamic: bool = False) -> None:
        self.name, self.options, self.dynamic = name, options, dynamic
        self.reset()

    def reset(self) -> None:
        self.counter = Observer()

    def __call__(self, function: Callable) -> Callable:
        if self.name == "eager":
            return function
        if self.name == "turret":
            return turret.compile(
                function, dynamic=self.dynamic, plugins=[self.counter], options={"on_error": "raise", **self.options}
            )
        return torch.compile(function, backend=self.name, dynamic=self.dynamic, options=self.options or None)


NOT_DERIVED = {
    "resize_": "shows memory as it was found where its samples are shorter",
    "resize_as_": "shows memory as it was found where its samples are shorter",
    "nn.functional.ctc_loss": "eager reads past the end of lengths and targets that are shorter",
    "nn.functional.embedding_bag": "eager reads past the end of offsets that are shorter",
}
"""Operations whose samples are not tried with sizes that are computed, and why."""

RIGHT = ("ok", "skipped", "eager raises")
"""Statuses that are no fault of the compiler."""


def check_case(case: Case, subject: Subject, count: int, forward: bool, derived: bool = False) -> dict[str, Any]:
    """The outcome of one case as JSON: ``status``, ``message``, counts of kernels and externs; ``derived``: of samples
    with sizes that are computed.

    ``status`` is ``"ok"``, ``"wrong"``, ``"crash"`` (raised where eager does not), ``"skipped"`` with the reason,
    or ``"eager raises"`` when eager takes none of the samples.
    """
    if reason := skip_reason(case) or (NOT_DERIVED.get(case.op.name, "") if derived else ""):
        return {"status": "skipped", "message": reason}
    subject.reset()
    backward = "all" if case.differentiable and not forward else "none"
    status, message, compared = "ok", "", 0
    programs = samples(case, count)
    for sample in itertools.chain.from_iterable(map(with_derived_sizes, programs)) if derived else programs:
        expected = observe(sample.function, sample.make_inputs(), backward).error
        if expected is not None:
            message = f"eager raised {type(expected).__name__}: {summary_of(expected)}"
            continue
        try:
            assert_same(sample.function, subject(sample.function), sample.make_inputs, backward=backward, calls=1)
        except Mismatch as mismatch:
            crashed = any(d.what == "error" for d in mismatch.differences)
            status = "crash" if crashed else "wrong"
            message = "; ".join(map(str, mismatch.differences)) + f"\n{sample.source}"
            break
        except Exception as error:
            status, message = "crash", f"{type(error).__name__}: {summary_of(error)}\n{sample.source}"
            break
        finally:
            torch.compiler.reset()
        compared += 1
    if status == "ok" and not compared:
        status = "eager raises" if message else "skipped"
        message = message or "no samples"
    counter = subject.counter
    return {
        "status": status,
        "message": message,
        "samples": compared,
        "backward": backward != "none",
        "made": counter.made if subject.name == "turret" else "",
        "kernels": counter.kernels,
        "externs": dict(counter.externs),
        "notes": sorted({*counter.breaks, *counter.fallbacks}),
    }
