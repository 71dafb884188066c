"""From what the run left behind to the graph's forward outputs and the signature."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_or_false

from turret.errors import UnsupportedError
from turret.graph.autograd.gradient_hooks import has_hook
from turret.graph.externs import op_name
from turret.graph.fakes.sizes import (
    contiguous_strides,
    guarded_apart,
    is_apart,
    is_dense,
    same_layout,
    same_sizes,
    span,
)
from turret.graph.op_traits import is_view_op, storage_root, view_base
from turret.graph.tensor_versions import version_of
from turret.hooks.devices import HOST
from turret.hooks.signature import (
    AliasKind,
    GraphOutput,
    GraphSignature,
    InputInfo,
    Layout,
    Mutation,
    OutputInfo,
    OutputKind,
    ViewCall,
    ViewCreation,
)
from turret.hooks.size_source import SizeSource
from turret.ir.index import size_of_inputs
from turret.plan import size_text
from turret.plugins.joint.inputs import AliasGroup, Inputs, InputState, layout_of
from turret.plugins.joint.storage import Storage, Tracked, ViewStep
from turret.plugins.joint.tracer import SHARING, JointTracer
from turret.torch_compat.autograd import CreationMeta, creation_meta_of, preserve_version_counter

aten = torch.ops.aten
CreationMeta = CreationMeta
_creation: Callable[[torch.Tensor], Any] = creation_meta_of
_CREATIONS = {
    CreationMeta.DEFAULT: ViewCreation.GRAD,
    CreationMeta.NO_GRAD_MODE: ViewCreation.NO_GRAD,
    CreationMeta.MULTI_OUTPUT_NODE: ViewCreation.MULTI_OUTPUT,
}


_VIEWS = OutputKind.ALIAS_OF_INPUT, OutputKind.ALIAS_OF_INTERMEDIATE


class SharedGradients(UnsupportedError):
    """Inputs ``members`` share memory, one is written to, and gradients flow through one: trace them as views of
    the tensor that they are views of."""

    def __init__(self, members: tuple[int, ...]) -> None:
        super().__init__(f"inputs {members} share memory, one is mutated, and one needs gradients")
        self.members = members


@attrs.define(eq=False)
class ForwardOutputs:
    """Collects the forward outputs of the graph: ``nodes``, the fake tensors they come from, and their description;
    ``results`` are those of the program."""

    tracer: JointTracer
    inputs: Inputs
    nodes: list[Any] = attrs.field(factory=list)
    tensors: list[Any] = attrs.field(factory=list)
    described: list[GraphOutput] = attrs.field(factory=list)
    results: list[Any] = attrs.field(factory=list)
    _grad_enabled: bool = True
    _roots: set[fx.Node] = attrs.field(factory=set)
    _seen: dict[int, int] = attrs.field(factory=dict)
    _bases: dict[Storage, tuple[int, torch.Tensor]] = attrs.field(factory=dict)
    _sharing: dict[Storage, list[torch.Tensor]] = attrs.field(factory=dict)

    def collect(self, results: Sequence[Any], grad_enabled: bool, grad_enabled_after: bool | None) -> GraphSignature:
        """Emit all forward outputs: first new values of mutated inputs, then the user's, and bases of views
        as they are met."""
        self._grad_enabled = grad_enabled
        tracked = [self._tracked(v) for v in self.inputs.values]
        replaced = {n: t for n, t in enumerate(tracked) if t is not None and t.replaced}
        self._note_sharing([v for v in results if isinstance(v, torch.Tensor)] + [t.tensor for t in replaced.values()])
        infos = [self._input(n, t) for n, t in enumerate(tracked)]
        joined = {g.members: self._joined(g) for g in self.inputs.groups if g.joined}
        self.results = list(results)
        described = [self._output(n, value) for n, value in enumerate(self.results)]
        described = [self._along_history(described, n) for n in range(len(described))]
        outputs, hidden = tuple(described[: len(results)]), tuple(described[len(results) :])
        for number, t in replaced.items():
            infos[number] = attrs.evolve(infos[number], replaced_by=self._tensor(f"input {number}", t.tensor))
        symbols = size_symbols(self.inputs.values, self.inputs.before)
        numbers = self._numbers((infos, outputs, hidden, self.described), symbols)
        groups = [g for g in self.inputs.groups if g.node is not None]
        infos += [joined.get(g.members, InputInfo(mutation=Mutation.DATA)) for g in groups]
        signature = GraphSignature(
            inputs=tuple(infos),
            outputs=outputs,
            graph_outputs=tuple(self.described),
            training=any(o.differentiable for o in self.described),
            symbols=symbols,
            numbers=numbers,
            bases=tuple(g.base for g in groups),
            grad_enabled=grad_enabled,
            grad_enabled_after=grad_enabled_after,
            hidden=hidden,
        )
        _check_history(signature)
        return signature

    def keep(self, storage: Storage) -> int:
        """One more output, of memory that the backward writes to and that nobody else sees."""
        if storage in self._sharing:
            raise UnsupportedError("a backward of the program's own writes to a result of the forward")
        assert storage.base is not None  # made by the graph
        return self._emit(storage.base, storage.tensor, differentiable=False, visible=False)

    def _note_sharing(self, visible: Sequence[torch.Tensor]) -> None:
        """Which of the tensors that the program will see lie in one storage."""
        for value in visible:
            sharers = self._sharing.setdefault(self.tracer.tracked(value).storage, [])
            if not any(value is other for other in sharers):
                sharers.append(value)

    def _numbers(self, described: Any, known: Collection[str]) -> dict[str, int]:
        """Emit the unbacked symbols that a description mentions; where each is."""
        found: dict[str, int] = {}
        words = frozenset(word for text in _texts(described) for word in _WORD.findall(text))
        for symbol, node in self.tracer.numbers.bound():
            if symbol in words and symbol not in known:
                self.nodes.append(node)
                self.tensors.append(None)
                self.described.append(GraphOutput((), (), "SymInt", HOST.type, visible=False))
                found[symbol] = len(self.nodes) - 1
        return found

    def _tracked(self, value: Any) -> Tracked | None:
        return self.tracer.tracked(value) if isinstance(value, torch.Tensor) else None

    def _input(self, number: int, tracked: Tracked | None) -> InputInfo:
        if tracked is None:
            return InputInfo()
        before = self._before(number)
        value, storage = tracked.tensor, tracked.storage
        data = storage.version > 0 and not tracked.replaced
        layout = _changed_layout(tracked, before)
        self._check_resized(number, tracked, data and layout is not None)
        new_history = value.grad_fn is not before.grad_fn
        follows = data and value.requires_grad and new_history
        group = next((g for g in self.inputs.groups if number in g.members), None)
        if group is not None:
            self._check_member(number, group, data, follows, layout)
            if group.joined:
                return InputInfo(before.requires_grad, Mutation.DATA, negated=before.negated)
        if data:
            _check_places(number, before)
        return InputInfo(
            requires_grad=before.requires_grad,
            mutation=_mutation(data, layout is not None or tracked.replaced),
            updated=self._emit(self.tracer.node(value), value, follows, visible=False) if data else None,
            layout=layout,
            tracked=follows or (layout is not None and new_history),
            counted=version_of(value) != before.version,
            requires_grad_after=None if follows else _changed_requires_grad(value, before),
            negated=before.negated,
        )

    def _before(self, number: int) -> InputState:
        """What a tensor among the inputs was before the run."""
        state = self.inputs.before[number]
        assert state is not None
        return state

    def _check_resized(self, number: int, tracked: Tracked, written: bool) -> None:
        if written and self.tracer.seen_beyond(tracked):
            raise UnsupportedError(f"resize_ of input {number} to fewer elements, and a write to its memory beside it")

    def _check_member(self, number: int, group: AliasGroup, data: bool, follows: bool, layout: Layout | None) -> None:
        if layout is not None and data:
            raise UnsupportedError(
                f"inputs {group.members} share memory and input {number} is written to and changes its shape in place"
            )
        states = (self.inputs.before[m] for m in group.members)
        recorded = torch.is_grad_enabled() and any(state is not None and state.requires_grad for state in states)
        needs = follows or recorded
        if data and needs and not group.joined:
            if group.root is None:
                raise UnsupportedError(
                    f"inputs {group.members} share memory, one is mutated, one needs gradients, "
                    "and they are not views of one tensor"
                )
            raise SharedGradients(group.members)

    def _joined(self, group: AliasGroup) -> InputInfo:
        """The memory of inputs that autograd knows to be views of one tensor: written back as a whole."""
        value, before = group.value, group.before
        assert before is not None  # the group is joined
        follows = value.requires_grad and value.grad_fn is not before.grad_fn
        return InputInfo(
            requires_grad=before.requires_grad,
            mutation=Mutation.DATA,
            updated=self._emit(self.tracer.node(value), value, follows, visible=False),
            tracked=follows,
            counted=version_of(value) != before.version,
        )

    def _emit(self, node: fx.Node, value: torch.Tensor, differentiable: bool, visible: bool) -> int:
        """One more forward output; a value in an input's memory, or in that of an earlier output, is copied."""
        root = storage_root(node)
        if root.op in ("placeholder", "get_attr") or root in self._roots:
            node = self.tracer.apply(aten.clone.default, node)
            root = node
        self._roots.add(root)
        if visible and _differs_in_ones(node.meta["val"], value):
            start = node.meta["val"].storage_offset()
            node = self.tracer.apply(aten.as_strided.default, node, list(value.shape), list(value.stride()), start)
        stride = tuple(value.stride())
        tangent = stride if _is_block(value) else contiguous_strides(value.shape)
        self.nodes.append(node)
        self.tensors.append(value)
        self.described.append(
            GraphOutput(
                shape=tuple(map(_text, value.shape)),
                stride=tuple(map(_text, stride)),
                dtype=str(value.dtype).removeprefix("torch."),
                device=str(value.device),
                differentiable=differentiable,
                visible=visible,
                tangent_stride=tuple(map(_text, tangent)) if differentiable else None,
            )
        )
        return len(self.nodes) - 1

    def _output(self, number: int, value: Any) -> OutputInfo:
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._size(value)
        if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
            return OutputInfo(OutputKind.CONSTANT, value=value)
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(f"output {number} is a {type(value).__name__}")
        if value.layout != torch.strided:
            raise UnsupportedError(f"output {number} has layout {value.layout}")
        for source, given in enumerate(self.inputs.values):
            if value is given:
                return OutputInfo(OutputKind.IS_INPUT, source, value.requires_grad)
        first = self._seen.setdefault(id(value), number)
        if first != number:
            return OutputInfo(OutputKind.IS_OUTPUT, first, value.requires_grad)
        return self._tensor(f"output {number}", value)

    def _size(self, value: Any) -> OutputInfo:
        """A symbolic number: computed from the inputs' sizes where they say it, else a result of the graph."""
        expression = value.node.expr
        known = size_symbols(self.inputs.values, self.inputs.before)
        if all(s.name in known for s in expression.free_symbols):
            return OutputInfo(OutputKind.SIZE, value=size_text(expression))
        self.nodes.append(self.tracer.recorder.size(value))
        self.tensors.append(value)
        self.described.append(GraphOutput((), (), type(value).__name__, HOST.type))
        return OutputInfo(OutputKind.SIZE, len(self.nodes) - 1)

    def _tensor(self, name: str, value: torch.Tensor) -> OutputInfo:
        tracked = self.tracer.tracked(value)
        storage = tracked.storage
        if storage.input is not None:
            return self._alias_of_input(name, value, self._viewed_input(value, storage.input))
        leaf = value.requires_grad and value.is_leaf
        sharers = self._sharing[storage]
        alone = (
            storage not in self._bases and len(sharers) == 1 and (_is_block(value) or _is_memory_of_its_own(tracked))
        )
        alone = alone and self._made_otherwise(value, None) is None and self._lies_in_as_much(tracked)
        if not alone or not self._is_kept(value):
            return self._alias_of_intermediate(name, value, storage, leaf)
        differentiable = value.requires_grad and not leaf
        index = self._emit(self.tracer.node(value), value, differentiable, visible=True)
        return OutputInfo(OutputKind.FRESH, index, value.requires_grad, leaf=leaf)

    def _lies_in_as_much(self, tracked: Tracked) -> bool:
        """Whether a graph's value that is part of some memory is part of as much of it as eager's, at the same place.

        It is not after a write, of which the graph holds the part alone.
        """
        whole = tracked.storage.tensor
        if not tracked.chain or whole is None or not _is_block(whole):
            return True
        made, value = self.tracer.node(tracked.tensor).meta["val"], tracked.tensor
        ends = [(t.storage_offset(), t.untyped_storage().nbytes()) for t in (made, value)]
        return not all(type(n) is int for end in ends for n in end) or ends[0] == ends[1]

    def _is_kept(self, value: torch.Tensor) -> bool:
        """Whether the graph's value is kept as eager's is: its memory negated, or conjugated, or not."""
        return _same_bits(value, self.tracer.node(value).meta["val"])

    def _viewed_input(self, value: torch.Tensor, source: int) -> int:
        """Which input autograd takes a view to be of, where several lie in its memory: one that it lies within."""
        base, storage = value._base, self.tracer.tracked(value).storage
        given = [(n, c) for n, c in enumerate(self.inputs.values) if isinstance(c, torch.Tensor)]
        if base is None:  # detached: a view to nobody but its memory
            tracked = [(n, self.tracer.tracked(c)) for n, c in given]
            candidates = [n for n, t in tracked if t.storage is storage and not t.replaced]
        else:
            candidates = [n for n, c in given if base is c or base is c._base]
        if len(candidates) < 2:
            return (*candidates, source)[0]
        origin = self._made_from(value, candidates)
        if origin is not None:
            return origin
        found = next((n for n in candidates if _lies_within(value, self.inputs.values[n])), None)
        if found is None:
            raise UnsupportedError(f"a view of memory of inputs {candidates}, which is not known to lie in one of them")
        return found

    def _made_from(self, value: torch.Tensor, candidates: Sequence[int]) -> int | None:
        """Which of some inputs the graph makes a view of; None where that is not to be seen.

        How far inputs lie apart may be otherwise in the next call.
        """
        inputs = {self.tracer.node(self.inputs.values[n]): n for n in reversed(candidates)}
        node: fx.Node | None = self.tracer.node(value)
        while node is not None and node not in inputs:
            node = view_base(node)
        return None if node is None else inputs[node]

    def _alias_of_input(self, name: str, value: torch.Tensor, source: int) -> OutputInfo:
        base = self.inputs.values[source]
        leaf = value.requires_grad and _is_leaf(value, name)
        if leaf and not _is_view_without_gradients(value, base):
            raise UnsupportedError(f"{name} views an input and was made to require gradients")
        viewed = self._viewed_output(value, base)
        if viewed is not None:
            return self._view_of_output(name, value, viewed)
        if self.tracer.tracked(base).replaced:
            raise UnsupportedError(f"{name} views the memory that input {source} had before set_")
        if value.requires_grad and not leaf and not is_differentiable_view(value, base):
            return self._own_view_of_input(name, value, source)
        described = self._view(name, value, base) | self._seen_by_autograd(value, base)
        if leaf:  # made in that mode whatever mode the runtime is in
            described["creation"] = ViewCreation.NO_GRAD
        return OutputInfo(OutputKind.ALIAS_OF_INPUT, source, value.requires_grad, leaf=leaf, **described)

    def _own_view_of_input(self, name: str, value: torch.Tensor, source: int) -> OutputInfo:
        """A view of an input with a gradient of its own, which a function of the user's returned."""
        base = self.inputs.values[source]
        if self.tracer.tracked(value).storage.version or not _same_bits(value, base):
            raise UnsupportedError(f"{name} shares memory with input {source}, but its gradient goes another way")
        index = self._emit(self.tracer.node(value), value, True, visible=True)
        layout = layout_of(value, base.storage_offset())
        self.described[index] = attrs.evolve(self.described[index], view_of=source, view_layout=layout)
        return OutputInfo(OutputKind.FRESH, index, True)

    def _alias_of_intermediate(self, name: str, value: torch.Tensor, storage: Storage, leaf: bool) -> OutputInfo:
        if storage not in self._bases:
            base = self._choose_base(name, storage)
            node = self.tracer.node(base)
            index = self._emit(node, base, base.requires_grad and not base.is_leaf, visible=True)
            self._bases[storage] = (index, base)
        index, base = self._bases[storage]
        if value.requires_grad and not leaf and not is_differentiable_view(value, base):
            raise UnsupportedError(f"{name} shares memory with a result that its gradient does not flow through")
        viewed = self._viewed_output(value, base)
        if viewed is not None:
            return self._view_of_output(name, value, viewed)
        if value is base and not leaf:
            return OutputInfo(OutputKind.FRESH, index, value.requires_grad)
        described = self._view(name, value, base) | self._seen_by_autograd(value, base)
        return OutputInfo(OutputKind.ALIAS_OF_INTERMEDIATE, index, value.requires_grad, leaf=leaf, **described)

    def _viewed_output(self, value: torch.Tensor, base: torch.Tensor) -> int | None:
        """The detached alias of ``base`` that autograd takes ``value`` to be a view of, as an output; None: it is no
        view, or one of the base."""
        viewed = value._base
        if viewed is None or viewed is base or viewed is base._base or not self._lies_in(viewed, self._storage(value)):
            return None
        for number, result in enumerate(self.results):
            if result is viewed:
                return number
        if any(viewed is given for given in self.inputs.values):
            return None
        self.results.append(viewed)
        return len(self.results) - 1

    def _view_of_output(self, name: str, value: torch.Tensor, number: int) -> OutputInfo:
        described = self._view(name, value, self.results[number])
        creation = self._made_otherwise(value, None)
        leaf = value.requires_grad and value.is_leaf
        return OutputInfo(
            OutputKind.VIEW_OF_OUTPUT, number, value.requires_grad, leaf=leaf, creation=creation, **described
        )

    def _along_history(self, described: Sequence[OutputInfo], number: int) -> OutputInfo:
        """The description of an output, which is a view of another view among them where its history goes through that:
        who asks for the gradient of that gets the one of this, too."""
        info, value = described[number], self.results[number]
        if info.kind not in _VIEWS or info.alias is not AliasKind.VIEW or not info.requires_grad or info.leaf:
            return info
        alike = {
            n for n, o in enumerate(described) if (o.kind, o.index, o.alias) == (info.kind, info.index, info.alias)
        }
        edges = {(self.results[n].grad_fn, self.results[n].output_nr): n for n in alike - {number}}
        for edge in _edges_below(value):
            if edge in edges:
                return self._nested_view(info, value, edges[edge])
        return info

    def _nested_view(self, info: OutputInfo, value: torch.Tensor, number: int) -> OutputInfo:
        viewed = self.results[number]
        try:
            described = self._view(f"a view of output {number}", value, viewed)
        except UnsupportedError:
            return info
        creation = self._made_otherwise(value, viewed)
        return OutputInfo(OutputKind.VIEW_OF_OUTPUT, number, info.requires_grad, creation=creation, **described)

    def _storage(self, value: torch.Tensor) -> Storage:
        return self.tracer.tracked(value).storage

    def _seen_by_autograd(self, value: torch.Tensor, base: torch.Tensor) -> dict[str, Any]:
        """What autograd takes ``value`` to be of ``base``: it treats the fake tensors as eager's."""
        if not value._is_view():
            return {"alias": self._kind_of_no_view(value, base)}
        return {"creation": self._made_otherwise(value, base)}

    def _made_otherwise(self, value: torch.Tensor, base: torch.Tensor | None) -> ViewCreation | None:
        """How a view was made, where one of ``base`` that the runtime makes would not be of that kind by itself."""
        if not value._is_view():
            return None
        by_itself = {CreationMeta.DEFAULT if self._grad_enabled else CreationMeta.NO_GRAD_MODE}
        if base is not None and base._is_view():
            by_itself.add(_creation(base))
        how = _creation(value)
        return None if how in by_itself else _CREATIONS.get(how)

    def _kind_of_no_view(self, value: torch.Tensor, base: torch.Tensor) -> AliasKind:
        if value is base or (value.requires_grad and not value.is_leaf):
            return AliasKind.VIEW
        if not (value.is_inference() or base.is_inference()):
            before = base._version
            with preserve_version_counter(value):
                torch.autograd.graph.increment_version(value)
                if base._version == before:
                    return AliasKind.DATA
        return AliasKind.DETACHED

    def _view(self, name: str, value: torch.Tensor, base: torch.Tensor) -> dict[str, Any]:
        """How a view is made of its base: by strides where that is right, else by the views that led to it.

        A view by strides is one of the same dtype; its gradient shares out what overlapping elements get, where other
        views add it up, and where a view of part of the memory comes before, what lies outside of that gets none.
        """
        chain, prefix = self.tracer.tracked(value).chain, self.tracer.tracked(base).chain
        plain = _is_block(base) and is_apart(value.shape, value.stride())
        plain = plain and not any(step.op is aten.as_strided.default for step in chain[len(prefix) + 1 :])
        if _same_bits(value, base) and (plain or not value.requires_grad):
            return {"layout": layout_of(value, base.storage_offset())}
        if any(a is not b for a, b in zip(prefix, chain, strict=False)) or len(chain) < len(prefix):
            raise UnsupportedError(
                f"{name} shows memory as another dtype, or overlapping, after its base changed layout"
            )
        steps = tuple(_view_call(name, step) for step in chain[len(prefix) :])
        return {"steps": steps or (ViewCall(op_name(aten.alias.default), ()),)}  # a view of all of it is a view still

    def _choose_base(self, name: str, storage: Storage) -> torch.Tensor:
        """A tensor over the whole memory, that gradients flow through if they do through any that shares it."""
        sharers = self._sharing[storage]
        viewed = [s._base for s in sharers if s._base is not None and self._lies_in(s._base, storage)]
        # What autograd takes to be viewed comes first: a write by any of its names is part of its history.
        candidates = [*viewed, storage.tensor, *sharers]
        named = list({id(c): c for c in candidates if c is not None}.values())  # views of one tensor name it each
        kept = [c for c in named if self._is_kept(c)]
        reach = _reach(named)
        whole = [c for c in kept if _is_block(c) and (c is candidates[0] if reach is None else _bytes(c) == reach)]
        whole = whole or [c for c in kept if _is_memory_of_its_own(self.tracer.tracked(c))]
        for candidate in whole:
            if candidate.requires_grad and not candidate.is_leaf:
                return candidate
        if not whole:
            raise UnsupportedError(f"{name} is a view of memory that is not one dense block")
        return whole[0]

    def _lies_in(self, value: torch.Tensor, storage: Storage) -> bool:
        tracked = self.tracer.known(value)
        return tracked is not None and tracked.storage is storage


def _is_leaf(value: torch.Tensor, name: str) -> bool:
    """Whether no operation gave a view of an input its gradients.

    Autograd makes the function of a view anew where its base was written to, and cannot where an operation without
    gradients wrote to a view of a leaf that is itself a view of memory that requires none.
    """
    try:
        return value.is_leaf
    except RuntimeError as error:
        raise UnsupportedError(f"{name} views an input, and autograd cannot say of what: {error}") from error


def _is_view_without_gradients(value: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a view was made with gradients off: autograd has it require them as its base does, and no history."""
    viewed = value._base
    if viewed is None or _creation(value) != CreationMeta.NO_GRAD_MODE:
        return False
    return base.requires_grad and (viewed is base or viewed is base._base)


def is_differentiable_view(value: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether autograd takes the gradient of ``value`` to ``base``, or to what that is a view of, through views alone.

    It does not where a detached alias was written to, under ``no_grad``, through a function of the user's that returns
    a view but has a gradient of its own, or several results in one memory, through a hook, and where the base was
    written to by another name.
    """
    if value is base:
        return True
    ends = [t for t in (base, base._base) if t is not None]
    origins = [(t.grad_fn, t.output_nr) for t in ends if t.grad_fn is not None]
    node, number = value.grad_fn, value.output_nr
    while node is not None and (node, number) not in origins:
        if any(getattr(node, "variable", None) is t for t in ends):
            return True
        # A function of the user's may have the name of a view.
        if isinstance(node, torch.autograd.function.BackwardCFunction) or not _is_of_view(node.name()):
            return False
        if has_hook(node):
            return False
        node, number = node.next_functions[0]
    return node is not None


def _edges_below(value: torch.Tensor) -> Iterator[tuple[Any, int]]:
    """Where the views go that led to a tensor."""
    node: Any = value.grad_fn
    while node is not None and _is_of_view(node.name()) and node.next_functions:
        edge = node.next_functions[0]
        yield edge
        node = edge[0]


@functools.cache
def _is_of_view(name: str) -> bool:
    """Whether the node of autograd with a name (``UnsafeViewBackward0``) is of an op whose result shares memory."""
    op = re.sub(r"(?<!^)(?=[A-Z])", "_", re.sub(r"Backward\d*$", "", name)).lower()
    packets = [getattr(aten, spelled, None) for spelled in (op, f"_{op}")]
    overloads = [getattr(packet, name) for packet in packets if packet is not None for name in packet.overloads()]
    return any(is_view_op(overload) or overload in SHARING for overload in overloads)


def _is_memory_of_its_own(tracked: Tracked) -> bool:
    """Whether a tensor was made with gaps between its elements: it views nothing larger."""
    value = tracked.tensor
    made = tracked.storage.tensor
    if tracked.chain or made is None or made.dtype != value.dtype or not same_layout(made, value):
        return False
    return same_sizes(made.shape, value.shape) and guarded_apart(value.shape, value.stride())


def _reach(sharers: Sequence[torch.Tensor]) -> int | None:
    """How many bytes the tensors of one memory reach over, gaps included; None where a size is a symbol."""
    spans = [span(t) * t.element_size() for t in sharers]
    return max(spans) if all(isinstance(s, int) for s in spans) else None


def _bytes(value: torch.Tensor) -> Any:
    return value.numel() * value.element_size()


def _lies_within(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor is known to reach no further over their memory than another does."""
    if value is other:
        return True
    starts = [t.storage_offset() * t.element_size() for t in (value, other)]
    ends = [start + span(t) * t.element_size() for start, t in zip(starts, (value, other), strict=True)]
    return guard_or_false(starts[0] >= starts[1]) and guard_or_false(ends[0] <= ends[1])


def _differs_in_ones(made: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a value lies in memory as eager's does, but for the strides of dimensions of size 1, which users see."""
    known = all(type(s) is int for t in (made, value) for s in (*t.shape, *t.stride()))
    return (
        known
        and made.stride() != value.stride()
        and value.numel() > 0
        and all(a == b for size, a, b in zip(value.shape, made.stride(), value.stride(), strict=True) if size != 1)
    )


def _is_block(value: torch.Tensor) -> bool:
    return is_dense(value.shape, value.stride())


def _same_bits(value: torch.Tensor, base: torch.Tensor) -> bool:
    return value.dtype == base.dtype and value.is_conj() == base.is_conj() and value.is_neg() == base.is_neg()


def _view_call(name: str, step: ViewStep) -> ViewCall:
    if step.kwargs:
        raise UnsupportedError(f"{name} is a view by {step.op} with keyword arguments")
    return ViewCall(op_name(step.op), tuple(map(_plain_argument, step.args)))


def _plain_argument(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain_argument, value))
    return _text(value) if isinstance(value, torch.SymInt) else value


def _check_history(signature: GraphSignature) -> None:
    if signature.gives_history and not signature.grad_enabled and signature.grad_enabled_after is not None:
        raise UnsupportedError("a program that turns gradients on and leaves them on, and gives results with them")


def _check_places(number: int, before: InputState) -> None:
    if not guarded_apart(*before.layout[:2]):
        raise UnsupportedError(f"input {number} has several elements in one place in memory, which is written to")


def _changed_requires_grad(value: torch.Tensor, before: InputState) -> bool | None:
    return None if value.requires_grad == before.requires_grad else value.requires_grad


def _changed_layout(tracked: Tracked, before: InputState) -> Layout | None:
    """The layout that an input has after the program, where that is another one."""
    if not tracked.layout_changes or tracked.replaced:
        return None
    value, (shape, stride, offset) = tracked.tensor, before.layout
    same = same_sizes(value.shape, shape) and same_sizes(value.stride(), stride)
    if same and same_sizes((value.storage_offset(),), (offset,)):
        return None
    return layout_of(value, offset)


def _mutation(data: bool, metadata: bool) -> Mutation:
    if data:
        return Mutation.DATA_AND_METADATA if metadata else Mutation.DATA
    return Mutation.METADATA if metadata else Mutation.NONE


_WORD = re.compile(r"[A-Za-z_]\w*")


def _texts(described: Any) -> Iterator[str]:
    """Texts of sizes by which the runtime lays out views and tangents."""
    if isinstance(described, GraphOutput):
        laid_out = (described.shape, described.tangent_stride, described.view_layout)
        described = laid_out if described.differentiable else ()
    elif isinstance(described, (InputInfo, Layout)):
        described = attrs.astuple(described, recurse=False)
    elif isinstance(described, OutputInfo):
        described = (described.layout, described.steps)
    elif isinstance(described, ViewCall):
        described = described.args
    if isinstance(described, str):
        yield described
    elif isinstance(described, (list, tuple)):
        for part in described:
            yield from _texts(part)


def _text(value: Any) -> Any:
    return size_text(size_of_inputs(value))


def size_symbols(values: Sequence[Any], before: Sequence[InputState | None]) -> dict[str, SizeSource]:
    """Where each size symbol can be read from the inputs (as they are before the call) at run time."""
    symbols: dict[str, SizeSource] = {}

    def note(value: Any, source: SizeSource) -> None:
        expression = size_of_inputs(value) if isinstance(value, torch.SymInt) else None
        if isinstance(expression, sympy.Symbol):
            symbols.setdefault(expression.name, source)

    for number, value in enumerate(values):
        note(value, SizeSource(number, None))
    layouts = [(n, b.layout) for n, b in enumerate(before) if b is not None]
    for number, (shape, _, _) in layouts:
        for dimension, extent in enumerate(shape):
            note(extent, SizeSource(number, dimension))
    for number, (_, strides, offset) in layouts:
        for dimension, stride in enumerate(strides):
            note(stride, SizeSource(number, dimension, "stride"))
        note(offset, SizeSource(number, None, "offset"))
    return symbols
