"""Tensors without data, on which traces run; they have no public name."""

from __future__ import annotations

import torch._subclasses.fake_tensor

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
"""What ``meta['val']`` of a node is; its device is in ``fake_device``."""
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""Makes them, and runs ops on them; graphs are captured and traced under one."""
