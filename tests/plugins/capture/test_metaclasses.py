"""Classes whose metaclass says what a call of them does are captured."""

from __future__ import annotations

import abc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import ProxyableClassMeta

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


class Marking(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.mark = 3
        return made


class Point(metaclass=Marking):
    def __init__(self, x):
        self.x = x


class Derived(Point):
    def __init__(self, x):
        super().__init__(x)
        self.y = x * 2


class Items(list, metaclass=Marking):
    pass


class Named(metaclass=type("AbstractMarking", (Marking, abc.ABCMeta), {})):
    def __init__(self, x):
        self.x = x


class Shifting(type):
    def __call__(cls, x):
        return super(Shifting, cls).__call__(x + 1)


class Shifted(metaclass=Shifting):
    def __init__(self, x):
        self.x = x


class Plain(type):
    def __call__(cls, x):
        return type.__call__(cls, x)


class Made(metaclass=Plain):
    def __new__(cls, x):
        made = object.__new__(cls)
        made.count = 2
        return made

    def __init__(self, x):
        self.x = x


class ByHand(type):
    def __call__(cls, *args):
        made = cls.__new__(cls, *args)
        made.__init__(*args)
        return made


class HandMade(metaclass=ByHand):
    def __init__(self, x):
        self.x = x


MADE: dict[type, object] = {}


class Once(type):
    def __call__(cls, *args):
        if cls not in MADE:
            MADE[cls] = super().__call__(*args)
        return MADE[cls]


class Setting(metaclass=Once):
    def __init__(self, scale=2):
        self.scale = scale


def marked_in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + Point(x).mark
    return x


@pytest.mark.parametrize(
    "program",
    [
        lambda x: Point(x).x * Point(x).mark,
        lambda x: Derived(x).y * Derived(x).mark,
        lambda x: Items([x, x])[0] * Items().mark,
        lambda x: Named(x).x * Named(x).mark,
        lambda x: Shifted(x).x,
        lambda x: Made(x).x * Made(x).count,
        lambda x: HandMade(x).x * 2,
        lambda x: type.__call__(Derived, x).y,
        lambda x: type.__call__(nn.Identity)(x) + 1,
        marked_in_a_loop,
    ],
)
def test_what_a_metaclass_does_around_the_call_is_one_graph(program) -> None:
    x = torch.randn(3)
    torch.testing.assert_close(turret.compile(program, fullgraph=True, options=OPTIONS)(x), program(x))


def test_an_instance_that_a_metaclass_made_leaves_the_program() -> None:
    made = turret.compile(Point, options={"cache": False})(torch.ones(3))
    assert type(made) is Point and made.mark == 3
    found = turret.compile(lambda x: Point(x * 2), fullgraph=True, options=OPTIONS)(torch.ones(3))
    assert type(found) is Point and found.mark == 3 and found.x.equal(torch.full((3,), 2.0))


def test_a_metaclass_that_keeps_one_instance_makes_one() -> None:
    MADE.clear()
    compiled = turret.compile(lambda x: x * Setting(5).scale, options={"cache": False})
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x * 5)
    assert list(MADE) == [Setting] and Setting(7).scale == 5


class AbstractProxyable(abc.ABCMeta, ProxyableClassMeta):
    pass


class Pair(metaclass=ProxyableClassMeta):
    def __init__(self, left, *, right=2):
        self.left, self.right = left, right


class AbstractPair(Pair, metaclass=AbstractProxyable):
    pass


class Counted(Pair):
    def __new__(cls):
        made = super().__new__(cls)
        made.count = 3
        return made


class Instead(Pair):
    def __new__(cls):
        return Pair(1)

    def __init__(self, left, *, right=4):
        self.only = left


class Refusing(Pair):
    def __init__(self):
        raise ValueError("refused")


@given(
    st.lists(st.sampled_from([Pair, AbstractPair, Counted, Instead, Refusing]), min_size=1, max_size=3).map(tuple),
    st.sampled_from([{}, {"right": 5}, {"wrong": 5}]),
)
@settings(max_examples=25, deadline=None)
def test_classes_of_torch_fx_make_instances_as_others_do(kinds, words):
    def program(x):
        seen = []
        for kind in kinds:
            try:
                made = kind(x, **words)
            except (TypeError, ValueError) as error:
                seen.append((type(error), str(error)))
            else:
                seen.append((type(made), type(made).__bases__, vars(made)))
        return x + 1, seen

    observed, x = Observed(program, fullgraph=True), torch.ones(2)
    assert_same(observed(x), program(x))


NAMES = []


class Noting(type):
    def __setattr__(cls, name, value):
        NAMES.append(name)
        super().__setattr__(name, value * 2)


class Noted(metaclass=Noting):
    number = 1


def test_a_metaclass_that_sets_attributes_its_own_way_is_followed():
    def program(x):
        Noted.number = Noted.number + 1
        return x * Noted.number

    def seen(function):
        NAMES.clear()
        type.__setattr__(Noted, "number", 1)
        return [function(torch.ones(2)).tolist() for _ in range(4)], Noted.number, list(NAMES)

    observed = Observed(program)
    assert seen(observed) == seen(program)
    assert not observed.breaks


class Telling(type):
    count = 0

    def __eq__(cls, other):
        return NotImplemented if other == 5 else other == 3

    def __hash__(cls):
        return 1

    def __repr__(cls):
        return f"told {Telling.count}"


class Told(metaclass=Telling):
    pass


class Otherwise(type):
    def __str__(cls):
        return "text"

    def __ne__(cls, other):
        return "not equal"


class Worded(metaclass=Otherwise):
    pass


def test_a_metaclass_that_compares_and_describes_its_classes_is_followed():
    def program(x):
        texts = repr(Told), str(Told), f"{Told}", f"{Told!r}", "%s" % Told, "{} {:>9}".format(Told, 1), str(Worded)
        told = Told == 3, Told != 3, Told == 5, Told != 5, 3 == Told, Worded != 4, Worded == 4, Worded == Worded
        return texts, told, f"{Worded}", x + 1

    observed = Observed(program)
    for count in range(3):
        Telling.count = count
        assert observed(torch.ones(2))[:-1] == program(torch.ones(2))[:-1]
    assert not observed.breaks
