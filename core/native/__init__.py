"""The native core: C++ that runs kernels on a device, built once a machine, and its Python side."""
