"""What tests expect of some versions of torch alone: where torch itself, not Turret, does less in an older one."""

from __future__ import annotations

import pytest
import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def needs_torch(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skips a test in older versions of torch; ``why`` says what these do not do."""
    return pytest.mark.skipif((major, minor) > TORCH, reason=f"before torch {major}.{minor}, {why}")
