"""Draws programs one statement at a time, running each statement as it is drawn.

Because every statement has run on real inputs before it is kept, a drawn program does not raise in eager, and
the operations of ``turret.testing.corpus.operations`` can look at the shapes, dtypes and strides that are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from turret.hooks.devices import HOST
from turret.testing.comparison.observe import seeded_backward
from turret.testing.corpus.chooser import Chooser, chance, choice, subset, weighted
from turret.testing.corpus.program import Backward, InputSpec, NumberSpec, Program, Setting, Step, StorageSpec
from turret.testing.corpus.seeding import seed_generators

DTYPES: tuple[tuple[torch.dtype, int], ...] = (
    (torch.float32, 50),
    (torch.float64, 10),
    (torch.bfloat16, 10),
    (torch.float16, 6),
    (torch.int64, 10),
    (torch.int32, 6),
    (torch.bool, 5),
    (torch.uint8, 3),
)
"""Dtypes of inputs with their weights."""


@attrs.frozen
class Features:
    """What programs may contain; authors of a backend narrow it to what they claim to support.

    ``dtypes`` are those of inputs, with weights (indices are int64 in any case, and results follow promotion).
    ``skip`` holds names of operations (``turret.testing.corpus.operations.OPERATIONS``); ``families`` the families to
    draw from, all when empty.  ``max_numel`` bounds every tensor, ``max_steps`` the statements.
    ``random`` allows dropout and the like: only for a compiler that draws the same random numbers as eager.
    ``layouts`` allows calls of one compiled function with other sizes, and integers that change; ``settings`` calls in
    inference mode, without gradients, or checkpointed; ``complex`` complex inputs, conjugate views among them.
    ``device``: where tensors are; a statement that eager does not take there is not drawn.
    """

    dtypes: tuple[tuple[torch.dtype, int], ...] = DTYPES
    families: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    max_inputs: int = 4
    max_steps: int = 12
    max_numel: int = 1 << 14
    gradients: bool = True
    mutation: bool = True
    aliased_inputs: bool = True
    contexts: bool = True
    special_values: bool = True
    random: bool = False
    layouts: bool = True
    settings: bool = True
    complex: bool = True
    device: str = HOST.type


class Declined(Exception):
    """An operation found nothing to apply to, or eager refused it; the builder draws another one."""


_EXTRA_INPUTS = 6
"""Inputs that operations may add for themselves (weights, indices) beyond ``Features.max_inputs``."""

_ELASTIC_SIZES = (5, 7, 9, 11, 17, 33)
"""Sizes that other calls of a program may have otherwise: such as mean nothing else where they stand in its text."""

_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100)


class Builder:
    """The program so far: its specs, its statements, and the live value of every name."""

    def __init__(self, chooser: Chooser, features: Features) -> None:
        self.chooser, self.features = chooser, features
        self.storages: list[StorageSpec] = []
        self.inputs: list[InputSpec] = []
        self.steps: list[Step] = []
        self.env: dict[str, Any] = {}
        self._globals = {"torch": torch, "F": torch.nn.functional, "inf": math.inf, "nan": math.nan}
        self._values = 0
        self.wild = features.special_values and chance(chooser, 8)
        self.training = features.gradients and chance(chooser, 60)
        self.palette = tuple(choice(chooser, _SIZES) for _ in range(3))
        if chance(chooser, 3):
            self.palette = (*self.palette[:2], choice(chooser, (1000, 1031, 4096)))
        self.numbers: list[NumberSpec] = []
        self.layouts = 1
        self.elastic = 0
        self.resized: tuple[tuple[tuple[int, int], ...], ...] = ()
        if features.layouts and chance(chooser, 35):
            self._draw_layouts()

    def _draw_layouts(self) -> None:
        """Several kinds of calls; in most programs one size of the palette is another one in each."""
        self.layouts = self.integer(2, 3)
        if self.chance(65):
            self.elastic = self.choice(_ELASTIC_SIZES)
            self.palette = (self.elastic, *self.palette[1:])
            others = (self.elastic + 1, self.elastic - 1, 2, 3, 2 * self.elastic, 1, 16)
            self.resized = tuple(((self.elastic, self.choice(others)),) for _ in range(self.layouts - 1))

    # -- choices ---------------------------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        return self.chooser.integer(low, high)

    def chance(self, percent: int) -> bool:
        return chance(self.chooser, percent)

    def choice(self, items: Sequence[Any]) -> Any:
        if not items:
            raise Declined
        return choice(self.chooser, items)

    def subset(self, items: Sequence[Any], percent: int = 50) -> list[Any]:
        return subset(self.chooser, items, percent)

    def size(self) -> int:
        """A dimension: mostly of the program's palette, so that shapes meet; sometimes 1, rarely 0."""
        return weighted(self.chooser, [*((s, 28) for s in self.palette), (1, 12), (0, 4)])

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """A shape of ``low`` to ``high`` dimensions within the limit on elements."""
        dims = weighted(self.chooser, [(n, w) for n, w in ((2, 5), (1, 3), (3, 4), (4, 1), (0, 1)) if low <= n <= high])
        shape: list[int] = []
        for _ in range(dims):
            size = self.size()
            shape.append(size if math.prod(shape) * size <= self.features.max_numel // 4 else 1)
        return tuple(shape)

    def dtype(self, accept: Callable[[torch.dtype], bool] = lambda d: True) -> torch.dtype:
        options = [(d, w) for d, w in self.features.dtypes if accept(d)]
        if not options:
            raise Declined
        return weighted(self.chooser, options)

    # -- values ----------------------------------------------------------------------------------------------------

    def names(self, accept: Callable[[Tensor], bool] = lambda t: True) -> list[str]:
        """Names of live tensors that satisfy ``accept``, newest first."""
        return [n for n, v in reversed(self.env.items()) if isinstance(v, Tensor) and accept(v)]

    def pick(self, accept: Callable[[Tensor], bool] = lambda t: True) -> str:
        """A live tensor, newer ones more often; declines when there is none."""
        names = self.names(accept)
        if not names:
            raise Declined
        if self.chance(40):
            names = names[:3]
        return self.choice(names)

    def __getitem__(self, name: str) -> Any:
        return self.env[name]

    def partner(self, name: str, accept: Callable[[torch.dtype], bool] = lambda d: True) -> str:
        """A tensor that broadcasts with ``name``: a live one, or a new input with some dimensions dropped or 1."""
        shape = tuple(self.env[name].shape)
        live = self.names(lambda t: accept(t.dtype) and _broadcasts(shape, tuple(t.shape)))
        if live and self.chance(65):
            return self.choice(live)
        kept = shape[self.integer(0, len(shape)) :] if self.chance(30) else shape
        small = tuple(1 if self.chance(15) else s for s in kept)
        return self.new_input(small, self.dtype(accept))

    def like(self, name: str, shape: Sequence[int] | None = None, fill: str = "") -> str:
        """A tensor of the dtype of ``name`` and the given shape (its own by default), live or new."""
        tensor = self.env[name]
        shape = tuple(tensor.shape if shape is None else shape)
        live = self.names(lambda t: t.dtype == tensor.dtype and tuple(t.shape) == shape)
        if live and not fill and self.chance(60):
            return self.choice(live)
        return self.new_input(shape, tensor.dtype, fill)

    def number(self, low: int, high: int) -> str:
        """An integer argument that lies in a range in the first call, and where it likes in the others."""
        if self.layouts == 1 or low > high:
            raise Declined
        live = [n.name for n in self.numbers if low <= n.values[0] <= high]
        if live and self.chance(60):
            return self.choice(live)
        reach = max(abs(low), abs(high)) + 2
        first, others = self.integer(low, high), (0, 1, -1, 2, -2, 3, low, high, -high)
        values = [self.choice(others) if self.chance(60) else self.integer(-reach, reach) for _ in self.resized_calls]
        spec = NumberSpec(f"n{len(self.numbers)}", (first, *values))
        self.numbers.append(spec)
        self.env[spec.name] = first
        return spec.name

    @property
    def resized_calls(self) -> range:
        """Numbers of the layouts but the first."""
        return range(1, self.layouts)

    def complex_input(self, shape: Sequence[int]) -> str:
        """A new complex input, in some programs a conjugate view, or the imaginary part of one (a negative view)."""
        shape = tuple(shape)
        if len(self.inputs) >= self.features.max_inputs + _EXTRA_INPUTS or math.prod(shape) > self.features.max_numel:
            raise Declined
        stride, offset, numel = self._layout(shape) if self.chance(35) else (_contiguous(shape), 0, math.prod(shape))
        self.storages.append(StorageSpec(numel, torch.complex64, "complex", len(self.storages)))
        lazy = self.choice(("", "conj()", "conj()", "conj().imag"))
        return self._add_view(shape, stride, offset, len(self.storages) - 1, lazy)

    def scalar(self, floating: bool) -> str:
        """A Python number as text."""
        numbers = ("1", "2", "0", "-1", "3") if not floating else ("1.0", "0.5", "2.0", "-1.5", "0.1", "3", "-0.25")
        return self.choice(numbers)

    def index(self, shape: Sequence[int], bound: int, negative: bool = False, unique: bool = False) -> str:
        """A new int64 input of indices below ``bound``; declines when there is nothing to index."""
        if bound <= 0 and 0 not in shape:
            raise Declined
        fill = "permutation" if unique else "signed_index" if negative else "index"
        if unique and (len(shape) != 1 or shape[0] > bound):
            raise Declined
        return self.new_input(tuple(shape), torch.int64, fill, bound=max(bound, 1), plain=True)

    def new_input(
        self, shape: Sequence[int], dtype: torch.dtype, fill: str = "", *, bound: int = 0, plain: bool = False
    ) -> str:
        """Add an input in a drawn layout (contiguous when ``plain``) and return its name."""
        shape = tuple(shape)
        allowed = bound > 0 or any(dtype == d for d, _ in self.features.dtypes)
        if not allowed or math.prod(shape) > self.features.max_numel:
            raise Declined
        if len(self.inputs) >= self.features.max_inputs + _EXTRA_INPUTS:
            raise Declined
        stride, offset, numel = _contiguous(shape), 0, math.prod(shape)
        if not plain and self.chance(35):
            stride, offset, numel = self._layout(shape)
        grads = self.training and dtype.is_floating_point and not plain and self.chance(60)
        writable = grads and self.features.mutation and self.chance(30) and _dense(shape, stride)
        fill = fill or self._fill(dtype)
        spec = StorageSpec(numel, dtype, fill, len(self.storages), bound, grads, writable)
        self.storages.append(spec)
        return self._add_view(shape, stride, offset, len(self.storages) - 1)

    def aliasing_input(self) -> str:
        """Add an input that shares the memory of another one, overlapping it or beside it."""
        hosts = [s for s in self.inputs if self.storages[s.storage].numel >= 2 and not self.steps and not self.elastic]
        host: InputSpec = self.choice(hosts)
        storage = self.storages[host.storage]
        if storage.fill in ("index", "signed_index", "permutation"):
            raise Declined
        kind = self.choice(("same", "front", "back", "transposed"))
        half = storage.numel // 2
        if kind == "same":
            return self._add_view(host.shape, host.stride, host.offset, host.storage)
        if kind == "transposed":
            return self._add_view(host.shape[::-1], host.stride[::-1], host.offset, host.storage)
        extra = self.integer(0, 1) if half > 1 else 0
        offset = 0 if kind == "front" else half - extra
        return self._add_view((half,), (1,), offset, host.storage)

    def _add_view(
        self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, storage: int, lazy: Any = ""
    ) -> str:
        if self.steps and any(s.storage == storage for s in self.inputs):
            raise Declined
        spec = InputSpec(f"x{len(self.inputs)}", storage, shape, stride, offset, lazy)
        self.inputs.append(spec)
        sharing = [s for s in self.inputs if s.storage == storage]
        if len(sharing) > 1:
            for name, value in zip([s.name for s in sharing], self._build(sharing), strict=True):
                self.env[name] = value
        else:
            self.env[spec.name] = self._build([spec])[0]
        return spec.name

    def _build(self, specs: list[InputSpec]) -> tuple[Any, ...]:
        return Program(tuple(self.storages), tuple(specs), (), (), device=self.features.device).build_inputs().args

    def _fill(self, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return "boolean"
        if not dtype.is_floating_point:
            return "natural" if dtype == torch.uint8 else "integer"
        options = [("normal", 6), ("grid", 3), ("positive", 2), ("distinct", 1)]
        if self.wild:
            options.append(("special", 6))
        return weighted(self.chooser, options)

    def _layout(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        """Strides, offset and storage size: transposed, sliced from something larger, expanded, or shifted."""
        kind = self.choice(("permuted", "sliced", "expanded", "shifted"))
        if kind == "permuted":
            return self._permuted(shape)
        if kind == "sliced" and shape:
            return self._sliced(shape)
        if kind == "expanded" and shape and 0 not in shape:
            return self._expanded(shape)
        offset = self.integer(1, 5)
        return _contiguous(shape), offset, math.prod(shape) + offset

    def _permuted(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        order = list(range(len(shape)))
        for i in range(len(order) - 1):
            j = self.integer(i, len(order) - 1)
            order[i], order[j] = order[j], order[i]
        dense = _contiguous([shape[i] for i in order])
        stride = [0] * len(shape)
        for position, dim in enumerate(order):
            stride[dim] = dense[position]
        return tuple(stride), 0, math.prod(shape)

    def _sliced(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        steps = [self.choice((1, 2, 1, 3)) for _ in shape]
        padded = [max(1, size * step + self.integer(0, 2)) for size, step in zip(shape, steps, strict=True)]
        stride = [s * step for s, step in zip(_contiguous(padded), steps, strict=True)]
        offset = self.integer(0, 1) if all(size > 0 for size in shape) else 0
        return tuple(stride), offset, math.prod(padded) + offset

    def _expanded(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        dim = self.integer(0, len(shape) - 1)
        rest = [1 if i == dim else s for i, s in enumerate(shape)]
        stride = list(_contiguous(rest))
        stride[dim] = 0
        return tuple(stride), 0, math.prod(rest)

    # -- statements ------------------------------------------------------------------------------------------------

    def step(self, op: str, template: str, *args: str, results: int = 1) -> tuple[str, ...]:
        """Run one statement on the live values and keep it; declines when eager raises or values explode.

        ``results`` is 0 for an in-place statement.  Returns the names of the results.
        """
        context = self._context(results)
        template, args = self._with_sizes(template, args)
        names = tuple(f"v{self._values + i}" for i in range(results))
        statement = Step(op, names, template, args, context)
        versions = {n: v._version for n, v in self.env.items() if isinstance(v, Tensor)}
        scope = self._globals | self.env  # one scope, as in a function: lambdas see the values, too
        try:
            seed_generators(0)
            exec("\n".join(statement.render()), scope)
            for value in scope.values():
                _ = isinstance(value, Tensor) and value.grad_fn  # raises for a view whose history a write made invalid
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            if any(self.env[n]._version != version for n, version in versions.items()):
                raise Spoiled from error
            raise Declined from error
        made = [scope[name] for name in names]
        changed = [v for n, v in self.env.items() if isinstance(v, Tensor) and v._version != versions[n]]
        if not all(self._tame(value) for value in [*made, *changed]):
            if changed:
                raise Spoiled
            raise Declined
        self._values += results
        self.env.update(zip(names, made, strict=True))
        self.steps.append(statement)
        return names

    def _with_sizes(self, template: str, args: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """A statement that asks an input for the size that other calls have otherwise, where it names it."""
        pattern = rf"(?<!e-)(?<![\w.{{]){self.elastic}(?![\w.}}])"
        if not self.elastic or not re.search(pattern, template):
            return template, args
        places = [(s.name, d) for s in self.inputs for d, n in enumerate(self.env[s.name].shape) if n == self.elastic]
        name, dim = self.choice(places)
        return re.sub(pattern, f"{{{len(args)}}}.shape[{dim}]", template), (*args, name)

    def _context(self, results: int) -> str:
        if not self.features.contexts or not results or not self.chance(6):
            return ""
        options = ["torch.no_grad()", "torch.enable_grad()"]
        return self.choice(options)

    def _tame(self, value: Any) -> bool:
        """Small enough, and not so large in value that it hides errors (unless the program is a wild one)."""
        if not isinstance(value, Tensor):
            return isinstance(value, (int, float, bool))
        if value.numel() > self.features.max_numel or (value.dtype.is_complex and not self.features.complex):
            return False
        if (not value.dtype.is_complex and (self.wild or not value.dtype.is_floating_point)) or not value.numel():
            return True
        limit = 500.0 if value.dtype == torch.float16 else 1e4
        return bool((value.detach().abs() <= limit).all())

    def finish(self) -> Program:
        """Draw outputs and what is differentiated, check that the whole runs, and return it.

        A program that eager could not differentiate (it overwrites what its backward needs) is not used even
        without a backward, since a compiler may trace the backward before the first call.
        """
        outputs = self._outputs()
        trains = any(isinstance(self.env[n], Tensor) and self.env[n].requires_grad for n in outputs)
        options: list[tuple[Backward, int]] = [("all", 6), ("results", 2), ("first", 1), ("expanded", 1), ("none", 1)]
        backward = weighted(self.chooser, options) if trains else "none"
        program = Program(
            tuple(self.storages),
            tuple(self.inputs),
            tuple(self.steps),
            outputs,
            backward,
            numbers=tuple(self.numbers),
            resized=self.resized,
            device=self.features.device,
        )
        if backward == "first" and not _zero_tangents_are_harmless(program):
            program = attrs.evolve(program, backward="all")
        # The first layout, with the values of the first call and those of the next that has it.
        if not all(_runs(attrs.evolve(program, backward="all"), variant) for variant in (0, program.layouts)):
            raise Spoiled
        program = self._with_setting(program, trains)
        for layout in self.resized_calls:
            if not _runs(program, layout) and self.chance(75):
                program = _as_in_first_call(program, layout)
        return program

    def _with_setting(self, program: Program, trains: bool) -> Program:
        """The program in a setting where eager takes it in one."""
        writes = any(not step.results for step in program.steps)
        chances: list[tuple[Setting, int]] = [("", 80)]
        if not self.features.settings:
            return program
        if program.backward == "all" and not writes:
            chances += [("checkpoint", 30)]
        if program.backward == "none":
            chances += [("no_grad", 6)] if trains else [("inference_inputs", 12), ("inference_mode", 8)]
        chosen = attrs.evolve(program, setting=weighted(self.chooser, chances))
        return chosen if all(_runs(chosen, variant) for variant in (0, program.layouts)) else program

    def _outputs(self) -> tuple[str, ...]:
        made = [n for n in reversed(self.env) if n.startswith("v") and isinstance(self.env[n], Tensor)]
        outputs = made[: self.integer(1, 3)]
        if self.chance(45):
            outputs += self.subset([n for n in made if n not in outputs], 30)
        if self.chance(25):
            outputs += self.subset([s.name for s in self.inputs], 25)
        if outputs and self.chance(6):
            outputs.append(outputs[0])
        if self.chance(20):
            outputs += [n for n, v in self.env.items() if not isinstance(v, Tensor)]
        return tuple(outputs)


class Spoiled(Exception):
    """The program drawn so far cannot be used; draw another one."""


def _runs(program: Program, variant: int) -> bool:
    """Whether eager takes the program, gradients included, with the inputs of one call."""
    try:
        inputs = program.build_inputs(variant)
        seed_generators(0)
        seeded_backward(program.run(inputs), inputs, program.backward)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, ArithmeticError):
        return False
    return True


def _as_in_first_call(program: Program, layout: int) -> Program:
    """The program with the sizes and numbers of the first call in another one."""
    numbers = tuple(
        attrs.evolve(n, values=(*n.values[:layout], n.values[0], *n.values[layout + 1 :])) for n in program.numbers
    )
    resized = tuple(() if k == layout - 1 else sizes for k, sizes in enumerate(program.resized))
    return attrs.evolve(program, numbers=numbers, resized=resized)


def _zero_tangents_are_harmless(program: Program) -> bool:
    """Whether zeros for the tangents that eager leaves undefined give the same gradients.

    A compiled backward computes with those zeros, which makes NaN where a derivative is infinite.
    """
    for variant in (0, program.layouts):
        inputs = program.build_inputs(variant)
        result = program.run(inputs)
        roots = [t for t in result if isinstance(t, Tensor) and t.requires_grad]
        tangents = [torch.zeros_like(root) for root in roots]
        try:
            gradients = torch.autograd.grad(roots, inputs.leaves, tangents, allow_unused=True)
        except RuntimeError:
            return False
        if any(g is not None and bool(g.isnan().any()) for g in gradients):
            return False
    return True


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """No two elements share memory (sufficient, not necessary)."""
    reach = 0
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += step * (size - 1)
    return True


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))
