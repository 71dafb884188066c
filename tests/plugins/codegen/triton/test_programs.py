"""Whole programs through every stage with all kernels as interpreted Triton must show what eager shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from tests.plugins.codegen.triton.triton_lab import compile_offline
from turret.errors import OutOfBoundsError
from turret.ir import call
from turret.plugins.codegen.triton import DeviceProperties
from turret.testing import Features, Program, check, programs


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    yield
    torch.compiler.reset()


def compiled(function: Callable, codegen: InterpretedCodegen | None = None, dynamic: bool = False) -> Callable:
    plugins = [codegen or InterpretedCodegen()]
    return turret.compile(function, options={"on_error": "raise"}, plugins=plugins, dynamic=dynamic)


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def norm_block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x + 1), (x.shape[-1],), w, b)


def transposing(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x.t() * 2 + (w * b)[:, None].sin()).contiguous().softmax(0)


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x.view(4, -1, x.shape[1]).transpose(1, 2), None, None, w, b, training=True))


def cross_entropy(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x * w + b, torch.arange(x.shape[0]) % x.shape[1], label_smoothing=0.1)


def pooled(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    image = (x * w + b).view(1, 4, -1, x.shape[1])
    return F.avg_pool2d(image, 3, 2, 1) + F.max_pool2d(image, 3, 2, 1) + F.adaptive_avg_pool2d(image, 1)


def running(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x * w, 1).amax(0) + torch.logsumexp(x + b, 0) + x.var(0) + x.median()


PROGRAMS = (norm_block, transposing, batch_norm, cross_entropy, pooled, running)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_forward_and_gradients(program: Callable, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and program in (running, pooled):
        pytest.skip("eager itself is far from the exact result there")
    args = leaves((12, 33), (33,), (33,), dtype=dtype)
    codegen = InterpretedCodegen()
    got, want = compiled(program, codegen)(*args), program(*args)
    assert codegen.kernels
    loose = {"rtol": 2e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(got, want, **loose)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for mine, theirs in zip(
        torch.autograd.grad(got, args, weight), torch.autograd.grad(want, args, weight), strict=True
    ):
        loose = {"rtol": 5e-2, "atol": 1e-1} if dtype == torch.bfloat16 else {"rtol": 1e-3, "atol": 2e-4}
        torch.testing.assert_close(mine, theirs, **loose)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.thorough
def test_reductions_split_for_a_large_device(program: Callable) -> None:
    args = leaves((8, 9000), (9000,), (9000,))
    codegen = InterpretedCodegen(properties=DeviceProperties(multiprocessors=100_000))
    got, want = compiled(program, codegen)(*args), program(*args)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    if program is cross_entropy:
        assert any(kernel.scratch for kernel in codegen.kernels.values())


def test_dropout_is_the_same_in_forward_and_backward() -> None:
    (x,) = leaves((20, 50))
    y = compiled(lambda x: F.dropout(x * 2, 0.4))(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = y != 0
    assert 0.4 < kept.float().mean() < 0.8
    torch.testing.assert_close(grad, torch.where(kept, 2 / 0.6, 0.0))


def test_a_row_that_divides_the_size_by_a_part_of_it_has_kernels() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).reshape(-1, 2).sum(1)

    function = compiled(program, dynamic=True)
    for shape in ((33, 96), (6, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(function(x), program(x))


def test_unrolled_sums_of_negative_zeros_are_positive() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return 1 / (x * 1.0).sum(0)

    x = torch.full((3, 1 << 15), -0.0)
    assert torch.equal(compiled(program)(x), program(x))


def far_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(0, 5 << 30, 1 << 30) + x


def far_below_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(1 << 31, -(5 << 30), -(1 << 30))[:5] // 3 + x


def far_dividend(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(0, 5 << 30, 1 << 30) // (1 << 29) + torch.arange(0, 5 << 30, 1 << 30) % 7


def far_compared(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(0, 5 << 30, 1 << 30) > 3 << 30, x, -x)


def far_float(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(0, 5 << 30, 1 << 30).to(torch.float64) + x


@pytest.mark.parametrize("program", [far_numbers, far_below_zero, far_dividend, far_compared, far_float])
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_beyond_32_bits_in_kernels_of_few_elements(program: Callable, dynamic: bool) -> None:
    codegen = InterpretedCodegen()
    x = torch.arange(5)
    assert torch.equal(compiled(program, codegen, dynamic)(x), program(x))
    assert codegen.kernels


def test_a_view_of_more_elements_than_32_bits_count() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.expand(2, 1 << 31).reshape(-1)[:: 1 << 28] * 2

    codegen = InterpretedCodegen()
    x = torch.tensor([[1], [2]], dtype=torch.int8)
    assert compiled(program, codegen)(x).tolist() == [2] * 8 + [4] * 8  # eager takes 4 GiB for it
    assert codegen.kernels


def test_a_gathered_position_in_a_view_of_more_elements_than_32_bits_count() -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.expand(2, 1 << 16, 1 << 15).reshape(1 << 16, 1 << 16)[at, -2:] * 2

    x = torch.tensor([1, 2], dtype=torch.int8).view(2, 1, 1)
    got = compiled(program)(x, torch.tensor([0, 32767, 32768, 65535, -1]))
    assert got.tolist() == [[2, 2]] * 2 + [[4, 4]] * 3


def test_dynamic_sizes_share_their_sources() -> None:
    codegen = InterpretedCodegen()

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x * 2, -1) + x.mean(0)

    function = compiled(program, codegen, dynamic=True)
    for rows in (3, 17, 40):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(function(x), program(x), rtol=1e-5, atol=1e-6)
    assert all(kernel.sizes for kernel in codegen.kernels.values())


def test_a_float_that_depends_on_data_stays_whole_beside_dynamic_sizes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() + x.shape[0]

    codegen = InterpretedCodegen()
    function = turret.compile(program, options={"on_error": "raise"}, plugins=[codegen], fullgraph=True, dynamic=True)
    for x in (torch.full((32, 16), -1.5), torch.full((16, 48), 0.25)):
        torch.testing.assert_close(function(x), program(x))
    scaling = [kernel for kernel in codegen.kernels.values() if any(name.startswith("z") for name in kernel.sizes)]
    assert scaling and all("i32" not in kernel.signature.values() for kernel in scaling), "its bits are 64"


@pytest.mark.parametrize("program", [norm_block, transposing, cross_entropy, running])
@pytest.mark.thorough
def test_kernels_of_symbolic_sizes_are_right_for_sizes_unlike_the_first(program: Callable) -> None:
    codegen = InterpretedCodegen()
    function = compiled(program, codegen, dynamic=True)
    for rows, columns in ((32, 48), (16, 80), (33, 7), (5, 64)):
        arguments = leaves((rows, columns), (columns,), (columns,))
        twins = leaves((rows, columns), (columns,), (columns,))
        got, want = function(*arguments), program(*twins)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(
            torch.autograd.grad(got.square().sum(), arguments),
            torch.autograd.grad(want.square().sum(), twins),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    pairs = [kernel for kernel in codegen.kernels.values() if kernel.otherwise is not None]
    assert pairs and all(kernel.assumes for kernel in pairs)


@pytest.mark.parametrize("program", [norm_block, cross_entropy])
def test_rows_of_symbolic_length_are_right_up_to_the_block_that_holds_them_and_behind_it(program: Callable) -> None:
    codegen = InterpretedCodegen()
    function = compiled(program, codegen, dynamic=True)
    for rows, columns in ((9, 50), (7, 64), (5, 65), (3, 7), (2, 130)):
        arguments = leaves((rows, columns), (columns,), (columns,))
        torch.testing.assert_close(function(*arguments), program(*arguments), rtol=1e-4, atol=1e-5)
    held = [kernel for kernel in codegen.kernels.values() if any("-64" in text for text in kernel.assumes)]
    assert held and all("for " not in kernel.source for kernel in held)


@pytest.mark.parametrize("program", [norm_block, cross_entropy, transposing])
@given(
    sizes=st.lists(st.tuples(st.integers(2, 34), st.sampled_from([7, 16, 33, 48, 64, 65, 80])), min_size=1, max_size=4)
)
@settings(max_examples=8, deadline=None, phases=(Phase.generate, Phase.shrink))
@pytest.mark.thorough
def test_kernels_for_sizes_at_hand_are_compiled_at_once_and_others_when_sizes_ask_for_them(
    program: Callable, sizes: list[tuple[int, int]]
) -> None:
    codegen = InterpretedCodegen()
    torch.compiler.reset()
    function = compiled(program, codegen, dynamic=True)
    for call_number, (rows, columns) in enumerate(sizes):
        arguments = leaves((rows, columns), (columns,), (columns,))
        before = {id(library): len(library.compiled) for library in codegen.libraries}
        with torch.no_grad():
            torch.testing.assert_close(function(*arguments), program(*arguments), rtol=1e-4, atol=1e-5)
        for library in codegen.libraries:
            assert len(set(library.compiled)) == len(library.compiled), "each once"
            if call_number == 0 or id(library) not in before:
                assert len(library.compiled) == library.at_once, "the call at hand asks for none that is not there"


def test_an_index_out_of_range_raises() -> None:
    table = torch.randn(5, 8)
    function = compiled(lambda t, i: F.embedding(i, t) * 2)
    torch.testing.assert_close(function(table, torch.tensor([0, 4])), table[[0, 4]] * 2)
    with pytest.raises(IndexError):
        function(table, torch.tensor([0, 5]))


def test_kernels_of_programs_compile_for_a_device() -> None:
    codegen = InterpretedCodegen()
    args = leaves((12, 33), (33,), (33,), dtype=torch.bfloat16)
    for program in (norm_block, transposing, cross_entropy):
        compiled(program, codegen)(*args).sum().backward()
    for kernel in codegen.kernels.values():
        assert compile_offline(kernel).asm["cubin"]


def of_data(x: torch.Tensor) -> tuple:
    y = x[x[:, 0] > 0]
    n = int((x[:, 0] > 0).sum())
    scale = x.detach().abs().sum().item()
    return y.softmax(1) * scale, y.sum(0), x[n:].exp().sum(1), torch.arange(n) * 2, y.t() @ y, x[: 12 - n] + n


def test_kernels_of_sizes_that_depend_on_data_compile_once_and_take_none_at_all() -> None:
    codegen = InterpretedCodegen()
    options = {"on_error": "raise", "capture": "turret"}
    function = turret.compile(of_data, options=options, plugins=[codegen], fullgraph=True, dynamic=False)
    (x,) = leaves((12, 33))
    kernels = None
    for data in (x, -x.abs(), x.abs() + 1, torch.where(torch.arange(12)[:, None] == 3, x.abs(), -1.0)):
        mine, plain = (data.detach().clone().requires_grad_() for _ in range(2))
        found, expected = function(mine), of_data(plain)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        for given_, results in ((mine, found), (plain, expected)):
            sum((r * r).sum() for r in results if r.requires_grad).backward(inputs=[given_])
        torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-4, atol=1e-4)
        assert kernels in (None, list(codegen.kernels))
        kernels = list(codegen.kernels)


@given(programs(Features(max_steps=5)))
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.thorough
def test_drawn_programs_match_eager(dynamic: bool | None, program: Program) -> None:
    known = "UnsupportedError|DataDependentOutputException|DynamicOutputShapeException"

    def compiler(function: Callable) -> Callable:
        options = {"on_error": "fallback"}
        return turret.compile(function, options=options, plugins=[InterpretedCodegen()], dynamic=dynamic)

    with warnings.catch_warnings():
        # What a stage refuses by name runs eagerly; any other failure is one here.
        warnings.filterwarnings("ignore", message="Turret runs a graph eagerly")
        warnings.filterwarnings("error", message=rf"(?s)Turret runs a graph eagerly(?!.*({known}))")
        check(program, compiler)


class ShiftedSine:
    """A lowering that is wrong on purpose: it reads the element ``by`` places further along the last dimension."""

    def __init__(self, by: int) -> None:
        self.by = by

    @turret.hookimpl
    def turret_lowerings(self) -> dict:
        return {torch.ops.aten.sin.default: self.lower}

    def lower(self, b, x):
        return b.define(b.result, lambda index: call("sin", x.load([*index[:-1], index[-1] + self.by])))


@pytest.mark.parametrize("by", [-1, 1, 7])
@pytest.mark.parametrize(
    "program", [lambda x: torch.sin(x) + 1, lambda x: torch.sin(x).sum(1), lambda x: torch.sin(x).t() * 2]
)
def test_an_access_outside_of_a_kernels_memory_is_reported(program: Callable, by: int):
    step = turret.compile(program, options={"on_error": "raise"}, plugins=[InterpretedCodegen(), ShiftedSine(by)])
    with pytest.raises(
        OutOfBoundsError, match=f"element {'-1' if by < 0 else '3[0-6]'} of x, whose memory holds elements 0 to 29"
    ):
        step(torch.randn(5, 6))


SIGNED: dict[str, Callable] = {
    "element": lambda x, n: x[n] * 2,
    "from the end": lambda x, n: x[:, -n:] + n % 7,
    "crossing": lambda x, n: x[n : n + 3].sum(0),
    "written": lambda x, n: torch.slice_scatter(x, x[:, n::2] * 2, 1, n, None, 2),
    "element written": lambda x, n: torch.select_scatter(x, x[0] * 3, 0, n),
    "padded": lambda x, n: torch.nn.functional.pad(x, (n, 3)) * 2,
    "divided": lambda x, n: x * (-n // 3) + (n - 9) // 4 - n // -2,
    "remainder": lambda x, n: x.long() * (n * 2**20 % 1000003),
    "numbers": lambda x, n: x + torch.tensor([n // 2, n % 5]).sum(),
}


@pytest.mark.filterwarnings("ignore:Truncating")
@pytest.mark.parametrize("program", SIGNED.values(), ids=SIGNED)
def test_integers_may_change_sign_and_pass_an_end(program: Callable) -> None:
    function = compiled(program, dynamic=True)
    x = torch.randn(10, 6)
    for n in (4, 3, -3, 5, -2, -6):
        torch.testing.assert_close(function(x, n), program(x, n))
