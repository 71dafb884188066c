"""Random Python functions over tensors, numbers, containers and objects; captured, they must do what they do plainly.

    python tests/plugins/capture/random_functions.py --programs 20000 --seed 0

Every program is text made from one seed, so that a failure can be seen again by its number.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
import warnings
from typing import Any

import torch

HEADER = """
import collections, contextlib, functools, itertools, math, operator
import torch

class Box:
    def __init__(self, value):
        self.value = value
        self.count = 0
    def bump(self, by=1):
        self.count += by
        return self.count
    @property
    def double(self):
        return self.value * 2
    def __add__(self, other):
        return Box(self.value + other)
    def __len__(self):
        return 3

class Guarded:
    def __init__(self, log):
        self.log = log
    def __enter__(self):
        self.log.append("enter")
        return self
    def __exit__(self, kind, value, trace):
        self.log.append(("exit", None if kind is None else kind.__name__))
        return kind is KeyError

@contextlib.contextmanager
def managed(log):
    log.append("begin")
    try:
        yield len(log)
    finally:
        log.append("end")

def opaque(value):
    return value
opaque._torchdynamo_disable = True

def fail_outside(kind):
    raise kind("outside")
fail_outside._torchdynamo_disable = True

def helper(x, scale=2, *rest, offset=0, **named):
    return x * scale + offset + len(rest) + len(named)

def breaks_inside(x, n):
    y = x + n
    y = opaque(y)
    return y - 1

TOTAL = 0
"""


class Writer:
    """Writes one function; knows which variables of which kind are bound wherever it stands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.indent = 1
        self.kinds: dict[str, list[str]] = {
            "tensor": ["x", "y"], "int": ["n"], "list": ["items"], "dict": ["table"], "box": ["box"],
        }  # fmt: skip
        self.fresh = 0
        self.depth = 0
        self.budget = self.random.randint(4, 16)
        self.loops = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, kind: str) -> str:
        self.fresh += 1
        return f"{kind[0]}{self.fresh}"

    def pick(self, kind: str) -> str:
        return self.random.choice(self.kinds[kind])

    def bind(self, kind: str, expression: str) -> None:
        """Assign to a variable, an old one or a new one (which only code after this, at this depth, may use)."""
        target = self.pick(kind) if self.random.random() < 0.5 else self.name(kind)
        self.line(f"{target} = {expression}")
        if target not in self.kinds[kind]:
            self.kinds[kind].append(target)

    # Expressions.

    def int(self) -> str:
        r = self.random
        return r.choice(
            [
                lambda: str(r.randint(-3, 5)), lambda: self.pick("int"), lambda: self.pick("int"),
                lambda: f"({self.pick('int')} {r.choice('+-*')} {r.randint(1, 3)})", lambda: f"len({self.pick('list')})",
                lambda: f"{self.pick('tensor')}.shape[0]", lambda: f"{self.pick('box')}.count",
                lambda: f"len({self.pick('dict')})", lambda: f"max({self.pick('int')}, 1)",
                lambda: f"({self.pick('int')} % 4)", lambda: f"{self.pick('box')}.bump()",
            ]
        )()  # fmt: skip

    def tensor(self) -> str:
        r = self.random
        t = self.pick("tensor")
        return r.choice(
            [
                lambda: f"{t} + {self.pick('tensor')}", lambda: f"{t} * 0.5", lambda: f"{t} - {self.int()}",
                lambda: f"{t}.tanh()", lambda: f"torch.relu({t})", lambda: f"torch.where({t} > 0, {t}, 0.1)",
                lambda: f"helper({t}, {r.choice(['0.5', 'offset=1', 'scale=0.5, extra=1', '0.5, 1, 2'])})",
                lambda: f"{t}.clone()", lambda: f"{self.pick('box')}.double", lambda: f"{self.pick('box')}.value",
                lambda: f"(lambda v: v * 0.25 + {self.int()})({t})", lambda: f"torch.stack([{t}, {t}]).mean(0)",
                lambda: f"sum([{t}, {self.pick('tensor')}]) * 0.5", lambda: f"{t}.reshape(-1).flip(0).reshape({t}.shape)",
                lambda: f"functools.reduce(operator.add, [{t}] * 2)", lambda: f"opaque({t})",
                lambda: f"breaks_inside({t}, {self.int()})", lambda: f"torch.zeros_like({t})",
                lambda: f"({t} if {self.condition()} else {self.pick('tensor')})",
            ]
        )()  # fmt: skip

    def condition(self) -> str:
        r = self.random
        return r.choice(
            [
                lambda: f"{self.int()} > {r.randint(0, 3)}", lambda: f"{self.pick('list')}",
                lambda: f"{self.pick('tensor')} is {self.pick('tensor')}", lambda: f"'k' in {self.pick('dict')}",
                lambda: f"{self.int()} % 2 == 0 and {self.int()} != 1", lambda: f"not {self.pick('dict')}",
                lambda: f"isinstance({self.pick('list')}, list)", lambda: f"{self.pick('tensor')}.sum() > 0",
                lambda: f"hasattr({self.pick('box')}, 'extra')", lambda: f"{self.pick('list')} == [1]",
            ]
        )()  # fmt: skip

    # Statements.

    def block(self, size: int) -> None:
        """An indented block; what it binds is not used after it."""
        saved = {k: list(v) for k, v in self.kinds.items()}
        self.indent += 1
        self.depth += 1
        before = len(self.lines)
        for _ in range(size):
            self.statement()
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1
        self.depth -= 1
        self.kinds = saved

    def statement(self) -> None:
        if self.budget <= 0:
            return
        self.budget -= 1
        simple = [
            self.assign_tensor, self.assign_tensor, self.assign_int, self.change_list, self.change_dict, self.change_box,
            self.in_place, self.new_container, self.unpack, self.closure, self.comprehension, self.global_change,
            self.text, self.read_value, self.generator,
        ]  # fmt: skip
        compound = [self.if_, self.for_, self.while_, self.try_, self.with_]
        deep = self.depth < 3 and self.random.random() < 0.4
        self.random.choice(compound if deep else simple)()

    def assign_tensor(self) -> None:
        self.bind("tensor", self.tensor())

    def assign_int(self) -> None:
        self.bind("int", self.int())

    def change_list(self) -> None:
        items, r = self.pick("list"), self.random
        self.line(
            r.choice(
                [
                    f"{items}.append({self.tensor()})", f"{items}.append({self.int()})", f"{items}.insert(0, {self.int()})",
                    f"{items} += [{self.int()}]", f"{items}.reverse()", f"{items}.extend(range({r.randint(0, 3)}))",
                    f"del {items}[1:]", f"{items}[:] = [{self.int()}, *{items}]", f"{items}.pop() if {items} else None",
                ]
            )
        )  # fmt: skip

    def change_dict(self) -> None:
        table, r = self.pick("dict"), self.random
        self.line(
            r.choice(
                [
                    f"{table}['k'] = {self.tensor()}", f"{table}[{self.int()}] = {self.int()}",
                    f"{table}.pop('k', None)", f"{table}.update(a={self.int()})", f"{table}.setdefault('s', []).append(1)",
                    f"{table} |= {{'b': {self.int()}}}",
                ]
            )
        )  # fmt: skip

    def change_box(self) -> None:
        box, r = self.pick("box"), self.random
        self.line(
            r.choice(
                [
                    f"{box}.value = {self.tensor()}", f"{box}.bump({self.int()})", f"{box}.extra = {self.int()}",
                    f"{box}.count -= 1", f"{box}.items = [{self.int()}]", f"{box} = {box} + {self.int()}",
                ]
            )
        )  # fmt: skip

    def in_place(self) -> None:
        t = self.pick("tensor")
        choices = [f"{t}.add_(1)", f"{t}.mul_(0.5)", f"{t}[0] = {self.random.randint(0, 3)}", f"{t} += 1"]
        self.line(self.random.choice(choices))

    def new_container(self) -> None:
        kind = self.random.choice(["list", "dict", "box"])
        made = {
            "list": f"[{self.int()}, {self.pick('tensor')}]", "dict": f"{{'k': {self.int()}, 1: {self.pick('tensor')}}}",
            "box": f"Box({self.pick('tensor')})",
        }  # fmt: skip
        self.bind(kind, made[kind])

    def unpack(self) -> None:
        a, b = self.name("int"), self.name("tensor")
        self.line(f"{a}, ({b}, *_) = {self.int()}, ({self.tensor()}, 1, 2)")
        self.kinds["int"].append(a)
        self.kinds["tensor"].append(b)

    def closure(self) -> None:
        f, t, i = self.name("function"), self.pick("tensor"), self.pick("int")
        self.line(f"def {f}(v, *, w={self.int()}):")
        if self.random.random() < 0.5:
            self.line(f"    nonlocal {i}")
            self.line(f"    {i} = {i} + 1")
        self.line(f"    {self.pick('list')}.append(w)")
        self.line(f"    return v * 0.5 + w + {i}")
        self.bind("tensor", f"{f}({t}{self.random.choice(['', ', w=1'])})")

    def comprehension(self) -> None:
        t, r = self.pick("tensor"), self.random
        self.bind(
            "list",
            r.choice(
                [
                    f"[{t} * i for i in range({r.randint(0, 3)})]", f"[i for i, _ in enumerate({self.pick('list')})]",
                    f"sorted({{i % 2 for i in range({r.randint(0, 4)})}})", f"list(map(lambda v: v, {self.pick('list')}))",
                    f"[k for k in {self.pick('dict')}]", f"list(zip([1, 2], {self.pick('list')}))",
                ]
            ),
        )  # fmt: skip

    def generator(self) -> None:
        g, t = self.name("generator"), self.pick("tensor")
        self.line(f"def {g}(k):")
        self.line(f"    for i in range(k):\n{'    ' * self.indent}        yield {t} + i")
        self.bind("list", f"list({g}({self.random.randint(0, 3)}))")

    def global_change(self) -> None:
        self.line(f"TOTAL = TOTAL + {self.int()}")

    def text(self) -> None:
        self.line(f"log.append(f'{{{self.int()}}}-{{len({self.pick('list')})}}')")

    def read_value(self) -> None:
        self.bind("int", f"int({self.pick('tensor')}.detach().nan_to_num().clamp(-9, 9).sum().round().item())")

    def if_(self) -> None:
        self.line(f"if {self.condition()}:")
        self.block(2)
        if self.random.random() < 0.5:
            self.line("else:")
            self.block(2)

    def for_(self) -> None:
        r = self.random
        i = self.name("int")
        over = r.choice(
            [f"range({r.randint(0, 3)})", "list(table.values())[:2]", "enumerate((1, 2))", "zip((1, 2), (3, 4))"]
        )
        target = i if "range" in over or "table" in over else f"{i}, _"
        self.line(f"for {target} in {over}:")
        saved = list(self.kinds["int"])
        if "table" not in over:
            self.kinds["int"].append(i)
        self.loops += 1
        self.block(2)
        self.indent += 1
        if r.random() < 0.3:
            self.line(f"if {self.condition()}: {r.choice(['break', 'continue'])}")
        self.indent -= 1
        self.loops -= 1
        self.kinds["int"] = saved
        if r.random() < 0.2:
            self.line("else:")
            self.block(1)

    def while_(self) -> None:
        counter = self.name("while")
        self.line(f"{counter} = 0")
        self.line(f"while {counter} < {self.random.randint(1, 3)}:")
        self.indent += 1
        self.line(f"{counter} += 1")
        self.indent -= 1
        self.block(2)

    def try_(self) -> None:
        r = self.random
        self.line("try:")
        self.block(2)
        self.indent += 1
        if r.random() < 0.7:
            self.line(
                r.choice(
                    [
                        f"if {self.condition()}: raise ValueError('v')", "fail_outside(KeyError)", "{}['missing']",
                        "[].pop()", "raise RuntimeError('r') from None", "int('x')", "opaque(None).nothing",
                    ]
                )
            )  # fmt: skip
        self.indent -= 1
        self.line(f"except {r.choice(['ValueError', '(KeyError, IndexError)', 'Exception'])} as error:")
        self.indent += 1
        self.line("log.append(type(error).__name__)")
        self.indent -= 1
        self.block(1)
        if r.random() < 0.4:
            self.line("else:")
            self.block(1)
        if r.random() < 0.4:
            self.line("finally:")
            self.indent += 1
            self.line("log.append('finally')")
            self.indent -= 1
            self.block(1)

    def with_(self) -> None:
        r = self.random
        manager = r.choice(
            ["Guarded(log)", "managed(log) as m", "torch.no_grad()", "contextlib.suppress(KeyError)", "Guarded(log) as g"]
        )  # fmt: skip
        self.line(f"with {manager}:")
        self.block(2)
        if r.random() < 0.3:
            self.indent += 1
            self.line(
                r.choice(["raise KeyError('w')", "fail_outside(KeyError)"]) if "managed" not in manager else "pass"
            )
            self.indent -= 1

    def program(self) -> str:
        self.line("global TOTAL")
        while self.budget > 0:
            self.statement()
        results = ", ".join(n for kind in ("tensor", "int", "list", "dict", "box") for n in self.kinds[kind])
        self.line(f"return {results}, torch.is_grad_enabled()")
        return HEADER + "\ndef program(x, y, n, items, table, box, log):\n" + "\n".join(self.lines) + "\n"


def arguments(scope: dict[str, Any], seed: int) -> list[Any]:
    """Arguments of one call; the same ones each time they are made."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 3, generator=generator), torch.randn(2, 3, generator=generator)
    if seed % 5 == 0:
        y.requires_grad_()
    items = [1, x] if seed % 2 else [1]
    table = {"k": seed % 3, 2: y} if seed % 3 else {}
    return [x, x if seed % 7 == 0 else y, seed % 4, items, table, scope["Box"](x), []]


def run_one(seed: int, calls: int = 3) -> str | None:
    """Run one program plainly and captured; a message where they differ."""
    from capture_lab import Observed, assert_same, outcome

    text = Writer(seed).program()
    plain: dict[str, Any] = {"__name__": f"plain{seed}"}
    mine: dict[str, Any] = {"__name__": f"captured{seed}"}
    code = compile(text, f"<program {seed}>", "exec")
    exec(code, plain)
    exec(code, mine)
    observed = Observed(mine["program"])
    for number in range(calls):
        theirs, ours = arguments(plain, seed + number), arguments(mine, seed + number)
        try:
            expected = outcome(plain["program"], tuple(theirs), {})
            found = outcome(observed, tuple(ours), {})
            if found[0] != expected[0]:
                raise AssertionError(f"{found} is not {expected}")
            _same(assert_same, found[1], expected[1], "result")
            _same(assert_same, ours, theirs, "arguments")
            if plain["TOTAL"] != mine["TOTAL"]:
                raise AssertionError(f"TOTAL is {mine['TOTAL']}, not {plain['TOTAL']}")
        except Exception:
            return f"program {seed}, call {number}:\n{text}\n{traceback.format_exc()}"
    return None


def _same(assert_same: Any, found: Any, expected: Any, where: str) -> None:
    """Deep equality in which the two modules' own classes stand for each other."""
    if type(found).__name__ == "Box":
        assert type(expected).__name__ == "Box", where
        _same(assert_same, vars(found), vars(expected), where)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected), f"{where}: {found} is not {expected}"
        for number, (a, b) in enumerate(zip(found, expected, strict=True)):
            _same(assert_same, a, b, f"{where}[{number}]")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), f"{where}: {found} is not {expected}"
        for key in expected:
            _same(assert_same, found[key], expected[key], f"{where}[{key!r}]")
    else:
        assert_same(found, expected, where)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    failures = 0
    for seed in range(options.seed, options.seed + options.programs):
        message = run_one(seed)
        if message is not None:
            failures += 1
            print(message, flush=True)
            if failures >= 5:
                break
    print(f"{options.programs} programs from seed {options.seed}: {failures} mismatches")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
