"""Ops that take graphs: control flow, checkpoints, regions."""
