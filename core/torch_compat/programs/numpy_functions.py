"""Numpy's functions over tensors.  Importing it takes long, and a program without arrays has no use for it."""

from __future__ import annotations

import torch._numpy

library = torch._numpy
"""The module that has them under numpy's names."""
