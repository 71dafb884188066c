"""An attribute that a property or another descriptor refuses is asked of ``__getattr__``, as one that is not there."""

from __future__ import annotations

import functools
import operator

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.ones(2)


class Refusing:
    @property
    def refused(self):
        raise AttributeError("refused")

    @property
    def chained(self):
        return self.refused

    @functools.cached_property
    def cached(self):
        return self.absent

    @property
    def failing(self):
        raise KeyError("no matter of attributes")


class Falling(Refusing):
    def __getattr__(self, name):
        if name == "absent":
            raise AttributeError("absent")
        return "for " + name


class Asking(Falling):
    def __getattribute__(self, name):
        if name == "hidden":
            raise AttributeError("hidden")
        return super().__getattribute__(name)


class AskingSuper(Falling):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return "beyond super: " + name


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.own = torch.nn.Parameter(torch.ones(2))

    @property
    def refused(self):
        raise AttributeError("refused")

    @property
    def chained(self):
        return self.layer.absent


class Wrapping(Model):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.layer, name)


class AskingModel(Model):
    def __getattribute__(self, name):
        return 5 if name == "hidden" else super().__getattribute__(name)


class Meta(type):
    @property
    def refused(cls):
        raise AttributeError("refused")

    def __getattr__(cls, name):
        return "of the metaclass: " + name


class Descriptor:
    def __get__(self, instance, owner):
        raise AttributeError("of the descriptor")


class OfMeta(metaclass=Meta):
    chained = Descriptor()


class Slots:
    __slots__ = ("chained",)

    def __getattr__(self, name):
        return "for " + name


OBJECTS = {
    "without a fallback": Refusing(), "with one": Falling(), "asking first": Asking(), "asking super": AskingSuper(),
    "a module": Model(), "one with a fallback": Wrapping(), "one that asks first": AskingModel(), "a class": OfMeta,
    "its instance": OfMeta(), "slots": Slots(),
}  # fmt: skip
NAMES = (
    "refused",
    "chained",
    "cached",
    "failing",
    "hidden",
    "absent",
    "nowhere",
    "own",
    "in_features",
    "__wrapped__",
)
WAYS = {
    "loaded": lambda held, name: getattr(held, name),
    "with a default": lambda held, name: getattr(held, name, "default"),
    "asked for": lambda held, name: hasattr(held, name),
    "by a getter": lambda held, name: operator.attrgetter(name)(held),
    "past the class": lambda held, name: object.__getattribute__(held, name),
}


def tried(way, held, name):
    try:
        return way(held, name)
    except KeyError as error:
        return error.args
    except AttributeError as error:
        return error.args


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("held", OBJECTS)
def test_what_a_class_refuses_is_what_eager_gives(held, way):
    def of_name(name):
        return lambda x: (x + 1, tried(WAYS[way], OBJECTS[held], name))

    for name in NAMES:
        assert_same(Observed(of_name(name))(X), of_name(name)(X))
