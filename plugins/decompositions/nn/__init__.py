"""Layers and their gradients, as `torch.nn.functional` has them, in terms of the op set."""
