"""Expressions as C++: operators, types, what kernels call."""
