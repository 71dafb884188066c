"""A drawn program as data: inputs, straight-line steps, outputs.

A ``Program`` prints as runnable Python (``source()``), and what runs is exactly that text: ``function()`` and
``build_inputs()`` execute it, so a failure that is reported as source reproduces by pasting it.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

Backward = Literal["none", "all", "first", "expanded"]
"""What is differentiated: nothing, every output with dense tangents, the first differentiable output only, or
every output with tangents that are expanded from one number."""


@attrs.frozen
class StorageSpec:
    """Memory that one or more inputs view: ``numel`` elements of ``dtype`` made by ``fill`` from ``seed``.

    ``fill`` names an entry of ``FILLS``; ``bound`` is the exclusive bound of ``"index"``.  ``computed`` makes the
    inputs that view it non-leaf views of a clone of a leaf, so that the program may write to them.
    """

    numel: int
    dtype: torch.dtype
    fill: str
    seed: int
    bound: int = 0
    requires_grad: bool = False
    computed: bool = False


@attrs.frozen
class InputSpec:
    """One tensor argument: a view of storage number ``storage``; sizes, strides and offset in elements."""

    name: str
    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@attrs.frozen
class Step:
    """One statement.  ``template`` names its operands ``{0}``, ``{1}``, ...; ``results`` is empty for in-place ones.

    ``context`` is an expression for a ``with`` block around the statement, or empty.
    """

    op: str
    results: tuple[str, ...]
    template: str
    args: tuple[str, ...]
    context: str = ""

    def render(self) -> list[str]:
        """Lines of Python, not indented."""
        text = self.template.format(*self.args)
        if self.results:
            text = f"{', '.join(self.results)} = {text}"
        return [f"with {self.context}:", f"    {text}"] if self.context else [text]


@attrs.frozen(eq=False)
class Inputs:
    """Arguments of one call, and the leaf tensors whose gradients are compared."""

    args: tuple[Any, ...]
    leaves: tuple[Tensor, ...]


@attrs.frozen
class Program:
    """A function over tensors, together with how its inputs are made and what is differentiated."""

    storages: tuple[StorageSpec, ...]
    inputs: tuple[InputSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    backward: Backward = "none"
    seed: int | None = None

    def __str__(self) -> str:
        return self.source()

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the operations, in order, with repetitions."""
        return tuple(step.op for step in self.steps)

    def source(self) -> str:
        """A Python module that defines ``make_inputs(variant=0)`` and ``program(...)``."""
        return f"{_HEADER}\n\n{self.inputs_source()}\n\n\n{self.function_source()}"

    def function_source(self) -> str:
        body = [line for step in self.steps for line in step.render()]
        results = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        lines = [f"def program({', '.join(spec.name for spec in self.inputs)}):"]
        lines += [f"    {line}" for line in body]
        lines.append(f"    return ({results})" if self.outputs else "    return ()")
        return "\n".join(lines) + "\n"

    def inputs_source(self) -> str:
        lines = ["def make_inputs(variant=0):"]
        leaves: list[str] = []
        shared = {i for i, _ in itertools.groupby(sorted(s.storage for s in self.inputs))
                  if sum(s.storage == i for s in self.inputs) > 1}  # fmt: skip
        for index, storage in enumerate(self.storages):
            if not any(spec.storage == index for spec in self.inputs):
                continue
            lines.append(f"    s{index} = {_fill_source(storage)}")
            if storage.computed:
                if storage.requires_grad:
                    lines.append(f"    s{index}.requires_grad_()")
                    leaves.append(f"s{index}")
                lines.append(f"    c{index} = s{index}.clone()")
        for spec in self.inputs:
            storage = self.storages[spec.storage]
            base = f"c{spec.storage}" if storage.computed else f"s{spec.storage}"
            layout = f"{spec.shape}, {spec.stride}, {spec.offset}"
            if storage.computed or spec.storage in shared:
                text = f"{base}.as_strided({layout})"
            else:
                text = f"strided({base}, {layout})"
            if storage.requires_grad and not storage.computed:
                text += ".requires_grad_()"
                leaves.append(spec.name)
            lines.append(f"    {spec.name} = {text}")
        names = "".join(f"{spec.name}, " for spec in self.inputs)
        lines.append(f"    return ({names.rstrip()}), ({''.join(f'{leaf}, ' for leaf in leaves).rstrip()})")
        return "\n".join(lines)

    def function(self) -> Callable[..., tuple]:
        """A new function object with its own code, as if the user had written it."""
        return _execute(f"{_HEADER}\n\n{self.function_source()}")["program"]

    def build_inputs(self, variant: int = 0) -> Inputs:
        """Fresh inputs; the same variant gives the same values, another variant others of the same layout."""
        args, leaves = _execute(f"{_HEADER}\n\n{self.inputs_source()}")["make_inputs"](variant)
        return Inputs(args, leaves)

    def run(self, inputs: Inputs) -> tuple:
        """Call the program eagerly."""
        return self.function()(*inputs.args)


_HEADER = """\
import torch
import torch.nn.functional as F
from torch import inf, nan


def generator(seed):
    return torch.Generator().manual_seed(seed)


def strided(memory, size, stride, offset):
    return memory.new_empty(0).set_(memory.untyped_storage(), offset, size, stride)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -2.5, inf, -inf, nan, 1e-4])
"""

FILLS: dict[str, str] = {
    "normal": "torch.randn({n}, generator={g})",
    "grid": "torch.randint(-8, 9, ({n},), generator={g}).div(4)",
    "positive": "torch.rand({n}, generator={g}).add(0.5)",
    "distinct": "torch.randperm({n}, generator={g}).sub({n} // 2).div(4)",
    "special": "SPECIAL[torch.randint(0, 8, ({n},), generator={g})]",
    "integer": "torch.randint(-5, 6, ({n},), generator={g})",
    "natural": "torch.randint(0, 9, ({n},), generator={g})",
    "boolean": "torch.randint(0, 2, ({n},), generator={g})",
    "index": "torch.randint(0, {bound}, ({n},), generator={g})",
    "signed_index": "torch.randint(-{bound}, {bound}, ({n},), generator={g})",
    "permutation": "torch.randperm({n}, generator={g})",
}
"""How a storage's values are made: expressions over the number of elements, a generator and a bound."""


def _fill_source(storage: StorageSpec) -> str:
    generator = f"generator({storage.seed} + 7919 * variant)"
    text = FILLS[storage.fill].format(n=storage.numel, g=generator, bound=storage.bound)
    return f"{text}.to({storage.dtype})"


_numbers = itertools.count()


def _execute(source: str) -> dict[str, Any]:
    """Run a module's source, findable by tracebacks as long as its code lives."""
    name = f"<turret program {next(_numbers)}>"
    namespace: dict[str, Any] = {"__name__": "turret_program"}
    exec(compile(source, name, "exec"), namespace)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    if len(linecache.cache) > 4096:
        for old in [key for key in linecache.cache if key.startswith("<turret program")][:2048]:
            del linecache.cache[old]
    return namespace


def merge(programs: Sequence[Program]) -> Program:
    """One program that runs several, one after the other, on inputs of their own; outputs are concatenated.

    The programs must agree in ``backward``; raises ``ValueError`` otherwise.  For compilers whose cost per
    program is mostly fixed.
    """
    modes = {program.backward for program in programs}
    if len(modes) != 1:
        raise ValueError(f"programs to merge differ in backward: {sorted(modes)}")
    storages: list[StorageSpec] = []
    inputs: list[InputSpec] = []
    steps: list[Step] = []
    outputs: list[str] = []
    for number, program in enumerate(programs):
        prefix = f"p{number}_"

        def renamed(names: tuple[str, ...], prefix: str = prefix) -> tuple[str, ...]:
            return tuple(prefix + name for name in names)

        first = len(storages)
        storages += program.storages
        inputs += [attrs.evolve(s, name=prefix + s.name, storage=first + s.storage) for s in program.inputs]
        steps += [attrs.evolve(s, results=renamed(s.results), args=renamed(s.args)) for s in program.steps]
        outputs += renamed(program.outputs)
    return Program(tuple(storages), tuple(inputs), tuple(steps), tuple(outputs), modes.pop())
