"""The products that stages hand to one another: frozen values, each printable.

The way of the data (``pipeline.py`` drives it)::

    capture   -> CapturedGraph
    joint     -> JointGraph          (functional ATen graph of forward, or forward and backward)
    partition -> PartitionedGraph    (forward and backward graphs, what is saved between them)
    place     -> Placement           (per node of one graph: compiled or eager, and why)
    lower     -> ir.LoopProgram      (one graph as definitions over index expressions)
    schedule  -> ir.Schedule         (fused kernels, order, why each fusion was or was not made)
    codegen   -> plan.Plan           (flat steps over buffers and compiled kernels)
    runtime   -> a boxed callable    (``fn(args: list) -> list``; clears ``args`` as it consumes them)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
from torch import fx

from turret.errors import UnsupportedError
from turret.hooks.signature import GraphSignature

BoxedCallable = Callable[[list[Any]], list[Any]]
"""``fn(args) -> outputs``; takes ownership of ``args`` and clears the list, so that inputs can be freed early."""

Role = Literal["inference", "forward", "backward"]
"""Which graph of a partition an executable is of; ``"inference"`` where there is no backward."""

GraphPhase = Literal["captured", "joint", "forward", "backward", "placed"]
"""When graph passes run (``turret_graph_pass``)."""

LoopPhase = Literal["lowered", "scheduled"]
"""When passes over the loop IR run (``turret_ir_pass``)."""

Scope = Literal["captured", "graph", "cluster"]
"""What a graph compiler is offered (``turret_compile_graph``)."""


@attrs.frozen
class Target:
    """What code is generated for.

    ``device_type`` is torch's name; ``arch``, ``cores`` and ``memory`` (bytes) are its device's ``Properties``, which
    are part of every cache key.
    """

    device_type: str
    index: int | None = None
    arch: str = ""
    cores: int = 0
    memory: int = 0

    @property
    def device(self) -> str:
        """The device as torch writes it."""
        return self.device_type + ("" if self.index is None else f":{self.index}")

    def __str__(self) -> str:
        return self.device + (f" ({self.arch})" if self.arch else "")


@attrs.frozen
class GradientBuckets:
    """That gradients of some inputs (positions in ``inputs``) are sent off a bucket at a time, as they get ready.

    ``first_bytes`` is the size of the bucket that is ready first, ``bytes`` that of the others.
    """

    inputs: frozenset[int]
    first_bytes: int
    bytes: int


@attrs.frozen(eq=False)
class CapturedGraph:
    """One graph taken from running Python: torch-level calls over flat inputs.

    ``module`` is called with flat positional inputs (tensors, ints, SymInts) and returns a tuple or list.
    ``example_inputs`` are fake tensors of ``fake_mode`` (or ints and SymInts), in placeholder order.
    ``static_inputs`` are the positions of parameters: the same storage on every call.  ``steady_inputs`` are others
    that most likely keep theirs, which nothing may rely on: buffers, and tensors whose address is marked as static.
    ``grad_enabled`` and ``inference_mode`` are the modes at the time of capture.  Where passes see it, and where
    ``turret.captured_graph`` gives it, every node has ``meta["val"]`` (an input's as it was before the call).
    ``real_inputs`` are those of the call under way, where capture has them; the pipeline keeps none of them.
    ``tangents`` are positions of those graph outputs that gradients come from, where the backward is asked for once
    more for some alone; None: all that are differentiable.  ``tangent_forms``: of gradients that are wrappers of other
    tensors than their outputs, by these positions, what they are (``TangentForm``); their tensors are the tangents.
    ``stops`` are those of ``GraphSignature.visible`` where gradients end: their own come behind those of the inputs,
    and what flows through them is left out.
    ``gradient_buckets``: gradients of some inputs are sent to other processes while others are computed; None: not.
    ``can_break``: who captured it can leave out a call, and all that follows it, if a stage says that it refuses it.
    """

    module: fx.GraphModule
    example_inputs: tuple[Any, ...]
    fake_mode: Any
    static_inputs: frozenset[int] = frozenset()
    grad_enabled: bool = True
    inference_mode: bool = False
    name: str = "graph"
    real_inputs: tuple[Any, ...] = ()
    steady_inputs: frozenset[int] = frozenset()
    tangents: tuple[int, ...] | None = None
    tangent_forms: tuple[tuple[int, Any], ...] = ()
    stops: tuple[int, ...] = ()
    gradient_buckets: GradientBuckets | None = None
    can_break: bool = False

    def __str__(self) -> str:
        fields = {
            "static_inputs": tuple(sorted(self.static_inputs)),
            "steady_inputs": tuple(sorted(self.steady_inputs)),
            "grad_enabled": self.grad_enabled,
            "inference_mode": self.inference_mode,
            "tangents": self.tangents,
            "tangent_forms": self.tangent_forms,
            "stops": self.stops,
        }
        lists: dict[str, Any] = dict.fromkeys(("static_inputs", "steady_inputs", "tangent_forms", "stops"), ())
        usual = {**lists, "grad_enabled": True, "inference_mode": False}
        said = {key: value for key, value in fields.items() if value != usual.get(key)}
        return _print_graph(self.name, self.module, said)


@attrs.frozen(eq=False)
class JointGraph:
    """A functional ATen graph, traced by dispatch under fake tensors and the target's decompositions.

    Inference (``signature.training`` false): inputs are the flat primals; outputs the forward outputs.
    Training: inputs are primals, then tangents (of ``CapturedGraph.tangents``), then what lies in
    ``signature.late_memory``; outputs are the ``num_forward_outputs`` forward outputs, then one gradient (or None) for
    each primal, then what is to be written there (or None).  Forward outputs begin with the new values of mutated
    inputs; ``signature`` says how they map to what the user sees.
    Every node has ``meta["val"]`` (fake value) and, where known, ``meta["stack_trace"]``.
    """

    module: fx.GraphModule
    signature: GraphSignature
    num_forward_outputs: int
    fake_mode: Any
    name: str = "graph"

    def __str__(self) -> str:
        return f"{self.signature}\n{_print_graph(self.name, self.module)}"


@attrs.frozen
class SavedValue:
    """One value handed from forward to backward; ``bytes`` is None where its size is symbolic."""

    name: str
    bytes: int | None
    reason: str = ""


@attrs.frozen(eq=False)
class PartitionedGraph:
    """The cut of a joint graph.

    ``forward``: primals -> forward outputs, then saved tensors, then saved sizes (ints).
    ``backward``: saved sizes, then saved tensors, then tangents, then what lies in
    ``signature.late_memory`` -> one gradient or None per primal, then what is to be written there (or None).
    ``backward`` is None for inference.  ``saved_tensors`` and ``saved_sizes`` are in output order;
    ``report`` is a line or a table for people: bytes saved, by this cut and by saving everything.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    signature: GraphSignature
    num_forward_outputs: int
    saved_tensors: tuple[SavedValue, ...] = ()
    saved_sizes: tuple[SavedValue, ...] = ()
    report: str = ""
    name: str = "graph"

    def graph_of(self, role: Role) -> fx.GraphModule:
        """The backward for that role, else the forward; ``UnsupportedError`` where there is no backward."""
        if role != "backward":
            return self.forward
        if self.backward is None:
            raise UnsupportedError(f"the partition {self.name!r} has no backward; it was traced for inference")
        return self.backward

    def __str__(self) -> str:
        parts = [_print_graph(f"{self.name}.forward", self.forward)]
        if self.backward is not None:
            parts.append(_print_graph(f"{self.name}.backward", self.backward))
        if self.report:
            parts.append(self.report)
        return "\n".join(parts)


@attrs.frozen
class NodePlacement:
    """Where one call of a graph runs. ``reason`` is for people and is required for ``"eager"``."""

    where: Literal["compiled", "eager"]
    reason: str = ""


@attrs.frozen(eq=False)
class Placement:
    """Per call node of one graph (by node name): compiled for the target, or eager with the reason."""

    nodes: dict[str, NodePlacement]

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {p.where}" + (f" ({p.reason})" if p.reason else "") for name, p in self.nodes.items()
        )


@attrs.frozen(eq=False)
class StageGraph:
    """One graph on its way through place, lower, schedule and codegen.

    ``role`` tells a stage which of the three it holds.  ``output_strides[i]`` is the stride that output
    ``i`` must have because the user can see it, or None where any layout will do.
    ``static_inputs`` are positions of inputs that keep their storage from call to call.  ``visible_outputs``:
    how many of the leading outputs leave compiled code (None: all); the rest are saved for the backward.
    ``overwritten``: for positions of outputs that the runtime copies into an input and gives to nobody, that input's.
    """

    module: fx.GraphModule
    role: Role
    target: Target
    output_strides: tuple[tuple[Any, ...] | None, ...]
    static_inputs: frozenset[int] = frozenset()
    visible_outputs: int | None = None
    name: str = "graph"
    overwritten: dict[int, int] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return _print_graph(self.name, self.module)


def _print_graph(name: str, module: fx.GraphModule, fields: Mapping[str, Any] | None = None) -> str:
    from turret.hooks.text.graph_text import graph_text  # brings sympy, which a warm start does without

    return graph_text(name, module, fields)
