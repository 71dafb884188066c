"""Every decomposition equals eager, in values, dtypes and strides, and ends inside the core op set."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tests.plugins.joint_graphs import functionalized, make_context
from turret.graph.op_set import Family, core_ops, family_of, outside_op_set
from turret.plugins import decompositions
from turret.plugins.decompositions.table import decomposition_table
from turret.torch_compat.operators.opinfo import op_db


def _words(text: str) -> list[str]:
    return text.split()


OPS = _words(
    """
    softmax log_softmax nn.functional.layer_norm nn.functional.group_norm nn.functional.batch_norm
    nn.functional.instance_norm nn.functional.rms_norm nn.functional.gelu nn.functional.silu nn.functional.mish
    nn.functional.softplus nn.functional.elu nn.functional.hardswish nn.functional.leaky_relu nn.functional.glu
    nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss nn.functional.smooth_l1_loss
    nn.functional.binary_cross_entropy_with_logits nn.functional.embedding nn.functional.pad nn.functional.linear
    nn.functional.hardshrink nn.functional.softshrink nn.functional.bilinear nn.functional.normalize mean var std
    var_mean std_mean max min amax sum prod cumsum logsumexp linalg.vector_norm count_nonzero zeros_like ones_like
    full_like new_zeros new_full arange linspace eye tril triu transpose t squeeze split unbind stack repeat roll
    flip unfold diagonal diag_embed narrow masked_fill index_fill index_add index_copy index_select take put
    scatter_add where clamp addcmul addcdiv lerp logit sgn angle floor_divide remainder hypot xlogy logaddexp
    nan_to_num addmm baddbmm to contiguous
    """
)
UNTRACEABLE_BACKWARD = {"index_fill"}  # its sample asks for unique indices, whose number is data
WHOLE = {"nn.functional.linear", "addmm", "baddbmm", "nn.functional.embedding", "nn.functional.cross_entropy"}
HALF_TOLERANCE = {torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}, torch.float16: {"rtol": 5e-3, "atol": 5e-3}}
TOLERANCE = {"nn.functional.layer_norm": {"rtol": 3e-2, "atol": 3e-2}}  # eager rounds a norm of one element
BY_NAME = {info.name: info for info in reversed(op_db)}


def trace(function, args, fallback_random=True):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(a) for a in args]
    table = dict(decomposition_table(fallback_random))
    return make_fx(functionalized(function), decomposition_table=table, tracing_mode="real")(*fakes)


def program_of(info, sample, with_grad):
    """A function of the sample's tensors that returns outputs, and gradients where asked for."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors):
        filled = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        outputs = [o for o in pytree.tree_leaves(info.op(first, *args, **kwargs)) if isinstance(o, torch.Tensor)]
        if not with_grad:
            return outputs
        wanted = [t for t in tensors if t.requires_grad]
        outputs = [o for o in outputs if o.requires_grad]
        tangents = [torch.full_like(o, 0.7) for o in outputs]
        gradients = torch.autograd.grad(outputs, wanted, tangents, allow_unused=True)
        return [*(o.detach() for o in outputs), *(g for g in gradients if g is not None)]

    return function, [leaves[i] for i in positions]


def check(info, dtype, with_grad, limit=3):
    ran = 0
    for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=with_grad), limit):
        function, args = program_of(info, sample, with_grad)
        if not args or (with_grad and not any(a.requires_grad for a in args)):
            continue

        def fresh(args=args):
            return [a.detach().clone().requires_grad_(a.requires_grad) for a in args]

        want = function(*fresh())
        try:
            with torch.no_grad() if not with_grad else torch.enable_grad():
                module = trace(function, fresh())
        except DataDependentOutputException:  # the sample itself reads a value; no trace of it exists
            continue
        got = fx.Interpreter(module).run(*fresh())
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(
                a, b, equal_nan=True, **(TOLERANCE.get(info.name) or HALF_TOLERANCE.get(dtype, {}))
            )
            if not with_grad:
                assert a.stride() == b.stride()
        assert not outside_op_set(module), [str(o) for o in outside_op_set(module)]
        families = {family_of(n.target) for n in module.graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
        assert Family.EXTERN not in families or info.name in WHOLE or "bilinear" in info.name
        ran += 1
    return ran


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.thorough
def test_decomposition_equals_eager_and_is_inside_the_op_set(name, dtype):
    info = BY_NAME[name]
    if dtype not in info.supported_dtypes("cpu"):
        pytest.skip(f"{name} has no {dtype} kernel on the CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert check(info, dtype, with_grad=False) or name in ("arange", "linspace", "eye")


@pytest.mark.parametrize(
    "name", [name for name in OPS if BY_NAME[name].supports_autograd and name not in UNTRACEABLE_BACKWARD]
)
@pytest.mark.thorough
def test_backward_equals_eager_and_is_inside_the_op_set(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(BY_NAME[name], torch.float32, with_grad=True)


def test_complex_calls_stay_whole():
    x = torch.randn(3, 4, dtype=torch.complex64)
    module = trace(lambda x: [torch.nn.functional.silu(x), x.mean(0), x.t()], [x])
    names = {str(n.target) for n in module.graph.nodes if n.op == "call_function"}
    assert {"aten.silu.default", "aten.mean.dim", "aten.permute.default"} <= names
    for a, b in zip(fx.Interpreter(module).run(x), [torch.nn.functional.silu(x), x.mean(0), x.t()], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.softmax(x, 1),
        lambda x: torch.log_softmax(x, 0),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
        lambda x: torch.nn.functional.group_norm(x, 2),
        lambda x: torch.zeros_like(x),
        lambda x: torch.full_like(x, 3.0, memory_format=torch.contiguous_format),
        lambda x: x.to(torch.float64),
        lambda x: x.to(torch.bfloat16, memory_format=torch.channels_last),
        lambda x: torch.nn.functional.gelu(x),
        lambda x: x.var(1),
        lambda x: torch.empty_like(x).fill_(2),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted", "strided"])
def test_results_have_eagers_strides(call, layout):
    x = torch.randn(2, 4, 3, 5)
    x = {
        "contiguous": lambda: x,
        "channels_last": lambda: x.to(memory_format=torch.channels_last),
        "permuted": lambda: x.permute(2, 1, 0, 3),
        "strided": lambda: torch.randn(4, 4, 3, 10)[::2, :, :, ::2],
    }[layout]()
    want, (got,) = call(x), fx.Interpreter(trace(lambda x: [call(x)], [x])).run(x)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride() and got.dtype == want.dtype


def test_empty_inputs_equal_eager():
    for shape in ((0, 4), (3, 0), (0, 0)):
        x = torch.randn(shape)

        def function(x):
            return [
                torch.softmax(x, -1),
                torch.log_softmax(x, 0),
                torch.nn.functional.layer_norm(x, (x.shape[1],)),
                x.sum(),
                x.mean(),
            ]

        for a, b in zip(fx.Interpreter(trace(function, [x])).run(x), function(x), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


def test_infinite_rows_of_a_softmax_equal_eager():
    inf = float("inf")
    x = torch.tensor([[-inf, -inf], [inf, 0.0], [-inf, 1.0], [float("nan"), 0.0]])
    for call in (lambda x: torch.softmax(x, 1), lambda x: torch.log_softmax(x, 1)):
        (got,) = fx.Interpreter(trace(lambda x, call=call: [call(x)], [x])).run(x)
        torch.testing.assert_close(got, call(x), equal_nan=True)


@pytest.mark.parametrize("shift", [None, torch.tensor([1.0, 2.0, 3.0, float("inf")])])
def test_group_norm_with_infinite_weights_equals_eager(shift):
    scale = torch.tensor([0.0, float("inf"), float("nan"), 1.0])
    x = torch.randn(2, 4, 5)
    (got,) = fx.Interpreter(trace(lambda x: [torch.nn.functional.group_norm(x, 2, scale, shift)], [x])).run(x)
    torch.testing.assert_close(got, torch.nn.functional.group_norm(x, 2, scale, shift), equal_nan=True)


@pytest.mark.parametrize("eps", [None, 0.0, 1e-3])
def test_gradients_of_logit_at_and_beyond_its_ends_equal_eagers(eps):
    inf = float("inf")
    x = torch.tensor([0.0, -0.0, 1.0, 1.5, -2.5, inf, -inf, float("nan"), 1e-4, 0.25])
    grad = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -2.0])
    x, grad = x.repeat(64), grad.repeat(64)  # whole vectors: what is left of a row is computed otherwise

    def call(x):
        return [torch.ops.aten.logit_backward(grad, x, eps)]

    (got,) = fx.Interpreter(trace(call, [x])).run(x)
    torch.testing.assert_close(got, call(x)[0], equal_nan=True)


def test_points_of_linspace_are_eagers_to_the_bit():
    (got,) = fx.Interpreter(trace(lambda x: [x * torch.linspace(-1, 1, 7)], [torch.ones(7)])).run(torch.ones(7))
    torch.testing.assert_close(got, torch.linspace(-1, 1, 7), rtol=0, atol=0)


def test_ties_and_nan_of_max_take_eagers_index():
    nan = float("nan")
    for x in (torch.tensor([[1.0, 3, 3], [nan, 1, nan], [-0.0, 0.0, 0.0]]), torch.tensor([[False, True, True]])):
        module = trace(lambda x: [*x.max(1), *x.min(1)], [x])
        for a, b in zip(fx.Interpreter(module).run(x), [*x.max(1), *x.min(1)], strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


def test_half_types_compute_in_float32():
    x = (torch.randn(4, 4096) + 100).to(torch.bfloat16)
    module = trace(lambda x: [torch.softmax(x, 1), x.mean(1), torch.nn.functional.layer_norm(x, (4096,))], [x])
    for n in module.graph.nodes:
        if n.op == "call_function" and family_of(n.target) is Family.REDUCTION:
            values = n.meta["val"] if isinstance(n.meta["val"], tuple) else (n.meta["val"],)
            assert all(v.dtype == torch.float32 for v in values), n


def test_table_leaves_the_op_set_whole_and_has_no_in_place_ops():
    for fallback in (False, True):
        table = decomposition_table(fallback)
        assert not [op for op in table if core_ops().get(op) not in (None, Family.EXTERN)]
        assert not [
            op for op in table if op._schema.is_mutable and op is not torch.ops.aten._native_batch_norm_legit.default
        ]


def test_fallback_random_keeps_eagers_random_ops():
    dropout = torch.ops.aten.native_dropout.default
    assert dropout in decomposition_table(False) and dropout not in decomposition_table(True)
    hook = decompositions.turret_decompositions
    assert dropout not in hook(make_context(fallback_random=True)) and dropout in hook(make_context())


@pytest.mark.parametrize("train", [True, False])
def test_native_dropout_scales_what_it_keeps(train):
    x = torch.ones(100, 100)
    module = trace(lambda x: [*torch.ops.aten.native_dropout(x, 0.5, train)], [x], fallback_random=False)
    y, mask = fx.Interpreter(module).run(x)
    assert mask.dtype == torch.bool and torch.equal(y, mask * (2.0 if train else 1.0))
    assert (0.45 < mask.float().mean() < 0.55) if train else mask.all()


def test_random_distributions_have_their_moments():
    def function(x):
        return [
            torch.ops.aten.uniform(x, -1.0, 3.0),
            torch.ops.aten.exponential(x, 2.0),
            torch.ops.aten.normal_functional(x, 1.0, 0.5),
        ]

    x = torch.empty(100_000)
    uniform, exponential, normal = fx.Interpreter(trace(function, [x], fallback_random=False)).run(x)
    assert uniform.min() >= -1 and uniform.max() <= 3 and abs(uniform.mean() - 1) < 0.02
    assert exponential.min() >= 0 and abs(exponential.mean() - 0.5) < 0.01
    assert abs(normal.mean() - 1) < 0.01 and abs(normal.std() - 0.5) < 0.01
