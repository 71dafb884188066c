"""What the key of a cached graph is made of: the graph, the code behind it, the code that its trace ran."""
