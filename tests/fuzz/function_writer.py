"""Random functions of Python as text: statements around ``function_expressions``, helpers, and an entry in several shapes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.function_expressions import FEATURES, rule, rules_of
from tests.fuzz.function_patterns import Patterns
from tests.fuzz.function_prelude import MARK, PRELUDE
from tests.fuzz.function_settings import LATER_FEATURES, Settings

ENTRIES = ("function", "function", "function", "method", "closure", "module", "keywords")
"""How the program is called: as a function, a method, a closure over state, a module, or by keywords."""


class Writer(Patterns, Settings):
    """Writes one program; the same one for the same seed.  Not ``later``: without what ``function_settings`` adds.

    ``kinds`` are the variables in scope by kind; ``writable`` those that the function being written may bind.
    """

    def __init__(self, seed: int, later: bool = True) -> None:
        self.random = random.Random(seed)
        self.features = frozenset(f for f in FEATURES if self.random.random() < 0.6)
        draws = {name: random.Random(f"{name} of {seed}") for name in LATER_FEATURES}
        rows = LATER_FEATURES.items() if later else ()
        self.settings = {f for name, (share, row) in rows for f in row if draws[name].random() < share}
        self.features |= self.settings
        apart = draws["settings"]
        self.around = "checkpoint" if "checkpoints" in self.features and apart.random() < 0.4 else ""
        self.lines: list[str] = []
        self.indent = 0
        self.kinds: dict[str, list[str]] = {}
        self.writable: set[str] = set()
        self.helpers: list[str] = []
        self.fresh = self.depth = self.loops = self.budget = 0
        self.returns = True
        self.nested = 0
        self.in_comprehension = False

    # Writing.

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, kind: str) -> str:
        self.fresh += 1
        return f"{kind[0]}{self.fresh}"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def target(self, kind: str) -> str:
        """A variable to bind: one that is there, or a new one."""
        known = [n for n in self.kinds.get(kind, ()) if n in self.writable]
        if known and self.chance(0.5):
            return self.random.choice(known)
        return self.name(kind)

    def bound(self, kind: str, name: str) -> None:
        """Take note that a variable is bound."""
        names = self.kinds.setdefault(kind, [])
        self.writable.add(name)
        if name not in names:
            names.append(name)

    def bind(self, kind: str, expression: str) -> None:
        target = self.target(kind)
        self.line(f"{target} = {expression}")
        self.bound(kind, target)

    def walrus(self, kind: str) -> str | None:
        known = [n for n in self.kinds.get(kind, ()) if n in self.writable]
        return self.random.choice(known) if known and self.nested == 0 else None

    @contextlib.contextmanager
    def indented(self) -> Iterator[None]:
        """An indented block; what it binds is not used after it, unless by chance (and then may be unbound)."""
        saved, writable = {k: list(v) for k, v in self.kinds.items()}, set(self.writable)
        self.indent += 1
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1
        self.depth -= 1
        if not self.chance(0.04):
            self.kinds, self.writable = saved, writable

    def block(self, size: int) -> None:
        with self.indented():
            for _ in range(self.random.randint(1, size)):
                self.statement()

    def statement(self) -> None:
        if self.budget <= 0:
            return
        self.budget -= 1
        kind = "compound" if self.depth < 4 and self.chance(0.42) else "simple"
        table = [(n, w) for n, w, needs in self.RULES[kind] if needs is None or needs in self.features]
        getattr(self, self.random.choices([n for n, _ in table], [w for _, w in table])[0])()

    # Simple statements.

    @rule("simple", 6)
    def assign(self) -> None:
        kind = self.one(
            "tensor", "tensor", "tensor", "int", "int", "list", "dict", "str", "bool", "row", "float", "set", "ints"
        )
        self.bind(kind, self.some(kind, 3))

    @rule("simple", 2, "objects")
    def assign_object(self) -> None:
        kind = self.one("box", "box", "vec", "dyn", "gen" if "generators" in self.features else "box")
        self.bind(kind, self.some(kind, 2))

    @rule("simple", 2)
    def augment(self) -> None:
        known = [n for n in self.kinds.get("int", ()) if n in self.writable]
        if known:
            self.line(
                f"{self.random.choice(known)} {self.one('+=', '-=', '*=', '//=', '|=')} {self.random.randint(1, 3)}"
            )

    @rule("simple", 3)
    def change_list(self) -> None:
        items, i = self.var("list"), self.some("int", 1)
        self.line(
            self.one(
                f"{items}.append({self.any(2)})", f"{items}.append({self.some('tensor', 2)})", f"{items}.insert(0, {i})",
                f"{items}.extend([{i}, {self.any(1)}])", f"{items}.reverse()", f"del {items}[1:]", f"{items}[:] = [{i}, *{items}]",
                f"{items}.pop()", f"{items}[0] = {self.any(1)}", f"{items}.clear()", f"{items}[{i}] = {self.any(0)}",
                f"{items}.sort(key=lambda v: not isinstance(v, int))", f"{items}.extend(range({self.random.randint(0, 3)}))",
                f"del {items}[{i} % 3]", f"{items}[::2] = {items}[::2]", f"{items}.append({items}[:])", f"{items}.remove({i})",
            )
        )  # fmt: skip

    @rule("simple", 3)
    def change_dict(self) -> None:
        table, i = self.var("dict"), self.some("int", 1)
        self.line(
            self.one(
                f"{table}['k'] = {self.any(2)}", f"{table}[{i}] = {i}", f"{table}.pop('k', None)", f"{table}.update(a={i})",
                f"{table}.setdefault('s', []).append({i})", f"del {table}['k']", f"{table}.update([('u', {self.any(1)})])",
                f"{table}[({i}, 'p')] = {self.any(0)}", f"{table}.popitem()", f"{table}.clear()", f"{table}['n'] = {table}.get('n', 0) + 1",
                f"{table}.setdefault({i}, {self.some('tensor', 1)})", f"{table}[Color.RED] = {i}", f"{table}['self'] = [{table}.get('k')]",
            )
        )  # fmt: skip

    @rule("simple", 2, "sets")
    def change_set(self) -> None:
        target = self.name("set")
        self.line(f"{target} = {{{self.some('int', 1)}, 2, 9}}")
        i = self.some("int", 1)
        self.line(
            self.one(
                f"{target}.add({i})",
                f"{target}.discard({i})",
                f"{target} |= {{{i}}}",
                f"{target} -= {{{i}}}",
                f"{target}.update([1, {i}])",
            )
        )
        self.bound("set", target)

    @rule("simple", 1)
    def queue(self) -> None:
        name, i = self.name("queue"), self.some("int", 1)
        self.line(f"{name} = collections.deque([{i}, {self.any(1)}], maxlen={self.one('None', '2', '3')})")
        self.line(
            self.one(
                f"{name}.append({i})",
                f"{name}.appendleft({self.any(1)})",
                f"{name}.rotate(1)",
                f"{name}.popleft()",
                f"{name}.extend([1, {i}])",
            )
        )
        self.bind("list", f"list({name})")
        if self.chance(0.3):
            self.line(f"{self.var('list')}.append({name})")

    @rule("simple", 4, "objects")
    def change_object(self) -> None:
        b, v, d, i = self.var("box"), self.var("vec"), self.var("dyn"), self.some("int", 1)
        self.line(
            self.one(
                f"{b}.value = {self.some('tensor', 2)}", f"{b}.bump({i})", f"{b}.extra = {self.any(1)}", f"{b}.count -= 1", f"{b}.size = {i}",
                f"{b}.items = [{i}]", f"{b}.items.append({self.any(1)})", f"{b}.level = {i}", f"setattr({b}, 'made_up', {i})", f"{b}.items = {self.var('list')}",
                f"del {b}.level", f"{b}.__dict__['late'] = {i}", f"{b}.twice = {i}", f"Box.made += {i}", f"Base.shared.append({i})", f"del {b}.extra",
                f"{v}.numbers.append({i})", f"{v}[0] = {i}", f"del {v}[0]", f"{d}.foo = {i}", f"del {d}.foo", f"{d}.bar = {self.any(1)}", f"{b}.peer = {b}",
                f"{b}.note = lambda: {i}", f"type({b}).made = {i}", f"vars({b}).update(given={i})", f"{b}.pair = Pair({i}, {b}.items)",
            )
        )  # fmt: skip

    @rule("simple", 1, "objects")
    def add_in_place(self) -> None:
        known = [n for n in self.kinds.get("vec", ()) if n in self.writable]
        if known and not self.loops:  # loops over it would grow without end
            self.line(f"{self.random.choice(known)} += {self.some('int', 0)}")

    @rule("simple", 3, "in_place")
    def in_place(self) -> None:
        t = self.var("tensor")
        self.line(
            self.one(
                f"{t}.add_(1)", f"{t}.mul_(0.5)", f"{t}[0] = {self.some('int', 0)}", f"{t} += 1" if t in self.writable else f"{t}.sub_(1)",
                f"{t}[:, 1] = {self.some('float', 0)}", f"{t}.copy_({self.some('tensor', 1)})", f"{t}[0] += 1", f"{t}.clamp_(-1, 1)",
                f"{t}.detach().zero_()", f"torch.add({t}, 1, out={t})", f"{t}[{t} > 1] = 0", f"{t}.view(-1)[0] = 2" , f"{t}[0].neg_()",
            )
        )  # fmt: skip

    @rule("simple", 1, "views")
    def take_view(self) -> None:
        t, name = self.var("tensor"), self.name("tensor")
        self.line(f"{name} = {t}{self.one('[:]', '.view_as(' + t + ')', '.t().t()', '[..., :]')}")
        if self.chance(0.5):
            self.line(f"{name}.add_(1)")
        self.bound("tensor", name)

    @rule("simple", 2)
    def unpack(self) -> None:
        i, j, t, s = self.name("int"), self.name("int"), self.name("tensor"), self.name("list")
        form = self.random.randrange(5)
        if form == 0:
            self.line(f"{i}, ({t}, *{s}) = {self.some('int', 1)}, ({self.some('tensor', 2)}, 1, 2)")
        elif form == 1:
            self.line(f"*{s}, {i} = {self.some('ints', 1)}")
            self.bound("int", i)
            self.bound("list", s)
            return
        elif form == 2:
            self.line(f"{i} = {j} = {self.some('int', 2)}")
            self.bound("int", j)
            self.bound("int", i)
            return
        elif form == 3:
            self.line(f"{i}, {t} = Pair({self.some('int', 0)}, {self.some('tensor', 1)})")
            self.bound("int", i)
            self.bound("tensor", t)
            return
        else:
            known = [n for n in self.kinds.get("tensor", ()) if n in self.writable]
            if len(known) > 1:
                a, b = self.random.sample(known, 2)
                self.line(f"{a}, {b} = {b}, {a}")
            return
        self.bound("int", i)
        self.bound("tensor", t)
        self.bound("list", s)

    @rule("simple", 2, "globals")
    def change_global(self) -> None:
        i = self.some("int", 1)
        self.line(
            self.one(
                f"TOTAL = TOTAL + {i}", f"TOTAL = {i}", f"NAMES.append({self.some('str', 1)})", f"TABLE['g'] = {i}", f"TABLE[{i}] = {self.any(0)}",
                f"KEPT.count += {i}", f"KEPT.value = {self.some('tensor', 1)}", "NAMES = [*NAMES, 'n']", f"decorated.mark = {i}", f"TABLE = {{'g': {i}}}",
                f"LATE = {i}", f"globals()['DYNAMIC'] = {i}" if self.chance(0.1) else f"KEPT.items.append({i})",
            )
        )  # fmt: skip

    @rule("simple", 2)
    def write_log(self) -> None:
        self.line(f"log.append({self.one(self.some('str', 2), self.some('int', 2), self.some('bool', 2))})")

    @rule("simple", 2, "breaks")
    def break_graph(self) -> None:
        t = self.var("tensor")
        self.line(
            self.one(
                f"print({self.some('int', 1)}, {self.some('str', 0)})", f"opaque({self.var('list')})", f"change_outside({self.var('list')}, {self.some('int', 0)})",
                f"change_outside({self.var('box')}.items, {self.some('int', 0)})", f"print(f'{{{self.quoteless('int')}}}', end='')", f"opaque(lambda: {self.var('int')})",
                "torch._dynamo.graph_break()", f"float({t}.detach().sum())", f"print(len({self.var('list')}))", f"print('x', {t}.shape)", "opaque(log).append('o')",
            )
        )  # fmt: skip

    @rule("simple", 2, "modules")
    def change_module(self) -> None:
        self.line(
            self.one(
                f"net.calls += {self.some('int', 0)}", f"net.seen.append({self.some('int', 1)})", f"net.total = {self.some('row', 1)}.detach()",
                f"net.last = {self.some('tensor', 1)}", "net.reset()", "net.steps += 1", "net.total.add_(1)", "net.steps.add_(1)", f"net.blocks[0].scale = {self.some('float', 1)}",
                f"net.extra = {self.any(1)}", "net.named['only'].scale *= 0.5", "log.append([name for name, _ in net.named_parameters()])", "log.append(len(net.blocks))",
                "log.append(net.training)", "net.eval()" if self.chance(0.2) else "net.calls = 0", "log.append(sum(1 for _ in net.buffers()))", f"net.seen = {self.var('list')}",
            )
        )  # fmt: skip

    @rule("simple", 2, "raising")
    def raise_or_assert(self) -> None:
        self.line(self.raising(0.8))

    def raising(self, guarded: float) -> str:
        """A statement that raises, mostly behind a condition."""
        raises = self.one(
            "raise ValueError('v')", f"raise CodedError({self.some('int', 0)}, 'more')", "raise KeyError('q')", "raise ProgramError", f"assert {self.some('bool', 0)}, 'no'",
            "raise IndexError(1, 2) from None", f"assert {self.some('int', 0)} > 0", "[].pop()", "{}['missing']", "1 / 0", "int('x')", "None.nothing", "fail_outside(KeyError, 'o')",
            "fail_outside(CodedError, 3)", "next(iter([]))", "raise ZeroDivisionError('z')", f"raise type(CodedError(1))({self.some('int', 0)})", "undefined_name", "(lambda a: a)()",
            "a_pair, of_two = [1, 2, 3]", "raise ProgramError('p') from ValueError('cause')", f"[][{self.some('int', 0)}]", "(1)()", "'a' + 1", "torch.ones(2) + torch.ones(3)",
        )  # fmt: skip
        return f"if {self.some('bool', 1)}: {raises}" if self.chance(guarded) else raises

    @rule("simple", 0.4)
    def leave(self) -> None:
        if self.loops and self.chance(0.7):
            self.line(f"if {self.some('bool', 1)}: {self.one('break', 'continue')}")
        elif self.returns and self.chance(0.4):
            self.line(f"if {self.some('bool', 1)}: return {self.result()}")

    @rule("simple", 0.3)
    def delete(self) -> None:
        known = [n for n in self.kinds.get("int", ()) if n in self.writable and len(self.kinds["int"]) > 2]
        # A variable that a nested function shares is, behind a break, one of an enclosing function, and said to be one.
        if known and not self.loops and "closures" not in self.features:
            name = self.random.choice(known)
            self.line(f"del {name}")
            if not self.chance(0.1):
                self.kinds["int"].remove(name)

    @rule("simple", 1, "generators")
    def drive_generator(self) -> None:
        g, k = self.name("gen"), self.random.randint(1, 4)
        self.line(f"{g} = {self.one('numbers', 'delegating')}({k}, log)")
        for _ in range(self.random.randint(1, 3)):
            self.line(
                self.one(
                    f"log.append(next({g}, 'end'))", f"log.append({g}.send(None))", f"{g}.close()", f"log.append({g}.throw(ValueError('t')))",
                    f"{g}.throw(KeyError)", f"log.extend({g})", f"next({g})", f"log.append({g}.send({self.some('int', 0)}))",
                )
            )  # fmt: skip
        self.bound("gen", g)

    @rule("simple", 0.5, "finalizers")
    def object_that_ends(self) -> None:
        e = self.name("ending")
        made = f"Ending(log, {e!r})"
        self.line(f"{e} = {made}")
        for _ in range(self.random.randint(1, 3)):
            self.line(
                self.one(
                    f"log.append({e}.name)", f"{self.var('box')}.end = {e}", f"{self.var('list')}.append({e})", f"{self.var('dict')}['end'] = {e}",
                    f"{e} = {made}", f"{e} = {e}, {made}" if self.chance(0.3) else made, f"ended_before(log, {self.some('tensor', 1)})",
                    f"{self.var('dict')}.pop('end', None)", f"log.append([{e}, {made}][0] is {e})", f"{e} = {e} if {self.some('bool', 1)} else None",
                )
            )  # fmt: skip
            if self.chance(0.3):
                self.statement()

    @rule("simple", 1, "identity")
    def share(self) -> None:
        a, b = self.var("list"), self.var("dict")
        self.line(
            self.one(
                f"{b}['shared'] = {a}", f"{a}.append({b})" if self.chance(0.3) else f"{a}.append({a}[:])", f"{self.var('box')}.items = {a}",
                f"{self.var('box')}.value = {self.var('tensor')}", f"log.append({self.var('list')})",
            )
        )  # fmt: skip

    # Functions.

    @rule("simple", 2, "closures")
    def nested_function(self) -> None:
        f, t = self.name("func"), self.var("tensor")
        star, key = self.one("", ", *rest"), self.one("", f", key={self.some('int', 0)}")
        if key and not star:
            star = ", *"
        self.line(f"def {f}(v, w={self.some('int', 0)}{star}{key}):")
        with self.function({"tensor": ["v"], "int": ["w", *(["key"] if key else [])]}):
            shared = [n for n in self.kinds["int"] if n not in ("w", "key") and n in self.outer_locals]
            if shared and self.chance(0.6):
                name = self.random.choice(shared)
                self.line(f"nonlocal {name}")
                self.writable.add(name)
                self.line(f"{name} {self.one('+=', '-=')} {self.random.randint(1, 3)}")
            for _ in range(self.random.randint(0, 2)):
                self.statement()
            self.line(f"return {self.one('v', self.some('tensor', 2))}")
        self.bound("func", f)
        if self.chance(0.7):
            self.bind("tensor", f"{f}({t}{self.one('', ', 2', ', w=1')})")
        if self.chance(0.15):
            self.line(f"{f}.mark = {self.some('int', 0)}")
        if self.chance(0.2):
            self.line(f"{self.one(self.var('list') + '.append(' + f + ')', self.var('box') + '.hook = ' + f)}")

    @rule("simple", 1, "closures")
    def nested_generator(self) -> None:
        f, k = self.name("maker"), self.random.randint(0, 3)
        self.line(f"def {f}(count):")
        with self.function({"int": ["count"]}, returns=False):
            self.line("for turn in range(count):")
            self.loops += 1
            with self.indented():
                for _ in range(self.random.randint(0, 2)):
                    self.statement()
                self.line(f"{self.one('', 'sent = ')}yield {self.any(2)}")
            self.loops -= 1
        form = self.random.randrange(3)
        if form == 0:
            self.bind("list", f"list({f}({k}))")
        elif form == 1:
            self.bind("gen", f"{f}({k})")
        else:
            self.line(f"for item in {f}({k}):")
            self.loops += 1
            self.block(2)
            self.loops -= 1

    @rule("simple", 0.7, "closures")
    def counting_closure(self) -> None:
        name = self.name("step")
        self.line(f"{name} = {self.one('counter', 'STEP and counter')}({self.some('int', 0)})")
        self.line(f"{self.one(name + '()', name + '(2)', 'log.append(' + name + '())')}")
        self.bind("int", f"{name}({self.some('int', 0)})")
        if self.chance(0.3):
            self.line(f"{self.var('list')}.append({name})")

    @rule("simple", 0.3, "classes")
    def nested_class(self) -> None:
        name = self.name("Kind").capitalize()
        self.line(f"class {name}({self.one('Box', 'Base')}):")
        with self.indented():
            self.line(f"level_of = {self.random.randint(0, 3)}")
            self.line("def bump(self, by=1):")
            self.line("    return super().bump(by + self.level_of)")
        self.line(f"{self.target('box')} = {name}({self.var('tensor')})")

    @contextlib.contextmanager
    def function(self, parameters: dict[str, list[str]], returns: bool = True) -> Iterator[None]:
        """The body of a nested function: names around it can be read, its own bound."""
        saved = (self.kinds, self.writable, self.loops, self.returns, self.depth, self.budget)
        self.outer_locals, own = set(self.writable), {n for names in parameters.values() for n in names}
        self.kinds = {k: [n for n in v if n not in own] for k, v in self.kinds.items()}
        for kind, names in parameters.items():
            self.kinds[kind] = [*self.kinds.get(kind, []), *names, *names]
        self.writable = own
        self.loops, self.returns, self.nested = 0, returns, self.nested + 1
        self.indent += 1
        self.depth += 2
        self.budget = min(self.budget, 3)
        spent = self.budget
        if "globals" in self.features:
            self.line("global TOTAL, NAMES, TABLE, LATE")
        yield
        spent -= self.budget
        self.indent -= 1
        self.nested -= 1
        self.kinds, self.writable, self.loops, self.returns, self.depth, budget = saved
        self.budget = budget - spent

    # Compound statements.

    @rule("compound", 4)
    def if_(self) -> None:
        self.line(f"if {self.some('bool', 2)}:")
        self.block(3)
        while self.chance(0.2):
            self.line(f"elif {self.some('bool', 2)}:")
            self.block(2)
        if self.chance(0.5):
            self.line("else:")
            self.block(2)

    @rule("compound", 4)
    def for_(self) -> None:
        i, t, k = self.name("int"), self.name("tensor"), self.random.randint(0, 3)
        bound: dict[str, str] = {"int": i}
        over = self.random.randrange(9)
        if over == 0:
            head = f"{i}, {t} in enumerate([{self.some('tensor', 1)}, {self.some('tensor', 1)}])"
            bound["tensor"] = t
        elif over == 1:
            head = f"{t} in ({self.some('tensor', 1)}, {self.some('tensor', 1)})"
            bound = {"tensor": t}
        elif over == 2:
            head = f"key, held in list({self.var('dict')}.items())[:3]"
            bound = {}
        elif over == 3:
            head = f"{i}, other in zip(range({k}), {self.var('list')})"
        elif over == 4:
            head = f"{i} in {self.some('ints', 1)}[:3]"
        elif over == 5 and "generators" in self.features:
            head = f"{i} in {self.one(f'numbers({k}, log)', f'Countdown({k})', f'(v + 1 for v in range({k}))')}"
        elif over == 6 and "objects" in self.features:
            head = f"{i} in list({self.var('vec')})"
        elif over == 7:
            head = f"held in {self.var('list')}[:2]"
            bound = {}
        else:
            head = f"{i} in range({self.one(str(k), 'min(3, max(0, ' + self.var('int') + '))')})"
        self.line(f"for {head}:")
        self.loop_body(bound)

    def loop_body(self, bound: dict[str, str], first: str | None = None) -> None:
        self.loops += 1
        with self.indented():
            if first:
                self.line(first)
            for kind, name in bound.items():
                self.bound(kind, name)
            for _ in range(self.random.randint(1, 3)):
                self.statement()
            if self.chance(0.35):
                self.line(f"if {self.some('bool', 1)}: {self.one('break', 'continue')}")
                self.statement()
        self.loops -= 1
        if self.chance(0.2):
            self.line("else:")
            self.block(2)

    @rule("compound", 1.5)
    def while_(self) -> None:
        counter = self.name("while")
        self.line(f"{counter} = 0")
        self.line(f"while {counter} < {self.random.randint(1, 3)}{self.one('', ' and ' + self.some('bool', 1))}:")
        self.loop_body({}, f"{counter} += 1")

    @rule("compound", 4, "raising")
    def try_(self) -> None:
        self.line("try:")
        with self.indented():
            for _ in range(self.random.randint(0, 2)):
                self.statement()
            if self.chance(0.7):
                self.line(self.raising(0.5))
            self.statement()
        caught = self.chance(0.85)
        if caught:
            for kinds in self.random.sample(
                ["ValueError", "(KeyError, IndexError)", "ProgramError", "Exception", "ArithmeticError"],
                self.random.randint(1, 2),
            ):
                self.line(f"except {kinds}{self.one('', ' as error')}:")
                with self.indented():
                    if self.lines[-1].endswith("as error:"):
                        self.line(
                            self.one(
                                "log.append(type(error).__name__)",
                                "log.append(error.args)",
                                "log.append(str(error))",
                                # Without the traceback, whose frames keep what resumed code lets go of.
                                f"{self.var('list')}.append(error.with_traceback(None))",
                                "log.append(repr(error))",
                            )
                        )
                        if self.chance(0.1):
                            self.line("log.append(type(error.__context__).__name__)")
                    for _ in range(self.random.randint(0, 2)):
                        self.statement()
                    if self.chance(0.2):
                        self.line(
                            self.one(
                                "raise",
                                f"if {self.some('bool', 1)}: raise",
                                "raise RuntimeError('again')",
                                "raise CodedError(5) from None",
                            )
                        )
                if kinds == "Exception":
                    break
            if self.chance(0.3):
                self.line("else:")
                self.block(2)
        if not caught or self.chance(0.4):
            self.line("finally:")
            with self.indented():
                self.line("log.append('finally')")
                saved, self.loops, self.returns = (self.loops, self.returns), 0, False
                self.statement()
                self.loops, self.returns = saved

    @rule("compound", 3, "managers")
    def with_(self) -> None:
        manager = self.one(
            "Guarded(log)", f"Guarded(log, 'h', {self.one('Exception', '(ValueError, KeyError)', 'ProgramError')}) as g", "managed(log) as m", "managed(log, True)", "torch.no_grad()",
            "contextlib.suppress(KeyError, ValueError)", "Guarded(log, 'a'), Guarded(log, 'b')", "contextlib.nullcontext(3) as c", "torch.enable_grad()", f"{self.var('dyn')} as d",
            "torch.set_grad_enabled(False)", "contextlib.ExitStack()" if self.chance(0.3) else "Guarded(log, 'c')",
        )  # fmt: skip
        self.line(f"with {manager}:")
        with self.indented():
            for _ in range(self.random.randint(1, 3)):
                self.statement()
            if "raising" in self.features and self.chance(0.35):
                self.line(self.raising(0.5))

    @rule("compound", 2, "matching")
    def match(self) -> None:
        subject = self.one(
            self.some("int", 1),
            self.var("list"),
            self.var("dict"),
            f"Point({self.some('int', 0)}, 2)",
            self.some("str", 1),
            self.var("box"),
            "Color.RED",
            f"({self.some('int', 0)}, {self.some('tensor', 0)})",
        )
        self.line(f"match {subject}:")
        cases = [
            "case 0 | 1 | 2:", "case [first, *others]:", "case {'k': held, **others}:", "case Point(x=0 | 1 as px):", "case Point(px, 2):", "case 'k' | 'a':", "case str() as text:",
            "case int(number) if number > 2:", "case Box(count=0) as found:", "case Color.RED:", "case (1, held):", "case []:", "case [_, _]:", "case {}:", "case Base(count=c):",
            "case [int(), torch.Tensor()]:", "case None:", "case (0 | 1) as small:",
        ]  # fmt: skip
        self.indent += 1
        for case in self.random.sample(cases, self.random.randint(1, 4)):
            self.line(case)
            self.block(2)
        self.line("case _:")
        self.block(2)
        self.indent -= 1

    # The program.

    def result(self) -> str:
        """What a function gives back: some of its variables."""
        names = [n for kind in sorted(self.kinds) for n in self.kinds[kind] if n in self.writable and kind != "gen"]
        chosen = self.random.sample(names, min(len(names), self.random.randint(1, 5)))
        if self.chance(0.3):
            chosen.append(self.any(1))
        if self.chance(0.2):
            return f"{{{', '.join(f'{n!r}: {n}' for n in chosen)}}}"
        return f"({', '.join(chosen)},)"

    def helper(self) -> str:
        name = f"helper{len(self.helpers)}"
        self.line(f"def {name}(x, n=1, items=None, log=None, *rest, key=0, **named):")
        self.body(
            {"tensor": ["x"], "int": ["n", "key"], "list": ["items"], "dict": ["named"]},
            self.random.randint(1, 5),
            None,
        )
        self.indent = 0
        self.line("")
        return name

    def body(self, kinds: dict[str, list[str]], budget: int, result: str | None) -> None:
        """Statements of a function of the module, and what it returns (a tensor where ``result`` is None)."""
        self.kinds, self.writable = kinds, {n for names in kinds.values() for n in names}
        self.budget, self.depth, self.loops, self.returns, self.nested = budget, 0, 0, result is not None, 0
        self.indent += 1
        if "globals" in self.features:
            self.line("global TOTAL, NAMES, TABLE, LATE")
        if result is None:
            self.line("items = [] if items is None else items")
            self.line("log = [] if log is None else log")
        while self.budget > 0:
            self.statement()
        self.line(f"return {self.some('tensor', 2) if result is None else self.result()}")

    def program(self) -> str:
        """The module's text.  ``entry`` in it is called."""
        self.lines = []
        for _ in range(self.random.randint(0, 2)):
            self.helpers = [*self.helpers, self.helper()]
        entry = self.random.choice(ENTRIES)
        kinds = {"tensor": ["x", "y"], "int": ["n"], "list": ["items"], "dict": ["table"], "bool": ["flag"]}
        if "objects" in self.features:
            kinds |= {"box": ["box"], "vec": ["vec"], "dyn": ["dyn"]}
        parameters = "x, y, n, items, table, box, vec, dyn, net, log, *rest, flag=False, **named"
        budget = self.random.choice((3, 6, 9, 12, 16))
        if entry == "method":
            self.lines += ["class Holder:", "    def __init__(self):", "        self.state, self.held = 0, []"]
            self.indent = 1
            self.line(f"def program(self, {parameters}):")
            self.indent = 2
            self.line("self.state += 1")
            self.line("self.held.append(self.state)")
            self.indent = 1
        elif entry == "module":
            self.lines += [
                "class Holder(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                "        self.state = 0",
            ]
            self.lines += ["        self.inner = Block(7)", "        self.register_buffer('mean', torch.zeros(3))"]
            self.indent = 1
            self.line(f"def forward(self, {parameters}):")
            self.indent = 2
            self.line("self.state += n")
            self.line("x = self.inner(x) + self.mean")
            self.indent = 1
        elif entry == "closure":
            self.lines += ["def make():", "    state, history = 0, []"]
            self.indent = 1
            self.line(f"def program({parameters}):")
            self.indent = 2
            self.line("nonlocal state")
            self.line("state += 1")
            self.line("history.append(state)")
            self.indent = 1
        else:
            self.line(f"def program({parameters}):")
        self.body(kinds, budget, "")
        self.indent = 0
        made = {
            "method": "holder = Holder(); entry = holder.program",
            "module": "holder = entry = Holder()",
            "closure": "    return program, (lambda: (state, history))",
        }
        self.line(made.get(entry, "entry = program"))
        if entry == "closure":
            self.line("entry, holder = make()")
        self.line(f"BY_KEYWORD = {entry == 'keywords'}")
        if "hooks" in self.features and self.chance(0.5):
            self.line("WITH_HOOKS = True")
        for feature in sorted(self.settings & {"signed", "inference"}):
            self.line(f"{feature.upper()} = True")
        if self.around:
            self.line("CHECKPOINTED = True")
        return PRELUDE + MARK + "\n".join(self.lines) + "\n"


Writer.RULES = rules_of(Writer)


def program_of(seed: int, later: bool = True) -> str:
    """The text of the program of a seed."""
    return Writer(seed, later).program()


def features_of(seed: int) -> Any:
    """Features of the program of a seed."""
    return Writer(seed).features
