"""Layers that repeat each other: found, and traced once."""
