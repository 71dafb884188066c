"""Modules of graphs whose Python code is made when somebody asks for it: stages read graphs, few ever run them."""

from __future__ import annotations

import torch
from torch import fx

from turret.torch_compat.graphs import lazy_graph_modules, make_graph_module


def lazy_module(root: torch.nn.Module, graph: fx.Graph, class_name: str = "GraphModule") -> fx.GraphModule:
    """``fx.GraphModule`` of the same arguments, which makes its code in the first call and whenever it is shown."""
    with lazy_graph_modules(True):
        return make_graph_module(root, graph, class_name=class_name)
