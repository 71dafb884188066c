"""Captured graphs that are compiled in sections: cut where settings are switched, or by buckets of gradients."""
