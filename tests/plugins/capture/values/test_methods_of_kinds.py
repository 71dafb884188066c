"""Every method of the builtin kinds of values, with arguments of all kinds: what Python gives, or raises."""

from __future__ import annotations

import collections
import enum
import itertools
import re
import warnings
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.function_capture import Watch, captured


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Letter(str, enum.Enum):
    A = "a"


class Whole(int):
    pass


class Text(str):
    pass


class Pair(tuple):
    pass


class Book(dict):
    pass


class Row(list):
    pass


class Index:
    def __index__(self):
        return 2


class Answering:
    """Answers for operators from either side."""

    def __eq__(self, other):
        return "equal"

    def __hash__(self):
        return 3

    def __radd__(self, other):
        return "added"

    def __gt__(self, other):
        return "greater"


Named = collections.namedtuple("Named", "p q")
OWNERS = {
    int: ("n", "3", "Whole(3)", "Level.HIGH", "True"), float: ("f", "2.5", "float(n)"), complex: ("complex(n, 1)",),
    str: ("'ab,c'", "str(n)", "Text('ab')", "Letter.A"), bytes: ("b'abc'",), list: ("[1, n, 3]", "[x, n]", "Row([n, 2])"),
    tuple: ("(1, n, 'a')", "Pair((1, n))", "Named(n, 2)"), dict: ("{'a': n, 3: 1}", "{n: 1}", "Book(a=n)"),
    collections.OrderedDict: ("collections.OrderedDict(a=n)",), collections.Counter: ("collections.Counter('aab')",),
    set: ("{1, 3}", "{n, 'a'}"), frozenset: ("frozenset({3, n})",), range: ("range(n)", "range(0, n, 2)"),
    slice: ("slice(1, n, 2)",), torch.Size: ("x.shape", "torch.Size((n, 2))"), torch.dtype: ("x.dtype",),
    torch.device: ("x.device",), torch.finfo: ("torch.finfo(torch.float32)",), numpy.float64: ("numpy.float64(2.5)",),
    numpy.int64: ("numpy.int64(3)",), collections.deque: ("collections.deque([1, n], 4)",), Fraction: ("Fraction(3)",),
}  # fmt: skip
ARGUMENTS = (
    "n", "3", "0", "-1", "f", "2.5", "True", "None", "'a'", "(1, n)", "[1, 2]", "{1: 2}", "{3}", "numpy.int64(3)",
    "numpy.array([1, 2, 3])", "numpy.float32(2.5)", "Level.HIGH", "Fraction(3)", "Whole(3)", "Text('a')", "Pair((1, n))",
    "Named(n, 2)", "x.sum()", "x.shape", "slice(0, n)", "range(n)", "b'a'", "1j", "Index()", "Answering()",
    "torch.float32", "Letter.A", "Book(a=1)",
)  # fmt: skip
_LEFT_OUT = frozenset(
    "__init__ __new__ __init_subclass__ __subclasshook__ __class__ __reduce__ __reduce_ex__ __getattribute__ __setattr__ "
    "__delattr__ __doc__ __dir__ __sizeof__ __getstate__ __class_getitem__ __array_interface__ __array_struct__ data dump "
    "tofile __hash__ __module__ __dict__ __weakref__ __getnewargs__".split()
)
CALLS = [
    (owner, name)
    for kind, owners in OWNERS.items()
    for name in sorted(set(dir(kind)) - _LEFT_OUT)
    for owner in owners
    # The method of a deque, called by name, has other words for wrong indices than ``d[i] = x`` has.
    if (kind, name) not in ((collections.deque, "__setitem__"), (collections.deque, "__delitem__"))
]


def _told(value) -> object:
    """A value with all types in it, as text."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.shape, str(value.tolist())
    if isinstance(value, numpy.ndarray):
        return str(value.dtype), value.shape, str(value.tolist())
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if isinstance(value, dict):
        return type(value), [_told(item) for item in value.items()]
    if isinstance(value, (tuple, list, collections.deque)):
        return type(value), [_told(item) for item in value]
    if hasattr(value, "__next__"):
        return [_told(item) for item in itertools.islice(value, 8)]
    return type(value), re.sub("0x[0-9a-f]+", "", repr(value))


def _ended(program, *args) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _told(program(*args))


def _check(owner: str, name: str, arguments: tuple[str, ...]) -> None:
    body = (
        f"def program(x, n, f):\n y, o = x + n * f, {owner}\n try:\n  r = o.{name}\n"
        f"  if callable(r):\n   r = r({', '.join(arguments)})\n"
        " except Exception as error:\n  r = type(error).__name__, str(error)\n return y, r, o"
    )
    scope = dict(globals())
    exec(body, scope)
    ours = captured(scope["program"], Watch())
    for n, f in ((3, 2.5), (4, 1.5), (5, -0.5), (3, 2.5)):
        x = torch.arange(n * 2.0).reshape(n, 2)
        assert _ended(ours, x, n, f) == _ended(scope["program"], x, n, f)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(st.sampled_from(CALLS), st.lists(st.sampled_from(ARGUMENTS), max_size=2))
@example(("frozenset({3, n})", "__contains__"), ["Fraction(3)"])
@example(("frozenset({3, n})", "__iter__"), [])
@example(("{'a': n, 3: 1}", "get"), ["Fraction(3)"])
@example(("numpy.int64(3)", "flat"), [])
@example(("numpy.int64(3)", "sum"), ["x.shape"])
@example(("Fraction(3)", "__ne__"), ["Level.HIGH"])
@example(("Text('ab')", "__lt__"), ["n", "n"])
@example(("Whole(3)", "__str__"), ["n"])
@example(("[x, n]", "index"), ["Fraction(3)"])
@example(("{n: 1}", "update"), ["[1, 2]"])
@example(("{n: 1}", "update"), ["((1, 2, 3),)"])
@example(("'ab,c'", "join"), ["3"])
@example(("x.shape", "__getitem__"), ["1j"])
@example(("collections.deque([1, n], 4)", "remove"), ["Named(n, 2)"])
def test_methods_of_builtin_kinds_give_what_pythons_give(call, arguments):
    _check(*call, tuple(arguments))


class Base:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return "base"

    def __lt__(self, other):
        return "base"

    def __gt__(self, other):
        return "base greater"

    def __add__(self, other):
        return "base"

    def __radd__(self, other):
        return "base from the right"

    __hash__ = None


class Derived(Base):
    def __eq__(self, other):
        return "derived"

    def __gt__(self, other):
        return "derived greater"

    def __radd__(self, other):
        return "derived from the right"


class Same(Base):
    pass


class Silent(int):
    def __eq__(self, other):
        return NotImplemented

    __hash__ = int.__hash__


class Refusing:
    __eq__ = None
    __contains__ = None
    __add__ = None
    __iter__ = None


SIDES = ("Base(n)", "Derived(n)", "Same(n)", "n", "Silent(3)", "3", "[n]", "x", "None", "'a'")
OTHERS = ("Base(n)", "Derived(n)", "Same(n)", "Silent(3)", "Refusing()", "object()", "o.append", "o", "vars(o2)")
FORMS = ("{0} == {1}", "{0} != {1}", "{0} < {1}", "{0} + {1}", "{0} in [{1}]", "[{0}] == [{1}]")


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(SIDES), st.sampled_from(FORMS), st.sampled_from(OTHERS))
@example("Base(n)", "{0} == {1}", "Derived(n)")
@example("Base(n)", "{0} + {1}", "Derived(n)")
@example("3", "{0} == {1}", "Silent(3)")
@example("x", "{0} == {1}", "Base(n)")
def test_operators_ask_the_sides_that_python_asks(one, form, other):
    """A class that derives from the other side's goes first, and ``NotImplemented`` is not the same as not to know."""
    scope = dict(globals())
    exec(
        "def program(x, n, o, o2):\n y = x + n\n try:\n"
        f"  r = {form.format(one, other)}\n except Exception as error:\n  r = type(error).__name__, str(error)\n return y, r",
        scope,
    )
    ours = captured(scope["program"], Watch())
    for n in (3, 4):
        arguments = (torch.ones(1), n, [1], Base(n))
        assert _ended(ours, *arguments) == _ended(scope["program"], *arguments)


def test_a_method_of_a_builtin_object_equals_itself():
    def program(x, items):
        return x + 1, items.append == items.append, items.append != [].append, items.append == items.pop

    x, items = torch.ones(2), [1]
    assert program(x, items)[1:] == captured(program, Watch())(x, items)[1:] == (True, True, False)


class Floating(float):
    pass


SCALARS = (
    "n", "n - 3", "f", "True", "(n > 3)", "numpy.int64(1)", "numpy.float32(1.5)", "numpy.bool_(True)", "numpy.complex64(1)",
    "numpy.complex128(1j)", "Level.LOW", "Whole(1)", "Floating(1.5)", "Fraction(1)", "torch.tensor(1)", "torch.tensor(1.5)",
    "torch.tensor(n - 2)", "x.shape[0]", "Index()", "-1", "5", "1j", "None", "numpy.array(1)", "'a'", "n / 2", "bool(n)",
)  # fmt: skip
OF_TENSORS = (
    "r = x.size({})", "r = x.shape[{}]", "r = x.sum({})", "r = x.select({}, 0)", "r = x.narrow(0, 0, {})", "r = x.chunk({})",
    "r = x.repeat(1, {})", "r = x.reshape({}, -1)", "r = x + {}", "r = {} * x", "r = x.long() + {}", "r = x.long().pow({})",
    "r = x.half() - {}", "r = x.bool() == {}", "r = x.fill_({})", "r = x.masked_fill(x > 2, {})", "r = x.new_full((2,), {})",
    "r = x.new_ones((1, {}))", "r = torch.where(x > 1, x, {})", "r = torch.full((2,), {})", "r = torch.arange({})",
    "r = x.clamp({})", "r = x.add(x, alpha={})", "r = x.to({})", "r = x[{}]", "r = x[..., {}]", "r = x[:{}]", "x[0] = {}",
    "x[{}] = 1", "x[1:] = {}", "x += {}", "x //= {}", "r = torch.tensor([{}])", "r = int({}) + x", "r = x.roll({}, 0)",
    "o[:2] = {}", "o[::2] = {}", "r = o[{}]",
)  # fmt: skip


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(st.sampled_from(OF_TENSORS), st.sampled_from(SCALARS))
@example("r = x.size({})", "bool(n)")
@example("r = x.size({})", "5")
@example("r = x.long().pow({})", "numpy.bool_(True)")
@example("r = x + {}", "numpy.complex64(1)")
@example("r = x.to({})", "numpy.bool_(True)")
@example("x[1:] = {}", "numpy.float32(1.5)")
@example("r = x[{}]", "numpy.bool_(True)")
@example("o[::2] = {}", "n")
def test_tensors_take_numbers_of_any_class_for_what_torch_takes_them(form, number):
    scope = dict(globals())
    exec(
        "def program(x, n, f):\n y, r, x, o = x + n * f, None, x.clone(), [1, 2, 3]\n try:\n"
        f"  {form.format(number)}\n except Exception as error:\n"
        "  r = type(error).__name__, str(error).partition('Exception raised')[0]\n return y, r, x, o",
        scope,
    )
    ours = captured(scope["program"], Watch())
    for n, f in ((3, 2.5), (4, 1.5), (3, 2.5)):
        x = torch.arange(n * 3.0).reshape(n, 3)
        assert _ended(ours, x, n, f) == _ended(scope["program"], x, n, f)
