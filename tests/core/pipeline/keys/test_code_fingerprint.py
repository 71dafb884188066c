"""Equal code, state and all within reach have equal fingerprints; any difference, however far away, has another."""

from __future__ import annotations

import collections
import enum
import functools
import re
import threading
import types
import weakref
from typing import Any

import numpy
import pytest
import torch

from turret.pipeline.keys.code_fingerprint import all_codes, fingerprint
from turret.pipeline.keys.operators import Opaque

BASE = """
import functools, enum, collections, torch, numpy, re, weakref, types
k = {k}
{before}
def f(x):
    return {body}
"""


def module(body: str, before: str = "", k: Any = 2, name: str = "fingerprinted") -> types.ModuleType:
    made = types.ModuleType(name)
    exec(compile(BASE.format(body=body, before=before, k=k), f"/{name}.py", "exec"), vars(made))
    return made


def of(body: str, before: str = "", k: Any = 2) -> str:
    return fingerprint(module(body, before, k).f)[0]


REACHED = {
    "a global": "x * k",
    "a helper": ("g(x)", "def g(x): return x * {}"),
    "a helper of a helper": ("g(x)", "def h(x): return x * {}\ndef g(x): return h(x)"),
    "recursion": ("g(x)", "def h(x): return g(x) * {}\ndef g(x): return h(x)"),
    "a closure": ("g(x)", "def made(k):\n    return lambda x: x * k\ng = made({})"),
    "a default": ("g(x)", "def g(x, k={}): return x * k"),
    "a keyword default": ("g(x)", "def g(x, *, k={}): return x * k"),
    "an attribute of a function": ("g(x)", "def g(x): return x * g.k\ng.k = {}"),
    "a method": ("c.g(x)", "class C:\n    def g(self, x): return x * {}\nc = C()"),
    "a method of a base": ("c.g(x)", "class B:\n    def g(self, x): return x * {}\nclass C(B): pass\nc = C()"),
    "a metaclass": ("C.g(x)", "class M(type):\n    def g(cls, x): return x * {}\nclass C(metaclass=M): pass"),
    "a static method": ("C.g(x)", "class C:\n    @staticmethod\n    def g(x): return x * {}"),
    "a class method": ("C.g(x)", "class C:\n    @classmethod\n    def g(cls, x): return x * {}"),
    "a property": ("x * c.k", "class C:\n    @property\n    def k(self): return {}\nc = C()"),
    "a cached property": ("x * c.k", "class C:\n    @functools.cached_property\n    def k(self): return {}\nc = C()"),
    "an attribute of an object": ("x * c.k", "class C: pass\nc = C()\nc.k = {}"),
    "a slot of an object": ("x * c.k", "class C:\n    __slots__ = ('k',)\nc = C()\nc.k = {}"),
    "an object in an object": ("x * c.d.k", "class C: pass\nc = C()\nc.d = C()\nc.d.k = {}"),
    "a list": ("x * t[0]", "t = [{}]"),
    "a dictionary": ("x * t['a']", "t = dict(a={})"),
    "an ordered dictionary": ("x * t['a']", "t = collections.OrderedDict(a={})"),
    "a default dictionary": ("x * t['a']", "t = collections.defaultdict(lambda: {})"),
    "a set": ("x * sum(t)", "t = {{1, {}}}"),
    "a set of functions": ("sum(g(x) for g in t)", "t = frozenset([lambda x: x * {}])"),
    "a deque": ("x * t[0]", "t = collections.deque([{}])"),
    "a named tuple": ("x * t.k", "T = collections.namedtuple('T', 'k')\nt = T({})"),
    "a function in a table": ("t['a'](x)", "t = dict(a=lambda x: x * {})"),
    "a partial": ("g(x)", "def h(k, x): return x * k\ng = functools.partial(h, {})"),
    "what a wrapper wraps": ("g(x)", "def d(h):\n    @functools.wraps(h)\n    def w(x): return h(x)\n    return w\n"
                             "@d\ndef g(x): return x * {}"),
    "a cached function": ("x * g()", "@functools.lru_cache\ndef g(): return {}"),
    "a bound method": ("g(x)", "class C:\n    def g(self, x): return x * self.k\nc = C()\nc.k = {}\ng = c.g"),
    "a method of a list": ("g(0)", "t = [{}]\ng = t.__getitem__"),
    "an enum": ("x * K.A.value", "class K(enum.Enum):\n    A = {}"),
    "an enum's member": ("x * a.value", "class K(enum.Enum):\n    A = {}\na = K.A"),
    "a method of an enum": ("x * K.A.g()", "class K(enum.Enum):\n    A = 1\n    def g(self): return {}"),
    "a tensor": ("x * t", "t = torch.tensor({}.0)"),
    "a parameter": ("x * t", "t = torch.nn.Parameter(torch.tensor({}.0))"),
    "a module": ("m(x)", "m = torch.nn.Linear(1, 1)\nwith torch.no_grad(): m.weight.fill_({}); m.bias.fill_(0)"),
    "an array": ("x * t", "t = numpy.array({})"),
    "a number of numpy": ("x * t", "t = numpy.float32({})"),
    "a pattern": ("t.sub('', x)", "t = re.compile('{}')"),
    "a subclass of a list": ("x * t[0]", "class L(list): pass\nt = L([{}])"),
    "a subclass of an int": ("x * t", "class I(int): pass\nt = I({})"),
    "a weak reference": ("x * r().k", "class C: pass\nc = C()\nc.k = {}\nr = weakref.ref(c)"),
    "a namespace": ("x * t.k", "t = types.SimpleNamespace(k={})"),
    "a nested function's global": ("(lambda: g(x))()", "def g(x): return x * {}"),
    "a constant in the code": "x * {}",
}  # fmt: skip


@pytest.mark.parametrize("name", REACHED)
def test_what_a_function_reaches_is_part_of_it(name):
    body, before = REACHED[name] if isinstance(REACHED[name], tuple) else (REACHED[name], "")

    def version(number: int) -> str:
        return of(body.replace("{}", str(number)), before.format(number), number)

    assert version(2) == version(2)
    assert version(2) != version(3)


def test_names_that_the_code_does_not_have_are_no_part_of_it():
    assert of("x * 2", "unused = 3") == of("x * 2", "unused = 4")


def test_a_global_that_is_missing_or_hides_a_builtin_is_told():
    assert of("x * missing") != of("x * missing", "missing = 2")
    assert of("max(x)") != of("max(x)", "max = min")


def test_attributes_of_the_program_s_modules_are_followed(monkeypatch):
    import sys

    values = []
    for k in (2, 2, 3):
        monkeypatch.setitem(sys.modules, "fingerprinted_aside", module("x * k", k=k, name="fingerprinted_aside"))
        values.append((of("fingerprinted_aside.k * x", "import fingerprinted_aside"),
                       of("fingerprinted_aside.f(x)", "import fingerprinted_aside")))  # fmt: skip
    assert values[0] == values[1]
    assert values[0][0] != values[2][0] and values[0][1] != values[2][1]


def test_functions_of_libraries_are_told_by_name():
    assert of("torch.nn.functional.relu(x)") == of("torch.nn.functional.relu(x)")
    assert fingerprint(torch.nn.functional.relu)[1] == frozenset()
    assert fingerprint(torch.nn.functional.relu) != fingerprint(torch.nn.functional.gelu)
    assert fingerprint(collections.OrderedDict)[0] != fingerprint(collections.Counter)[0]


def test_a_namespace_that_calls_itself_a_library_is_none():
    scope = {"__name__": "torch.nn.functional"}
    exec("def relu(x): return x * 3", scope)
    assert fingerprint(scope["relu"])[1] == frozenset(all_codes(scope["relu"].__code__))


def test_the_code_that_was_reached_is_given():
    made = module("g(x)", "def h(x): return x\ndef g(x): return (lambda: h(x))()")
    codes = {c.co_name for c in fingerprint(made.f)[1]}
    assert codes == {"f", "g", "h", "<lambda>"}


def test_files_and_lines_are_no_part_of_it():
    one, other = module("x * k"), types.ModuleType("fingerprinted")
    exec(compile("\n\n" + BASE.format(body="x * k", before="", k=2), "/elsewhere.py", "exec"), vars(other))
    assert fingerprint(one.f)[0] == fingerprint(other.f)[0]


def test_cycles_and_shared_parts_end():
    one: dict[str, Any] = {}
    one["self"] = [one, (one,)]
    other: dict[str, Any] = {}
    other["self"] = [other, ({},)]
    assert fingerprint(one) != fingerprint(other)


class _Strange:
    def __getattribute__(self, name: str) -> Any:
        raise ZeroDivisionError


OPAQUE = {
    "a generator": lambda: (n for n in range(3)),
    "a large tensor": lambda: torch.empty(1 << 24),
    "a tensor without memory": lambda: torch.empty(3, device="meta"),
    "memory": lambda: memoryview(b"a"),
    "an iterator": lambda: iter([1, 2]),
    "an object that raises": _Strange,
    "too many objects": lambda: {n: [] for n in range(30_000)},
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_cannot_be_compared_is_said_to_be_so(name):
    with pytest.raises(Opaque):
        fingerprint(OPAQUE[name]())


def test_locks_and_loggers_have_no_say():
    import logging

    assert fingerprint(threading.Lock()) == fingerprint(threading.Lock())
    assert fingerprint(logging.getLogger("a")) != fingerprint(logging.getLogger("b"))


def test_kinds_of_values_are_told_apart():
    class K(enum.IntEnum):
        A = 1

    values = [1, 1.0, True, "1", b"1", 1j, None, [1], (1,), {1}, frozenset({1}), {1: 1}, K.A, numpy.int64(1),
              torch.tensor(1), torch.tensor(1.0), range(1), slice(1), re.compile("1"), functools.partial(int, 1),
              torch.float32, torch.device("cpu"), weakref.ref(K), int, K]  # fmt: skip
    found = [fingerprint(v)[0] for v in values]
    assert len(set(found)) == len(found)
