"""How a functional graph's flat inputs and outputs map to what the user's program sees.

All of it is plain data, so that a compiled artifact can be written as JSON and loaded without unpickling.
Sizes are ints or, for a dynamic dimension, Python source over the graph's size symbols.
"""

from __future__ import annotations

import enum

import attrs

from turret.codec import record
from turret.ir.program import SizeSource

SizeText = int | str
"""An int, or Python source of an int expression over size symbols."""


@record
class Mutation(enum.Enum):
    """What the program did to an input."""

    NONE = "none"
    IN_GRAPH = "in_graph"
    """The graph itself ends in a copy back to the input; only the version counter is left to move."""
    DATA = "data"
    """The epilogue copies the new value (a graph output) into the input."""
    METADATA = "metadata"
    """Shape, stride or offset changed within the same memory (``t_``, ``unsqueeze_``); the epilogue applies it."""
    DATA_AND_METADATA = "data_and_metadata"


@record
class OutputKind(enum.Enum):
    """What an output of the user's program is."""

    FRESH = "fresh"
    IS_INPUT = "is_input"
    ALIAS_OF_INPUT = "alias_of_input"
    IS_OUTPUT = "is_output"
    """The same object as an output before it."""
    ALIAS_OF_INTERMEDIATE = "alias_of_intermediate"
    CONSTANT = "constant"
    SIZE = "size"


@record
@attrs.frozen
class Layout:
    """Shape, strides in elements, and offset in elements from the start of what is viewed."""

    shape: tuple[SizeText, ...]
    stride: tuple[SizeText, ...]
    offset: SizeText = 0


@record
@attrs.frozen
class InputInfo:
    """One flat input.

    ``updated`` is the graph output that holds its new data; ``layout`` its shape, strides and offset after a
    metadata mutation; ``tracked``: autograd sees the mutation (it happened with gradients on).
    """

    requires_grad: bool = False
    mutation: Mutation = Mutation.NONE
    updated: int | None = None
    layout: Layout | None = None
    tracked: bool = False


@record
@attrs.frozen
class OutputInfo:
    """One flat output of the user's program.

    ``index`` is a graph output (``FRESH``, ``SIZE``; for ``ALIAS_OF_INTERMEDIATE`` that of the viewed base) or
    an input (``IS_INPUT``, ``ALIAS_OF_INPUT``), or an output of the program (``IS_OUTPUT``).  ``layout`` is
    a view's, relative to the start of what it views, in elements of ``dtype`` where the view is of another
    dtype.  ``value`` is a constant's.
    """

    kind: OutputKind
    index: int = 0
    requires_grad: bool = False
    layout: Layout | None = None
    dtype: str | None = None
    value: int | float | bool | str | None = None


@record
@attrs.frozen
class GraphOutput:
    """One forward output of the graph, and whether a gradient flows into it (then a tangent of this layout).

    ``visible``: the user sees it, so its strides are eager's; else any layout will do.
    """

    shape: tuple[SizeText, ...]
    stride: tuple[SizeText, ...]
    dtype: str
    device: str
    differentiable: bool = False
    visible: bool = True


@record
@attrs.frozen
class SyntheticBase:
    """Inputs that share memory, one of them mutated: the graph takes their common memory in their place.

    ``members`` are positions of the user's inputs; the graph's input is a flat view of ``length`` elements that
    begins ``start`` elements before the first member's own offset (``layouts`` are relative to that beginning).
    """

    members: tuple[int, ...]
    layouts: tuple[Layout, ...]
    length: int


@record
@attrs.frozen
class GraphSignature:
    """Inputs and outputs of one functional graph, and whether a backward belongs to it.

    ``inputs`` are those of the graph.  ``bases`` are synthetic bases: they are the last inputs of the graph, in
    order, and ``kept`` says which of the user's inputs come before them (None: all).  Tangents of the backward
    are those of the ``differentiable`` graph outputs, in order.
    """

    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    graph_outputs: tuple[GraphOutput, ...] = ()
    training: bool = False
    symbols: dict[str, SizeSource] = attrs.field(factory=dict)
    bases: tuple[SyntheticBase, ...] = ()
    kept: tuple[int, ...] | None = None

    def __str__(self) -> str:
        lines = [f"signature ({'training' if self.training else 'inference'}):"]
        for number, info in enumerate(self.inputs):
            if info.mutation is not Mutation.NONE or info.requires_grad:
                grad = ", requires grad" if info.requires_grad else ""
                lines.append(f"  input {number}: mutation {info.mutation.value}{grad}")
        lines += [f"  output {n}: {o.kind.value} {o.index}" for n, o in enumerate(self.outputs)]
        return "\n".join(lines)
