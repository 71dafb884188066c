"""Programs that ask autograd for things, drawn from a seed: as source, in a frame or in several.

A program works on vectors of three numbers: leaves, what was computed before it, and what it computes.  It takes and
accumulates gradients, in the middle too, sets flags and hooks, writes in place, and may break its graph anywhere.
Whoever calls it hooks some of the results, has them retain their gradients, or asks for those of some by others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

import turret
from turret.errors import DoubleBackwardError, UnsupportedError

HEAD = """import torch
import turret
from torch.utils.checkpoint import checkpoint


def inner(u, w):
    return u.sin() * w


"""
ARGUMENTS = "a, b, c, d"
"""Two leaves, what was computed of them before (or of the first), and a tensor that requires no gradients."""

REFUSED = "refused"
"""Instead of what a call gives: an error of a backward that says what it cannot have, where eager might."""

_OF_WHOLE_GRAPHS = "a second time", "modified by an inplace operation"
"""Autograd's words for what a graph saved, which is one node: all is freed at once, and what is saved is another choice
than eager's."""

_UNARY = (
    "{0}.sin()", "{0} * 2", "{0}.tanh()", "{0}.exp().clamp(max=4)", "{0}.abs()", "{0}[1:].sum() + {0}", "{0}.flip(0)",
    "{0}.view(1, 3).t().reshape(3)", "{0}.expand(2, 3).sum(0)", "{0}.clone()", "{0}.relu()", "-{0}", "{0} ** 2",
    "torch.cat([{0}[:1], {0}[1:]])", "{0}.detach()", "{0}.cumsum(0)", "{0} / ({0}.norm() + 1)", "{0}.view(3)",
)  # fmt: skip
_BINARY = (
    "{0} + {1}", "{0} * {1}", "torch.where({0} > 0, {0}, {1})", "torch.stack([{0}, {1}])[0]",
    "{0}.dot({1}) * {0}", "torch.lerp({0}, {1}, 0.25)", "torch.maximum({0}, {1})",
)  # fmt: skip
_LEAVES = (
    "{0}.detach().requires_grad_()",
    "{0}.detach().clone().requires_grad_()",
    "torch.ones(3, requires_grad=True)",
)
_MODES = ("torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)")


@attrs.frozen
class Program:
    """The statements of a program, each of some lines, and what its arguments are."""

    statements: tuple[str, ...]
    before: str
    names: tuple[str, ...]
    asking: int | None = None
    """What the caller asks of results is drawn from this; None: their gradients alone."""

    @property
    def source(self) -> str:
        own = [name for name in self.names if name not in ARGUMENTS.split(", ")]
        lines = [f"{' = '.join(own)} = None"] if own else []
        lines += [line for statement in self.statements for line in statement.splitlines()]
        body = "".join(f"    {line}\n" for line in lines)
        returned = f"    return {', '.join(self.names)}\n"
        return f"{HEAD}def program({ARGUMENTS}):\n{body}{returned}"

    def function(self) -> Callable:
        scope: dict[str, object] = {"__name__": "drawn"}
        exec(compile(self.source, "<drawn program>", "exec"), scope)
        found = scope["program"]
        assert callable(found)
        return found

    def without(self, number: int) -> Program:
        """The program without a statement; names that it makes are ``None`` then."""
        kept = [s for n, s in enumerate(self.statements) if n != number]
        return attrs.evolve(self, statements=tuple(kept))

    def arguments(self, call: int, leaves: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """What a call is given: the leaves, and what is computed of them."""
        a, b = leaves
        c: Tensor = eval(self.before, {"a": a, "b": b, "torch": torch})
        return a, b, c, torch.linspace(-1, 1, 3) * (call + 1)


BEFORE = ("a * 2", "a * b", "b.tanh()", "a.view(3)", "a.detach() + 1", "a[:1] + b", "a")


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["a", "b", "c", "d"]
        self.breaks = self.random.choice((0.0, 0.0, 0.1, 0.3))
        self.made = 0

    def program(self) -> Program:
        statements = [self.statement() for _ in range(self.random.randrange(2, 9))]
        program = Program(tuple(statements), self.random.choice(BEFORE), tuple(self.names))
        # Hooks that a backward in a graph calls are behind those of its results, and which gradients have some is not
        # known apart.
        backward = any(word in program.source for word in (".backward(", "autograd.grad("))
        if "create_graph=True" in program.source or ("register_hook" in program.source and backward):
            return program
        return attrs.evolve(program, asking=self.random.randrange(1 << 30) if self.flag() else None)

    def name(self) -> str:
        return self.random.choice(self.names[-4:] if self.random.random() < 0.6 else self.names)

    def new(self) -> str:
        self.made += 1
        self.names.append(f"v{self.made}")
        return self.names[-1]

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def expression(self) -> str:
        kind = self.random.random()
        if kind < 0.5:
            return self.random.choice(_UNARY).format(self.name())
        if kind < 0.8:
            return self.random.choice(_BINARY).format(self.name(), self.name())
        if kind < 0.9:
            return self.random.choice(_LEAVES).format(self.name())
        if kind < 0.95:
            return f"checkpoint(inner, {self.name()}, {self.name()}, use_reentrant=False)"
        return f"inner({self.name()}, {self.name()})"

    def statement(self) -> str:
        drawn = self.random.random()
        if drawn < self.breaks:
            return "turret.graph_break()"
        weights = {
            self._assign: 8,
            self._grad: 3,
            self._backward: 3,
            self._read: 2,
            self._clear: 1,
            self._write: 1,
            self._hook: 1,
            self._retain: 1,
            self._flag: 1,
            self._under: 1,
            self._functional: 1,
            self._branch: 1,
        }
        return self.random.choices(list(weights), list(weights.values()))[0]()

    def _assign(self) -> str:
        expression = self.expression()
        return f"{self.new()} = {expression}"

    def _grad(self) -> str:
        root, target = self.name(), self.name()
        options = [f"create_graph={self.random.random() < 0.2}", "retain_graph=True" if self.flag() else ""]
        options.append(f"allow_unused={self.random.random() < 0.7}")
        named = ", ".join(o for o in options if o)
        other = self.name()
        made = self.new()
        return (
            f"({made},) = torch.autograd.grad({root}.sum(), {target}, {named})\n"
            f"{made} = {other} if {made} is None else {made}"
        )

    def _backward(self) -> str:
        options = ["retain_graph=True" if self.random.random() < 0.7 else ""]
        options.append("create_graph=True" if self.random.random() < 0.2 else "")
        options.append(f"inputs=[{self.name()}]" if self.random.random() < 0.2 else "")
        return f"({self.name()} * {self.name()}).sum().backward({', '.join(o for o in options if o)})"

    def _read(self) -> str:
        held = self.name()
        other = self.name()
        return f"{self.new()} = {held}.grad if {held}.grad is not None else {other}"

    def _clear(self) -> str:
        return f"{self.name()}.grad = None"

    def _write(self) -> str:
        name = self.name()
        if self.flag():
            return f"with torch.no_grad():\n    {name}.mul_(0.5)"
        return self.random.choice((f"{name}.add_(1)", f"{name}[0] = 0.5", f"{name}.mul_({self.name()}.detach())"))

    def _hook(self) -> str:
        return f"{self.name()}.register_hook(lambda g: g * 2)"

    def _retain(self) -> str:
        return f"{self.name()}.retain_grad()"

    def _flag(self) -> str:
        return f"{self.name()}.requires_grad_({self.flag()})"

    def _under(self) -> str:
        expression = self.expression()
        return f"with {self.random.choice(_MODES)}:\n    {self.new()} = {expression}"

    def _functional(self) -> str:
        body = self.random.choice(("(t * {0}).sum()", "(t.sin() * {0}).sum()", "inner(t, {0}).sum()")).format(
            self.name()
        )
        at = self.name()
        return f"{self.new()} = torch.func.grad(lambda t: {body})({at})"

    def _branch(self) -> str:
        name, expression = self.name(), self.expression()
        return f"{self.new()} = {expression} if {name}.requires_grad else {name}"


def draw(seed: int) -> Program:
    """The program of a seed."""
    return _Writer(seed).program()


def outcome(program: Program, function: Callable) -> list[object]:
    """What two calls with fresh leaves and one with those of the second give, and what becomes of the leaves.

    Behind an error no more is told of a call: which gradients autograd had accumulated by then depends on its order.
    """
    told: list[object] = []
    leaves: tuple[Tensor, Tensor] = torch.ones(3), torch.ones(3)
    # With graphs of gradients those of several calls would hang together, and one node stands for all of a call.
    for call in range(2 if "create_graph=True" in program.source else 3):
        if call < 2:
            made = [torch.tensor([0.5, -1.0, 2.0]) + k - call for k in range(2)]
            leaves = made[0].requires_grad_(), made[1].requires_grad_()
        try:
            results = function(*program.arguments(call, leaves))
            told += [_seen(r) for r in results]
            differentiable = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
            if differentiable and program.asking is None:
                _sum(differentiable).backward()
            elif differentiable:
                told += _asked(random.Random(program.asking), differentiable, leaves)
            told += [_seen(leaf.grad) for leaf in leaves] + [_seen(leaf) for leaf in leaves]
        except (RuntimeError, TypeError, AttributeError) as error:
            if isinstance(error, DoubleBackwardError | UnsupportedError) or any(
                words in str(error) for words in _OF_WHOLE_GRAPHS
            ):
                return [*told, REFUSED]
            return [*told, "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__]
    return told


def _sum(results: list[Tensor]) -> Tensor:
    return torch.stack([(r * (n + 1)).sum() for n, r in enumerate(results)]).sum()


def _asked(drawn: random.Random, results: list[Tensor], leaves: tuple[Tensor, Tensor]) -> list[object]:
    """What a caller gets who hooks results and has them retain gradients, or takes gradients of some of them.

    One node leads to all arguments of a graph, and autograd goes on from it to those that no gradient flows to, whose
    hooks it calls without one: these calls do not count.  Nor does both happen: where gradients of some are asked for,
    autograd goes through results that lead to none of these, too, and calls their hooks.
    """
    calls: list[list[Tensor]] = [[] for _ in results]

    def hook(n: int, factor: int) -> Callable[[Any], Any]:
        def called(gradient: Tensor | None) -> Tensor | None:
            if gradient is None:
                return None
            calls[n].append(gradient.detach().clone())
            return gradient * factor if factor > 1 else None

        return called

    takes = drawn.random() < 0.5
    for n, result in enumerate(results):
        if not takes and drawn.random() < 0.3:
            result.register_hook(hook(n, drawn.choice((1, 1, 2))))
        if not takes and drawn.random() < 0.3:
            result.retain_grad()
    some = [r for r in results if drawn.random() < 0.5] or results[-1:]
    told: list[object] = []
    if takes:
        wanted = [t for t in (*results, *leaves) if drawn.random() < 0.4] or [results[0]]
        roots = [r for r in results if drawn.random() < 0.4] or results[-1:]
        found = torch.autograd.grad(_sum(roots), wanted, retain_graph=True, allow_unused=True)
        told += [None if g is None else g.detach().clone() for g in found]
    _sum(some).backward()
    return [*map(_seen, told), *(_seen(r.grad) for r in results), *(_seen(g) for called in calls for g in called)]


def _seen(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone(), value.requires_grad, value.is_leaf, value.grad_fn is None


def difference(program: Program, options: dict[str, object]) -> str:
    """How compiled calls differ from eager ones; empty where they do not."""
    expected = outcome(program, program.function())
    found = outcome(program, turret.compile(program.function(), options=options))
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=False)):
        if REFUSED in (mine, theirs):
            return ""
        if isinstance(mine, tuple) and isinstance(theirs, tuple):
            # All gradients of one backward have gradients where one has.
            is_further = mine[1] and not theirs[1] and "create_graph=True" in program.source
            same = torch.allclose(mine[0], theirs[0], 1e-4, 1e-5, equal_nan=True)
            if same and (is_further or mine[1:] == theirs[1:]):
                continue
        elif type(mine) is type(theirs) and mine == theirs:
            continue
        return f"part {number} is {mine} and not {theirs}"
    return "" if len(found) == len(expected) else f"{len(found)} parts and not {len(expected)}"


def shrunk(program: Program, is_wrong: Callable[[Program], bool], attempts: int) -> Program:
    """The program with fewer statements that is still wrong."""
    number = len(program.statements) - 1
    while number >= 0 and attempts > 0:
        attempts -= 1
        smaller = program.without(number)
        if is_wrong(smaller):
            program = smaller
        number -= 1
    return program
