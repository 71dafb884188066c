"""Expressions and passes of a tile as Triton source."""
