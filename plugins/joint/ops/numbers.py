"""Unbacked symbols: which call each comes from, and what the trace assumes of them.

``item()`` gives a number and ``nonzero`` a size that are known once the call has run: a symbol of its own in the trace
(unbacked, in torch's terms).  What the program asserts of such a number, or what the shapes of its calls need to hold,
is assumed from there on, and becomes a check of the graph in front of the next call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.graph.op_traits import SYMBOL_BINDINGS
from turret.ir.program import Binding
from turret.plugins.joint.recorder import Recorder
from turret.torch_compat.operators.checks import require
from turret.torch_compat.sizes import assuming_nothing, unknown_size

aten = torch.ops.aten

CONDITION = "condition"
"""Key of ``meta``: the condition of an assertion as it was made."""


class DataNumbers:
    """The numbers of one graph; ``shape_env`` makes the symbols (None: there are no symbols at all).

    In front of each call that is recorded from here on stand the checks of what was assumed.
    """

    def __init__(self, recorder: Recorder, shape_env: Any) -> None:
        self._recorder, self._env = recorder, shape_env
        recorder.before_call = self.check_assumptions
        self._met: set[int] = set()
        self._bound: list[sympy.Symbol] = []
        self._computed: dict[tuple, torch.SymInt] = {}
        self._messages: dict[int, str] = {}
        self._seen = 0 if shape_env is None else shape_env.num_deferred_runtime_asserts

    def fresh(self, out: Any) -> tuple[Binding, ...]:
        """The symbols that a call has just made, and where in its result they are."""
        if self._env is None or not self._env.pending_fresh_unbacked_symbols:
            return ()
        pending = set(self._env.pending_fresh_unbacked_symbols)
        self._env.pending_fresh_unbacked_symbols.clear()
        return self.places(out, pending)

    @staticmethod
    def places(out: Any, symbols: set[sympy.Symbol]) -> tuple[Binding, ...]:
        """Where in a result some symbols are."""
        found: dict[str, Binding] = {}
        for output, dimension, value in _numbers(out):
            for symbol in value.node._expr.free_symbols & symbols:
                binding = Binding(symbol.name, output, dimension, isinstance(value, torch.SymFloat))
                found.setdefault(symbol.name, binding)
        return tuple(found.values())

    def compute(self, function: Callable[..., int], *args: Any, least: Any = None, most: Any = None) -> torch.SymInt:
        """A number that the host computes by a function of ``data_numbers``; once for equal arguments.

        ``least`` and ``most`` are what the function promises.
        """
        key = (function, *(a.node.expr if isinstance(a, torch.SymInt) else a for a in args))
        if key in self._computed:
            return self._computed[key]
        nodes = tuple(self._recorder.size(a) if isinstance(a, torch.SymInt) else a for a in args)
        number = self._computed[key] = self._env.create_unbacked_symint()
        self._env.pending_fresh_unbacked_symbols.clear()
        node = self._recorder.call(function, nodes, {}, number)
        self.bind(node, (Binding(number.node._expr.name, 0, None),))
        for bound, compare in ((least, operator.ge), (most, operator.le)):
            if bound is not None:
                require(compare(number, bound))
        return number

    def unknown_size(self) -> torch.SymInt:
        """A size that data give, of the result of a call that is yet to be recorded."""
        return unknown_size(self._env)

    def bind(self, node: fx.Node, bindings: tuple[Binding, ...]) -> None:
        """Make the symbols of a call readable from its node."""
        if not bindings:
            return
        node.meta[SYMBOL_BINDINGS] = bindings
        for binding in bindings:
            part = node
            value = node.meta["val"]
            if isinstance(value, (tuple, list)):
                part = self._recorder.element(node, binding.output, value[binding.output])
                value = value[binding.output]
            number = value if binding.dimension is None else value.shape[binding.dimension]
            symbol = next(s for s in number.node._expr.free_symbols if s.name == binding.symbol)
            op = None if binding.dimension is None else aten.sym_size.int
            self._recorder.bind_symbol(symbol, (op, part, binding.dimension))
            self._bound.append(symbol)

    def assume(self, condition: Any, message: str) -> None:
        """The program asserts a condition on numbers, with a message of its own."""
        known = {id(a) for a in self._assumptions()}
        require(condition, lambda: message)
        self._messages.update((id(a), message) for a in self._assumptions() if id(a) not in known)

    def bound(self) -> list[tuple[str, fx.Node]]:
        """The integers that calls have given, by name, with a node of each."""
        return [(symbol.name, self._recorder.computed(symbol)) for symbol in self._bound if symbol.is_integer]

    @property
    def assumed(self) -> int:
        """How many assumptions there are."""
        return 0 if self._env is None else self._env.num_deferred_runtime_asserts

    @contextlib.contextmanager
    def assuming_nothing(self, sizes: Sequence[Any]) -> Iterator[None]:
        """What is asked of these sizes inside is neither assumed nor guarded on, if any depends on data."""
        if not any(map(free_unbacked_symbols, sizes)):
            yield
            return
        with assuming_nothing(self._env):
            yield

    def check_assumptions(self) -> None:
        """Record a check of all that was assumed since the last call and can be computed by now."""
        env = self._env
        if env is None or env.num_deferred_runtime_asserts == self._seen:
            return
        self._seen = env.num_deferred_runtime_asserts
        for assumption in self._assumptions():
            if id(assumption) not in self._met and self._recorder.knows(assumption.expr.free_symbols):
                self._met.add(id(assumption))
                self._check(assumption.expr, self._messages.get(id(assumption)))

    def _assumptions(self) -> list[Any]:
        if self._env is None:
            return []
        return [assumption for found in self._env.deferred_runtime_asserts.values() for assumption in found]

    def _check(self, condition: Any, message: str | None) -> None:
        message = message or f"Runtime assertion failed for expression {condition}"
        holds = self._recorder.computed(condition)
        node = self._recorder.call(aten._assert_scalar.default, (holds, message), {}, None)
        node.meta[CONDITION] = condition


@contextlib.contextmanager
def numbers_of_data(shape_env: Any) -> Iterator[None]:
    """The trace may make unbacked symbols, whatever capture was allowed to.

    The gradient of a write through a mask, say, is read through it.
    """
    if shape_env is None:
        yield
        return
    before = shape_env.settings
    shape_env.settings = dataclasses.replace(before, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    try:
        yield
    finally:
        shape_env.settings = before


def _numbers(out: Any) -> Iterator[tuple[int, int | None, Any]]:
    """Symbolic numbers of a result: position of the output, dimension (None: it is the number), and the number."""
    for output, value in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            yield output, None, value
        elif isinstance(value, torch.Tensor):
            for dimension, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt):
                    yield output, dimension, extent
