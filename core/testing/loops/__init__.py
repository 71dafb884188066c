"""Kernels and loop programs drawn at random, and an interpreter of them."""
