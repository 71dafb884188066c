"""Python as capture meets it: code objects, and functions that stand for builtins."""
