"""How a kernel is laid over tiles and programs."""
