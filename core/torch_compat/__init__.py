"""Torch's private names that Turret stands on: what each is, and why it is needed.

Outside of ``contrib`` a name that is in here is used under no other, and capture uses no other private names
(``tests/test_source_tree.py``).  All of them are in the oldest torch that is supported, 2.11; what a later one has
another way is told here.
"""
