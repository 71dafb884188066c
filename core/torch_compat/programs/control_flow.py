"""Functions of control flow over tensors, which torch gives programs from modules with private names."""

from __future__ import annotations

from torch._higher_order_ops.associative_scan import generic_associative_scan as associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper, wrap

generic_associative_scan = associative_scan
"""What eager runs for an associative scan: batched calls of its function."""
map_function = map_rows
"""``map`` of a function over the first dimension of tensors."""
scan_function = scan
"""``scan``: a state and a row go in, a state and a result come out."""
while_loop_function = while_loop
"""``while_loop``, which programs import from there."""
wrap_function = wrap
"""A call of a function under a name of its own in a graph."""
bypassing_wrapper = dynamo_bypassing_wrapper
"""A call of what a function makes of another: torch's own compiler looks at the inner one alone."""
