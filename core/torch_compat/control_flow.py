"""Functions of control flow over tensors, which torch gives programs from modules with private names."""

from __future__ import annotations

import torch._higher_order_ops.associative_scan
import torch._higher_order_ops.map
import torch._higher_order_ops.scan
import torch._higher_order_ops.while_loop

generic_associative_scan = torch._higher_order_ops.associative_scan.generic_associative_scan
"""What eager runs for an associative scan: batched calls of its function."""
map_function = torch._higher_order_ops.map.map
"""``map`` of a function over the first dimension of tensors."""
scan_function = torch._higher_order_ops.scan.scan
"""``scan``: a state and a row go in, a state and a result come out."""
while_loop_function = torch._higher_order_ops.while_loop.while_loop
"""``while_loop``, which programs import from there."""
