"""Ops that need more than the general rules of the trace."""
