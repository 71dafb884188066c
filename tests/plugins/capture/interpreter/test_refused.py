"""What Python refuses with an exception is refused at the same line, with the same words, inside one graph."""

from __future__ import annotations

import abc
import enum
import typing

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, check

X = torch.ones(3)


class Slotted:
    __slots__ = ("a",)
    b = 1

    def __eq__(self, other):
        return type(other) is Slotted

    __hash__ = object.__hash__


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self): ...


class Protocol(typing.Protocol):
    def run(self): ...


class Colour(enum.Enum):
    RED = 1


class Metaclass(type):
    def __setattr__(cls, name, value):
        raise AttributeError(f"{name} of {cls.__name__} is final")


class Final(metaclass=Metaclass):
    pass


def takes_all(*args, **kwargs):
    return args, kwargs


def set_beside_slots(given):
    Slotted().zzz = 1


def set_beside_slots_of_one_given(given):
    given.zzz = 1


def set_what_the_class_has(given):
    Slotted().b = 2


def set_on_an_object(given):
    object().a = 1


def set_on_a_class_in_c(given):
    int.a = 1


def set_a_member(given):
    Colour.RED = 2


def set_on_a_class_that_refuses(given):
    Final.a = 1


def make_an_abstract_class(given):
    return Abstract()


def make_a_protocol(given):
    return Protocol()


def unpack_a_number(given):
    a, b = 3
    return a, b


def unpack_what_has_no_items(given):
    a, *b = given
    return a, b


def spread_a_number(given):
    return takes_all(*3)


def spread_a_number_behind_others(given):
    return takes_all(1, *[2], *3)


def spread_a_number_as_keywords(given):
    return takes_all(**3)


def give_a_keyword_twice(given):
    return takes_all(**{"a": 1}, **{"a": 2})


PROGRAMS = (
    set_beside_slots, set_beside_slots_of_one_given, set_what_the_class_has, set_on_an_object, set_on_a_class_in_c,
    set_a_member, set_on_a_class_that_refuses, make_an_abstract_class, make_a_protocol, unpack_a_number,
    unpack_what_has_no_items, spread_a_number, spread_a_number_behind_others, spread_a_number_as_keywords,
    give_a_keyword_twice,
)  # fmt: skip


@pytest.mark.parametrize("refused", PROGRAMS, ids=lambda p: p.__name__)
def test_what_python_refuses_is_handled_in_the_graph(refused):
    def program(x, given):
        y = x + 1
        try:
            refused(given)
        except (AttributeError, TypeError) as error:
            return y * 2, type(error), str(error)
        return y * 3

    check(program, X, Slotted(), breaks=0, graphs=1)


def test_a_frame_that_raises_while_it_is_captured_is_on_record():
    def program(x):
        y = x + 1
        raise KeyError(y.shape[0])

    observed = Observed(program)
    with pytest.raises(KeyError):
        observed(X)
    (reason,) = observed.fallbacks
    assert "program runs as Python: it raises KeyError while it is captured" in reason
