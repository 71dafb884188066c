"""From a captured graph to a callable: the driver, cache keys, and what happens where a stage fails."""
