"""The samples that torch's own tests draw for its operators; a module of its own, for it takes seconds to import."""

from __future__ import annotations

import contextlib
import sys
import unittest
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

__all__ = ["OpInfo", "SampleInput", "op_db"]


def running_test() -> Callable[..., Any] | None:
    """The function of the test method of ``unittest`` that is running, if one is."""
    with contextlib.suppress(Exception):  # anything may be called self
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            case = frame.f_locals.get("self")
            if isinstance(case, unittest.TestCase):
                *_, class_name, name = case.id().rsplit(".", 2)
                if class_name == type(case).__name__ and name.startswith("test"):
                    found: Callable[..., Any] = getattr(case, name).__func__
                    return found
            frame = frame.f_back
    return None


# torch asks this twice whenever samples are drawn, and its own looks up the source of every frame on the stack among
# all modules: tenths of a second where thousands of modules are imported, which is longer than most ops take.
for _module in (common_utils, core):
    if hasattr(_module, "extract_test_fn"):
        vars(_module)["extract_test_fn"] = running_test
