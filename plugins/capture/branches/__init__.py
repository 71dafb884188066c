"""Branches that become graphs: of the program's own ``cond`` and loops, and of an ``if`` that data decide."""
