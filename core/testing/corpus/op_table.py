"""Cases from torch's own table of operations: one operation at one dtype, with its first samples.

Every case becomes a plain function over flat tensors, written as source, so that each argument that is not a
tensor is a constant of the function as it would be in a user's program.  The table takes ``expecttest`` to import.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from turret.hooks.devices import HOST
from turret.testing.corpus.inputs import Mover
from turret.testing.corpus.program import Inputs
from turret.testing.corpus.seeding import seed_generators
from turret.torch_compat.operators.opinfo import OpInfo, SampleInput, op_db

OTHER_DTYPES = (torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
"""Beside float32, one of these is tried, a different one for different operations."""

SKIPPED: dict[str, str] = {
    "empty": "returns memory as it was found",
    "empty_like": "returns memory as it was found",
    "empty_strided": "returns memory as it was found",
    "empty_permuted": "returns memory as it was found",
    "new_empty": "returns memory as it was found",
    "new_empty_strided": "returns memory as it was found",
    "bernoulli": "draws random numbers",
    "cauchy": "draws random numbers",
    "exponential": "draws random numbers",
    "geometric": "draws random numbers",
    "log_normal": "draws random numbers",
    "multinomial": "draws random numbers",
    "normal": "draws random numbers",
    "rand_like": "draws random numbers",
    "randint": "draws random numbers",
    "randint_like": "draws random numbers",
    "randn": "draws random numbers",
    "randn_like": "draws random numbers",
    "uniform": "draws random numbers",
    "nn.functional.alpha_dropout": "draws random numbers",
    "nn.functional.dropout": "draws random numbers",
    "nn.functional.dropout2d": "draws random numbers",
    "nn.functional.dropout3d": "draws random numbers",
    "nn.functional.feature_alpha_dropout": "draws random numbers",
    "nn.functional.fractional_max_pool2d": "draws random numbers",
    "nn.functional.fractional_max_pool3d": "draws random numbers",
    "nn.functional.multi_head_attention_forward": "draws random numbers (dropout)",
    "nn.functional.rrelu": "draws random numbers",
    "nn.functional.scaled_dot_product_attention": "draws random numbers (dropout) in some samples",
    "jiterator_unary": "runs on CUDA only",
    "jiterator_binary": "runs on CUDA only",
    "jiterator_binary_return_by_ref": "runs on CUDA only",
    "jiterator_4inputs_with_extra_args": "runs on CUDA only",
    "jiterator_2inputs_2outputs": "runs on CUDA only",
    "sparse.sampled_addmm": "has sparse operands, which have no strides to compare",
    "sparse.mm.reduce": "has sparse operands, which have no strides to compare",
    "svd_lowrank": "draws random numbers",
    "pca_lowrank": "draws random numbers",
}
"""Operations whose result in eager is not determined by their inputs, or that do not run on the CPU, and why.

A compiled program may draw other random numbers than eager does; dropout is tested apart, with
``fallback_random``.
"""

_DETERMINISTIC_SAMPLES = {"nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward"}


@attrs.frozen
class Case:
    """One operation at one dtype."""

    op: OpInfo
    dtype: torch.dtype
    device: str = HOST.type

    @property
    def name(self) -> str:
        return f"{self.op.name}.{self.op.variant_test_name}" if self.op.variant_test_name else self.op.name

    @property
    def id(self) -> str:
        return f"{self.name}:{str(self.dtype).removeprefix('torch.')}"

    @property
    def differentiable(self) -> bool:
        return self.op.supports_autograd and self.dtype in self.op.supported_backward_dtypes(self.device)


@attrs.frozen(eq=False)
class SampleProgram:
    """One sample of a case as a function of flat tensors; ``make_inputs()`` builds fresh ones.  ``size``: elements."""

    source: str
    function: Callable
    make_inputs: Callable[[], Inputs]
    size: int


def cases(device: str = HOST.type) -> list[Case]:
    """All operations: float32 where supported, and on the CPU one other dtype, chosen by the operation's name.

    On a GPU that is bfloat16, which kernels there are mostly for.
    """
    found = []
    for op in op_db:
        supported = op.supported_dtypes(device)
        if device != HOST.type:
            found += [Case(op, dtype, device) for dtype in (torch.float32, torch.bfloat16) if dtype in supported]
            continue
        others = [dtype for dtype in OTHER_DTYPES if dtype in supported]
        chosen = [torch.float32] if torch.float32 in supported else []
        if others:
            chosen.append(others[zlib.crc32(op.name.encode()) % len(others)])
        found += [Case(op, dtype) for dtype in chosen]
    return found


def skip_reason(case: Case) -> str:
    """Why the operation is not compared, or an empty string."""
    if case.op.name in _DETERMINISTIC_SAMPLES:
        return ""
    return SKIPPED.get(case.op.name) or SKIPPED.get(case.name, "")


def samples(case: Case, count: int, on: str = "") -> Iterator[SampleProgram]:
    """The first ``count`` samples that are determined by their inputs; ``on``: the device to have them on, if another
    than they are made on."""
    seed_generators(0)
    made = case.op.sample_inputs(case.device, case.dtype, requires_grad=case.differentiable)
    determined = (s for s in made if not s.kwargs.get("dropout_p", 0.0) and not s.kwargs.get("dropout", 0.0))
    for sample in list(itertools.islice(determined, count)):  # all at once: whoever reads them draws numbers, too
        yield sample_program(case, sample, on)


def sample_program(case: Case, sample: SampleInput, on: str = "") -> SampleProgram:
    """Write a function that calls the operation on the sample, its tensors as parameters."""
    tensors: list[Tensor] = []
    constants: dict[str, Any] = {"op": case.op.op, "select": sample.output_process_fn_grad}

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            tensors.append(value)
            return f"t{len(tensors) - 1}"
        if type(value) in (list, tuple):
            items = ", ".join(text(item) for item in value)
            return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        name = f"c{len(constants)}"
        constants[name] = value
        return name

    arguments = [text(sample.input), *(text(arg) for arg in sample.args)]
    arguments += [f"{key}={text(value)}" for key, value in sample.kwargs.items()]
    parameters = ", ".join(f"t{i}" for i in range(len(tensors)))
    source = f"def call({parameters}):\n    return select(op({', '.join(arguments)}))\n"
    namespace = dict(constants)
    exec(compile(source, f"<op_db {case.id}>", "exec"), namespace)

    def make_inputs() -> Inputs:
        fresh = tuple(Mover(on or case.device)(tensor) for tensor in tensors)
        return Inputs(fresh, tuple(t for t in fresh if t.requires_grad))

    return SampleProgram(source, namespace["call"], make_inputs, sum(tensor.numel() for tensor in tensors))


_BIAS = 7
"""How much more a number passed for an extent is: 0 and 1 themselves would become constants."""


def with_derived_sizes(sample: SampleProgram) -> Iterator[SampleProgram]:
    """The sample with extents that are computed from numbers passed to the program.

    Such an extent is an expression that may be 0 or 1 without being written so.  Each extent stays what it is at first,
    and is then 0 and 1, one after the other, in all tensors that have it; not every operation takes the result.
    """
    tensors = sample.make_inputs().args
    if not all(t.layout is torch.strided and not t.is_conj() and not t.is_neg() for t in tensors):
        return
    extents = sorted({extent for tensor in tensors for extent in tensor.shape})
    numbers = {extent: f"n{i}" for i, extent in enumerate(extents)}

    def derived(name: str, tensor: Tensor) -> str:
        shape = ", ".join(f"{numbers[extent]} - {_BIAS}" for extent in tensor.shape)
        return f"{name}.as_strided([{shape}], {name}.stride())"

    names = [f"t{i}" for i in range(len(tensors))]
    arguments = ", ".join(map(derived, names, tensors))
    source = f"def derived({', '.join([*names, *numbers.values()])}):\n    return call({arguments})\n"
    namespace = {"call": sample.function}
    exec(compile(source, "<derived sizes>", "exec"), namespace)
    for changed, to in [(None, 0), *itertools.product((e for e in extents if e > 1), (0, 1))]:
        values = [_BIAS + (to if extent == changed else extent) for extent in extents]
        header = f"# {', '.join(f'{n} = {v}' for n, v in zip(numbers.values(), values, strict=True))}\n"
        yield SampleProgram(
            header + source + sample.source, namespace["derived"], _with_numbers(sample, values), sample.size
        )


def _with_numbers(sample: SampleProgram, numbers: Sequence[int]) -> Callable[[], Inputs]:
    def make_inputs() -> Inputs:
        inputs = sample.make_inputs()
        return Inputs((*inputs.args, *numbers), inputs.leaves)

    return make_inputs
