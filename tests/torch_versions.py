"""What tests expect of some versions of torch alone: where torch itself, not Turret, does less in an older one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def needs_torch(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skips a test in older versions of torch; ``why`` says what these do not do."""
    return pytest.mark.skipif((major, minor) > TORCH, reason=f"before torch {major}.{minor}, {why}")


def is_pinned_torch() -> bool:
    """Whether this is the torch that printed outputs are of: what becomes of programs depends on its decompositions."""
    constraints = (Path(__file__).parents[1] / "constraints.txt").read_text()
    pinned = re.search(r"^torch==(\d+\.\d+)", constraints, re.MULTILINE)
    return pinned is not None and torch.__version__.startswith(pinned.group(1))
