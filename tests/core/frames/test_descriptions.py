"""Values in messages: what a program defines is not run for one."""

from __future__ import annotations

import collections
import enum
import functools

import pytest
import torch

from turret.frames.descriptions import listed, name_of, short


class Told:
    """Counts how often its text is asked for, and cannot be ordered."""

    asked = 0

    def __repr__(self) -> str:
        Told.asked += 1
        raise RuntimeError("a text that nobody may ask for")

    __str__ = __repr__

    def __lt__(self, other: object) -> bool:
        raise RuntimeError("an order that nobody may ask for")


class ToldList(list):
    __repr__ = Told.__repr__


class ToldText(str):
    __slots__ = ()
    __repr__ = Told.__repr__


class ToldEnum(enum.Enum):
    ONE = 1
    __repr__ = Told.__repr__


class ToldType(type):
    __repr__ = Told.__repr__


class OfToldType(metaclass=ToldType):
    pass


@pytest.mark.parametrize(
    "hold",
    [
        lambda v: v,
        lambda v: [v, v],
        lambda v: (1, {"a": v}),
        lambda v: {v: 1, Told(): 2} if v.__hash__ else v,
        lambda v: {v, Told()} if v.__hash__ else v,
        lambda v: frozenset([v]) if v.__hash__ else v,
        lambda v: ValueError("of", v),
        lambda v: collections.deque([v]),
        lambda v: collections.OrderedDict(a=v),
        lambda v: functools.partial(print, v),
    ],
)
@pytest.mark.parametrize(
    "value",
    [Told(), ToldList([1]), ToldText("a"), ToldEnum.ONE, OfToldType, Told],
    ids=["object", "list", "text", "enum", "type", "class"],
)
def test_no_text_that_a_program_defines_is_asked_for(hold, value):
    before = Told.asked
    assert short(hold(value))
    assert listed([hold(value)] * 9).endswith("and 3 others")
    assert name_of(value)
    assert Told.asked == before


def test_plain_values_are_shown_as_python_shows_them():
    values = [
        None,
        True,
        2,
        0.5,
        1j,
        "a",
        b"b",
        (1,),
        [2],
        {3: 4},
        {5},
        frozenset([6]),
        range(3),
        torch.float32,
        ...,
        int,
    ]
    assert [short(v) for v in values] == [repr(v) for v in values]
    assert short(set()) == "set()"
    assert short([torch.ones(2, 3)]) == "[a tensor of torch.float32[2, 3]]"
    assert short(list(range(5000))).endswith("...]")
    assert len(short({"k" * n: "v" * 300 for n in range(90)})) <= 400


def test_a_view_in_inference_mode_keeps_its_history_when_it_is_described():
    y = torch.ones(3, requires_grad=True)
    view = torch.complex(y, y).conj()
    view.real.detach().mul_(2)
    with torch.inference_mode():
        assert short([view]) == "[a tensor of torch.complex64[3]]"
    view.real.sum().backward()
    assert y.grad is not None
