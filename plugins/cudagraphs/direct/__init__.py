"""Library calls that are launched by themselves, where nobody asked for recordings."""
