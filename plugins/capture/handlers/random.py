"""``random``: generators made in compiled code and outside of it, the module's own among them."""

from __future__ import annotations

import functools
import random
import types

import numpy

from turret.frames.sources import BoundSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.interpreter.wrap import known
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values import numpy_generators
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.functions import Builtin
from turret.plugins.capture.values.random_generators import (
    METHODS,
    RandomGenerator,
    outside_generator,
    seeded,
)

registry.wrappers[random.Random] = outside_generator
for _kind in (numpy.random.RandomState, numpy.random.Generator):
    registry.wrappers[_kind] = numpy_generators.outside_generator
registry.wrappers[type(numpy.random.seed)] = known(Builtin)


@registry.kind(random.Random)
def new_generator(t: Tracer, x: Value | None = None) -> Value:
    """``random.Random(seed)``."""
    return RandomGenerator(seeded(t, x))


@registry.kind(numpy.random.RandomState)
def new_generator_of_numpy(t: Tracer, seed: Value | None = None) -> Value:
    """``numpy.random.RandomState(seed)``."""
    kind = numpy.random.RandomState
    return numpy_generators.NumpyGenerator(numpy_generators.seeded(t, kind, seed), kind)


@registry.function(numpy.random.default_rng)
def default_generator_of_numpy(t: Tracer, seed: Value | None = None) -> Value:
    """``numpy.random.default_rng(seed)``."""
    kind = numpy.random.Generator
    return numpy_generators.NumpyGenerator(numpy_generators.seeded(t, kind, seed), kind)


def _of_numpys_module(name: str, t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """A function of the module that calls a method of its generator."""
    owner = numpy.random.rand.__self__  # type: ignore[attr-defined]
    return t.wrap(owner, BoundSource("numpy.random", owner)).realize().call_method(t, name, list(args), kwargs)


for _name, _function in (("seed", numpy.random.seed), ("random_sample", numpy.random.sample)):
    registry.function(_function)(functools.partial(_of_numpys_module, _name))
registry.function(numpy.random.ranf)(functools.partial(_of_numpys_module, "random_sample"))


def _method(name: str, t: Tracer, /, generator: Value, *args: Value, **kwargs: Value) -> Value:
    """A call of a method's function."""
    held = generator.realize()
    if not isinstance(held, RandomGenerator):
        raise Unsupported(f"random.Random.{name} of {held.describe()}")
    return held.call_method(t, name, list(args), kwargs)


def _method_of_module(name: str, t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """A call of a function of the module that is a method in C of its generator."""
    owner = getattr(random, name).__self__
    return _method(name, t, t.wrap(owner, BoundSource("random._inst", owner)), *args, **kwargs)


for _name, _function in METHODS.items():
    if isinstance(_function, types.FunctionType):
        registry.function(_function)(functools.partial(_method, _name))
    else:
        registry.function(getattr(random, _name))(functools.partial(_method_of_module, _name))
