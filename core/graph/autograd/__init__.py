"""Autograd's graph: marks on its nodes, what is freed of it, where gradients end, and who looks at them."""
