"""Nested tensors of the jagged layout: views of a tensor of values and one of offsets."""

from __future__ import annotations

from torch.nested._internal import nested_tensor as module

nested_tensor = module
"""The module of their class and of the functions that make them, which ``torch.nested`` calls."""
