"""Checks that raise as torch's own operators do; on symbolic sizes they become guards or run-time checks."""

from __future__ import annotations

from typing import Any

import torch

require: Any = torch._check
"""``RuntimeError`` with a message, which a function gives, where a condition does not hold."""
require_index: Any = torch._check_index
"""``IndexError`` there."""
require_implemented: Any = torch._check_not_implemented
"""``NotImplementedError`` there."""
