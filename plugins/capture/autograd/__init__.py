"""Autograd inside of graphs: leaves, hooks, functions of the user's, transforms."""
