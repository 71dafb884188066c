"""What a capture records: the graph, guards on sizes, side effects, modes."""
