"""Changes whatever a compiled function can reach between its calls, and compares each call with eager.

    python -m tests.fuzz.mutations --programs 4000 --seed 0 --out mutations.jsonl

A program (of ``mutation_world``) is compiled once.  Then changes are drawn, one after the other: of instances,
classes, bases, code, globals, closures, functions of libraries, containers, modules, hooks, modes and arguments.  After
each, the compiled function is called twice, and must give what eager gives.  A call that gives what it gave before the
change is stale.  ``--replay SEED`` shows one program, its changes and what went wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import random
import sys
import time
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as module_code

from tests.fuzz.mutation_world import World

Change = Callable[[random.Random, World, contextlib.ExitStack], str | None]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__] = function
    return function


def fresh(rng: random.Random) -> Any:
    return rng.choice(
        [rng.randrange(-3, 9), rng.randrange(9) / 4, rng.randrange(9) / 4, True, None, "n", [1.0], (2, 3)]
    )


def number(rng: random.Random) -> Any:
    return rng.choice([rng.randrange(1, 9), rng.randrange(1, 9) / 4])


def attempt(action: Callable[[], Any]) -> None:
    """A change that Python may refuse."""
    with contextlib.suppress(AttributeError, TypeError, KeyError, IndexError, ValueError):
        action()


def instance(rng: random.Random, world: World) -> Any:
    return rng.choice([world.w, world.w, world.near, world.slotted, world.falling, world.described, world.data])


def kind(rng: random.Random, world: World) -> Any:
    names = ["Root", "Other", "Thing", "Thing", "Near", "Falling", "Slotted", "Described", "Data", "Net", "Descriptor"]
    return world.space[rng.choice(names)]


NAMES = ("scale", "kind", "depth", "extra", "late", "flag", "weights", "value", "spare", "a", "b", "item", "name")
METHODS = (
    "method", "inherited", "both", "static", "klass", "prop", "__call__", "__getitem__", "__len__", "__eq__", "__add__",
    "only_other", "__getattr__", "__getattribute__", "forward", "__get__", "__bool__", "anything",
)  # fmt: skip


@change
def set_an_attribute_of_an_instance(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    attempt(lambda: setattr(instance(rng, world), rng.choice(NAMES), number(rng)))


@change
def change_the_dict_of_an_instance(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    owner, name = instance(rng, world), rng.choice((*NAMES, "method", "prop"))
    ways = [
        lambda: owner.__dict__.__setitem__(name, number(rng)),
        lambda: owner.__dict__.pop(name),
        lambda: setattr(owner, "__dict__", {**owner.__dict__, name: number(rng)}),
        lambda: setattr(owner, name, lambda y, *a, **k: y * number(random.Random(1))),
    ]
    attempt(rng.choice(ways))


@change
def delete_an_attribute(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    attempt(lambda: delattr(rng.choice([instance, kind])(rng, world), rng.choice(NAMES)))


@change
def set_an_attribute_of_a_class(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    attempt(lambda: setattr(kind(rng, world), rng.choice((*NAMES, "rate")), number(rng)))


@change
def set_a_method(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    by, name = number(rng), rng.choice(METHODS)
    bodies: list[Any] = [
        lambda self, y, *a, **k: y * by,
        staticmethod(lambda y: y + by),
        classmethod(lambda cls, y: y - by),
        property(lambda self: by),
        lambda self: by if isinstance(by, int) else 2,
        world.Descriptor(by),
        world.Near.__dict__.get("method"),
    ]
    if name == "__getattr__":
        bodies = [lambda self, n: by if not n.startswith("_") else object.__getattribute__(self, n)]
    if name == "__getattribute__":
        bodies = [lambda self, n: by if n in ("scale", "extra") else object.__getattribute__(self, n)]
    if name == "__get__":
        bodies = [lambda self, instance, owner: by]
    attempt(lambda: setattr(kind(rng, world), name, rng.choice(bodies)))


@change
def delete_a_method(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    attempt(lambda: delattr(kind(rng, world), rng.choice(METHODS)))


@change
def assign_bases(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    ways = [(world.Other,), (world.Root,), (world.Other, world.Root), (world.Root, world.Other)]
    attempt(lambda: setattr(world.Thing, "__bases__", rng.choice(ways)))


@change
def assign_the_class_of_an_instance(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    one, other = rng.choice([(world.w, "Near"), (world.w, "Thing"), (world.near, "Thing"), (world.near, "Near")])
    attempt(lambda: setattr(one, "__class__", world.space[other]))
    if rng.random() < 0.3:
        attempt(lambda: setattr(world.net.act, "__class__", rng.choice([nn.Tanh, nn.Sigmoid, nn.ReLU6])))


FUNCTIONS = ("helper", "wrapped", "closed", "bare", "chain", "program", "wide")


def function_of(rng: random.Random, world: World) -> Any:
    found: list[Any] = [world.space[name] for name in FUNCTIONS if name in world.space]
    found += [v for k in (world.Root, world.Thing, world.Near, world.Net) for v in vars(k).values() if callable(v)]
    return rng.choice([f for f in found if hasattr(f, "__code__")])


@change
def replace_code(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    function, by = function_of(rng, world), rng.randrange(2, 5)
    if function is world.program:
        return  # it decides what is compiled
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    constants = tuple(
        c + by if isinstance(c, (int, float)) and not isinstance(c, bool) else c for c in function.__code__.co_consts
    )
    attempt(lambda: setattr(function, "__code__", function.__code__.replace(co_consts=constants)))
    if not function.__closure__ and names[-1:] == ("y",) and rng.random() < 0.5:
        head = ", ".join(names)
        scope: dict[str, Any] = {}
        exec(f"def made({head}): return y * {by}", scope)
        attempt(lambda: setattr(function, "__code__", scope["made"].__code__))


@change
def replace_defaults(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    function = rng.choice([world.helper, world.Thing.__dict__.get("method"), world.program, world.Near.method])
    ways = [
        lambda: setattr(function, "__defaults__", (number(rng),)),
        lambda: setattr(function, "__kwdefaults__", {"more": number(rng)}),
        lambda: function.__kwdefaults__.__setitem__("more", number(rng)),
        lambda: setattr(function, "__defaults__", None),
    ]
    attempt(rng.choice(ways))


@change
def change_a_closure(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    cells = [*(world.closed.__closure__ or ()), *(world.program.__closure__ or ())]
    wrapped = getattr(world.wrapped, "__closure__", None)
    cell = rng.choice(cells)
    attempt(lambda: setattr(cell, "cell_contents", number(rng)))
    if wrapped and rng.random() < 0.3:
        attempt(lambda: setattr(wrapped[0], "cell_contents", lambda y: y * 7))
    if rng.random() < 0.1:
        attempt(lambda: delattr(cell, "cell_contents"))


@change
def change_a_partial_or_handler(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    ways = [
        lambda: world.partly.keywords.__setitem__("by", number(rng)),
        lambda: world.HANDLERS.__setitem__("relu", rng.choice([torch.sin, torch.tanh, world.helper])),
        lambda: world.HANDLERS.__setitem__("mine", rng.choice([world.bare, torch.cos])),
        lambda: setattr(world.color, "_value_", number(rng)),
    ]
    attempt(rng.choice(ways))


@change
def set_a_global(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    by, space = number(rng), world.space
    choices: dict[str, Any] = {
        "NUMBER": by, "REAL": by, "TEXT": rng.choice(["text", "other"]), "NOTHING": rng.choice([None, 1]),
        "helper": lambda y, by=2: y - by, "bare": lambda y: y * by, "closed": lambda y: y * by,
        "GLOBALS_LIST": [by, by], "GLOBALS_DICT": {"a": by, "b": [1.0, by]}, "SET": {2, by}, "TUPLE": (by, (by, 1)),
        "TENSOR": torch.full((4,), float(by)), "w": world.Thing(), "near": rng.choice([world.Near, world.Thing])(),
        "Near": world.Thing, "pair": world.Pair(by, 1.0), "color": rng.choice(list(world.Color)),
        "sum": lambda v: by, "len": lambda v: 2, "hasattr": lambda *a: True,
        "F": types_like(torch.nn.functional, "relu", lambda y: y * by),
        "math": types_like(math, "pi", by), "data": world.Data(float(by)), "isinstance": lambda a, b: True,
    }  # fmt: skip
    name = rng.choice(list(choices))
    if rng.random() < 0.1:
        space.pop(name, None)
    elif name in ("sum", "len", "hasattr", "isinstance") and rng.random() < 0.7 and name in space:
        del space[name]
    else:
        space[name] = choices[name]


def types_like(module: Any, name: str, value: Any) -> Any:
    """A module with one other attribute."""
    made = type(module)(module.__name__)
    vars(made).update(vars(module))
    setattr(made, name, value)
    return made


@change
def change_a_container(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    by = number(rng)
    containers: list[Any] = [
        world.w.__dict__.get("weights"), world.GLOBALS_LIST, world.Thing.__dict__.get("items"),
        world.data.__dict__.get("b"), world.args,
    ]  # fmt: skip
    found = rng.choice([c for c in containers if isinstance(c, list)])
    ways: list[Callable[[], Any]] = [
        lambda: found.__setitem__(0, by), lambda: found.append(by), lambda: found.pop(), lambda: found.reverse(),
        lambda: found.clear(), lambda: found.insert(0, by),
    ]  # fmt: skip
    attempt(rng.choice(ways))


@change
def change_a_dict(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    by = number(rng)
    found = rng.choice([world.GLOBALS_DICT, world.Thing.__dict__.get("table", {}), world.options, world.NESTED])
    ways: list[Callable[[], Any]] = [
        lambda: found.__setitem__(rng.choice("abt"), by), lambda: found.pop(rng.choice("ab")),
        lambda: found.__setitem__("b", [by, by]), lambda: found.__setitem__("w", world.Near()),
        lambda: world.SET.add(rng.randrange(5)), lambda: world.SET.discard(2),
    ]  # fmt: skip
    attempt(rng.choice(ways))


_LIBRARY = (
    "torch.nn.functional.relu", "torch.relu", "torch.sin", "torch.add", "torch.Tensor.cos", "torch.Tensor.tanh",
    "torch.Tensor.__add__", "torch.Tensor.__mul__", "torch.Tensor.__neg__", "torch.Tensor.__rsub__", "torch.ones",
    "torch.nn.functional.softmax", "torch.nn.functional.layer_norm", "torch.layer_norm", "torch.nn.functional.linear",
    "torch.nn.Linear.forward", "torch.nn.ReLU.forward", "torch.nn.Sequential.forward", "operator.mul", "math.floor",
    "torch.Tensor.norm", "torch.norm", "torch.functional.norm", "torch.Tensor.softmax", "builtins.divmod",
    "torch.nn.Module.__call__", "torch.Tensor.sum", "torch.nn.Tanh.forward", "torch.Tensor.__matmul__",
    "torch.Tensor.float", "torch.nn.Module._call_impl",
    "torch.nn.ModuleList.__len__", "torch.nn.Module.children", "torch.nn.Module.parameters",
)  # fmt: skip


@change
def patch_a_library(rng: random.Random, world: World, undo: contextlib.ExitStack) -> str:
    name, by = rng.choice((*_LIBRARY, "math.pi", "math.e")), number(rng)

    def first(*values: Any, **named: Any) -> Any:
        found = next((v for v in values if isinstance(v, torch.Tensor)), None)
        return by if found is None else torch.mul(found, by)

    undo.enter_context(unittest.mock.patch(name, by if name in ("math.pi", "math.e") else first))
    return name


@change
def add_to_a_library(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    owner = rng.choice([nn.Module, nn.Linear, nn.ReLU, torch.Tensor])
    name, by = rng.choice(["late", "extra", "forward"]), number(rng)
    value: Any = by if name != "forward" else lambda self, y, *a: torch.mul(y, by)
    undo.enter_context(unittest.mock.patch.object(owner, name, value, create=True))


@change
def replace_code_of_a_library(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    function = rng.choice([torch.nn.functional.relu, nn.Linear.forward, nn.ReLU.forward, nn.Sequential.forward])
    if function.__closure__:  # patched
        return
    before = function.__code__
    made: dict[str, Any] = {}
    exec(f"def made({', '.join(before.co_varnames[: before.co_argcount])}): return input * 3", made)
    undo.callback(setattr, function, "__code__", before)
    function.__code__ = made["made"].__code__


def uncached_autocast(enabled: bool) -> torch.autocast:
    """Autocast without its store of weights cast before, out of which eager takes what a weight was before a change."""
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False)


@change
def change_modes(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    threads = torch.get_num_threads()

    def default_dtype() -> None:
        undo.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(rng.choice([torch.float32, torch.float64]))

    def deterministic() -> None:
        undo.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        torch.use_deterministic_algorithms(rng.random() < 0.5)

    def set_threads() -> None:
        undo.callback(torch.set_num_threads, threads)
        torch.set_num_threads(2 if threads == 1 else 1)

    ways: list[Callable[[], Any]] = [
        lambda: undo.enter_context(torch.no_grad()), lambda: undo.enter_context(torch.enable_grad()),
        lambda: undo.enter_context(uncached_autocast(rng.random() < 0.7)),
        default_dtype, deterministic, set_threads, lambda: undo.enter_context(torch.device("cpu")),
    ]  # fmt: skip
    rng.choice(ways)()


@change
def change_hooks(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    module, by = rng.choice([world.net, world.net.lin, world.net.act, world.net.seq]), number(rng)
    ways: list[Callable[[], Any]] = [
        lambda: module.register_forward_hook(lambda m, a, out: out * by),
        lambda: module.register_forward_pre_hook(lambda m, a: (a[0] * by,)),
        lambda: undo.callback(module_code.register_module_forward_hook(lambda m, a, out: out + by).remove),
        lambda: undo.callback(module_code.register_module_forward_pre_hook(lambda m, a: (a[0] + by,)).remove),
        lambda: module._forward_hooks.clear(),
        lambda: undo.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda v: v, lambda v: v)),
    ]
    attempt(rng.choice(ways))


@change
def change_a_module(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    net, by = world.net, number(rng)

    def set_parameter() -> None:
        net.gain = nn.Parameter(torch.full((4,), float(by)))

    def set_data() -> None:
        with torch.no_grad():
            rng.choice(list(net.parameters())).mul_(by)

    ways: list[Callable[[], Any]] = [
        net.train, net.eval, net.lin.eval, set_parameter, set_data, net.double, net.float,
        lambda: setattr(net, "lin", uniform(nn.Linear(4, 4, bias=rng.random() < 0.5))),
        lambda: setattr(net, "act", rng.choice([nn.Tanh, nn.Sigmoid, nn.Identity])()),
        lambda: setattr(net, "factor", by), lambda: net.register_buffer("late", torch.ones(1)),
        lambda: setattr(net, "late", by), lambda: delattr(net, "late"), lambda: setattr(net, "rate", by),
        lambda: setattr(net, "shift", torch.full((4,), float(by))), lambda: net.layers.append(uniform(nn.Linear(4, 4))),
        lambda: net.layers.__setitem__(0, uniform(nn.Linear(4, 4))), lambda: net.seq.add_module("c", nn.Tanh()),
        lambda: net._modules.pop("act"), lambda: net.gain.requires_grad_(rng.random() < 0.5),
        lambda: net.requires_grad_(rng.random() < 0.5), lambda: setattr(net.lin, "bias", None),
        lambda: setattr(net, "forward", lambda y: y * by), lambda: net.__dict__.pop("forward"),
        lambda: net._parameters.__setitem__("late", nn.Parameter(torch.ones(1))), lambda: net._buffers.pop("shift"),
        lambda: setattr(net.lin.weight, "data", net.lin.weight.data.t()),
    ]  # fmt: skip
    with contextlib.suppress(RuntimeError):
        attempt(rng.choice(ways))


def uniform(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.1, 0.9)
    return module


@change
def change_the_arguments(rng: random.Random, world: World, undo: contextlib.ExitStack) -> None:
    x = world.x.detach()
    rows = rng.randrange(1, 6)
    ways: list[Callable[[], Any]] = [
        lambda: torch.linspace(-1, 1, rows * 4).reshape(rows, 4), lambda: x.double(), lambda: x.float(),
        lambda: x.t().contiguous().t(), lambda: x.clone().requires_grad_(), lambda: x[:, :4].clone(),
        lambda: torch.linspace(-1, 1, 24).reshape(3, 8)[:, ::2], lambda: torch.arange(12).reshape(3, 4),
        lambda: nn.Parameter(x.float()), lambda: x.bfloat16(),
    ]  # fmt: skip
    with contextlib.suppress(RuntimeError):
        world.x = rng.choice(ways)()


@attrs.frozen
class Raised:
    """An exception, compared by its kind."""

    kind: str
    text: str = attrs.field(eq=False)


@attrs.frozen
class Failure:
    """A call that eager and compiled code do not agree on."""

    seed: int
    kind: str
    lines: list[str]
    changes: list[str]
    detail: str


@attrs.define
class Result:
    """What the check of one seed found."""

    changes: int = 0
    effective: int = 0
    failure: Failure | None = None


def frozen_by(value: Any) -> Any:
    """What a frozen graph depends on: of a tensor its shape, and the number that the graph may read from it."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value.shape, value.dtype, value.item()) if value.numel() == 1 else value.shape


def compiled(program: Callable) -> Any:
    """The program captured by Turret; its graphs frozen as operations, as the stages after capture would."""
    from turret.hooks import plugin_manager
    from turret.pipeline.stage_calls import create_context
    from turret.plugins.capture.dispatching.entry import turret_capture

    def freeze(captured: Any) -> Callable:
        made: dict[Any, Callable] = {}

        def run(*inputs: Any) -> Any:
            key = tuple(map(frozen_by, inputs))
            if key not in made:
                trace = make_fx(fx.Interpreter(captured.module).run, _error_on_data_dependent_ops=False)
                with torch._C.DisableTorchFunction():  # with modes, functions of torch look themselves up by name
                    made[key] = trace(*inputs).forward
            return made[key](*inputs)

        return run

    manager = plugin_manager.create()
    options = {"on_error": "raise", "recompile_limit": 10**6, "cache": False}
    context = create_context(plugin_manager.configure(manager, None, options), manager)
    return turret_capture(context=context, target=program, compile_graph=freeze, fullgraph=False, dynamic=None)


def outcome(world: World, function: Callable) -> tuple[str, Any]:
    from turret.errors import TurretError

    try:
        result = world.call(function)
    except TurretError as error:
        return "broken", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "raised", Raised(type(error).__name__, str(error))
    if not isinstance(result, torch.Tensor):
        return "returned", result
    return "tensor", result


def same(found: tuple[str, Any], expected: tuple[str, Any]) -> bool:
    if found[0] != expected[0]:
        return False
    if expected[0] != "tensor":
        return bool(found[1] == expected[1])
    mine, theirs = found[1], expected[1]
    facts = [(v.dtype, v.shape, v.requires_grad, v.is_inference()) for v in (mine, theirs)]
    tolerance = 2e-2 if torch.bfloat16 in (theirs.dtype,) or torch.is_autocast_enabled("cpu") else 1e-4
    return facts[0] == facts[1] and torch.allclose(mine, theirs, tolerance, tolerance, equal_nan=True)


def apply(name: str, rng: random.Random, world: World, undo: contextlib.ExitStack) -> str | None:
    """Make one change; nothing where an earlier one took away what it changes."""
    with contextlib.suppress(AttributeError, KeyError, IndexError):
        return CHANGES[name](rng, world, undo)
    return "not made"


def steps(rng: random.Random, world: World, undo: contextlib.ExitStack) -> Iterator[str]:
    """Draw changes; now and then all of libraries and modes are taken back."""
    for _ in range(rng.randrange(4, 12)):
        if rng.random() < 0.1:
            undo.close()
            yield "undo"
            continue
        names = rng.choices(list(CHANGES), k=rng.choice((1, 1, 2, 4)))
        told = [apply(name, rng, world, undo) for name in names]
        yield ", ".join(f"{name} ({what})" if what else name for name, what in zip(names, told, strict=True))


def check(seed: int) -> Result:
    """One program and its changes."""
    rng, result, made = random.Random(seed), Result(), []
    world = World(rng)
    function = compiled(world.program)
    with contextlib.ExitStack() as undo, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = outcome(world, world.program)
        drawn = steps(rng, world, undo)
        name: str | None = "nothing"
        while name is not None:
            made.append(name)
            expected = outcome(world, world.program)
            for _ in range(2):
                found = outcome(world, function)
                if not same(found, expected):
                    stale = "stale" if same(found, before) else "broken" if found[0] == "broken" else "different"
                    undo.close()
                    detail = f"{found}, expected {expected}"
                    result.failure = Failure(seed, stale, world.lines, made, detail)
                    world.close()
                    return result
            result.changes += name != "nothing"
            result.effective += not same(expected, before)
            before = expected
            name = next(drawn, None)
        undo.close()
    world.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--out", type=Path, help="a line of JSON for each failure, and the totals so far")
    parser.add_argument("--replay", type=int)
    options = parser.parse_args()
    if options.replay is not None:
        print(check(options.replay))
        return
    totals: collections.Counter[str] = collections.Counter()
    until = time.monotonic() + options.seconds
    for seed in range(options.seed, options.seed + options.programs):
        if time.monotonic() > until:
            break
        result = check(seed)
        totals.update(programs=1, changes=result.changes, effective=result.effective)
        if result.failure is not None:
            totals[result.failure.kind] += 1
            _write(options.out, attrs.asdict(result.failure))
            print(result.failure, flush=True)
        if (seed + 1) % 100 == 0:
            _write(options.out, dict(totals, seed=options.seed))
    _write(options.out, dict(totals, seed=options.seed))
    print(dict(totals))
    sys.exit(any(totals[kind] for kind in ("stale", "different", "broken")))


def _write(out: Path | None, line: dict[str, Any]) -> None:
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
