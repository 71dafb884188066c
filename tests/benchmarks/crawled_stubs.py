"""Stand-ins for what crawled modules import and this machine lacks.

Crawled files import whole packages (torchvision, scipy, pandas) of which most modules use nothing.  A missing package
imports as a module that has every name; what a program does with such a name works only where it does not matter
(a base class, a decorator, a default), and eager fails elsewhere, so that such modules do not count.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import unittest
from typing import Any, ClassVar

import numpy
import torch

PACKAGES = (
    "torchvision", "scipy", "matplotlib", "pandas", "sklearn", "tensorflow", "torchaudio", "torchtext", "PIL", "cv2",
    "einops", "timm", "skimage", "nltk", "h5py", "librosa", "mpl_toolkits", "seaborn",
)  # fmt: skip


class _Anything(type):
    """Classes with any attribute: another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (Missing,), {})


class Missing(metaclass=_Anything):
    """A class of a package that is not there; its objects do nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class MissingModule(types.ModuleType):
    """A module of a package that is not there."""

    __path__: ClassVar[list[str]] = []
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Anything(name, (Missing,), {"__module__": self.__name__})
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: set[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return MissingModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class DummyBlock(torch.nn.ReLU):
    """What the crawler puts in place of a layer that it could not find."""

    expansion = 1

    def __str__(self) -> str:
        return "_mock_layer()"

    __repr__ = __str__


def mock_layer(in_features: Any = None, out_features: Any = None, *args: Any, **kwargs: Any) -> torch.nn.Module:
    if in_features and out_features:
        return torch.nn.Linear(in_features, out_features, **kwargs)
    return DummyBlock()


class MockConfig(dict):
    """A configuration whose keys are attributes."""

    __getattr__ = dict.__getitem__


def patch_functional() -> None:
    """Give ``torch.functional`` and ``torch.nn.functional`` each other's public names: files call both ``F``."""
    first, second = torch.functional, torch.nn.functional
    for taker, giver in ((second, first), (first, second)):
        for name in set(dir(giver)) - set(dir(taker)):
            if name[0].islower():
                setattr(taker, name, getattr(giver, name))


def install() -> None:
    """Make the imports of crawled files work."""
    missing = {name for name in PACKAGES if importlib.util.find_spec(name) is None}
    sys.meta_path.append(_Finder(missing))
    helpers: Any = types.ModuleType("_paritybench_helpers")
    helpers._mock_layer, helpers._mock_config, helpers.patch_functional = mock_layer, MockConfig, patch_functional
    helpers._paritybench_base = type("Base", (unittest.TestCase,), {"_check": lambda *args: None})
    helpers._fails_compile = lambda: unittest.skip("not compiled")
    sys.modules["_paritybench_helpers"] = helpers
    # Names that numpy dropped since the files were written.
    for name, kind in (("float", float), ("int", int), ("bool", bool), ("object", object), ("product", numpy.prod)):
        if name not in vars(numpy):
            setattr(numpy, name, kind)
    patch_functional()
