"""A drawn program as data: inputs, straight-line steps, outputs.

A ``Program`` prints as runnable Python (``source()``), and what runs is exactly that text: ``function()`` and
``build_inputs()`` execute it, so a failure that is reported as source reproduces by pasting it.
"""

from __future__ import annotations

import collections
import functools
import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from turret.hooks.devices import HOST

Backward = Literal["none", "all", "first", "expanded", "results"]
"""What is differentiated: nothing, every output with dense tangents, the first differentiable output only, every output
with tangents that are expanded from one number, or every output for the gradients of results beside those of leaves."""

Setting = Literal["", "no_grad", "inference_inputs", "inference_mode", "checkpoint"]
"""What is around each call: nothing, a mode, inputs that were made in inference mode, or activation checkpointing."""


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
    """One tensor argument: a view of storage number ``storage``; sizes, strides and offset in elements.

    ``lazy``: what of a complex storage's view the argument is, with its conjugate or negative bit set.
    """

    name: str
    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    lazy: Literal["", "conj()", "conj().imag"] = ""

    def resized(self, sizes: Sequence[tuple[int, int]]) -> InputSpec:
        """The same argument with other sizes; strides stay in the same order, with gaps where there were some."""
        others = dict(sizes)
        shape = tuple(others.get(size, size) for size in self.shape)
        stride = list(self.stride)
        before = after = 1
        for dim in sorted(range(len(shape)), key=lambda d: (self.stride[d], self.shape[d], -d)):
            if self.stride[dim]:
                stride[dim] = -(-self.stride[dim] // before) * after
                before, after = self.stride[dim] * max(self.shape[dim], 1), stride[dim] * max(shape[dim], 1)
        return attrs.evolve(self, shape=shape, stride=tuple(stride))

    @property
    def reach(self) -> int:
        """Elements of memory that the argument needs."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))


@attrs.frozen
class NumberSpec:
    """One integer argument: its value in each of the calls, which go round."""

    name: str
    values: tuple[int, ...]


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
    """A function over tensors and integers, together with how its inputs are made and what is differentiated.

    Calls differ in their layout: ``numbers`` have a value for each, and ``resized`` says for each but the first which
    sizes are other ones (``((7, 9),)``: dimensions of 7 have 9).  Layouts go round, so that the last of ``calls`` has
    the sizes and numbers of the first.
    """

    storages: tuple[StorageSpec, ...]
    inputs: tuple[InputSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    backward: Backward = "none"
    seed: int | None = None
    numbers: tuple[NumberSpec, ...] = ()
    resized: tuple[tuple[tuple[int, int], ...], ...] = ()
    setting: Setting = ""
    device: str = HOST.type

    @property
    def layouts(self) -> int:
        """How many kinds of calls there are, by sizes and numbers."""
        return max(1 + len(self.resized), *(len(number.values) for number in self.numbers), 1)

    @property
    def calls(self) -> int:
        """How many calls show all that the program is to show."""
        return self.layouts + 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arguments."""
        return (*(tensor.name for tensor in self.inputs), *(number.name for number in self.numbers))

    def __str__(self) -> str:
        return self.source()

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the operations, in order, with repetitions."""
        return tuple(step.op for step in self.steps)

    def source(self) -> str:
        """A Python module that defines ``make_inputs(variant=0)``, ``program(...)`` and, where it matters, ``call``."""
        call = f"\n\n{_CALLS[self.setting]}" if _CALLS[self.setting] else ""
        return f"{_HEADER}\n\n{self.inputs_source()}\n\n\n{self.function_source()}{call}"

    def function_source(self) -> str:
        body = [line for step in self.steps for line in step.render()]
        results = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        lines = [f"def program({', '.join(self.names)}):"]
        lines += [f"    {line}" for line in body]
        lines.append(f"    return ({results})" if self.outputs else "    return ()")
        return "\n".join(lines) + "\n"

    def inputs_source(self) -> str:
        lines = ["@torch.inference_mode()"] if self.setting == "inference_inputs" else []
        lines.append("def make_inputs(variant=0):")
        used = collections.Counter(spec.storage for spec in self.inputs)
        leaves: list[str] = []
        for index in sorted(used):
            lines += self._storage_lines(index, leaves)
        for spec in self.inputs:
            lines.append(self._input_line(spec, used[spec.storage] > 1, leaves))
        for number in self.numbers:
            lines.append(f"    {number.name} = {_by_call([str(value) for value in number.values])}")
        names = "".join(f"{name}, " for name in self.names)
        lines.append(f"    return ({names.rstrip()}), ({''.join(f'{leaf}, ' for leaf in leaves).rstrip()})")
        return "\n".join(lines)

    def _storage_lines(self, index: int, leaves: list[str]) -> list[str]:
        """Lines that make a storage; where gradients of it are asked for, its name joins ``leaves``."""
        storage = self.storages[index]
        lines = [f"    s{index} = {self._fill_source(index)}"]
        if storage.computed:
            if storage.requires_grad:
                lines.append(f"    s{index}.requires_grad_()")
                leaves.append(f"s{index}")
            lines.append(f"    c{index} = s{index}.clone()")
        return lines

    def _input_line(self, spec: InputSpec, shared: bool, leaves: list[str]) -> str:
        """The line that makes an input of its storage; ``shared``: others lie in it, too."""
        storage = self.storages[spec.storage]
        base = f"c{spec.storage}" if storage.computed else f"s{spec.storage}"
        layouts = [spec] + [spec.resized(sizes) for sizes in self.resized]
        layout = _by_call([f"{s.shape}, {s.stride}, {s.offset}" for s in layouts], "*", "({})")
        text = f"{base}.as_strided({layout})" if storage.computed or shared else f"strided({base}, {layout})"
        if storage.requires_grad and not storage.computed:
            text += ".requires_grad_()"
            leaves.append(spec.name)
        return f"    {spec.name} = {text}{'.' if spec.lazy else ''}{spec.lazy}"

    def _fill_source(self, index: int) -> str:
        storage, device = self.storages[index], "" if self.device == HOST.type else f".to({self.device!r})"
        values = FILLS[storage.fill].format(
            n=self._sizes_of(index), g=f"generator({storage.seed} + 7919 * variant)", bound=self._bounds_of(storage)
        )
        return f"{values}.to({storage.dtype}){device}"

    def _sizes_of(self, storage: int) -> str:
        """How many elements a storage has, as text."""
        specs = [spec for spec in self.inputs if spec.storage == storage]
        sizes = [max(spec.resized(other).reach for spec in specs) for other in self.resized]
        return _by_call([str(number) for number in (self.storages[storage].numel, *sizes)])

    def _bounds_of(self, storage: StorageSpec) -> str:
        """The bound of a storage of indices, as text: it shrinks where the size that it was made for does."""
        smaller = [min(storage.bound, dict(sizes).get(storage.bound, storage.bound)) for sizes in self.resized]
        return _by_call([str(bound) for bound in (storage.bound, *smaller)])

    def function(self) -> Callable[..., tuple]:
        """A new function object with its own code, as if the user had written it."""
        return _execute(f"{_HEADER}\n\n{self.function_source()}")["program"]

    def build_inputs(self, variant: int = 0) -> Inputs:
        """Fresh inputs; the same variant gives the same values, another variant others of the same layout."""
        args, leaves = _execute(f"{_HEADER}\n\n{self.inputs_source()}")["make_inputs"](variant)
        return Inputs(args, leaves)

    def run(self, inputs: Inputs) -> tuple:
        """Call the program eagerly."""
        return self.calling(self.function())(*inputs.args)

    @property
    def calls_through(self) -> bool:
        """Whether the source defines ``call(function, *args)``, by which the program's setting has it called."""
        return bool(_CALLS[self.setting])

    def calling(self, function: Callable[..., tuple]) -> Callable[..., tuple]:
        """``function``, called in the program's setting."""
        if not self.setting or not _CALLS[self.setting]:
            return function
        call = _execute(f"{_HEADER}\n\n{_CALLS[self.setting]}")["call"]
        return functools.partial(call, function)


_HEADER = """\
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import inf, nan


def generator(seed):
    return torch.Generator().manual_seed(seed)


def strided(memory, size, stride, offset):
    return memory.new_empty(0).set_(memory.untyped_storage(), offset, size, stride)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -2.5, inf, -inf, nan, 1e-4])
"""

FILLS: dict[str, str] = {
    "normal": "torch.randn({n}, generator={g})",
    "complex": "torch.randn({n}, dtype=torch.complex64, generator={g})",
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


_CALLS: dict[str, str] = {
    "": "",
    "inference_inputs": "",
    "no_grad": """\
@torch.no_grad()
def call(function, *args):
    return function(*args)
""",
    "inference_mode": """\
@torch.inference_mode()
def call(function, *args):
    return function(*args)
""",
    "checkpoint": """\
def call(function, *args):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)
""",
}
"""How each setting calls a function; empty: as it is."""


def _by_call(texts: Sequence[str], spread: str = "", each: str = "{}") -> str:
    """The text for a call: one for all, or by the call's number."""
    if len(set(texts)) == 1:
        return texts[0]
    return f"{spread}({', '.join(map(each.format, texts))})[variant % {len(texts)}]"


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

    The programs must agree in ``backward`` and device, and have one layout and no setting; raises ``ValueError``
    otherwise.  For compilers whose cost per program is mostly fixed.
    """
    if any(program.layouts > 1 or program.setting for program in programs):
        raise ValueError("programs to merge have several layouts, or a setting")
    modes = {(program.backward, program.device) for program in programs}
    if len(modes) != 1:
        raise ValueError(f"programs to merge differ in backward or device: {sorted(modes)}")
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
    ((backward, device),) = modes
    return Program(tuple(storages), tuple(inputs), tuple(steps), tuple(outputs), backward, device=device)
