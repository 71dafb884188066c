"""How a functional graph's flat inputs and outputs map to what the user's program sees.

All of it is plain data (ints, strings, tuples), so that a compiled artifact can be written as JSON and
loaded without unpickling.  Sizes are ints or, for a dynamic dimension, the text of an expression over the
graph's size symbols.
"""

from __future__ import annotations

import enum

import attrs


class Mutation(enum.Enum):
    """What the program did to an input."""

    NONE = "none"
    IN_GRAPH = "in_graph"
    """The graph itself ends in a copy back to the input; nothing is left for the epilogue."""
    DATA = "data"
    """The epilogue copies the new value (a forward output) into the input."""
    METADATA = "metadata"
    """Shape, stride or offset changed (``t_``, ``resize_``, ``set_``); the epilogue applies it."""
    DATA_AND_METADATA = "data_and_metadata"


class OutputKind(enum.Enum):
    """What an output of the user's program is."""

    FRESH = "fresh"
    IS_INPUT = "is_input"
    ALIAS_OF_INPUT = "alias_of_input"
    ALIAS_OF_INTERMEDIATE = "alias_of_intermediate"
    CONSTANT = "constant"
    SIZE = "size"


@attrs.frozen
class InputInfo:
    """One flat input of the graph."""

    requires_grad: bool = False
    mutation: Mutation = Mutation.NONE


@attrs.frozen
class OutputInfo:
    """One flat output of the user's program."""

    kind: OutputKind = OutputKind.FRESH
    requires_grad: bool = False


@attrs.frozen
class GraphSignature:
    """Inputs and outputs of one functional graph, and whether a backward belongs to it."""

    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    training: bool = False
