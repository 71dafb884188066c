"""Complex numbers with their conjugate and negative views; and checkpoints within a program."""

from __future__ import annotations

import torch

from turret.testing.corpus.builder import Builder, Declined
from turret.testing.corpus.operations.inplace import _writable
from turret.testing.corpus.operations.registry import has_dims, is_wide_float, operation


def _operand(b: Builder) -> str:
    """A complex tensor, or a part of one: one that is there, or a new input."""
    live = b.names(lambda t: t.dtype.is_complex or t.is_neg())
    return b.choice(live) if live and b.chance(60) else b.complex_input(b.shape(high=3))


_FORMS = (
    "{0}.real",
    "{0}.imag",
    "torch.sin({0}.real) + {0}.imag * 2",
    "{0}.conj()",
    "{0}.conj().imag",
    "{0}.conj().real",
    "{0} * 2",
    "{0} * {0}.conj()",
    "{0}.abs()",
    "torch.view_as_real({0}.resolve_conj())",
    "{0}.resolve_neg() + 1",
    "{0}.sum()",
    "({0} + 1j) * {0}",
    "torch.conj_physical({0})",
    "{0} - {0}.conj()",
    "-{0}",
    "{0} * 1.5 + 1",
    "{0}.clone()",
    "{0}[None]",
    "torch.stack(({0}, {0}))",
)


@operation("complex_form", "complex")
def _complex_form(b: Builder) -> object:
    return b.step("complex_form", b.choice(_FORMS), _operand(b))


@operation("complex_of", "complex")
def _complex_of(b: Builder) -> object:
    name = b.pick(lambda t: is_wide_float(t) and not t.requires_grad)
    return b.step("complex_of", b.choice(("torch.complex({0}, {0} * 2)", "({0} * 1j).conj()")), name)


@operation("complex_write", "complex")
def _complex_write(b: Builder) -> object:
    if not b.features.mutation:
        raise Declined
    live = b.names(lambda t: _writable(t) and (t.dtype.is_complex or t.is_neg()))
    name = b.choice(live) if live else b.complex_input(b.shape(high=3))
    forms = (
        "{0}.mul_(2)",
        "{0}.add_(1)",
        "{0}.real.add_(1)",
        "{0}.copy_({0}.conj())",
        "{0}.imag.zero_()",
        "{0}[...] = 1",
    )
    return b.step("complex_write", b.choice(forms), name, results=0)


@operation("checkpoint_within", "checkpoint")
def _checkpoint_within(b: Builder) -> object:
    """A part of the program that its backward runs again."""
    name = b.pick(lambda t: t.dtype in (torch.float32, torch.float64) and has_dims(0)(t))
    inner = b.choice(
        ("torch.tanh(a) * a", "torch.sin(a).exp().clamp(max=5)", "torch.softmax(a * 2, -1)", "(a * a + 1).sqrt() - a")
    )
    options = b.choice(("use_reentrant=False", "use_reentrant=False, preserve_rng_state=False"))
    return b.step("checkpoint_within", f"torch.utils.checkpoint.checkpoint(lambda a: {inner}, {{0}}, {options})", name)
