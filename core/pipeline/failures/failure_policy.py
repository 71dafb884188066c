"""The failure policy: what is said, to the user and on record, where something runs in another way than was asked."""

from __future__ import annotations

from turret.errors import StageError, warn
from turret.hooks.config import Config
from turret.hooks.context import CompileContext


class FailurePolicy:
    """What becomes of failures under one configuration (``on_error``), reported through one context."""

    def __init__(self, config: Config, context: CompileContext) -> None:
        self.config, self.context = config, context

    def raises(self) -> bool:
        """Whether a failure is the caller's to see, rather than a reason to run eagerly."""
        return self.config.on_error == "raise"

    def report_fallback(self, error: StageError) -> None:
        self.context.emit("fallback", stage=error.stage, message=str(error))
        warn(
            f"Turret runs a graph eagerly: {error}\n"
            '  to reproduce: on_error="raise" in the options (or TURRET_ON_ERROR=raise) gives the full traceback, '
            "debug_dir=<folder> (TURRET_DEBUG_DIR) the products of the stages before"
        )

    def report_zeros(self, name: str, reason: str) -> None:
        """Say that a backward takes zeros for gradients that did not come."""
        message = f"zeros stand for gradients that do not reach {name}, and may meet infinities there: {reason}"
        self.context.emit("fallback", stage="backward", name=name, message=message)
        warn(f"Turret runs a backward that eager would leave out in part: {message}")

    def report_backward_by_calls(self, name: str, reason: str) -> None:
        """Say why a graph runs once more, op by op, for gradients that its compiled backward does not compute."""
        message = f"the backward of {name} runs op by op: it {reason}"
        self.context.emit("fallback", stage="backward", name=name, message=message)

    def report_unstored(self, name: str, reason: str) -> None:
        """Say why nothing of a graph is stored."""
        message = f"{name} is compiled in every process: {reason}"
        self.context.emit("perf_hint", stage="graph_cache", name=name, message=message)

    def report_recaptured(self, name: str) -> None:
        """Say that what a graph compiles to is stored, and the graph itself is not, which may be needed beside it."""
        message = f"{name} is captured in every process: a graph with changing sizes, constants or views is not stored"
        self.context.emit("perf_hint", stage="graph_cache", name=name, message=message)

    def past_limit(self, backwards: int, name: str) -> bool:
        """Whether a graph has as many backwards as it may: further ones are not worth compiling, which is said."""
        limit = getattr(self.config, "recompile_limit", None)
        if limit is None or backwards < limit:
            return False
        message = f"{limit} backwards were compiled for sets of gradients (recompile_limit); {name} runs call by call"
        self.context.emit("fallback", stage="backward", name=name, message=message)
        warn(f"Turret runs a graph eagerly: {message}")
        return True
