"""Triton: kernels for GPUs."""
