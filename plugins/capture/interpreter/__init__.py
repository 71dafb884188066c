"""Symbolic execution: frames, instructions, calls, and values made of real objects."""
