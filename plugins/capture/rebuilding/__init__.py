"""Code that takes a frame's place: it calls the graph, and goes on where that ends or fails."""
