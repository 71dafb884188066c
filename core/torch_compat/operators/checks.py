"""Checks that raise as torch's own operators do; on symbolic sizes they become guards or run-time checks."""

from __future__ import annotations

import torch

require = torch._check
"""``RuntimeError`` with a message, which a function gives, where a condition does not hold."""
require_index = torch._check_index
"""``IndexError`` there."""
require_implemented = torch._check_not_implemented
"""``NotImplementedError`` there."""
