"""Whether a compiled function shows its caller what eager shows."""
