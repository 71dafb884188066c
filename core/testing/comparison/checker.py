"""The checker: the same function, eagerly and compiled, on the same inputs, must show its caller the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from turret.testing.comparison.compare import Difference, differences
from turret.testing.comparison.observe import Observation, observe
from turret.testing.comparison.stochastic import Perturbed
from turret.testing.corpus.program import Backward, Inputs, Program
from turret.testing.corpus.seeding import seed_generators
from turret.testing.kit.subject import Compiler


class Mismatch(AssertionError):
    """A compiled function behaved differently from the eager one.

    ``differences`` says how, ``call`` is the number of the call (0 is the first), ``source`` is runnable Python.
    """

    def __init__(self, differences: Sequence[Difference], call: int, source: str, program: Program | None) -> None:
        self.differences, self.call, self.source, self.program = tuple(differences), call, source, program
        listed = "\n".join(f"  {difference}" for difference in self.differences)
        text = f"compiled and eager differ in call {call}:\n{listed}"
        super().__init__(f"{text}\n\n{source}" if source else text)


def check(program: Program, compiler: Compiler, *, calls: int | None = None) -> None:
    """Compile a program and compare it with eager; raises ``Mismatch``.

    Each of the ``calls`` (by default as many as the program asks for) has values of its own, so that the second one
    shows what the first one left behind.
    """
    eager, compiled = (program.calling(f) for f in (program.function(), compiler(program.function())))
    calls = program.calls if calls is None else calls
    _compare_calls(eager, compiled, program.build_inputs, program.backward, calls, program.source, program)


def assert_same(
    function: Callable,
    compiled: Callable,
    make_inputs: Callable[..., Any],
    *,
    backward: Backward = "all",
    calls: int = 2,
) -> None:
    """Compare ``compiled`` with ``function`` on inputs of your own; raises ``Mismatch``.

    ``make_inputs`` returns fresh arguments at each call: a tuple, whose leaf tensors that require gradients are
    differentiated, or ``Inputs``.  If it takes an argument, that is the number of the call.  Torch's random numbers are
    seeded by that number before each.  Parameters of a
    module are differentiated too.  Compared are outputs (values, dtypes, shapes, strides, ``requires_grad``),
    what they alias, the inputs after the call, gradients, and the type of an error.
    """
    numbered = bool(inspect.signature(make_inputs).parameters)

    def build(variant: int) -> Inputs:
        seed_generators(variant)  # eager, compiled code and the runs that show what rounding does get the same numbers
        made = make_inputs(variant) if numbered else make_inputs()
        return made if isinstance(made, Inputs) else _as_inputs(made, function)

    _compare_calls(function, compiled, build, backward, calls, lambda: "", None)


def _as_inputs(made: Any, function: Callable) -> Inputs:
    args = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad and a.is_leaf]
    if isinstance(function, nn.Module):
        leaves += [p for p in function.parameters() if p.requires_grad]
    return Inputs(args, tuple(leaves))


def _compare_calls(
    function: Callable,
    compiled: Callable,
    build: Callable[[int], Inputs],
    backward: Backward,
    calls: int,
    source: Callable[[], str],
    program: Program | None,
) -> None:
    earlier: list[Observation] = []
    for call in range(calls):
        expected = observe(function, build(call), backward, seed=call)
        got = observe(compiled, build(call), backward, seed=call)
        found = differences(expected, got, _Sampler(function, build, backward, call))
        found += _overwritten(earlier)
        if found:
            raise Mismatch(found, call, source(), program)
        earlier.append(got)


def _overwritten(earlier: Sequence[Observation]) -> list[Difference]:
    """Outputs of earlier calls that a later call changed."""
    found = []
    for call, observation in enumerate(earlier):
        for index, kept in enumerate(observation.live):
            if kept is not None and not _same_values(kept[0].detach().cpu(), kept[1]):
                where = f"output {index} of call {call}"
                found.append(Difference(where, "values after a later call", "unchanged", "overwritten"))
    return found


def _same_values(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors hold the same values, NaN where NaN is."""
    if found.dtype == torch.complex32:
        found, expected = found.to(torch.complex64), expected.to(torch.complex64)
    return torch.equal(found.nan_to_num(), expected.nan_to_num())


@attrs.define
class _Sampler:
    """Perturbed eager runs of one call, made when first asked for and kept."""

    function: Callable
    build: Callable[[int], Inputs]
    backward: Backward
    call: int
    made: list[Observation] = attrs.field(factory=list)
    tried: int = 0

    def __call__(self, count: int) -> list[Observation]:
        while self.tried < count:
            inputs = self.build(self.call)
            with Perturbed(self.tried):
                observation = observe(self.function, inputs, self.backward, seed=self.call)
            self.tried += 1
            if observation.error is None:
                self.made.append(observation)
        return self.made
