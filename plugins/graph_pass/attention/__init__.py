"""Attention by the library's fast kernels: where it is written out, and which masks its calls are given."""

from turret.plugins.graph_pass.attention.calls import run

__all__ = ["run"]
