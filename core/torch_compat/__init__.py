"""Torch's private names that Turret stands on: what each is, and why it is needed.

Outside of this room and ``contrib`` no private name of a module of torch's is imported
or read (``tests/test_source_tree.py``; ruff bans the modules).  Operators (``torch.ops.aten._to_copy``) and attributes
of objects (``op._schema``) are no names of modules.  All are in the oldest torch that is supported, 2.11; what a later
one has another way, or has alone, is told here.
"""
