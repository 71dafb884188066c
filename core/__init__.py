"""Turret: the torch.compile stack as a pipeline of swappable stages."""
