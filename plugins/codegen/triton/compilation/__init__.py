"""Triton source to binaries: workers, the cache, autotuning."""
