"""Tables that libraries fill at their first use: subclasses of a class, loaded modules, what was found before."""

from __future__ import annotations

import sys
import types

import torch

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.tensor([0.5, -1.5, 2.5])


class Backend:
    framework = ""

    def takes(self, value) -> bool:
        return False


class Absent(Backend):
    framework = "a_framework_that_is_not_there"


class OfTorch(Backend):
    framework = "torch"

    def __init__(self):
        import torch

        self.torch = torch

    def takes(self, value) -> bool:
        return isinstance(value, self.torch.Tensor)

    def scale(self, value):
        return self.torch.mul(value, 2)


class OfTorchToo(OfTorch):
    framework = "another_framework_that_is_not_there"


def backend_of(value, loaded: dict, found: dict) -> Backend:
    """As einops looks for the backend of a tensor: among all subclasses, those whose framework is loaded."""
    known = found.get(type(value))
    if known is not None:
        return known
    backends, every = Backend.__subclasses__(), []
    while backends:
        backend = backends.pop()
        backends += backend.__subclasses__()
        every.append(backend)
    for kind in every:
        if kind.framework not in loaded and kind.framework in sys.modules:
            backend = kind()
            loaded[backend.framework] = backend
            if backend.takes(value):
                found[type(value)] = backend
                return backend
    raise RuntimeError("no backend")


def test_a_library_that_looks_for_its_backend_is_one_graph_at_its_first_use_and_one_later():
    loaded: dict = {}
    found: dict = {}

    def program(x):
        return backend_of(x, loaded, found).scale(x) + 1

    observed = Observed(program)
    for _ in range(3):
        assert_same(observed(X), X * 2 + 1)
    assert not observed.breaks and len(observed.graphs) == 2
    assert list(loaded) == ["torch"] and type(found[torch.Tensor]) is OfTorch


def test_a_new_subclass_is_noticed():
    class Base:
        pass

    def program(x):
        return x * (1 + len(Base.__subclasses__()))

    observed = Observed(program)
    assert_same(observed(X), X)
    first = type("First", (Base,), {})
    assert_same(observed(X), X * 2)
    assert len(observed.graphs) == 2 and not observed.breaks
    assert first.__base__ is Base


def test_a_module_that_is_loaded_later_is_noticed_and_others_are_not():
    name = "a_module_for_this_test_alone"

    def program(x):
        return x + 1 if name in sys.modules else x - 1

    def weigh(x):
        module = sys.modules.get(name)
        return x if module is None else x * module.weight

    deciding, weighing = Observed(program), Observed(weigh)
    try:
        for expected in (X - 1, X - 1):
            assert_same(deciding(X), expected)
            assert_same(weighing(X), X)
            sys.modules["another_" + name] = types.ModuleType("another")
        assert len(deciding.graphs) == 1 and not deciding.recompiles
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].weight = 3.0  # type: ignore[attr-defined]
        assert_same(deciding(X), X + 1)
        assert_same(weighing(X), X * 3)
    finally:
        for each in (name, "another_" + name):
            sys.modules.pop(each, None)
    assert_same(deciding(X), X - 1)
    assert_same(weighing(X), X)
