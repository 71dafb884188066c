"""What autograd keeps of calls and of tensors, by which gradients are told apart and views may be written to."""

from __future__ import annotations

import torch

current_node = torch._C._current_autograd_node
"""The node whose backward runs, or None."""
sequence_number = torch.autograd._get_sequence_nr
"""The number that the next node gets: nodes are numbered in the order of the calls."""
preserve_version_counter = torch.autograd._unsafe_preserve_version_counter
"""A context whose writes to a tensor do not count."""
CreationMeta = torch._C._autograd.CreationMeta
"""How a view was made, which decides whether it may be written to."""
creation_meta_of = torch._C._autograd._get_creation_meta
"""That of a view."""
set_creation_meta = torch._C._autograd._set_creation_meta
"""Give a view another one."""
