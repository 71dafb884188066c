"""How a functional graph's flat inputs and outputs map to what the user's program sees.

All of it is plain data, so that a compiled artifact can be written as JSON and loaded without unpickling.
Sizes are ints or, for a dynamic dimension, Python source over the graph's size symbols.
"""

from __future__ import annotations

import enum
from typing import Any

import attrs
import torch

from turret.errors import CacheError
from turret.hooks.size_source import SizeSource
from turret.storage.codec import dumps, loads, record

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
class AliasKind(enum.Enum):
    """What autograd takes an alias of a base to be: whose writes count as its own, and what its own reach."""

    VIEW = "view"
    """A view of the base: writes to either, and their history, are writes to the other."""
    DETACHED = "detached"
    """As the result of ``detach``: no view, with writes counted together, and taken outside of inference mode, too."""
    DATA = "data"
    """As ``data``: no view, with writes counted by itself, and taken outside of inference mode, too."""


@record
class ViewCreation(enum.Enum):
    """How a view was made where it was not as the runtime makes one, which decides on the writes that it refuses."""

    GRAD = "grad"
    """With gradients on, in a program that was called with gradients off."""
    NO_GRAD = "no_grad"
    """With gradients off, in a program that was called with gradients on."""
    MULTI_OUTPUT = "multi_output"
    """By an op that gives several views (``unbind``, ``split``)."""


@record
class OutputKind(enum.Enum):
    """What an output of the user's program is."""

    FRESH = "fresh"
    IS_INPUT = "is_input"
    ALIAS_OF_INPUT = "alias_of_input"
    IS_OUTPUT = "is_output"
    """The same object as an output before it."""
    ALIAS_OF_INTERMEDIATE = "alias_of_intermediate"
    VIEW_OF_OUTPUT = "view_of_output"
    """A view of another output that is a view, or of one of ``GraphSignature.hidden``, which is a detached alias."""
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
class ViewCall:
    """One view op, ``op(base, *args)``, by its name (``namespace::name.overload``).

    A size among ``args`` may be text.
    """

    op: str
    args: tuple[Any, ...]


@record
@attrs.frozen
class InputInfo:
    """One flat input.

    ``updated`` is the graph output that holds its new data (None for ``DATA``: its memory changes through another
    input that shares it); ``layout`` its shape, strides and offset (from where it begins now) after a metadata
    mutation; ``tracked``: autograd sees the mutation (it happened with gradients on); ``counted``: its version
    counter moves.  ``replaced_by`` says what the input became an alias of by ``set_``; ``requires_grad_after`` what
    ``requires_grad_`` left (None: as it was).  ``reached_from`` are the graph outputs whose gradients its own is
    computed from: where none of them has one, neither has the input.  ``negated``: its memory holds the negative of its
    values (``z.conj().imag``), and the graph takes a copy of it in the same strides that holds the values.
    """

    requires_grad: bool = False
    mutation: Mutation = Mutation.NONE
    updated: int | None = None
    layout: Layout | None = None
    tracked: bool = False
    counted: bool = True
    replaced_by: OutputInfo | None = None
    requires_grad_after: bool | None = None
    reached_from: tuple[int, ...] = ()
    negated: bool = False

    @property
    def is_hidden_write(self) -> bool:
        """Whether a graph output holds its new value, which it takes without autograd seeing anything of it."""
        return self.mutation is Mutation.DATA and self.updated is not None and not self.tracked


@record
@attrs.frozen
class OutputInfo:
    """One flat output of the user's program.

    ``index`` is a graph output (``FRESH``; for ``ALIAS_OF_INTERMEDIATE`` that of the viewed base; for a ``SIZE``
    without ``value`` the number itself), an input (``IS_INPUT``, ``ALIAS_OF_INPUT``) or an output of the program
    (``IS_OUTPUT``, ``VIEW_OF_OUTPUT``, counted on to the hidden ones).  A view has either ``layout``, relative to the
    start of what it views, or ``steps``, the views that lead to it (of another dtype, or overlapping itself where
    gradients flow).  ``value`` is a constant's, or the text of a size over the graph's symbols.  ``leaf``: gradients do
    not flow through it but it requires one (``detach().requires_grad_()``, or a view made without gradients of what
    requires one).  ``alias`` says what autograd takes an alias to be, and ``creation`` how a view was made.
    """

    kind: OutputKind
    index: int = 0
    requires_grad: bool = False
    layout: Layout | None = None
    value: int | float | bool | str | torch.dtype | torch.device | None = None
    leaf: bool = False
    steps: tuple[ViewCall, ...] | None = None
    alias: AliasKind = AliasKind.VIEW
    creation: ViewCreation | None = None


@record
@attrs.frozen
class GraphOutput:
    """One forward output of the graph, and whether a gradient flows into it (then a tangent of this layout).

    ``visible``: the user sees it, so its strides are eager's; else any layout will do.  ``tangent_stride`` are
    the strides that the backward was traced for.  A ``SIZE`` has no shape and the name of its type as ``dtype``.
    ``view_of`` is an input in whose memory the output lies although its gradient goes another way (a function of the
    user's returned a view), and ``view_layout`` its layout from where the input begins.  ``shares_with`` are the
    outputs, itself among them, that go through a node of eager's backward that has saved tensors, as it does (None:
    all): once their gradients were taken, and what was saved is freed, its own cannot be.  ``computed_of`` are those of
    ``GraphSignature.visible`` that it was computed of, or the ``nearest``.
    """

    shape: tuple[SizeText, ...]
    stride: tuple[SizeText, ...]
    dtype: str
    device: str
    differentiable: bool = False
    visible: bool = True
    tangent_stride: tuple[SizeText, ...] | None = None
    view_of: int | None = None
    view_layout: Layout | None = None
    shares_with: tuple[int, ...] | None = None
    computed_of: tuple[int, ...] = ()


@record
@attrs.frozen
class Visible:
    """A tensor that the caller sees and that graph outputs were computed of: whoever asks for its gradient is to get
    what flows to it from these, too.

    ``index`` is that of an output of the program, or with ``is_input`` of an input that was written to, and
    ``graph_output`` what it is or views (None: it views an input).  ``is_uncut``: no backward can end
    there, as gradients go through a hook in the graph, or the backward does more than to give gradients in tensors.
    """

    index: int
    is_input: bool = False
    graph_output: int | None = None
    is_uncut: bool = False


@record
@attrs.frozen
class SyntheticBase:
    """Inputs that share memory, one of them mutated: the graph takes their common memory as one more input.

    ``members`` are positions of the user's inputs; the further input is a flat view of ``length`` elements, and
    ``layouts`` tell where the members lie in it.  ``joined``: they are views of one tensor, and gradients flow
    through it; the view is then one of that tensor and takes the write.
    """

    members: tuple[int, ...]
    layouts: tuple[Layout, ...]
    length: SizeText
    joined: bool = False


@record
@attrs.frozen
class LateMemory:
    """Memory from before that the backward reads as it is when it runs, and with ``written`` writes to.

    ``index`` is that of an input, or with ``made`` that of a graph output that nobody else is given.  ``checked``: it
    was saved through autograd, so that a change of it before the backward is an error.  ``label`` names it in all
    traces of the graph, for the gradients of whichever outputs.  ``counted``: its version counter moves.
    """

    index: int
    made: bool = False
    written: bool = True
    checked: bool = False
    label: str = ""
    counted: bool = True


@record
@attrs.frozen
class WrappedGradient:
    """A gradient of an input that is a wrapper of other tensors, of a ``form`` (``WrapperForm``).

    The first of them is in the gradient's place, the others are behind all gradients.
    """

    input: int
    form: Any


@record
@attrs.frozen
class GraphSignature:
    """Inputs and outputs of one functional graph, and whether a backward belongs to it.

    ``inputs`` are the user's and then one for each of ``bases``, the memory that some of them share.  Graph outputs
    begin with new values of mutated inputs.  Tangents of the backward are those of the ``differentiable`` graph
    outputs, in order.  ``numbers`` are symbols that depend on data, with the graph output that each is: what the
    runtime lays out by them (views among the outputs, tangents) it lays out after the call.  ``grad_enabled`` is the
    caller's grad mode (off where results have a history: the program itself turned gradients on),
    ``grad_enabled_after`` what the program leaves behind (None: as it was).  ``hidden`` are tensors that only views
    among the outputs know of.  ``late_memory``: the backward takes what lies there behind the tangents, and gives
    what is to be written there (or None) behind the gradients.  ``wrapped`` are gradients that are wrappers.
    ``nearest``: outputs name those of the ``visible`` alone that they were computed of past no other.
    ``stops`` are those of the ``visible`` where gradients end (``CapturedGraph.stops``), whose own are behind those of
    the inputs.
    """

    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    graph_outputs: tuple[GraphOutput, ...] = ()
    training: bool = False
    symbols: dict[str, SizeSource] = attrs.field(factory=dict)
    bases: tuple[SyntheticBase, ...] = ()
    numbers: dict[str, int] = attrs.field(factory=dict)
    grad_enabled: bool = True
    grad_enabled_after: bool | None = None
    hidden: tuple[OutputInfo, ...] = ()
    late_memory: tuple[LateMemory, ...] = ()
    wrapped: tuple[WrappedGradient, ...] = ()
    visible: tuple[Visible, ...] = ()
    nearest: bool = False
    stops: tuple[int, ...] = ()

    @property
    def behind_gradients(self) -> int:
        """How many results of the backward are behind one for each input: of stops, further parts of wrappers, late
        memory."""
        further: int = sum(w.form.count() - 1 for w in self.wrapped)
        return len(self.stops) + further + len(self.late_memory)

    def viewed(self, number: int) -> OutputInfo:
        """What an output of the program views in the end: itself, where it is no view of another one."""
        outputs = (*self.outputs, *self.hidden)
        while outputs[number].kind is OutputKind.VIEW_OF_OUTPUT:
            number = outputs[number].index
        return outputs[number]

    @property
    def gives_history(self) -> bool:
        """Whether the results have a history: from a backward, or as views of inputs that gradients flow through."""
        views = (o for o in self.outputs if o.kind is OutputKind.ALIAS_OF_INPUT)
        return self.training or any(o.requires_grad and not o.leaf for o in views)

    def to_json(self) -> str:
        """JSON text that ``from_json`` reads."""
        return dumps(self)

    @classmethod
    def from_json(cls, text: str) -> GraphSignature:
        """The signature that ``to_json`` wrote; raises ``CacheError`` where the text is of something else."""
        value = loads(text)
        if not isinstance(value, cls):
            raise CacheError(f"expected the text of a signature, got that of a {type(value).__name__}")
        return value

    def __str__(self) -> str:
        from turret.hooks.text.notation import set_fields, value_text  # brings sympy, which a warm start does without

        lines = [f"signature ({'training' if self.training else 'inference'}):", f"  inputs: {len(self.inputs)}"]
        lines += [f"  input {n}: {value_text(i)}" for n, i in enumerate(self.inputs) if i != InputInfo()]
        lines += [f"  output {n}: {value_text(o)}" for n, o in enumerate(self.outputs)]
        lines += [f"  graph_output {n}: {value_text(o)}" for n, o in enumerate(self.graph_outputs)]
        elsewhere = ("inputs", "outputs", "graph_outputs", "training")
        lines += [f"  {name}: {value_text(value)}" for name, value in set_fields(self) if name not in elsewhere]
        return "\n".join(lines)
