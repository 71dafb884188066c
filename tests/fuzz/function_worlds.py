"""One program in two modules, one run plainly and one captured: their calls, and everything that they can see after each."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import random
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import _checkpoint_without_reentrant_generator, checkpoint

from tests.fuzz.function_snapshot import Snapshot, difference_of
from turret.errors import RecomputationError
from turret.torch_compat.autograd import top_saved_tensor_hooks

_CHECKPOINT = _checkpoint_without_reentrant_generator.__code__
CALLS = 4
Compile = Callable[[Callable], Callable]


class Difference(Exception):
    """Captured and plain execution differ."""


class World:
    """A module made from a program's code, its entry, and the arguments that are passed to it."""

    def __init__(self, code: types.CodeType, name: str, compile: Compile | None) -> None:
        module = types.ModuleType(name)
        sys.modules[name] = module  # dataclasses look for it
        try:
            self.scope: dict[str, Any] = vars(module)
            exec(code, self.scope)
        finally:
            del sys.modules[name]
        self.module = module
        self.entry = self.scope["entry"]
        self.call = self.entry if compile is None else compile(self.entry)
        self.checkpointed = self.scope.get("CHECKPOINTED", False)
        self.arguments: dict[str, Any] = {}
        self.rest: list[Any] = []
        self.given: dict[str, Any] = {}
        self.passed: list[weakref.ref] = []

    def take(self, choices: random.Random, fresh: bool) -> None:
        """Make the arguments of the next call, or (not ``fresh``) keep those of the last."""
        scope, seed = self.scope, choices.randint(0, 3)
        tensors = torch.Generator().manual_seed(seed)
        rows, dtype = choices.choice([(2, torch.float32)] * 5 + [(4, torch.float32), (2, torch.float64)])
        x, y = (torch.randn(rows, 3, generator=tensors, dtype=dtype) for _ in range(2))
        if scope.get("INFERENCE") and choices.random() < 0.3:
            with torch.inference_mode():
                x, y = x + 0, y + 0
        elif choices.random() < 0.3:
            x.requires_grad_()
        if choices.random() < 0.15:
            y = torch.randn(3, rows, generator=tensors, dtype=dtype).t()
        if choices.random() < 0.15:
            y = choices.choice([x, x.detach()[:], x.detach().view(-1).view(rows, 3)])
        items = choices.choice([[1], [1, x], [], [2, "s", y]])
        table = choices.choice([{}, {"k": seed}, {"k": x, 2: y}, {"k": items}])
        box = scope["Box"](choices.choice([x, y]))
        if choices.random() < 0.3:
            box.items = items
        net = scope["Net"](seed)
        if scope.get("WITH_HOOKS"):
            net.blocks[0].register_forward_hook(lambda module, args, result: result * 2)
            net.register_forward_pre_hook(lambda module, args: net.seen.append(len(args)))
        rest, given = (
            choices.choice([[], [], [5], [x]]),
            choices.choice([{}, {}, {"flag": True}, {"flag": False, "more": seed}]),
        )
        n = choices.choice([0, 1, 2, 3, 3] + [-1, -2, 4, -5] * bool(scope.get("SIGNED")))
        if not fresh:
            self.arguments["n"] = n
            return
        named = [v for v in (x, y, box, net) if type(v) is not torch.Tensor or v._base is None]
        self.passed += map(weakref.ref, named)
        self.arguments = {
            "x": x, "y": y, "n": n, "items": items, "table": table, "box": box, "vec": scope["Vec"]([1, seed]),
            "dyn": scope["Dyn"](), "net": net, "log": [],
        }  # fmt: skip
        self.rest, self.given = rest, given

    def disturb(self, choices: random.Random) -> None:
        """Change state between two calls, outside of what is captured."""
        scope, arguments = self.scope, self.arguments
        what = choices.randrange(8)
        if what == 0:
            total = scope["TOTAL"]  # whatever the program made of it
            scope["TOTAL"] = total + 1 if isinstance(total, int) else 1
        elif what == 1:
            scope["KEPT"].value = torch.zeros(2, 3)
        elif what == 2:
            scope["NAMES"].append("d")
        elif what == 3:
            arguments["net"].calls += 1
        elif what == 4:
            arguments["items"].append(7)
        elif what == 5:
            count = arguments["box"].count  # whatever the program made of it
            arguments["box"].count = count + 2 if isinstance(count, int) else 2
        elif what == 6:
            scope["TABLE"]["g"] = 5

    def run(self) -> tuple[str, Any, str]:
        """How the call ended, with what, and what it printed."""
        printed = io.StringIO()
        values = dict(self.arguments)
        rest, named = self.rest, dict(self.given)
        if self.scope["BY_KEYWORD"]:
            rest, named, values = [], {**dict(reversed(values.items())), **named}, {}
        torch.manual_seed(0)
        random.seed(0)
        with contextlib.redirect_stdout(printed):
            try:
                call = functools.partial(checkpoint, self.call, use_reentrant=False) if self.checkpointed else self.call
                return "returned", call(*values.values(), *rest, **named), printed.getvalue()
            except Exception as error:
                return "raised", _without_frames(error), printed.getvalue()
            finally:
                close_checkpoints()

    def gradients(self) -> Snapshot:
        """Those of the arguments: what a checkpointed region changes in the backward, where it is computed again, depends
        on what was saved, which is captured code's own affair."""
        tensors = [self.arguments["x"], self.arguments["y"], *self.arguments["net"].parameters()]
        return Snapshot({"gradients": [tensor.grad for tensor in tensors]}, self.scope["__name__"])

    def alive(self) -> list[bool]:
        """Which of the arguments so far are still there."""
        return [reference() is not None for reference in self.passed]

    def forget_results(self) -> None:
        """Have the functions that remember their results forget them."""
        for value in vars(self.scope["Remembering"]).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()

    def snapshot(self, ended: tuple[str, Any, str], exact: bool) -> Snapshot:
        """Everything that can be seen after a call; with ``exact``, how many random numbers were drawn, too."""
        names = [n for n in self.scope if not n.startswith("__")]
        holder = self.scope.get("holder")
        seen = {
            "ended": ended[0], "result": ended[1], "printed": ended[2], "arguments": self.arguments, "rest": self.rest,
            "holder": holder() if isinstance(holder, types.FunctionType) else holder,
            "globals": {n: self.scope[n] for n in names if n not in ("entry", "holder")},
            "grad": torch.is_grad_enabled(), "random": torch.random.get_rng_state().sum().item() if exact else None,
            "numbers": hash(random.getstate()),
        }  # fmt: skip
        return Snapshot(seen, self.scope["__name__"])


def check(text: str, seed: int, compile: Compile, calls: int = CALLS, *, exact: bool = True) -> None:
    """Run a program plainly and captured, ``calls`` times; raises ``Difference`` where one can tell them apart.

    A checkpointed program that changes what it reads may be refused in the backward, with an error that says so; and
    where eager refuses a backward for a tensor that was written to, captured code may have saved another.
    What dies in cycles dies when the collector comes, which is chance (a handled exception and the frame of
    ``contextlib`` that it passed through are one, from Python 3.12 on); so none comes meanwhile. Captured code may let go
    of an argument that the program keeps where nobody can see it (a function that remembers its results)."""
    with warnings.catch_warnings(), _no_collector(), contextlib.suppress(RecomputationError):
        warnings.simplefilter("ignore")
        code = _compiled(text, seed)
        plain, mine = World(code, f"program{seed}", None), World(code, f"program{seed}", compile)
        for number in range(calls):
            if not _call(plain, mine, seed, number, exact):
                break


def _kept(plain: list[bool], mine: list[bool]) -> list[int]:
    """Numbers of the arguments that captured code alone keeps alive."""
    return [n for n, (was, now) in enumerate(zip(plain, mine, strict=True)) if now and not was]


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _compiled(text: str, seed: int) -> types.CodeType:
    return compile(text, f"program{seed}.py", "exec")


def _call(plain: World, mine: World, seed: int, number: int, exact: bool) -> bool:
    """Compare one call, and a backward perhaps; whether further ones can be, as both worlds got their gradients."""
    choices = random.Random(seed * 100 + number)
    fresh, disturbed, backward = number == 0 or choices.random() < 0.6, choices.random() < 0.4, choices.random() < 0.4
    ends, refused, alive = [], [], []
    for world in (plain, mine):
        drawn = copy.copy(choices)
        drawn.setstate(choices.getstate())
        world.take(drawn, fresh)
        if disturbed and number:
            world.disturb(drawn)
        try:
            ended = world.run()
        finally:
            torch.set_grad_enabled(True)
        computed_again = backward and world.checkpointed
        seen = [world.snapshot(ended, exact)] if computed_again else []
        refused.append(backward and ended[0] == "returned" and not _differentiate(ended[1]))
        ends.append([*seen, world.gradients() if computed_again else world.snapshot(ended, exact)])
        alive.append(world.alive())
    if refused == [True, False]:
        return False
    for expected, got in zip(*ends, strict=True):
        found = difference_of(got, expected, exact)
        if found is not None:
            raise Difference(f"call {number}: {found}")
    if _kept(*alive):
        # Captured code puts nothing new in the place of what functions remember of calls that were not captured.
        plain.forget_results()
        mine.forget_results()
    if kept := _kept(plain.alive(), mine.alive()):
        raise Difference(f"call {number}: arguments {kept} of all calls are alive, plainly they are not")
    return not computed_again


def close_checkpoints() -> None:
    """End the checkpoints that an exception has left.

    Before torch 2.13 their hooks are in use for as long as a program keeps the exception, and with it their frames;
    every backward of the programs after it would compute their regions again."""
    if top_saved_tensor_hooks(False) is None:
        return
    for found in gc.get_objects():
        if type(found) is types.GeneratorType and found.gi_code is _CHECKPOINT:
            found.close()


def _without_frames(error: Exception) -> Exception:
    """The exception without its tracebacks, which keep what its frames held."""
    links: list[BaseException | None] = [error]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            links += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
    return error


def _differentiate(result: Any) -> bool:
    """Gradients of what can be differentiated, into the leaves; whether nothing of it was refused."""
    try:
        tensors = [v for v in _tensors(result, 3) if v.requires_grad and v.grad_fn is not None]
        if tensors := [v for v in tensors if v.is_floating_point()]:
            sum(v.double().sum() for v in tensors).backward()  # type: ignore[union-attr]
    except RecomputationError:
        raise
    except Exception:
        # The engine keeps what is left of a backward that raised, leaves included, until this thread's next one.
        torch.zeros((), requires_grad=True).mul(1).backward()
        return False
    return True


def _tensors(value: Any, deep: int) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if deep and isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v, deep - 1)]
    if deep and isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v, deep - 1)]
    return []
