"""Ops of Turret's own, which graphs call beside ATen's."""


def define_own_ops() -> None:
    """Make the operators of the namespace ``turret`` known, which what was stored may name."""
    import turret.graph.ops.attention_ops
    import turret.graph.ops.failing_ops
    import turret.graph.ops.host_math
    import turret.graph.ops.library_ops
    import turret.graph.ops.memory_ops
    import turret.graph.ops.packed_ops
    import turret.graph.ops.random_ops
    import turret.graph.ops.recurrent_ops
    import turret.graph.ops.sequence_ops  # noqa: F401
