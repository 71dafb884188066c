"""What programs, and torch's own layers and optimizers, call by private names: capture answers for it or records it."""
