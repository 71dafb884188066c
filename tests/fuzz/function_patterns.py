"""Rarer forms of Python, as statements of random functions: exception groups, guards of patterns, generators that are
driven by hand, classes that close over names, functions with all kinds of parameters, leaving through ``finally``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.fuzz.function_expressions import Expressions, rule

_KINDS = ("ValueError", "KeyError", "(KeyError, IndexError)", "ProgramError", "ArithmeticError", "TypeError")


class Patterns(Expressions):
    """Statements over what ``Writer`` keeps; each writes lines and says what it bound."""

    loops: int
    returns: bool

    # Exceptions.

    @rule("compound", 2, "groups")
    def try_star(self) -> None:
        self.line("try:")
        with self.indented():
            for _ in range(self.random.randint(0, 2)):
                self.statement()
            if self.chance(0.85):
                self.line(self.group_raised() if self.chance(0.7) else self.raising(0.3))
            self.statement()
        for number, kinds in enumerate(self.random.sample(_KINDS, self.random.randint(1, 3))):
            named = self.chance(0.7)
            self.line(f"except* {kinds}{f' as group{number}' if named else ''}:")
            with self.indented(), self.staying():
                if named:
                    self.line(
                        self.one(
                            f"log.append(repr(group{number}))", f"log.append(len(group{number}.exceptions))",
                            f"log.append([type(e).__name__ for e in group{number}.exceptions])", f"log.append(str(group{number}))",
                            f"{self.var('list')}.append(group{number}.message)", f"log.append(group{number}.split(ValueError)[0])",
                        )
                    )  # fmt: skip
                for _ in range(self.random.randint(0, 2)):
                    self.statement()
                if self.chance(0.25):
                    again = f"raise group{number}" if named else "raise"
                    self.line(self.one("raise", again, "raise RuntimeError('again')", "raise CodedError(5) from None"))
        if self.chance(0.25):
            self.line("else:")
            self.block(2)
        if self.chance(0.3):
            self.line("finally:")
            with self.indented(), self.staying():
                self.line("log.append('finally')")
                self.statement()

    def group_raised(self) -> str:
        """A statement that raises a group, mostly behind a condition."""
        i = self.some("int", 0)
        inner = self.one(
            "ExceptionGroup('h', [ValueError(1), KeyError(2)])", "TypeError('t')", "ProgramError()", "ValueError(0)"
        )
        group = f"ExceptionGroup({self.one(repr('g'), self.some('str', 0))}, [ValueError({i}), {inner}])"
        return self.one(
            f"raise {group}", f"if {self.some('bool', 1)}: raise {group}", f"raise {group} from KeyError('c')",
            f"raise ExceptionGroup('o', [{group}, CodedError({i})])", "raise BaseExceptionGroup('b', [IndexError(1)])",
        )  # fmt: skip

    @contextlib.contextmanager
    def staying(self) -> Iterator[None]:
        """A block that may not be left by ``break``, ``continue`` or ``return``."""
        saved, self.loops, self.returns = (self.loops, self.returns), 0, False
        yield
        self.loops, self.returns = saved

    @rule("compound", 2, "leaving")
    def leave_through_finally(self) -> None:
        i, k = self.name("int"), self.random.randint(1, 3)
        self.line(f"for {i} in range({k}):")
        self.loops += 1
        with self.indented():
            self.bound("int", i)
            self.line("try:")
            with self.indented():
                self.statement()
                self.line(f"if {self.some('bool', 1)}: {self.way_out()}")
                if "raising" in self.features and self.chance(0.5):
                    self.line(self.raising(0.7))
                self.statement()
            if self.chance(0.4):
                self.line("except (ValueError, LookupError, ProgramError) as error:")
                with self.indented():
                    self.line("log.append(type(error).__name__)")
                    self.line(self.one(self.way_out(), "pass", "raise"))
            self.line("finally:")
            with self.indented():
                self.line(f"log.append(({i}, 'left'))")
                self.statement()
                if self.chance(0.3):
                    self.line(f"if {self.some('bool', 0)}: {self.way_out()}")
        self.loops -= 1
        if self.chance(0.3):
            self.line("else:")
            self.block(1)

    def way_out(self) -> str:
        return self.one("break", "continue", *([f"return {self.result()}"] if self.returns else []))

    @rule("simple", 0.6, "leaving")
    def use_what_is_deleted(self) -> None:
        name, kind = self.name("int"), self.one("tensor", "int", "list")
        self.line(f"{name} = {self.some(kind, 1)}")
        self.line("try:")
        with self.indented():
            self.line(f"if {self.some('bool', 0)}: del {name}")
            self.statement()
            self.line(f"log.append({name} is None)")
            self.line(f"del {name}")
            self.line(self.one(f"{name}", f"log.append({name})", f"del {name}"))
        self.line("except NameError as error:")
        with self.indented():
            self.line(self.one("log.append(str(error))", "log.append(type(error).__name__)"))

    # Comprehensions.

    @rule("simple", 1.5, "breaks")
    def break_in_comprehension(self) -> None:
        i, k, t = self.var("int"), self.random.randint(0, 3), self.var("tensor")
        self.bind(
            "list",
            self.one(
                f"[opaque(v) + {i} for v in range({k})]", f"[opaque(lambda: v + {i})() for v in range({k})]",
                f"[v for v in range({k}) if opaque(v) != {i}]", f"[f() for f in [lambda: (v, {i}) for v in range({k})]]",
                f"[opaque({t}) * v for v in range({k}) if int({t}.detach().sum().nan_to_num().clamp(-9, 9)) < 99]",
                f"[(a, opaque(b)) for a in range({k}) for b in range(2) if a != opaque(b)]", f"[[opaque(a) for a in range(b)] for b in range({k})]",
                f"list({{v: opaque({i}) for v in range({k})}}.items())", f"sorted({{opaque(v) % 2 for v in range({k})}})",
                f"list(opaque(v) for v in range({k}))", f"[change_outside({self.var('list')}, v) for v in range({k})]",
            ),
        )  # fmt: skip

    @rule("simple", 1, "walrus")
    def walrus_in_comprehension(self) -> None:
        name, made, k = self.name("int"), self.name("list"), self.random.randint(1, 3)
        self.line(
            self.one(
                f"{made} = [{name} := v + {self.some('int', 0)} for v in range({k})]",
                f"{made} = [v for v in range({k}) if ({name} := v * 2) > 1]",
                f"{made} = [({name} := v, w) for v in range({k}) for w in range(2)]",
                f"{made} = list({{v: ({name} := v + 1) for v in range({k})}})",
                f"{made} = [any(({name} := v) > 1 for v in range({k}))]",
                f"{made} = [(lambda: {self.var('int')})() for v in range({k}) if ({name} := v) >= 0]",
            )
        )
        self.bound("int", name)
        self.bound("list", made)

    # Patterns.

    @rule("compound", 1.5, "matching")
    def match_with_guards(self) -> None:
        subject = self.one(
            self.some("int", 1), self.var("list"), self.var("dict"), f"Point({self.some('int', 0)}, {self.some('int', 0)})",
            f"({self.some('int', 0)}, {self.some('str', 0)}, {self.some('tensor', 0)})", f"Frozen({self.some('int', 0)})", self.some("tensor", 0),
            f"{{'k': {self.some('int', 0)}, 'l': [{self.any(0)}]}}", f"Keyed(left={self.some('int', 0)})",
        )  # fmt: skip
        self.line(f"match {subject}:")
        guard = self.some("bool", 1)
        cases = [
            f"case int() as found if {guard}:", f"case [first, *others] if {guard}:", "case [int(a), *_] if a > 0:", "case {'k': int(k)} if k % 2:",
            "case Point(x=a, y=b) if a == b:", "case Frozen(rank=r, name='f') if r > 0:", "case (a, str() as text, torch.Tensor() as t) if t.dim() == 2:",
            f"case torch.Tensor(shape=(rows, 3)) if {guard}:", "case {'k': k, 'l': [held]}:", "case Keyed(left=left, right=0 | 1) if left is not None:",
            "case [a, b] | [a, b, _] if isinstance(a, int):", "case {**everything} if len(everything) > 1:", "case (found := 0) if False:" if False else "case found if not found:",
        ]  # fmt: skip
        if "breaks" in self.features:
            cases += [
                "case [first, *_] if opaque(first) is not None:",
                "case int(a) if opaque(a) > 0:",
                "case {'k': held} if opaque(held):",
            ]
        self.indent += 1
        for case in self.random.sample(cases[:-1], self.random.randint(1, 4)):
            self.line(case)
            self.block(2)
        self.line("case _:")
        self.block(1)
        self.indent -= 1

    # Generators.

    @rule("simple", 1.5, "generators")
    def generator_driven_by_hand(self) -> None:
        f, g, k = self.name("maker"), self.name("gen"), self.random.randint(1, 3)
        self.line(f"def {f}(count):")
        with self.function({"int": ["count"]}, returns=False):
            self.line(self.one("try:", "with contextlib.suppress(KeyError):"))
            tried = self.lines[-1].endswith("try:")
            with self.indented():
                self.line("for turn in range(count):")
                with self.indented():
                    self.line(f"got = yield {self.any(1)}")
                    self.line("log.append(got)")
                    self.statement()
                if self.chance(0.4):
                    self.line(
                        f"log.append((yield from {self.one('numbers(2, log)', 'delegating(1, log)', 'range(2)')}))"
                    )
            caught = tried and self.chance(0.6)
            if caught:
                self.line("except ValueError as error:")
                with self.indented():
                    self.line("log.append(str(error))")
                    self.line(self.one("yield 'after'", "return 7", "raise KeyError('r')", "raise"))
            if tried and (not caught or self.chance(0.6)):
                self.line("finally:")
                with self.indented():
                    self.line("log.append('ended')")
        self.line(f"{g} = {f}({k})")
        self.line("try:")
        with self.indented():
            self.line(f"log.append(next({g}))")
            for _ in range(self.random.randint(1, 4)):
                self.line(
                    self.one(
                        f"log.append({g}.send({self.some('int', 0)}))", f"log.append({g}.throw(ValueError('t')))", f"{g}.close()", f"log.append(next({g}, 'end'))",
                        f"log.append({g}.throw(KeyError('k')))", f"log.extend({g})", f"for item in {g}: log.append(item)", f"log.append({g}.send(None))",
                    )
                )  # fmt: skip
                if self.chance(0.3):
                    self.statement()
        self.line("except (StopIteration, ValueError, KeyError) as error:")
        with self.indented():
            self.line(self.one("log.append(type(error).__name__)", "log.append(error.args)"))
        self.bound("gen", g)

    # Functions and classes.

    @rule("simple", 1.5, "parameters")
    def function_of_all_parameters(self) -> None:
        f, i = self.name("func"), self.some("int", 0)
        default = self.one("[]", "{}", f"[{i}]", "(1,)", self.var("list"))
        self.line(f"def {f}(v, /, w={i}, *args, acc={default}, key={self.some('str', 0)}, **kw):")
        with self.function({"tensor": ["v"], "int": ["w"], "str": ["key"]}):
            self.line(
                self.one(
                    "len(acc) < 9 and isinstance(acc, list) and acc.append(w)", "kw['more'] = len(args)", "isinstance(acc, dict) and acc.update(kw)",
                    "args = [*args, key]", "log.append(sorted(kw))", "w = w + len(args) if isinstance(w, int) else 0",
                )
            )  # fmt: skip
            self.statement()
            self.line(
                self.one(
                    "return v",
                    "return v * len(acc) + len(args)",
                    "return v + len(kw)",
                    f"return {self.some('tensor', 1)}",
                )
            )
        t = self.var("tensor")
        for _ in range(self.random.randint(1, 3)):
            self.bind(
                "tensor",
                self.one(
                    f"{f}({t})", f"{f}({t}, 2, 3, 4)", f"{f}({t}, *[1, 2], key='z')", f"{f}({t}, **{{'w': 1, 'late': 2}})", f"{f}({t}, acc=[5], extra={i})",
                    f"{f}(*({t}, 1), **dict(key='y', v=3))", f"functools.partial({f}, {t}, key='p')(2)", f"{f}({t}, {i}, *{self.some('ints', 0)})",
                ),
            )  # fmt: skip
        if self.chance(0.3):
            self.line(
                f"log.append({self.one(f'{f}.__defaults__', f'{f}.__kwdefaults__', f'{f}.__name__', f'{f}.__code__.co_argcount')})"
            )

    @rule("simple", 0.5, "classes")
    def class_over_names(self) -> None:
        name, i, t = self.name("Kind").capitalize(), self.var("int"), self.var("tensor")
        self.line(f"class {name}({self.one('Box', 'Base', 'Box')}):")
        with self.indented(), self.staying():
            self.line(f"held = [{i}]")
            self.line(
                self.one(
                    f"twice_held = {i} * 2",
                    f"table = {{v: v for v in range(len({self.var('list')}[:3]))}}",
                    f"kept = {t}",
                    f"if {i}: flag = {i}",
                )
            )
            self.line("def bump(self, by=1):")
            self.line(
                f"    return super().bump(by) + {self.one(i, 'self.held[0]', 'len(self.held)', 'len(__class__.held)')}"
            )
            if self.chance(0.5):
                self.line("@functools.cached_property")
                self.line("def weight(self):")
                self.line(f"    log.append('weighed'); return self.value * {i}")
            if self.chance(0.4):
                self.line("def __init_subclass__(cls, **named):")
                self.line("    log.append(cls.__name__); super().__init_subclass__(**named)")
        made = self.name("box")
        self.line(f"{made} = {name}({t})")
        self.line(
            self.one(
                f"log.append({made}.bump())",
                f"{made}.held.append(1)",
                f"log.append(getattr({made}, 'weight', 0))",
                f"log.append({name}.held)",
            )
        )
        self.bound("box", made)

    @rule("simple", 0.5, "classes")
    def named_tuple_made(self) -> None:
        """A class that each call makes anew, and an instance of it."""
        kind, t, i = self.name("Row").capitalize(), self.var("tensor"), self.some("int", 0)
        default = self.one("3", "None", "(1, 2)")
        self.line(f"{kind} = collections.namedtuple({kind!r}, 'left right', defaults=[{default}])")
        made = self.name("row")
        how = self.one(
            f"{kind}({t}, {i})", f"{kind}(left={t})", f"{kind}._make([{t}, {i}])", f"{kind}({t})._replace(right={i})",
        )  # fmt: skip
        self.line(f"{made} = {how}")
        self.line(
            self.one(
                f"log.append({made}.right)", f"log.append({made}._fields)", f"log.append(type({made}).__name__)",
                f"log.append(list({made}._asdict()))", f"log.append(isinstance({made}, {kind}) and {made}[1])",
            )
        )  # fmt: skip
        self.bind("tensor", f"{made}.left")

    @rule("simple", 1, "remembered")
    def remember(self) -> None:
        """Calls of functions that remember results.  They have no side effects: capture may make such a call."""
        i = self.some("int", 0)
        self.line(
            self.one(
                f"log.append(remembered({i}))", f"log.append(remembered({i}, k=1))", "remembered.cache_clear()",
                f"log.append(remembered({i}) + remembered({i}))", f"log.append(halves({self.some('str', 0)}))", f"log.append({self.var('box')}.cached is {self.var('box')}.cached)",
                f"log.append(Keyed(left={i}).total)", f"{self.var('list')}.append(Keyed(left={i}))",
            )
        )  # fmt: skip

    # Expressions.

    @rule("str", 1.5, "text")
    def str_of_sizes(self, d: int) -> str:
        t, i = self.var("tensor"), self.quoteless("int")
        return self.one(
            f"f'{{{t}.shape[0]:>4d}}|'", f"f'{{{t}.size(-1):{{{t}.dim()}}}}'", f"f'{{{t}.numel():,}}'", f"f'{{{t}.shape!r:>20}}'", f"f'{{{t}.shape[0] / 3:.2f}}'",
            f"f'{{{i}:+d}}'", f"f'{{{t}.numel() * 0.5:e}}'", f"f'{{{t}.ndim:03}}{{{t}.dtype!s:>15}}'", f"'{{:>{{}}}}'.format({t}.shape[1], 5)", f"format({t}.size(0), '>3')",
            f"'%3d/%s' % ({t}.shape[0], tuple({t}.shape))", f"f'{{len({t})=}}'", f"f'{{[*{t}.shape]}}'", f"f'{{{t}.shape[0]:{{\"<\"}}5}}'" if d < -9 else f"f'{{{i}:b}}'",
        )  # fmt: skip

    @rule("bool", 1, "objects")
    def bool_of_data_classes(self, d: int) -> str:
        i, j = self.some("int", d), self.some("int", 0)
        return self.one(
            f"(Frozen({i}) <= Frozen({j}, 'g'))", f"(Keyed(left={i}) == Keyed(left={j}))", f"(Keyed(left={i}) in {{Keyed(left={j}): 1}})",
            f"(dataclasses.replace(Frozen({i}), rank=1) > Frozen({j}))", f"(Point({i}, {j}) == Point({j}, {i}))", f"(hash(Frozen({i})) == hash(Frozen({j})))",
            f"(sorted([Frozen({i}), Frozen({j})])[0].rank < 2)", f"(max(Frozen({i}), Frozen({j})).name == 'f')", f"(Plain({i}) == Plain({j}))",
        )  # fmt: skip

    @rule("dict", 1, "objects")
    def dict_of_data_class(self, d: int) -> str:
        i = self.some("int", 0)
        return self.one(
            f"dataclasses.asdict(Point({i}, 1))",
            f"dataclasses.asdict(Keyed(left={i}))",
            f"vars(Point({i}))",
            f"dict(enumerate(dataclasses.astuple(Frozen({i}))))",
        )

    @rule("simple", 0.5, "raising")
    def change_what_is_frozen(self) -> None:
        self.line("try:")
        self.line(
            f"    {self.one('Frozen(1).rank = 2', 'Frozen(1).more = 2', 'del Frozen(1).name', 'Keyed(1)', 'Frozen() < 1', 'Frozen(1) < 2')}"
        )
        self.line("except (AttributeError, TypeError) as error:")
        self.line("    log.append(type(error).__name__)")
