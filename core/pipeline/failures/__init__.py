"""What is refused, what is said, and how a graph runs instead, where a stage fails or gives what it must not."""
