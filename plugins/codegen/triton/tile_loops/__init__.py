"""Products of matrices as loops over tiles: how operands are moved, configurations, and bodies of kernels."""
