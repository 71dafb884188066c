"""Programs drawn at random, written by hand, from torch's table of ops, and as models."""
