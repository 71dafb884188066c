"""What newer versions of Python brought is captured where they run: each program in the versions that know it."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.plugins.capture.capture_lab import check

X = torch.arange(3.0) + 1
PRELUDE = """
import collections, copy, dataclasses, functools, itertools, math, os, sys, types, typing, warnings
import torch
"""
PROGRAMS = {
    (3, 11): {
        "a naked exception is a group": """
def program(x):
    try:
        raise ValueError("naked")
    except* ValueError as group:
        found = type(group).__name__, group.message, group.exceptions[0].args
    return x + 1, found
""",
        "a group is taken apart": """
def program(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError(2), ValueError(3)])])
        except* ValueError as group:
            raise TypeError("t")
    except BaseExceptionGroup as group:
        return x + 1, repr(group), [repr(v) for v in group.exceptions]
""",
        "comprehensions": """
def program(x):
    i, kept = 10, [lambda: i for i in range(3)]
    nested = [[x * i * j for i in range(2)] for j in range(2)]
    return x + i, [f() for f in kept], nested, {k: v * x for k, v in zip("ab", range(2))}, [last := i for i in range(3)], last
""",
        "a failing comprehension": """
def program(x):
    i = 3
    try:
        found = [1 / (i - 1) for i in range(3)]
    except ZeroDivisionError:
        return x * i
""",
        "a variable that a comprehension alone has": """
def program(x):
    found = [i for i in range(3)]
    try:
        return x + 1, i
    except NameError as error:
        return x + 1, found, error.name
""",
        "functions without names": """
def program(x):
    kept = [[lambda: (n, j) for j in range(2)] for n in range(2)]
    return x + 1, [f() for row in kept for f in row]
""",
        "calls by keyword": """
def program(x):
    def add(a, *b, c=1, **d):
        return a + c + len(b) + len(d)
    return x * add(1, 2, c=3, q=4), add(1, c=2), torch.add(x, x, alpha=2), functools.partial(torch.add, alpha=3)(x, other=x)
""",
    },
    (3, 12): {
        "quotes within quotes": """
def program(x):
    held = {"a": 1}
    return x + 1, f"{held["a"]} {", ".join(["x", "y"])} {f"{f"{x.shape}"}"} {3.14159:.{2}f} {held=}"
""",
        "batches": """
def program(x):
    return x + 1, list(itertools.batched(range(7), 3)), [sum(b) for b in itertools.batched([x, x, x], 2)]
""",
        "products": """
def program(x):
    return x * math.sumprod([1, 2], [3, 4]), math.cbrt(8.0), os.path.splitroot("/a/b")
""",
        "overriding": """
class Kind:
    @typing.override
    def value(self):
        return 3
def program(x):
    return x * Kind().value(), Kind.value.__override__
""",
        "a generic class": """
class Kind[T]:
    def __init__(self, value: T):
        self.value = value
def program(x):
    return Kind[int](x).value + Kind(x).value, Kind.__type_params__[0].__name__
""",
    },
    (3, 13): {
        "replacements": """
Pair = collections.namedtuple("Pair", "a b")
@dataclasses.dataclass(frozen=True)
class Kept:
    a: int
    b: float = 2.0
class Own:
    def __init__(self, value):
        self.value = value
    def __replace__(self, **changes):
        return Own(**changes)
class Space(types.SimpleNamespace):
    pass
def program(x):
    space = copy.replace(Space(a=x, b=1), b=2, c=3)
    kept = copy.replace(Kept(1), a=4)
    return x * kept.a, kept, copy.replace(Pair(1, x), a=9), copy.replace(Own(1), value=x).value, sorted(vars(space)), space.a, space.c
""",
        "what has no replacement": """
def program(x):
    try:
        copy.replace(5, a=1)
    except TypeError as error:
        return x + 1, str(error)
""",
        "namespaces of mappings": """
def program(x):
    one, other = types.SimpleNamespace({"a": 1}, b=x), types.SimpleNamespace([("a", 2)])
    return one.b * (one.a + other.a), one.b, list(vars(one))
""",
        "what classes say": """
class Kind:
    def __init__(self):
        self.one = self.other = 1
def program(x):
    return x + 1, Kind.__static_attributes__, Kind.__firstlineno__
""",
        "fused products": """
def program(x):
    return x * math.fma(2.0, 3.0, 4.0), typing.TypeVar("T", default=int).has_default()
""",
    },
}  # fmt: skip
CASES = [(version, name) for version, programs in PROGRAMS.items() for name in programs]


def program_of(text):
    scope = {"__name__": __name__}
    exec(compile(PRELUDE + text, "<program>", "exec", dont_inherit=True), scope)
    return scope["program"]


@pytest.mark.parametrize(("version", "name"), CASES, ids=[name for _, name in CASES])
def test_it_is_captured_as_one_graph(version, name):
    if sys.version_info < version:
        pytest.skip("of a newer Python")
    check(program_of(PROGRAMS[version][name]), X, graphs=1)


DEPRECATED = """
@warnings.deprecated("of a function")
def function(value):
    return value * 2
@warnings.deprecated("of a class")
class Kind:
    def __init__(self, value):
        self.value = value
def program(x):
    return function(x) + Kind(x).value
"""


@pytest.mark.skipif(sys.version_info < (3, 13), reason="of a newer Python")
def test_what_is_deprecated_is_followed_and_warns(recwarn):
    program = program_of(DEPRECATED)
    check(program, X, breaks=None)
    assert {str(w.message) for w in recwarn} >= {"of a function", "of a class"}
