"""``torch.vmap`` and ``torch.func``: the function becomes a graph, the transform of that graph one call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import Any

import attrs
import torch

import turret
from turret.plugins.capture.autograd.transforms import Grad, Jacobian, Jvp, Transform, Vjp, Vmap
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.record.graph import Subgraph
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.functions import Callable_, Function, Handler
from turret.plugins.capture.values.modules import STATE, Module
from turret.plugins.capture.values.sequences import Sequence
from turret.plugins.capture.values.structures import LEAF, Structure, flatten
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.dispatch import TorchDispatchMode


class Transformed(Callable_):
    """A function under a transform, made while capturing."""

    def __init__(self, name: str, apply: Callable[..., Value], remake: Callable[..., Any]) -> None:
        self.name, self.apply, self.remake = name, apply, remake

    def type(self) -> type:
        return type(lambda: None)

    def describe(self) -> str:
        return f"a function under {self.name}"

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.apply(t, args, kwargs)

    def rebuild(self, r: Any) -> str:
        return self.remake(r)


@attrs.define(eq=False)
class Traced:
    """A function as a graph: its results' structure, and the nodes around that its inputs stand for."""

    region: Subgraph
    graph: Any
    structure: Structure
    auxiliary: Structure | None
    outer: list[Any]
    outputs: int

    def call(self, t: Tracer, transform: Transform, more: list[Value] | None = None) -> list[Value]:
        """Record a call of a transform of the graph."""
        nodes = [*self.outer, *self.region.lifted, *(t.recorder.argument(v)[0] for v in more or ())]
        return t.recorder.call_region(transform, nodes).unpack(t)


def trace(
    t: Tracer,
    name: str,
    function: Value,
    args: list[Value],
    kwargs: dict[str, Value],
    examples: Callable[[int, Tensor], torch.Tensor | None],
    has_aux: bool = False,
) -> Traced:
    """Follow ``function`` into a graph of its own, for the transform of a name.

    ``examples`` gives, for the number of a leaf of the arguments and a tensor, the tensor that the function is to see;
    None for a tensor that is not the transform's business.
    """
    leaves, structure = flatten(t, t.new_tuple([t.new_tuple(args), t.new_dict(kwargs)]))
    outer: list[Any] = []
    seen: list[Value] = []
    with t.recorder.region(name) as region:
        for number, leaf in enumerate(leaves):
            example = examples(number, leaf) if isinstance(leaf, Tensor) else None
            if example is None:
                seen.append(leaf)
                continue
            outer.append(leaf.node)  # type: ignore[attr-defined]
            seen.append(t.recorder.tensor(region.placeholder(f"mapped{number}", example), example))
        given, named = structure.build(t, iter(seen)).unpack(t)
        pairs = {k.constant(): v for k, v in t.pairs(named)}
        result = t.call(function, given.realize().unpack(t), pairs).realize()
        auxiliary = None
        if has_aux:
            result, extra = (v.realize() for v in t.unpack_exactly(result, 2))
            auxiliary_leaves, auxiliary = flatten(t, extra)
        found, shape = flatten(t, result)
        results = [*found, *auxiliary_leaves] if has_aux else found
        if not all(isinstance(v.realize(), Tensor) for v in results):
            raise Unsupported("a transformed function that returns something else than tensors")
        graph = region.close([t.recorder.argument(v)[0] for v in results])
    outer = [t.recorder.node_here(node) for node in outer]
    return Traced(region, graph, shape, auxiliary, outer, len(found))


def _compile(original: Any) -> Any:
    """The handler of a compiler's call in compiled code: what it compiles is part of the graph where it is called."""

    def handler(t: Tracer, /, model: Value, **options: Value) -> Value:
        held = {k: t.constant_of(v) for k, v in options.items()}
        if held.get("disable"):
            return model
        apply = functools.partial(_apply, model)
        return Transformed("a compiler", apply, _remake(original, model, **held))

    return handler


def _apply(function: Value, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.call(function, args, kwargs)


registry.functions[torch.compile] = _compile(torch.compile)
registry.named["turret.api.compile", "compile"] = lambda t, /, model, **options: _compile(turret.compile)(
    t, model, **options
)


def _remake(transform: Any, function: Value, **options: Any) -> Callable[[Any], str]:
    def remake(r: Any) -> str:
        named = "".join(f", {k}={r.constant(v)}" for k, v in options.items())
        return r.assign(f"{r.constant(transform)}({r.load(function)}{named})")

    return remake


# vmap.


@registry.function(torch.vmap)
def vmap(
    t: Tracer,
    func: Value,
    in_dims: Value | None = None,
    out_dims: Value | None = None,
    randomness: Value | None = None,
    chunk_size: Value | None = None,
) -> Value:
    """``torch.vmap(func, ...)``."""
    options = {
        "in_dims": 0 if in_dims is None else t.constant_of(in_dims),
        "out_dims": 0 if out_dims is None else t.constant_of(out_dims),
        "randomness": "error" if randomness is None else t.constant_of(randomness),
    }
    size = None if chunk_size is None else t.constant_of(chunk_size)
    if size is None:
        apply = functools.partial(_vmap_call, func, options)
    elif type(size) is int and size > 0 and options["randomness"] != "same":
        apply = functools.partial(_vmap_in_chunks, func, options, size)
        options = {**options, "chunk_size": size}
    else:
        raise Unsupported(f"torch.vmap with chunk_size={size} and randomness={options['randomness']!r}")
    return Transformed("vmap", apply, _remake(torch.vmap, func, **options))


def _vmap_in_chunks(
    func: Value, options: dict[str, Any], size: int, t: Tracer, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Calls for so many slices each, whose results are put together."""
    dims = _spread(t, options["in_dims"], args)
    leaves, given = flatten(t, t.new_tuple(args))
    found: list[list[Value]] = []
    lengths = [v.realize().fake.shape[dim] for v, dim in zip(leaves, dims, strict=True) if dim is not None]  # type: ignore[attr-defined]
    if not lengths or type(lengths[0]) is not int or any(length != lengths[0] for length in lengths):
        raise Unsupported("torch.vmap with a chunk_size over sizes that are not known, or that differ")
    for start in range(0, max(lengths[0], 1), size):
        count = min(size, lengths[0] - start)
        parts = [
            v if dim is None else t.recorder.call_method("narrow", [v, *map(Constant, (dim, start, count))], {})
            for v, dim in zip(leaves, dims, strict=True)
        ]
        results, structure = flatten(t, _vmap_call(func, options, t, given.build(t, iter(parts)).unpack(t), kwargs))
        found.append(results)
    out = _flat_out_dims(options["out_dims"], structure)
    if None in out:
        raise Unsupported("torch.vmap with a chunk_size, some of whose results have no dimension for it")
    joined = [
        t.recorder.call(torch.cat, [t.new_list(list(results)), Constant(dim)], {})
        for results, dim in zip(zip(*found, strict=True), out, strict=True)
    ]
    return structure.build(t, iter(joined))


def _vmap_call(func: Value, options: dict[str, Any], t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    dims = [*_spread(t, options["in_dims"], args), *[None] * len(flatten(t, t.new_dict(kwargs))[0])]
    used: list[int] = []

    def example(number: int, value: Tensor) -> torch.Tensor | None:
        dim = dims[number]
        if dim is None:
            return None
        used.append(dim)
        if not -value.fake.dim() <= dim < value.fake.dim():
            raise Unsupported(f"torch.vmap over dimension {dim} of {value.describe()}")
        return _slice(value.fake, dim)

    traced = trace(t, "vmap", func, args, kwargs, example)
    if not used:
        raise Unsupported("torch.vmap over no tensor")
    out = _flat_out_dims(options["out_dims"], traced.structure)
    transform = Vmap(traced.graph, len(used), "vmap", tuple(used), out, options["randomness"])
    return traced.structure.build(t, iter(traced.call(t, transform)))


def _slice(fake: torch.Tensor, dim: int) -> torch.Tensor:
    """What a function under vmap sees of a tensor; one without slices stands for slices of its shape, too."""
    return fake.sum(dim, dtype=fake.dtype) if fake.shape[dim] == 0 else fake.select(dim, 0)


def _spread(t: Tracer, in_dims: Any, args: list[Value]) -> list[int | None]:
    """For each leaf of the arguments its dimension."""
    if not isinstance(in_dims, (tuple, list)):
        in_dims = [in_dims] * len(args)
    if len(in_dims) != len(args):
        raise Unsupported("torch.vmap with in_dims that do not fit the arguments")
    return _spread_each(t, in_dims, args)


def _spread_each(t: Tracer, dims: Items[Any], values: list[Value]) -> list[int | None]:
    return [d for dim, value in zip(dims, values, strict=True) for d in _spread_one(t, dim, value)]


def _spread_one(t: Tracer, dim: Any, value: Value) -> list[int | None]:
    value = value.realize()
    if isinstance(dim, (tuple, list)) and isinstance(value, Sequence) and len(dim) == len(value.items):
        return _spread_each(t, dim, value.items)
    if isinstance(dim, dict):
        pairs = {k.constant(): v for k, v in t.pairs(value)}
        if set(dim) != set(pairs):
            raise Unsupported("torch.vmap with in_dims that do not fit a dict")
        return _spread_each(t, [dim[key] for key in pairs], list(pairs.values()))
    leaves, _ = flatten(t, value)
    if dim is not None and (type(dim) is not int or not all(isinstance(v, Tensor) for v in leaves)):
        raise Unsupported("torch.vmap with in_dims that do not fit the arguments")
    return [dim] * len(leaves)


def _flat_out_dims(out_dims: Any, structure: Structure) -> tuple[int | None, ...]:
    if type(out_dims) is int or out_dims is None:
        return (out_dims,) * structure.leaves
    if isinstance(out_dims, (tuple, list)) and structure.kind in (tuple, list, None):
        children = structure.children if structure.kind is not None else (LEAF,)
        if len(children) == len(out_dims):
            return tuple(d for o, c in zip(out_dims, children, strict=True) for d in _flat_out_dims(o, c))
    raise Unsupported("torch.vmap with out_dims that do not fit the results")


# Gradients.


def _argnums(t: Tracer, argnums: Value | None) -> int | tuple[int, ...]:
    return 0 if argnums is None else t.constant_of(argnums)


def _in_order(argnums: int | tuple[int, ...], count: int) -> list[int]:
    """The numbers of arguments, counted from the first of ``count``, of those that a transform differentiates by."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not all(type(n) is int and -count <= n < count for n in numbers) or not numbers:
        raise Unsupported(f"argnums {argnums} of a function of {count} arguments")
    found = [n % count for n in numbers]
    if found != sorted(set(found)):
        raise Unsupported(f"argnums {argnums}, which are not in order")
    return found


@attrs.define(eq=False)
class _Arguments:
    """Which leaves of the arguments a transform differentiates by; ``build`` puts results of theirs together."""

    chosen: set[int]
    structures: list[Structure]
    single: bool

    @classmethod
    def of(cls, t: Tracer, argnums: int | tuple[int, ...], args: list[Value]) -> _Arguments:
        numbers = _in_order(argnums, len(args))
        shapes = [flatten(t, a) for a in args]
        starts = [0, *itertools.accumulate(len(leaves) for leaves, _ in shapes)]
        chosen = {n for number in numbers for n in range(starts[number], starts[number + 1])}
        for leaf in (leaf for number in numbers for leaf in shapes[number][0]):
            if not isinstance(leaf, Tensor) or not leaf.fake.is_floating_point():
                raise Unsupported("a gradient by something else than tensors of floats")
        return cls(chosen, [shapes[n][1] for n in numbers], isinstance(argnums, int))

    def example(self, number: int, value: Tensor) -> torch.Tensor | None:
        """The tensor that the function sees."""
        return value.fake.detach() if number in self.chosen else None

    def build(self, t: Tracer, leaves: Any) -> Value:
        parts = [s.build(t, leaves) for s in self.structures]
        return parts[0] if self.single else t.new_tuple(parts)


def _gradient(name: str, original: Any, with_value: bool) -> Any:
    def handler(t: Tracer, func: Value, argnums: Value | None = None, has_aux: Value | None = None) -> Value:
        numbers, aux = _argnums(t, argnums), has_aux is not None and t.truth(has_aux)

        def apply(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            chosen = _Arguments.of(t, numbers, args)
            traced = trace(t, name, func, args, kwargs, chosen.example, aux)
            if traced.outputs != 1:
                raise Unsupported(f"torch.func.{name} of a function with {traced.outputs} results")
            found = iter(traced.call(t, Grad(traced.graph, len(chosen.chosen), name)))
            gradients = chosen.build(t, found)
            value = traced.structure.build(t, found)
            extra = [traced.auxiliary.build(t, found)] if traced.auxiliary is not None else []
            if not with_value:
                return t.new_tuple([gradients, *extra]) if extra else gradients
            return t.new_tuple([gradients, t.new_tuple([value, *extra]) if extra else value])

        return Transformed(name, apply, _remake(original, func, argnums=numbers, has_aux=aux))

    return handler


registry.functions[torch.func.grad] = _gradient("grad", torch.func.grad, with_value=False)
registry.functions[torch.func.grad_and_value] = _gradient("grad_and_value", torch.func.grad_and_value, with_value=True)


def _jacobian(name: str, original: Any, forward: bool) -> Any:
    def handler(
        t: Tracer, /, func: Value, argnums: Value | None = None, has_aux: Value | None = None, **options: Value
    ) -> Value:
        numbers, aux = _argnums(t, argnums), has_aux is not None and t.truth(has_aux)
        plain = {k: t.constant_of(v) for k, v in options.items()}
        passed = {k: v for k, v in plain.items() if k in ("chunk_size", "randomness")}

        def apply(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            chosen = _Arguments.of(t, numbers, args)
            traced = trace(t, name, func, args, kwargs, chosen.example, aux)
            transform = Jacobian(traced.graph, len(chosen.chosen), name, forward, traced.outputs, passed)
            found = iter(traced.call(t, transform))
            rows = iter([chosen.build(t, found) for _ in range(traced.outputs)])
            jacobian = traced.structure.build(t, rows)
            return jacobian if traced.auxiliary is None else t.new_tuple([jacobian, traced.auxiliary.build(t, found)])

        return Transformed(name, apply, _remake(original, func, argnums=numbers, has_aux=aux, **passed))

    return handler


registry.functions[torch.func.jacrev] = _jacobian("jacrev", torch.func.jacrev, forward=False)
registry.functions[torch.func.jacfwd] = _jacobian("jacfwd", torch.func.jacfwd, forward=True)


@registry.function(torch.func.hessian)
def hessian(t: Tracer, func: Value, argnums: Value | None = None) -> Value:
    inner = registry.functions[torch.func.jacrev](t, func, argnums)
    return registry.functions[torch.func.jacfwd](t, inner, argnums)


@registry.function(torch.func.jvp)
def jvp(
    t: Tracer,
    func: Value,
    primals: Value,
    tangents: Value,
    strict: Value | None = None,
    has_aux: Value | None = None,
) -> Value:
    args = primals.realize().unpack(t)
    chosen = _Arguments.of(t, tuple(range(len(args))), args)
    moved, _ = flatten(t, tangents)
    traced = trace(t, "jvp", func, args, {}, chosen.example, has_aux is not None and t.truth(has_aux))
    transform = Jvp(traced.graph, len(chosen.chosen), "jvp", traced.outputs, strict is not None and t.truth(strict))
    if len(moved) != transform.mapped:
        raise Unsupported("torch.func.jvp with tangents that do not fit the arguments")
    found = iter(traced.call(t, transform, moved))
    parts = [traced.structure.build(t, found), traced.structure.build(t, found)]
    return t.new_tuple([*parts, traced.auxiliary.build(t, found)] if traced.auxiliary is not None else parts)


@registry.function(torch.func.vjp)
def vjp(t: Tracer, func: Value, *primals: Value, has_aux: Value | None = None) -> Value:
    """The function's results now; what it pulls back runs the function again, which is pure."""
    args = list(primals)
    chosen = _Arguments.of(t, tuple(range(len(args))), args)
    traced = trace(t, "vjp", func, args, {}, chosen.example, has_aux is not None and t.truth(has_aux))
    found = _values(t, traced, chosen, "vjp")
    result = traced.structure.build(t, found)

    def pull(t: Tracer, /, cotangents: Value, **kwargs: Value) -> Value:
        given, structure = flatten(t, cotangents)
        if structure != traced.structure or kwargs:
            raise Unsupported("cotangents that do not fit the results")
        pulled = iter(traced.call(t, Vjp(traced.graph, len(chosen.chosen), "vjp", traced.outputs), given))
        return chosen.build(t, pulled)

    parts = [result, Handler("the function that torch.func.vjp returns", pull)]
    return t.new_tuple([*parts, traced.auxiliary.build(t, found)] if traced.auxiliary is not None else parts)


@registry.function(torch.func.linearize)
def linearize(t: Tracer, func: Value, *primals: Value) -> Value:
    """The function's results now; what pushes tangents forward runs the function again, which is pure."""
    args = list(primals)
    chosen = _Arguments.of(t, tuple(range(len(args))), args)
    points, shape = flatten(t, t.new_tuple(args))
    traced = trace(t, "linearize", func, args, {}, chosen.example)
    result = traced.structure.build(t, _values(t, traced, chosen, "linearize"))

    def push(t: Tracer, *tangents: Value) -> Value:
        given, structure = flatten(t, t.new_tuple(list(tangents)))
        if structure != shape or not all(map(_alike, given, points)):
            raise Unsupported("tangents that do not fit the arguments of torch.func.linearize")
        pushed = traced.call(t, Jvp(traced.graph, len(chosen.chosen), "jvp", traced.outputs), given)
        return traced.structure.build(t, iter(pushed[traced.outputs :]))

    return t.new_tuple([result, Handler("the function that torch.func.linearize returns", push)])


def _alike(tangent: Value, primal: Value) -> bool:
    """Whether two tensors have the same shape, dtype and device."""
    first, second = tangent.realize(), primal.realize()
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    looks = [(v.fake.shape, v.fake.dtype, v.fake.device) for v in (first, second)]
    return looks[0] == looks[1]


def _values(t: Tracer, traced: Traced, chosen: _Arguments, name: str) -> Iterator[Value]:
    """The results of a function that runs again later, which therefore draws no random numbers."""
    with _Randomness() as seen:
        found = traced.call(t, Transform(traced.graph, len(chosen.chosen), "graph"))
    if seen.random:
        raise Unsupported(f"torch.func.{name} of a function that draws random numbers")
    return iter(found)


class _Randomness(TorchDispatchMode):
    """Notices ops that draw random numbers."""

    random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            self.random = True
        return func(*args, **(kwargs or {}))


MADE_OUTSIDE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "vmap.<locals>.wrapped": (torch.vmap, ("func", "in_dims", "out_dims", "randomness", "chunk_size")),
    "grad.<locals>.wrapper": (torch.func.grad, ("func", "argnums", "has_aux")),
    "grad_and_value.<locals>.wrapper": (torch.func.grad_and_value, ("func", "argnums", "has_aux")),
    "jacrev.<locals>.wrapper_fn": (torch.func.jacrev, ("func", "argnums", "has_aux", "chunk_size")),
    "jacfwd.<locals>.wrapper_fn": (torch.func.jacfwd, ("func", "argnums", "has_aux", "randomness")),
}
"""Functions that a transform returned before the call: by the name of their code, what made them of which variables."""


# Code of what ``torch.func.linearize`` returned before the call, which runs a graph module, and what stacks modules.
registry.followed |= {
    "linearize.<locals>.jvp_fn", "linearize.<locals>.forward_ad_checks", "FoldedGraphModule.__call__",
    "stack_module_state", "construct_stacked_leaf",
}  # fmt: skip


@registry.module("torch._functorch")
def call_transformed(t: Tracer, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The call of a function that a transform returned before, as of one made now; None for others."""
    code = function.object.__code__
    made = MADE_OUTSIDE.get(code.co_qualname)
    if made is None:
        return None
    transform, names = made
    cells = dict(zip(code.co_freevars, function.cells(t), strict=True))
    found = {n: cells[n].content for n in names if n in cells}
    transformed = registry.functions[transform](t, **{n: v for n, v in found.items() if v is not None})
    return transformed.call(t, args, kwargs)


# functional_call.


@registry.function(torch.func.functional_call)
def functional_call(
    t: Tracer,
    module: Value,
    parameter_and_buffer_dicts: Value,
    args: Value | None = None,
    kwargs: Value | None = None,
    *,
    tie_weights: Value | None = None,
    strict: Value | None = None,
) -> Value:
    """A module with other parameters and buffers for one call."""
    target = module.realize()
    if not isinstance(target, Module):
        raise Unsupported(f"torch.func.functional_call of {target.describe()}")
    given = parameter_and_buffer_dicts.realize()
    asked = _replacements(t, given)
    named = asked if tie_weights is not None and not t.truth(tie_weights) else {**_tied(t, target, asked), **asked}
    if strict is not None and t.truth(strict):
        _refuse_other_names(t, target, named)
    positional = _positional(t, args)
    keywords = {} if kwargs is None or t.is_none(kwargs) else {k.constant(): v for k, v in t.pairs(kwargs)}
    places = {name: _Place.of(t, target, name, value.realize()) for name, value in named.items()}
    before = {name: place.get(t) for name, place in places.items()}
    try:
        for name, place in places.items():
            place.put(t, named[name])
        return t.call(target, positional, keywords)
    finally:
        behind = {name: place.get(t) for name, place in places.items()}
        for name, place in places.items():
            place.put(t, before[name])
        _keep_new(t, given, asked, behind)


def _keep_new(t: Tracer, given: Value, asked: dict[str, Value], behind: dict[str, Value | None]) -> None:
    """Put what the module has put in the place of a value into the dict that the program gave."""
    if isinstance(given, Sequence):  # of several dicts torch makes a new one, which nobody sees
        return
    for name, value in asked.items():
        found = behind[name]
        if found is not None and found.realize() is not value.realize():
            given.set_item(t, Constant(name), found)


@attrs.frozen
class _Place:
    """Where a module keeps a tensor under a name: a dict of parameters or buffers, or (None) its attributes."""

    owner: Module
    held: Value | None
    last: str

    @staticmethod
    def of(t: Tracer, module: Module, name: str, value: Value) -> _Place:
        """The place of a name, for a value that may be put there."""
        owner, last = _owner_of(t, module, name), name.rpartition(".")[2]
        _require_tensor(t, value, "")
        parts = (part for part in ("_parameters", "_buffers") if last in vars(owner.object)[part])
        part = next(parts, None)
        place = _Place(owner, None if part is None else owner.get_attr(t, part).realize(), last)
        if part is None and (found := place.get(t)) is not None:
            _require_tensor(t, found.realize(), f"attribute `{last}`: ")
        return place

    def get(self, t: Tracer) -> Value | None:
        """What is there now; None where the module has no such attribute."""
        if self.held is not None:
            return self.held.get_item(t, Constant(self.last))
        try:
            return self.owner.get_attr(t, self.last)
        except Raised as raised:
            if issubclass(raised.value.type(), AttributeError):
                return None
            raise

    def put(self, t: Tracer, value: Value | None) -> None:
        if self.held is not None and value is not None:
            self.held.set_item(t, Constant(self.last), value)
        elif value is not None:
            self.owner.set_attr(t, self.last, value)
        elif self.get(t) is not None:
            self.owner.del_attr(t, self.last)


def _require_tensor(t: Tracer, value: Value, of: str) -> None:
    """Raise torch's error for what is neither a tensor nor None."""
    if not issubclass(value.type(), torch.Tensor) and not t.is_none(value):
        text = t.constant_of(t.call(t.wrap_known(str), [value], {}))
        raise t.raised(TypeError, f"{of}{text} is not an instance of torch.Tensor")


def _replacements(t: Tracer, given: Value) -> dict[str, Value]:
    """Values by the names of parameters and buffers, of one dict or of several."""
    dicts = given.unpack(t) if isinstance(given, Sequence) else [given]
    pairs = [(k.constant(), v) for d in dicts for k, v in t.pairs(d)]
    names = [name for name, _ in pairs]
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        text = f"{repeated} appeared in multiple dictionaries; behavior of functional call is ambiguous"
        raise t.raised(ValueError, text)
    return dict(pairs)


def _positional(t: Tracer, args: Value | None) -> list[Value]:
    """The arguments of the module: a tuple of them, or one that is none."""
    if args is None or t.is_none(args):
        return []
    found = args.realize()
    return found.unpack(t) if isinstance(found, Sequence) and found.type() is tuple else [args]


def _tied(t: Tracer, module: Module, named: dict[str, Value]) -> dict[str, Value]:
    """Other names of the parameters that are given."""
    names: dict[int, list[str]] = {}
    for kind in ("named_parameters", "named_buffers"):
        for name, value in _named(t, module, kind):
            names.setdefault(id(value), []).append(name)
    tied: dict[str, Value] = {}
    for group in names.values():
        given = [name for name in group if name in named]
        if any(not t.is_same(named[name], named[given[0]]) for name in given):
            text = f"functional_call got multiple values for keys {sorted(group)}, which are tied. "
            raise t.raised(ValueError, text + "Consider using tie_weights=False")
        if given:
            tied.update(dict.fromkeys(group, named[given[0]]))
    return tied


def _refuse_other_names(t: Tracer, module: Module, given: dict[str, Value]) -> None:
    """Raise torch's error for names that a module does not have, or has and that are not given."""
    own = {name: None for kind in ("named_parameters", "named_buffers") for name, _ in _named(t, module, kind)}
    found = (("Unexpected", given.keys() - own.keys()), ("Missing", own.keys() - given.keys()))
    errors = [f"{what} key(s): {', '.join(map(repr, sorted(names)))}." for what, names in found if names]
    if errors:
        name = t.constant_of(t.call(module.get_attr(t, "_get_name"), [], {}))
        raise t.raised(RuntimeError, f"Error(s) in reparametrizing for {name}:\n\t" + "\n\t".join(errors))


def _named(t: Tracer, module: Module, kind: str) -> Iterator[tuple[str, Any]]:
    """The parameters or buffers of a module by all of their names, as the program has it at this point."""
    held: torch.nn.Module = module.key(t)
    if not any(_is_changed(t, part) for part in held.modules()):
        yield from getattr(held, kind)(remove_duplicate=False)
        return
    for pair in t.each(t.call(module.get_attr(t, kind), [], {"remove_duplicate": Constant(False)})):
        name, value = t.unpack_exactly(pair, 2)
        yield t.constant_of(name), value.realize()


def _is_changed(t: Tracer, module: torch.nn.Module) -> bool:
    """Whether the frame changed which parameters, buffers and submodules a module has."""
    known = t.objects.get(id(module))
    held = (t.objects.get(id(vars(module).get(part))) for part in STATE)
    stored = isinstance(known, Module) and not known.stores.keys().isdisjoint(STATE)
    return stored or any(v is not None and v.mutated for v in held)


def _owner_of(t: Tracer, module: Module, name: str) -> Module:
    """The submodule that holds a parameter or buffer, or would hold it."""
    owner: Value = module
    for part in name.split(".")[:-1]:
        owner = owner.get_attr(t, part).realize()
    if not isinstance(owner, Module):
        raise Unsupported(f"{name!r} in torch.func.functional_call, which is of no module")
    return owner
