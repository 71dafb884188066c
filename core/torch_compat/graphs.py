"""Graph modules that make their Python code when somebody asks for it."""

from __future__ import annotations

import torch.fx._lazy_graph_module

lazy_graph_modules = torch.fx._lazy_graph_module._use_lazy_graph_module
"""``lazy_graph_modules(True)``: a context in which ``make_graph_module`` makes those."""
make_graph_module = torch.fx._lazy_graph_module._make_graph_module
"""A graph module as the context asks for it; ``fx.GraphModule`` itself makes the code at once."""
