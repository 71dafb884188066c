"""Nested tuples, lists and dicts as leaves, by the registrations that torch's own calls go by."""

from __future__ import annotations

from torch.utils import _pytree

pytree = _pytree
"""The module in which programs register containers of their own."""
