"""Random expressions, by the kind of what they give.

Kinds: ``tensor`` (floats, N x 3), ``row`` (three floats), ``scalar`` (no dimension), ``int``, ``float``, ``str``, ``bool``,
``list``, ``dict``, ``set``, ``ints`` (a list of ints), ``box``, ``vec``, ``dyn``, ``func`` (tensor to tensor), ``gen`` (an iterator).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])

FEATURES = (
    "breaks", "raising", "managers", "generators", "finalizers", "closures", "classes", "modules", "in_place", "views", "globals",
    "matching", "sets", "text", "identity", "randomness", "objects", "hooks",
    "groups", "leaving", "walrus", "parameters", "remembered",
)  # fmt: skip
"""What a program may use beyond plain arithmetic, containers and control flow; each program draws some."""


def rule(kind: str, weight: float = 1.0, needs: str | None = None) -> Callable[[Rule], Rule]:
    """Mark a method as one way to write an expression, or a statement, of a kind."""

    def mark(method: Rule) -> Rule:
        method.__dict__.setdefault("rules", []).append((kind, weight, needs))
        return method

    return mark


def rules_of(cls: type) -> dict[str, list[tuple[str, float, str | None]]]:
    """For each kind the names of the methods that write it, with weights and the feature that each needs."""
    found: dict[str, list[tuple[str, float, str | None]]] = {}
    for name in dir(cls):
        for kind, weight, needs in getattr(getattr(cls, name), "rules", ()):
            found.setdefault(kind, []).append((name, weight, needs))
    return found


class Grammar:
    """Draws from the rules of a class; ``deep`` bounds how far expressions nest."""

    RULES: ClassVar[dict[str, list[tuple[str, float, str | None]]]]
    random: random.Random
    features: frozenset[str]
    kinds: dict[str, list[str]]

    def some(self, kind: str, deep: int = 2) -> str:
        """An expression of a kind."""
        known = self.kinds.get(kind)
        if known and (deep <= 0 or self.random.random() < 0.45):
            return self.random.choice(known)
        table = self.RULES[kind]
        usable = [(name, weight) for name, weight, needs in table if needs is None or needs in self.features]
        if deep <= 0:
            usable = [(name, weight) for name, weight in usable if name.startswith("leaf_")] or usable
        name = self.random.choices([n for n, _ in usable], [w for _, w in usable])[0]
        return getattr(self, name)(deep - 1)

    def var(self, kind: str) -> str:
        """A variable of a kind, or an expression where there is none."""
        known = self.kinds.get(kind)
        return self.random.choice(known) if known else self.some(kind, 1)

    def one(self, *texts: str) -> str:
        return self.random.choice(texts)


class Expressions(Grammar):
    """Writes expressions over the variables of ``kinds``."""

    helpers: list[str]
    generator: bool = False

    def any(self, deep: int = 1) -> str:
        return self.some(self.one("int", "tensor", "str", "int", "list", "float", "bool"), deep)

    # Tensors.

    @rule("tensor", 2)
    def leaf_tensor(self, d: int) -> str:
        return self.one("torch.ones(2, 3)", "torch.full((2, 3), 0.5)", "torch.arange(6.0).reshape(2, 3)", "KEPT.value")

    @rule("tensor", 5)
    def tensor_operator(self, d: int) -> str:
        right = self.random.choice(
            [self.some("tensor", d), self.some("int", 0), self.some("float", d), self.some("row", d)]
        )
        return f"({self.some('tensor', d)} {self.one('+', '-', '*')} {right})"

    @rule("tensor", 4)
    def tensor_function(self, d: int) -> str:
        t = self.some("tensor", d)
        return self.one(
            f"{t}.tanh()", f"torch.sin({t})", f"{t}.abs()", f"(-{t})", f"{t}.clone()", f"{t}.detach()", f"F.relu({t})",
            f"torch.where({t} > 0, {t}, 0.1)", f"torch.zeros_like({t})", f"{t}.clamp(-2, 2)", f"F.softmax({t}, dim=-1)",
            f"torch.full_like({t}, {self.some('int', 0)})", f"{t}.masked_fill({t} > 0.5, {self.some('float', 0)})",
            f"torch.stack([{t}, {t}]).mean(0)", f"torch.cat([{t}, {t}])[: {t}.shape[0]]", f"{t}.cumsum(0)",
            f"torch.stack([{t}, {t}])[{self.some('int', 0)} % 2, ...]",
        )  # fmt: skip

    @rule("tensor", 2, "views")
    def tensor_view(self, d: int) -> str:
        t = self.some("tensor", d)
        return self.one(
            f"{t}[:]", f"{t}.view_as({t})", f"{t}.t().t()", f"{t}.reshape(-1).reshape({t}.shape)", f"{t}[:, :]",
            f"{t}.unsqueeze(0).squeeze(0)", f"{t}.expand(*{t}.shape)", f"{t}.contiguous()", f"{t}.flip(0)", f"{t}[..., :3]",
            f"{t}.reshape(-1).flip(0).reshape({t}.shape)", f"{t}.requires_grad_(False)" if d < 0 else f"{t}.narrow(1, 0, 3)",
        )  # fmt: skip

    @rule("tensor", 3)
    def tensor_call(self, d: int) -> str:
        t, i = self.some("tensor", d), self.some("int", d)
        return self.one(
            f"scaled_sum({t}, 0.5)", f"scaled_sum({t}, 2, {i}, offset={i})", f"scaled_sum({t}, k=1, offset=1)",
            f"decorated({t})", f"decorated({t}, n={i})", f"functools.partial(scaled_sum, offset={i})({t})",
            f"scaled_sum({t}, *(0.5, 1), **{{'offset': {i}}})", f"(lambda v, w={i}: v * 0.25 + w)({t})",
        )  # fmt: skip

    @rule("tensor", 2)
    def tensor_helper(self, d: int) -> str:
        if not self.helpers:
            return self.some("tensor", 0)
        helper = self.random.choice(self.helpers)
        t, i = self.some("tensor", d), self.some("int", d)
        items = self.var("list")
        return self.one(
            f"{helper}({t}, {i}, {items}, log)", f"{helper}({t}, n={i}, items={items}, log=log)",
            f"{helper}(*[{t}, {i}], items={items}, log=log)", f"{helper}({t}, {i}, {items}, log, {self.some('int', 0)}, key=1)",
        )  # fmt: skip

    @rule("tensor", 2)
    def tensor_choice(self, d: int) -> str:
        a, b, c = self.some("tensor", d), self.some("tensor", d), self.some("bool", d)
        return self.one(
            f"({a} if {c} else {b})", f"[{a}, {b}][{self.some('int', d)} % 2]", f"({a}, {b})[{c}]",
            f"{{'a': {a}, 'b': {b}}}['a']", f"next(iter([{a}, {b}]))", f"max([{a}, {b}], key=lambda v: v.shape[0])",
            f"sorted([{a}, {b}], key=lambda v: v.dim())[-1]", f"dict(a={a}).get('a', {b})", f"[*({a}, {b})].pop()",
        )  # fmt: skip

    @rule("tensor", 2)
    def tensor_fold(self, d: int) -> str:
        a, b = self.some("tensor", d), self.some("tensor", d)
        return self.one(
            f"functools.reduce(operator.add, [{a}, {b}])", f"functools.reduce(lambda p, q: p - q, ({a}, {b}), {a})",
            f"sum([{a}, {b}])", f"operator.mul({a}, {b})", f"sum(({a} * k for k in range(3)), {b})",
            f"math.prod([{a}, 0.5])" if d < 0 else f"operator.sub({a}, {b})",
        )  # fmt: skip

    @rule("tensor", 3, "objects")
    def tensor_of_object(self, d: int) -> str:
        b, t = self.var("box"), self.some("tensor", d)
        return self.one(
            f"{b}.value", f"{b}.double", f"{b}.scaled()", f"{b}.scaled(factor={self.some('float', 0)})", f"{b}({t})",
            f"{b}({t}, by={self.some('int', 0)})", f"Box.half({t})", f"{b}.cached", f"getattr({b}, 'value')",
            f"operator.attrgetter('value')({b})", f"Box.make({t}).value", f"Box({t}, other=1).double", f"({b} + {t}).value",
            f"Point({t}, {self.some('int', 0)}).x", f"Pair({t}).first", f"Slotted({t}).left", f"Base.scaled({b}, 0.5)",
            f"sum([{b}, {t}], {t}).value", f"copy.copy({b}).value", f"operator.methodcaller('scaled')({b})",
        )  # fmt: skip

    @rule("tensor", 2, "modules")
    def tensor_of_module(self, d: int) -> str:
        t = self.some("tensor", d)
        return self.one(
            f"net({t})", f"net({t}, skip={self.some('bool', 0)})", f"net.blocks[0]({t})", f"net.named['only']({t}, extra=1)",
            f"({t} + net.total)", f"F.linear({t}, net.blocks[1].weight.to({t}.dtype))", f"({t} * net.steps)",
        )  # fmt: skip

    @rule("tensor", 2, "breaks")
    def tensor_behind_break(self, d: int) -> str:
        t = self.some("tensor", d)
        return self.one(
            f"opaque({t})", f"breaks_inside({t}, {self.some('int', d)}, log)", f"opaque([{t}])[0]", f"opaque(Box)({t}).value",
            f"fails_after_a_break({t}, log)", f"torch.tensor({t}.tolist(), dtype={t}.dtype)",
        )  # fmt: skip

    @rule("tensor", 1, "closures")
    def tensor_of_function(self, d: int) -> str:
        return f"{self.var('func')}({self.some('tensor', d)})"

    @rule("func", 1)
    def leaf_func(self, d: int) -> str:
        return self.one(
            "decorated",
            "torch.tanh",
            "(lambda v: v * 2)",
            "F.relu",
            "Box.half",
            "functools.partial(scaled_sum, offset=1)",
        )

    @rule("tensor", 1, "randomness")
    def tensor_random(self, d: int) -> str:
        t = self.some("tensor", d)
        return self.one(f"torch.rand_like({t})", f"F.dropout({t}, 0.5)", f"({t} + torch.randn(3, dtype={t}.dtype))")

    @rule("row", 1)
    def leaf_row(self, d: int) -> str:
        t = self.var("tensor")
        return self.one(f"{t}[0]", f"{t}.sum(0)", f"{t}[-1]", "torch.ones(3)", f"{t}.mean(dim=0)", f"{t}.select(0, 0)")

    @rule("scalar", 1)
    def leaf_scalar(self, d: int) -> str:
        t = self.var("tensor")
        return self.one(
            f"{t}.sum()", f"{t}[0, 0]", f"torch.tensor({self.some('float', 0)})", f"{t}.mean()", f"{t}.max()"
        )

    # Numbers.

    @rule("int", 4)
    def leaf_int(self, d: int) -> str:
        return str(self.random.randint(-3, 5))

    @rule("int", 4)
    def int_arithmetic(self, d: int) -> str:
        i, k = self.some("int", d), self.random.randint(1, 3)
        return self.one(
            f"({i} {self.one('+', '-', '*')} {k})", f"({i} % {k + 2})", f"({i} // {k})", f"max({i}, {k})", f"min({i}, {k})",
            f"abs({i})", f"(-{i})", f"({i} & 7)", f"({i} ^ 1)", f"divmod({i}, {k})[0]", f"int({i} > 0)", f"round({i} / 2)",
            f"({i} if {self.some('bool', d)} else {k})", f"({i} or {k})", f"({i} and {k})", f"math.floor({i} * 0.5)",
            f"(({i} << {self.one('2', '40', '70')}) >> {self.one('1', '70')}) % 2**62", f"({k} % ({i} or 1))",
            f"sum(range({i} % 5))", f"pow({i}, 2, 7)", f"operator.index({i})", f"int('{k}')", f"[{i}, {k}][-1]",
        )  # fmt: skip

    @rule("int", 4)
    def int_of_container(self, d: int) -> str:
        items, table, s = self.var("list"), self.var("dict"), self.some("str", 0)
        return self.one(
            f"len({items})", f"len({table})", f"{self.var('tensor')}.shape[0]", f"len({s})", f"{self.var('tensor')}.dim()",
            f"sum(1 for v in {items} if isinstance(v, int))", f"{table}.get('k', 1) if isinstance({table}.get('k'), int) else 0",
            f"len(list({table}.items()))", f"{self.var('tensor')}.size(-1)", f"{self.var('tensor')}.numel()",
            f"(*(v for v in {items} if type(v) is int), 7)[0]", f"next((v for v in {items} if isinstance(v, int)), 3)",
            f"max({self.some('ints', d)}, default=0)", f"sum({self.some('ints', d)})", f"{self.some('ints', d)}.count(1)",
            f"int({self.var('tensor')}.shape <= {self.var('tensor')}.shape)", f"sorted({self.some('ints', d)} + [4])[0]",
            f"max({self.some('int', 0)}, 3, {self.var('tensor')}.shape[0])", f"sorted([({self.some('int', 0)}, 1), (2, 0)])[0][1]",
            f"[{self.some('int', 0)}, 3, {self.var('tensor')}.shape[0]].index(3)",
        )  # fmt: skip

    @rule("int", 2, "objects")
    def int_of_object(self, d: int) -> str:
        b = self.var("box")
        return self.one(
            f"{b}.count", f"{b}.bump()", f"{b}.bump({self.some('int', 0)})", f"{b}.level", f"{b}.twice", "Color.RED.value",
            "Level.HIGH + 1", f"len({self.var('vec')})", f"{b}.made", "Box.made", f"{b}.size", f"len({b}.items)",
            f"{self.var('dyn')}.foo", f"Registry(a=1)[{self.some('str', 0)}]", f"Stack([1]).push({self.some('int', 0)})",
            f"hash({self.var('vec')})", f"sum({self.var('vec')})", f"Level({self.one('1', '3')})", "Color.RED.other.value",
            f"getattr({b}, 'extra', 4)", f"{b}.__dict__.get('count', 9)", f"len(vars({b}))",
        )  # fmt: skip

    @rule("int", 1, "breaks")
    def int_of_tensor(self, d: int) -> str:
        t = self.some("tensor", d)
        return self.one(
            f"int({t}.detach().double().nan_to_num().clamp(-9, 9).sum().round().item())",
            f"opaque({self.some('int', d)})", f"change_outside({self.var('list')}, {self.some('int', 0)})",
            f"int(({t} > 0).sum())", f"int({t}.argmax())",
        )  # fmt: skip

    @rule("int", 1, "globals")
    def int_global(self, d: int) -> str:
        return self.one(
            "TOTAL",
            "len(NAMES)",
            "STEP()",
            f"STEP({self.some('int', 0)})",
            "TABLE['g']",
            f"default_list({self.some('int', 0)})",
        )

    @rule("int", 1, "generators")
    def int_of_generator(self, d: int) -> str:
        g = self.var("gen")
        return self.one(
            f"next({g}, -1)",
            f"sum(numbers({self.random.randint(0, 3)}, log))",
            f"len(list(Countdown({self.random.randint(0, 3)})))",
        )

    @rule("int", 1)
    def int_recursive(self, d: int) -> str:
        return f"factorial({self.random.randint(0, 5)})"

    @rule("int", 1)
    def int_walrus(self, d: int) -> str:
        name = self.walrus("int")
        return f"({name} := {self.some('int', d)})" if name else self.some("int", 0)

    def walrus(self, kind: str) -> str | None:
        """A variable that an expression may assign to."""
        raise NotImplementedError

    @rule("float", 2)
    def leaf_float(self, d: int) -> str:
        return self.one("0.5", "1.5", "-0.25", "2.0")

    @rule("float", 1)
    def float_arithmetic(self, d: int) -> str:
        f, i = self.some("float", d), self.some("int", d)
        return self.one(
            f"({f} * 0.5)", f"({f} + {i})", f"({i} / 2)", f"float({i} % 9)", f"abs({f})", f"math.sqrt(abs({i} % 10))"
        )

    # Text.

    @rule("str", 2)
    def leaf_str(self, d: int) -> str:
        return self.one("'k'", "'a'", "'xy'", "''")

    @rule("str", 3, "text")
    def str_format(self, d: int) -> str:
        i, s = self.some("int", d), self.some("str", d)
        return self.one(
            f"f'{{{self.quoteless('int')}}}'", f"f'{{{self.quoteless('int')}:>3}}|'", f"str({i})", f"({s} + 'z')", f"{s}.upper()",
            f"','.join(map(str, [{i}, 1]))", f"repr({s})", f"type({self.var('list')}).__name__", f"{s}[::-1]", f"'%d!' % {i}",
            f"'{{}}-{{a}}'.format({i}, a={s})", f"f'{{{self.quoteless('str')}!r}}'", f"{self.var('box')}.__class__.__name__",
            f"str(tuple({self.var('tensor')}.shape))", f"f'{{{self.var('tensor')}.dtype}}'", f"{s}.replace('a', 'b')", f"({s} * 2)",
            f"'-'.join(sorted({s}))", f"f'{{{self.quoteless('int')}=}}'", f"{s}.split('y')[0]", f"str({self.some('bool', 0)})",
        )  # fmt: skip

    def quoteless(self, kind: str) -> str:
        """A variable, for f-strings, which cannot hold every expression before Python 3.12."""
        return self.random.choice(self.kinds[kind]) if self.kinds.get(kind) else "TOTAL"

    # Truth.

    @rule("bool", 1)
    def leaf_bool(self, d: int) -> str:
        return self.one("True", "False", f"{self.var('int')} > 1", f"{self.var('int')} % 2 == 0")

    @rule("bool", 4)
    def bool_compare(self, d: int) -> str:
        i, j = self.some("int", d), self.some("int", d)
        return self.one(
            f"({i} > {j})", f"({i} == {j})", f"(0 < {i} <= {self.random.randint(1, 5)})", f"({i} in (1, 2, {j}))", f"({i} != {j})",
            f"({i} not in {self.some('ints', d)})", f"({self.some('str', d)} in 'xyk')", f"({self.some('str', 0)} < 'm')",
            f"({self.some('ints', d)} < [1, {j}])", f"((1, {i}) >= (1, {j}))",
        )  # fmt: skip

    @rule("bool", 3)
    def bool_logic(self, d: int) -> str:
        a, b = self.some("bool", d), self.some("bool", d)
        return self.one(
            f"(not {a})", f"({a} and {b})", f"({a} or {b})", f"all([{a}, {b}])", f"any(v > 1 for v in {self.some('ints', d)})",
            f"bool({self.var('list')})", f"bool({self.var('dict')})", f"({a} is {b})", f"({a} ^ {b})",
        )  # fmt: skip

    @rule("bool", 3)
    def bool_kind(self, d: int) -> str:
        t, table = self.var("tensor"), self.var("dict")
        return self.one(
            f"('k' in {table})", f"isinstance({self.var('list')}, (list, tuple))", f"{t}.requires_grad", f"callable({self.leaf_func(0)})",
            f"({t}.dtype == torch.float32)", f"isinstance({t}, torch.Tensor)", "torch.is_grad_enabled()", f"{t}.is_contiguous()",
            f"({self.var('int')} is None)", f"({table} == {table})", f"hasattr({self.var('box')}, 'extra')", f"({t}.shape[0] == 2)",
            "issubclass(Box, Base)", f"({t}.shape == {self.var('tensor')}.shape)", f"({table}.keys() >= {{'k'}})",
        )  # fmt: skip

    @rule("bool", 2, "identity")
    def bool_identity(self, d: int) -> str:
        return self.one(
            f"({self.var('tensor')} is {self.var('tensor')})", f"({self.var('list')} is {self.var('list')})",
            f"({self.var('box')} is not {self.var('box')})", f"({self.var('box')} is KEPT)", f"({self.var('list')} is {self.var('box')}.items)",
            f"({self.var('dict')} is {self.var('dict')})", f"any(v is {self.var('tensor')} for v in {self.var('list')})",
        )  # fmt: skip

    @rule("bool", 2, "objects")
    def bool_object(self, d: int) -> str:
        v = self.var("vec")
        return self.one(
            f"({v} == {self.var('vec')})", f"bool({v})", f"({self.some('int', 0)} in {v})", f"({v} < Vec([1, 2]))", f"bool({self.var('dyn')})",
            f"hasattr({self.var('dyn')}, '{self.one('no_a', 'b')}')", "(Color(1) is Color.RED)", f"(Frozen({self.some('int', 0)}) < Frozen(1))",
            f"(Point(1) == Point({self.some('int', 0)}))", f"(Level.LOW < {self.some('int', 0)})", f"({v} in {{Vec([1]): 2}})",
            f"isinstance({self.var('box')}, Base)", f"(Frozen(1) in {{Frozen({self.some('int', 0)})}})",
        )  # fmt: skip

    @rule("bool", 1, "breaks")
    def bool_of_tensor(self, d: int) -> str:
        s = self.some("scalar", 0)
        return self.one(
            f"({s} > 0)",
            f"bool({s} < 1)",
            f"(not {s} > 0.5)",
            f"({s}.item() > 0)",
            f"torch.allclose({self.var('tensor')}, {self.var('tensor')})",
        )

    # Containers.

    @rule("list", 3)
    def leaf_list(self, d: int) -> str:
        return f"[{self.any(0)}, {self.any(0)}]"

    @rule("list", 3)
    def list_of_list(self, d: int) -> str:
        items, i = self.var("list"), self.some("int", 0)
        return self.one(
            f"{items}[:]", f"({items} + [{i}])", f"[*{items}, {i}]", f"list(reversed({items}))", f"{items}[1:]", f"{items}[::-1]",
            f"[v for v in {items} if isinstance(v, int)]", f"list(enumerate({items}))", f"list(zip({items}, range(9)))",
            f"list(map(lambda v: v, {items}))", f"list(filter(lambda v: isinstance(v, int), {items}))", f"copy.copy({items})",
            f"list(itertools.chain({items}, [{i}]))", f"list(itertools.islice({items}, 2))", f"[[v] for v in {items}]",
            f"[(n, v) for n, v in enumerate({items}) if n % 2 == 0]", f"sorted({items}, key=lambda v: isinstance(v, int))",
        )  # fmt: skip

    @rule("list", 2)
    def list_made(self, d: int) -> str:
        t, table, k = self.some("tensor", d), self.var("dict"), self.random.randint(0, 3)
        return self.one(
            f"[{t} * i for i in range({k})]", f"list({table})", f"list({table}.values())", f"list({table}.items())", f"list({t}.shape)",
            f"list({t}.unbind(0))", f"[a + b for a in range({k}) for b in range(2) if a != b]", f"list(itertools.accumulate([1, 2, {k}]))",
            f"list({t}.split(1))", f"[[a * b for a in range(2)] for b in range({k})]", f"[*range({k})]", "list(dict.fromkeys('aba'))",
            "list(itertools.product(range(2), repeat=2))", f"list(itertools.pairwise(range({k})))", f"heapq.nsmallest({k}, heap([3, 1, {k}, 2]))",
            f"sorted([Ranked({k}), Ranked(1), Ranked(3)])", f"list({table}.keys() | {{'k', {k}}})[:0]", f"copy.deepcopy([{t}.detach(), {table}])",
            f"[v.rank for v in sorted([Ranked({k}), Ranked(2), Ranked(0)], reverse=True)]", f"collections.Counter([1, {k}, 1]).most_common()", f"[y for x in [[1], [2, {k}]] for y in x]",
        )  # fmt: skip

    @rule("list", 1, "generators")
    def list_of_generator(self, d: int) -> str:
        k = self.random.randint(0, 3)
        return self.one(
            f"list(tensors({self.some('tensor', d)}, {k}))", f"list(numbers({k}, log))", f"list(delegating({k}, log))", f"[*Countdown({k})]",
            f"list(itertools.islice({self.var('gen')}, 2))", f"[v for v in {self.var('gen')}]", f"sorted(v for v in (3, 1, {k}))",
        )  # fmt: skip

    @rule("ints", 1)
    def leaf_ints(self, d: int) -> str:
        i, k = self.some("int", 0), self.random.randint(0, 4)
        return self.one(
            f"[{i}, {self.random.randint(0, 3)}]", f"list(range({k}))", f"[v * 2 for v in range({k})]", f"sorted([{i}, 1, 2], reverse=True)",
            f"[v for v in {self.var('list')} if type(v) is int]", f"sorted({{v % 2 for v in range({k})}})", f"sorted([{i}, 3], key=lambda v: -v)",
        )  # fmt: skip

    @rule("dict", 2)
    def leaf_dict(self, d: int) -> str:
        return f"{{'k': {self.any(0)}, {self.some('int', 0)}: {self.any(0)}}}"

    @rule("dict", 2)
    def dict_made(self, d: int) -> str:
        table, i = self.var("dict"), self.some("int", d)
        return self.one(
            f"{{**{table}, 'z': {i}}}", f"({table} | {{'b': {i}}})", f"{table}.copy()", f"dict(a={i}, b={self.any(0)})", f"dict({table})",
            f"{{v: v * 2 for v in range({self.random.randint(0, 3)})}}", f"dict(zip('ab', [{i}, {self.any(0)}]))", f"copy.copy({table})",
            f"collections.OrderedDict([('b', {i}), ('a', {self.any(0)})])", f"{{k: v for k, v in {table}.items() if k != 'k'}}",
            f"collections.defaultdict(list, {{'k': [{i}]}})", f"dict(sorted({{'b': 1, 'a': {i}}}.items()))", f"Registry(a={i})",
            f"collections.Counter([{i}, 1, 1])", f"dict.fromkeys([1, {i}], {self.any(0)})", "collections.OrderedDict.fromkeys('ba')", f"copy.deepcopy({table})",
        )  # fmt: skip

    @rule("set", 1)
    def leaf_set(self, d: int) -> str:
        i, k = self.some("int", 0), self.random.randint(0, 4)
        return self.one(
            f"{{{i}, {k}}}", f"set(range({k}))", f"({{1, {i}}} | {{2}})", f"({{1, {i}}} & {{1, 2}})", f"({{1, {i}}} - {{2}})", "set()",
            f"frozenset([{i}, 1])", f"{{v % 2 for v in range({k})}}", f"set({self.some('ints', 0)})", f"({{1, {k}}} ^ {{{i}}})",
        )  # fmt: skip

    # Objects.

    @rule("box", 1)
    def leaf_box(self, d: int) -> str:
        t = self.var("tensor")
        return self.one(
            f"Box({t})", f"Box({t}, 1, extra=2)", f"Box.make({t})", "KEPT", f"type(KEPT)({t})", f"(Box({t}) + 1)"
        )

    @rule("vec", 1)
    def leaf_vec(self, d: int) -> str:
        i = self.some("int", 0)
        return self.one(
            f"Vec([{i}, 1])",
            "Vec([])",
            f"Vec(range({self.random.randint(0, 3)}))",
            f"(Vec([1]) + Vec([{i}]))",
            f"(-Vec([{i}]))",
            f"(2 * Vec([{i}]))",
        )

    @rule("dyn", 1)
    def leaf_dyn(self, d: int) -> str:
        return "Dyn()"

    @rule("gen", 1)
    def leaf_gen(self, d: int) -> str:
        k = self.random.randint(0, 4)
        return self.one(
            f"numbers({k}, log)", f"(v * 2 for v in range({k}))", f"iter({self.var('list')})", f"tensors({self.var('tensor')}, {k})",
            f"delegating({k}, log)", f"Countdown({k})", f"enumerate({self.var('list')})", f"zip(range({k}), {self.var('list')})",
            f"map(str, range({k}))", f"filter(None, range({k}))", f"itertools.count({k})" if d < -5 else f"iter(range({k}))",
            f"reversed([1, {k}])", f"iter({self.var('dict')}.copy().items())", f"itertools.chain(range({k}), [9])",
        )  # fmt: skip

    @rule("gen", 1)
    def gen_of_itertools(self, d: int) -> str:
        """An iterator of ``itertools``, in its first state or a later one; none that goes on for ever."""
        items, k, n = self.var("list"), self.random.randint(0, 4), self.random.randint(0, 2)
        source = self.one(f"numbers({k}, log)", f"iter({items})", f"tensors({self.var('tensor')}, {k})", f"range({k})")
        plain = f"(v for v in {source} if isinstance(v, int))"
        return self.one(
            f"itertools.islice(itertools.cycle({source}), {k})", f"itertools.islice({source}, {n}, {k}, {n + 1})", f"itertools.islice({source}, {n})",
            f"itertools.accumulate({plain}, lambda a, b: a * 2 + b)", f"itertools.accumulate({plain}, initial={n})", f"itertools.pairwise({source})",
            f"itertools.takewhile(lambda v: v != {n}, {plain})", f"itertools.dropwhile(lambda v: v != {n}, {plain})",
            f"itertools.filterfalse(lambda v: isinstance(v, int), {source})", f"itertools.compress({source}, [1, 0, {n}, 1])",
            f"itertools.starmap(lambda a, b: (b, a), zip({source}, {items}))", f"itertools.zip_longest({source}, {items}, fillvalue={n})",
            f"itertools.repeat({self.any(0)}, {k})", f"itertools.permutations(range({k}), {n})", f"itertools.combinations({source}, {n})",
            f"itertools.combinations_with_replacement({source}, {n})", f"itertools.product({source}, repeat={n})", f"itertools.tee({source}, 2)[1]",
            f"((key, list(group)) for key, group in itertools.groupby({plain}, lambda v: v // 2))", f"skipped({n}, itertools.pairwise({source}))",
            f"skipped({n}, itertools.islice({source}, {k}))", f"skipped(1, itertools.zip_longest({source}, range({n})))",
        )  # fmt: skip
