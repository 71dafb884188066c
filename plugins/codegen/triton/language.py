"""What these kernels are written in."""

LANGUAGE = "triton"
"""What a device has among its ``kernel_languages`` that takes these kernels, and what lazy ones are of."""
