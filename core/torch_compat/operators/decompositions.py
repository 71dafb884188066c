"""Torch's own decompositions of ops, by overload: functions that the tables of Turret begin with."""

from __future__ import annotations

import torch._decomp

torch_table = torch._decomp.decomposition_table
"""Those that are for graphs behind autograd."""
torch_tables = torch._decomp.global_decomposition_table
"""All of them, a table for each place in a trace; programs may register others."""
