"""Captured functions give what Python gives: operators, containers, control flow, functions, classes."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import copy
import dataclasses
import enum
import fractions
import functools
import itertools
import math
import operator
import os
import types
import typing

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check

X = torch.arange(6.0).reshape(2, 3)
FACTOR = 3


def arithmetic(x, n):
    y = (x + n) * 2 - x / 4
    y = y // 2 + (y % 3) ** 2
    y -= n
    y *= FACTOR
    return -y, +y, y @ y.T, n << 2, n & 1, n | 8, ~n, n**2, n // 2, n % 2


def comparisons(x, n):
    if (n > 2 and not n == 7) or n in (1, 2):
        x = x + 1
    if x is not None and n is not None:
        x = x * 2
    return x, x > 1, 1 < n <= 5, "a" < "b", [1, 2] == [1, 2], (1, 2) < (1, 3), {1: 2} == {1: 2}


def ternary_and_walrus(x, flag):
    y = x.sin() if flag else x.cos()
    if (z := y.sum()) is not None:
        y = y + z
    return y


def strings(x, name):
    text = f"{name!r:>8}|{3.14159:.2f}|{len(name)}"
    text = text.upper() + "-".join(["a", "b"]) + name[1:] + "%s-%d" % (name, 3) + "{}".format(name)
    return x * len(text), text, text.split("|"), text.startswith("'")


def lists(x):
    a = [x, x + 1]
    a.append(x * 2)
    a.extend([x, 1, 2])
    a.insert(0, "first")
    b = a.pop()
    a[1] = x - 1
    a[2:4] = [5, 6, 7]
    del a[0]
    a += [3]
    c = [*a, *range(2)]
    c.reverse()
    numbers = [3, 1, 2]
    numbers.sort(reverse=True)
    return (
        a,
        b,
        c,
        numbers,
        sorted(numbers),
        numbers.index(1, 1),
        numbers.count(3),
        a[-1],
        a[::2],
        len(a),
        [0] * 3,
        6 in numbers,
    )


def dicts(x):
    d = {"a": x, 1: x + 1}
    d["b"] = d.pop("a") * 2
    d.update(c=x, d=2)
    d.setdefault("e", []).append(1)
    e = {**d, "z": 1} | {"y": 2}
    keys = [k for k in d if isinstance(k, str)]
    total = sum(v for v in d.values() if isinstance(v, int))
    for key, value in d.items():
        e[key] = value
    return d, e, keys, total, d.get("nothing"), d.get("b", 1), "b" in d, len(d), list(reversed(keys)), e.keys() & {"z"}


def special_dicts(x):
    d = collections.defaultdict(list)
    d["a"].append(x + 1)
    o = collections.OrderedDict(a=1, b=2)
    o.move_to_end("a")
    return d, o, list(o), dict(zip("ab", (1, 2), strict=True)), dict.fromkeys([1, 2], 0)


def sets(x):
    s = {1, 2, 3}
    s.add(4)
    s.discard(1)
    t = s | {9} & {9, 10}
    return x + len(s), s, t - {2}, frozenset((1, 2)), 3 in s, {1, 2} <= {1, 2, 3}, s ^ t, sorted(s)


def tuples(x):
    a, (b, *c), d = 1, (2, 3, 4), 5
    first, *rest = (x + 1, 1, 2)
    return first, rest, a, b, c, d, (1, 2) + (3,), (x,) * 2, (1, 2, 3)[1:], hash((1, 2))


def deques(x):
    d = collections.deque([1, 2], maxlen=3)
    d.append(x + 1)
    d.appendleft(0)
    d.rotate(1)
    return d, d.popleft(), d[0], len(d)


def loops(x, items):
    for item in items:
        if item == 2:
            continue
        if item > 4:
            break
        x = x + item
    else:
        x = x * 100
    count = 0
    while count < 3:
        x = x + count
        count += 1
    return x, count


def iteration_helpers(x, items):
    out = []
    for i, (a, b) in enumerate(zip(items, items[1:], strict=False), start=1):
        out.append(x * i + a - b)
    out += list(map(lambda v: v * 2, items))
    out += filter(None, items)
    out += [max(items), min(items), max(items, key=lambda v: -v), sum(items), any(items), all(items)]
    out += list(itertools.chain([1], [2])) + list(itertools.islice(items, 1, 3)) + list(reversed(items))
    out += [list(itertools.product([1, 2], "ab")), list(itertools.combinations(items[:3], 2))]
    out += list(itertools.accumulate(items)) + [functools.reduce(operator.add, items)]
    out += list(itertools.zip_longest([1], [2, 3])) + list(itertools.takewhile(lambda v: v < 3, items))
    it = iter(items)
    out += [next(it), next(it), next(iter([]), "none")]
    return out


def comprehensions(x, items):
    n = 2
    a = [x * i for i in items if i % 2]
    b = {i: x + i for i in items}
    c = {i % 2 for i in items}
    d = sum(i * n for i in items)
    return a, b, c, d, [[i * j for j in range(2)] for i in range(2)]


def generators(x, items):
    def produce(n):
        for i in range(n):
            got = yield x * i
            if got is not None:
                yield got
        return "end"

    def delegate():
        result = yield from produce(2)
        yield result

    g = produce(3)
    first = next(g)
    sent = g.send(5)
    return first, sent, list(g), list(delegate()), list(i for i in items)


def closures(x):
    count = 0
    seen = []

    def step(v, *, scale=2, **more):
        nonlocal count
        count += 1
        seen.append(v)
        return v * scale + len(more)

    y = step(x)
    y = step(y, scale=3, a=1, b=2)
    return y, count, len(seen), (lambda a, b=2: a + b)(1), functools.partial(step, scale=4)(x)


def arguments(x, /, a, b=2, *args, c, d=4, **kwargs):
    def inner(*args, **kwargs):
        return args, kwargs

    packed = {"k": 1, **kwargs}
    return x + a + b + c + d + len(args), inner(*args, 1, **packed), sorted(kwargs)


def recursion(x, n):
    def fact(k):
        return 1 if k == 0 else k * fact(k - 1)

    return x * fact(n)


class Point:
    scale = 2

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __add__(self, other):
        return Point(self.a + other.a, self.b + other.b)

    def __eq__(self, other):
        return isinstance(other, Point) and self.b == other.b

    def __getitem__(self, key):
        return (self.a, self.b)[key]

    def __len__(self):
        return 2

    def __call__(self, x):
        return x * self.b

    def __contains__(self, item):
        return item == self.b

    def __bool__(self):
        return self.b > 0

    def __getattr__(self, name):
        if name == "dynamic":
            return 42
        raise AttributeError(name)

    @property
    def norm(self):
        return self.a.abs().sum() + self.b

    @classmethod
    def make(cls, a):
        return cls(a, cls.scale)

    @staticmethod
    def double(v):
        return v * 2

    def __iter__(self):
        yield self.a
        yield self.b


class Point3(Point):
    def __init__(self, a, b, c):
        super().__init__(a, b)
        self.c = c

    @property
    def norm(self):
        return super().norm + self.c


def classes(x):
    p = Point(x, 1) + Point.make(x)
    q = Point3(x, 1, 2)
    a, b = p
    return (
        p, q.norm, p == Point(x, 3), p[0], len(p), p(x), 3 in p, bool(p), p.dynamic, Point.double(3), a, b,
        isinstance(q, Point), hasattr(p, "nothing"), getattr(p, "nothing", 7), type(q).__name__, issubclass(Point3, Point),
    )  # fmt: skip


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Config:
    width: int = 2
    names: list = dataclasses.field(default_factory=list)

    def area(self):
        return self.width**2


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: int


def records(x):
    pair = Pair(x + 1, second=2)
    config = Config(width=3)
    config.names.append("n")
    a, b = pair
    return (
        pair, pair.first, pair._replace(second=5), config, config.area(), Frozen(3).value, Color.RED, Color("b"),
        Color.RED.value, Color["BLUE"].name, a, b, [f.name for f in dataclasses.fields(config)],
    )  # fmt: skip


def exceptions(x, n):
    log = []
    try:
        try:
            log.append("try")
            if n == 1:
                raise ValueError("one")
            if n == 2:
                {}["missing"]
            if n == 3:
                [][1]
            int("no") if n == 4 else None
        except ValueError as error:
            log.append(str(error))
            x = x + 1
        except (KeyError, IndexError) as error:
            log.append(type(error).__name__)
            raise RuntimeError("again") from error
        else:
            log.append("else")
        finally:
            log.append("finally")
            x = x * 2
    except RuntimeError as error:
        log.append((str(error), type(error.__cause__).__name__))
    return x, log


@contextlib.contextmanager
def scaled(log):
    log.append("in")
    try:
        yield 3
    finally:
        log.append("out")


class Swallow:
    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        return kind is not None and issubclass(kind, ValueError)


def contexts(x):
    log = []
    with scaled(log) as factor:
        x = x * factor
    with Swallow(), contextlib.suppress(KeyError):
        raise ValueError("swallowed")
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            y = y + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x.T
    return x, y, z, log, torch.is_grad_enabled(), y.requires_grad


def matching(x, subject):
    match subject:
        case {"a": a, **rest}:
            return x + a, rest
        case [1, *others]:
            return x, others
        case Pair(first=1) | Pair(first=2):
            return x, "pair"
        case str() as text:
            return x, text
        case Color.RED:
            return x, "red"
        case _:
            return x, None


def numbers(x):
    return (
        x + math.sqrt(16) + math.pi, round(2.567, 1), abs(-3), divmod(7, 2), pow(2, 5), int("12"), float("1.5"),
        bool([]), str(1), repr("a"), chr(65), ord("a"), math.floor(2.5), 0.1 + 0.2, 1j * 1j, bin(5), isinstance(1, int),
    )  # fmt: skip


class Registry(collections.abc.MutableMapping):
    shared = {"a": 1}  # noqa: RUF012

    def __init__(self):
        self.own = {}

    def __getitem__(self, key):
        return self.own[key] if key in self.own else self.shared[key]

    def __setitem__(self, key, value):
        self.own[key] = value

    def __delitem__(self, key):
        del self.own[key]

    def __iter__(self):
        return iter({**self.shared, **self.own})

    def __len__(self):
        return len(self.shared | self.own)


def mappings(x):
    registry = Registry()
    registry["b"] = x * 2
    registry.update(c=3)
    return "a" in registry, "z" in registry, registry.get("z", 5), list(registry), registry.pop("b"), len(registry)


def environment(x):
    return x + 1, os.environ.get("HOME"), os.getenv("NO_SUCH_VARIABLE", "none"), "HOME" in os.environ


def copies(x, config):
    inner = [1, {"k": 2}]
    deep, shallow = copy.deepcopy([inner, inner]), copy.copy(inner)
    deep[0][1]["k"] = 3
    other = copy.deepcopy(config)
    other.names.append("more")
    other.width += 1
    return x + 1, deep, shallow, inner, deep[0] is deep[1], other, config


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (arithmetic, (X, 5)), (comparisons, (X, 3)), (comparisons, (X, 1)), (ternary_and_walrus, (X, True)),
        (ternary_and_walrus, (X, False)), (strings, (X, "name")), (lists, (X,)), (dicts, (X,)), (special_dicts, (X,)),
        (sets, (X,)), (tuples, (X,)), (deques, (X,)), (loops, (X, [1, 2, 3])), (loops, (X, [1, 9, 3])),
        (iteration_helpers, (X, [1, 2, 3, 4])), (comprehensions, (X, [1, 2, 3])), (generators, (X, [1, 2])),
        (closures, (X,)), (recursion, (X, 5)), (classes, (X,)), (records, (X,)), (contexts, (X,)), (numbers, (X,)), (mappings, (X,)), (copies, (X, Config())), (environment, (X,)),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)  # fmt: skip
def test_one_graph_gives_what_python_gives(function, args):
    check(function, *args, graphs=1)


@pytest.mark.parametrize("n", range(6))
def test_exceptions_are_raised_and_caught_as_in_python(n):
    check(exceptions, X, n, graphs=1)


@pytest.mark.parametrize(
    "subject", [{"a": 1, "b": 2}, [1, 2, 3], Pair(2, 3), "text", Color.RED, 17], ids=lambda s: type(s).__name__
)
def test_match_takes_the_same_case(subject):
    check(matching, X, subject)


def test_every_kind_of_parameter_is_bound():
    check(arguments, X, 1, 2, 3, 4, c=5, e=6, graphs=1)


@pytest.mark.parametrize("index", [0, 5])
def test_an_exception_that_leaves_the_function_is_pythons_own(index):
    def fail(x, i):
        y = x + 1
        return y, [1, 2][i]

    check(fail, X, index)


def test_a_partial_has_the_attributes_of_its_class_and_its_own():
    scaled = functools.partial(torch.mul, other=2)
    scaled.tag = 3

    def program(x, function):
        return function(x) * function.tag, hasattr(function, "__doc__"), function.__module__, dict(function.__dict__)

    (found, *rest), (expected, *others) = Observed(program, fullgraph=True)(X, scaled), program(X, scaled)
    assert torch.equal(found, expected) and rest == others


NOTHING = ()
TUPLES = {
    "empty": (),
    "one": ([1],),
    "two": (1, [2]),
    "size": torch.Size([1, 2]),
    "named": collections.namedtuple("P", "a b")(1, 2),
}
SAMES = {
    "all": lambda v: v[:], "from zero": lambda v: v[0 : len(v)], "step": lambda v: v[::1], "back": lambda v: v[::-1],
    "once": lambda v: v * 1, "never": lambda v: v * 0, "once, first": lambda v: 1 * v, "twice": lambda v: v * 2,
    "and nothing": lambda v: v + (), "after nothing": lambda v: () + v, "and one": lambda v: v + (3,),
    "tuple": tuple, "unpacked": lambda v: (*v,), "part": lambda v: v[1:],
}  # fmt: skip


@pytest.mark.parametrize("operation", SAMES.values(), ids=SAMES)
@pytest.mark.parametrize("held", TUPLES.values(), ids=TUPLES)
def test_operations_that_leave_a_tuple_as_it_is_give_the_tuple_itself(operation, held):
    def program(x):
        made = operation(held)
        return x + 1, made is held, made is NOTHING, type(made).__name__, made

    def of_new(x):
        new = ([x], 2)
        return x + 1, operation(new) is new, operation(()) is NOTHING, len(operation(new))

    for function in (program, of_new):
        assert_same(Observed(function)(X), function(X))


Sides = collections.namedtuple("Sides", "a b")
SIZES = [
    "() + size", "size + ()", "(1,) + size", "size + (1,)", "(1.5,) + size", "size + (None,)", "size + (True,)", "size * 2",
    "0 * size", "size + size", "Sides(1, 2) + size", "size + Sides(1, 2)", "size[:0] + ()", "() + size[:0]", "[1] + size",
    "(x.size(0),) + size", "torch.Size((*size, True))", "torch.Size((1, 'a'))", "sum((size, size), ())",
    "operator.concat((1,), size)", "operator.concat(size, (1,))", "size[1:]", "size.__add__((1,))", "(1,).__add__(size)",
]  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_made_of_sizes_is_of_the_class_that_torch_makes(text, dynamic):
    made_of = eval(f"lambda x, size: {text}", globals())

    def program(x):
        try:
            made = made_of(x, x.shape)
        except TypeError as error:
            return x + 1, str(error)
        return x + 1, type(made).__name__, made

    assert_same(Observed(program, dynamic=dynamic)(X), program(X))


def _called(*args, **kwargs):
    return args, kwargs


FLAT = functools.partial(_called, 1, a=2)
WITH_ATTRIBUTES = functools.partial(_called, 1)
WITH_ATTRIBUTES.note = 3


def test_a_partial_of_a_partial_is_one_of_what_that_calls():
    def program(x):
        made = functools.partial(_called, 1)
        made.note = 3
        every = [
            functools.partial(FLAT, 2, b=3, a=5), functools.partial(WITH_ATTRIBUTES, 2), functools.partial(made, 2),
            functools.partial(functools.partial(_called, 1), 2), functools.partial(FLAT),
        ]  # fmt: skip
        return [(p.func is _called, p.args, p.keywords, p()) for p in every], x + 1

    observed = Observed(program)
    for _ in range(2):
        assert observed(torch.ones(2))[0] == program(torch.ones(2))[0]
    assert functools.partial(FLAT).func is _called, "asked for its attributes, it would be another one"
    assert not observed.breaks


class Shown:
    def __init__(self):
        self.kept = [1, {"a": 2}]

    def __str__(self):
        return "text"

    def __repr__(self):
        return "code"

    def __format__(self, spec):
        return f"as {spec}"


INTERPOLATED = [
    ("%s", 1), ("%5s|%-6r|%d%%|%.2f", 4), ("%d", 1), ("%s %s", 1), ("%s", 2), ("%s %s", 2), ("%z", 1), ("%s %(a)s", 1),
    ("100%% %s", 1),
]  # fmt: skip
FORMATTED = [
    "{} {}", "{0} {0!s} {0.kept} {0:>4} {1}", "{a.kept[1][a]} {a!r:>5}", "{2}", "{0.b}", "{:d}", "{} {0}", "{{}} {b}",
    "{a:{b}}",
]  # fmt: skip


@pytest.mark.parametrize("text, count", INTERPOLATED)
def test_texts_of_objects_are_those_of_their_own_methods(text, count):
    def program(x):
        values = (Shown(), Shown(), 3, 1.5)[:count]
        try:
            return text % (values if count > 1 else values[0]), x + 1
        except Exception as error:
            return type(error), str(error), x + 1

    assert Observed(program)(torch.ones(2))[:-1] == program(torch.ones(2))[:-1]


@pytest.mark.parametrize("text", FORMATTED)
def test_formats_of_objects_are_those_of_their_own_methods(text):
    def program(x):
        try:
            return text.format(Shown(), 1, a=Shown()), x + 1
        except Exception as error:
            return type(error), str(error), x + 1

    assert Observed(program)(torch.ones(2))[:-1] == program(torch.ones(2))[:-1]


def test_texts_of_objects_are_no_graph_breaks():
    texts = "%s %r", "{} {a!s}"

    def program(x):
        return texts[0] % (Shown(), Shown()), texts[1].format(Shown(), a=KeyError("b")), x + 1

    observed = Observed(program, fullgraph=True)
    assert observed(torch.ones(2))[:2] == ("text code", "as  'b'")


def test_the_complement_of_an_int_that_changes_is_captured_once_for_all():
    observed = Observed(lambda x, n: (x * ~n, x[~n:], ~n), fullgraph=True)
    for n in range(2, 9):
        found = observed(torch.ones(20), n)
        assert found[2] == ~n and len(found[1]) == n + 1 and found[0][0] == ~n
    assert len(observed.graphs) <= 2


def test_a_list_is_empty_while_it_is_sorted():
    def program(x):
        numbers, seen = [3, 1, 2], []
        numbers.sort(key=lambda n: seen.append(list(numbers)) or -n)
        try:
            numbers.sort(key=lambda n: numbers.append(n) or n)
        except ValueError as error:
            seen.append(str(error))
        try:
            numbers.sort(key=lambda n: 1 // (n - 1))
        except ZeroDivisionError:
            seen.append(list(numbers))
        return seen, numbers, x + 1

    observed = Observed(program)
    assert observed(torch.ones(2))[:-1] == program(torch.ones(2))[:-1]
    assert not observed.breaks


CHANGES = {
    "rotate": lambda d: d.rotate(1), "rotate by none": lambda d: d.rotate(0), "an item": lambda d: d.__setitem__(0, 9),
    "reverse": lambda d: d.reverse(), "insert": lambda d: d.insert(0, 9), "remove": lambda d: d.remove(3),
    "clear": lambda d: d.clear(), "extend by none": lambda d: d.extend([]), "append": lambda d: d.append(1),
    "popleft": lambda d: d.popleft(), "read": lambda d: d.count(1) + len(d.copy()),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("over", [iter, reversed])
def test_a_deque_that_changes_is_iterated_over_no_further(change, over):
    def program(x):
        items = collections.deque([1, 2, 3])
        iterator, found = over(items), []
        found.append(next(iterator))
        change(items)
        try:
            found += [*iterator]
        except RuntimeError as error:
            found.append(str(error))
        return found, type(iterator), x + 1

    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert observed(torch.ones(2))[:-1] == program(torch.ones(2))[:-1]


def test_deques_are_iterated_over_across_graph_breaks():
    def program(x):
        items, found = collections.deque([1, 2, 3], maxlen=4), []
        for n in items:
            x = x * n
            turret.graph_break()
            found.append(n)
        try:
            for n in reversed(items):
                turret.graph_break()
                items.append(n)
        except RuntimeError as error:
            found.append(str(error))
        try:
            items.insert(0, 5)
        except IndexError as error:
            found.append(str(error))
        return found, items, x + 1

    observed = Observed(program)
    for _ in range(2):
        assert observed(torch.ones(2))[:-1] == program(torch.ones(2))[:-1]


class Pair(typing.NamedTuple):
    first: int
    second: int = 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pair(), lambda: Pair(1, 2, 3), lambda: Pair(1, first=2), lambda: Pair(1, third=3), lambda: Pair(second=1),
        lambda: Pair(1, second=5), lambda: Pair(second=3, first=4), lambda: Pair(*[1]), lambda: Pair(first=0),
    ],
)  # fmt: skip
def test_a_named_tuple_takes_the_arguments_that_it_takes_in_eager(make):
    def program(x):
        try:
            return make(), x + 1
        except TypeError as error:
            return str(error), x + 1

    assert Observed(program, fullgraph=True)(torch.ones(2))[0] == program(torch.ones(2))[0]


@pytest.mark.parametrize("items", [[1, 2], (1, 2), range(2), collections.deque([1])])
def test_an_iterator_that_has_ended_is_of_its_kind(items):
    def program(x):
        ended = iter(items)
        return sum(ended), ended, x + 1

    found, expected = Observed(program, fullgraph=True)(torch.ones(2)), program(torch.ones(2))
    assert found[0] == expected[0] and type(found[1]) is type(expected[1]) and list(found[1]) == []


TAKEN = []


class Numbers:
    def __iter__(self):
        n = 0
        while True:
            TAKEN.append(n)
            yield n
            n += 1


def test_what_is_looked_for_is_taken_from_an_iterator_and_no_more():
    def numbers():
        yield from Numbers()

    def program(x):
        numbers_of_list, generator = iter([1, 2, 3]), numbers()
        pairs = zip([1, 2, 3], "abc")
        found = [2 in numbers_of_list, next(numbers_of_list), 2 in generator, next(generator), (1, "a") in pairs]
        found += [3 in Numbers(), 7 in itertools.count(5), list(pairs)]
        try:
            return found, 3 in Absent(), x
        except TypeError as error:
            return found, str(error), x + 1

    def seen(function):
        TAKEN.clear()
        return function(torch.ones(2))[:-1], list(TAKEN)

    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert seen(observed) == seen(program)


class Absent:
    pass


class Rounded:
    pass


@pytest.mark.parametrize(
    "run",
    [
        lambda: {**[(1, 2)]}, lambda: {**[]}, lambda: (lambda **k: k)(**{2: "a"}), lambda: round(Rounded()),
        lambda: list(reversed(Rounded())), lambda: functools.reduce(max, 3), lambda: (lambda *a: a)(*Rounded()),
        lambda: f"{types.SimpleNamespace():>4}", lambda: list(types.SimpleNamespace()),
    ],
)  # fmt: skip
def test_what_python_refuses_is_refused_in_its_words(run):
    def program(x):
        try:
            return run(), x + 1
        except TypeError as error:
            return str(error), x + 1

    assert Observed(program)(torch.ones(2))[0] == program(torch.ones(2))[0]


def test_a_deque_is_an_index_as_a_list_is_and_no_size():
    def program(x):
        found = [x[collections.deque([0, 1])], x[collections.deque([0]), 1], torch.tensor(collections.deque([1, 2]))]
        try:
            return x.view(collections.deque([4, 3]))
        except TypeError:
            return found

    observed = Observed(program)
    for _ in range(2):
        for mine, theirs in zip(observed(torch.ones(3, 4)), program(torch.ones(3, 4)), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("value", [fractions.Fraction(1, 2), 2.5, 3, None, "ff", b"12"], ids=str)
def test_an_int_with_a_base_is_made_of_texts_alone(value):
    def program(x):
        try:
            return int(value, 16), x + 1
        except TypeError as error:
            return str(error), x + 1

    assert Observed(program, fullgraph=True)(torch.ones(2))[0] == program(torch.ones(2))[0]


class Slotted:
    __slots__ = ("kept",)


class SlottedWithDict(Slotted):
    __slots__ = ("__dict__",)


@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("kind", [Slotted, SlottedWithDict, fractions.Fraction, Shown])
def test_objects_without_attributes_of_their_own_have_no_dict(kind, made_inside):
    given = kind()

    def program(x):
        held, found = kind() if made_inside else given, [hasattr(given, "__dict__")]
        for ask in (vars, lambda v: v.__dict__, lambda v: getattr(v, "__dict__", 7)):
            try:
                found.append(len(ask(held)) if ask(held) != 7 else 7)
            except (TypeError, AttributeError) as error:
                found.append(str(error))
        return found, x + 1

    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert observed(torch.ones(2))[0] == program(torch.ones(2))[0]


class Tally(collections.Counter):
    def meth(self, n):
        return len(self) + n


class OwnInt(int):
    def __str__(self):
        return "own"


class NoIterator:
    def __iter__(self):
        return 5


class OwnList(list):
    pass


class OwnDefault(collections.defaultdict):
    pass


@pytest.mark.parametrize(
    "run",
    [
        lambda: "%s" % Tally("aab"), lambda: "%s" % collections.Counter("aab"), lambda: "%s %d" % (OwnInt(3), OwnInt(4)),
        lambda: "%s" % OwnInt(3), lambda: "{} {:>4}".format(OwnInt(3), OwnInt(4)), lambda: "%(a)s" % Tally(a=2),
        lambda: iter(NoIterator()), lambda: [*NoIterator()], lambda: functools.partial(1),
        lambda: collections.defaultdict(1), lambda: OwnDefault(1), lambda: OwnDefault(list)["a"], lambda: Tally("a").meth.__class__, lambda: Tally("a").meth.__call__(2),
        lambda: Tally("a").meth.__name__, lambda: (made := OwnList([1, 2]), made.__init__(), len(made))[1:],
        lambda: (made := OwnList([1, 2]), made.__init__([3]), list(made))[1:],
    ],
)  # fmt: skip
def test_objects_of_classes_do_as_in_eager(run):
    def program(x):
        try:
            return run(), x + 1
        except TypeError as error:
            return str(error), x + 1

    observed = Observed(program)
    for _ in range(2):
        assert observed(torch.ones(2))[0] == program(torch.ones(2))[0]
