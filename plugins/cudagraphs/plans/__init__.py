"""Compiled plans as work that can be recorded: size keys, padding, states of generators."""
