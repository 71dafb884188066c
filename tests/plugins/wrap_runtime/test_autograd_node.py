"""The autograd node of a compiled graph: what it keeps, frees, refuses, and hands on."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

import turret
from tests.plugins.joint_harness import assert_same, compiled
from turret.errors import UnsupportedError
from turret.hooks.products import Placement
from turret.hooks.signature import GraphOutput, GraphSignature, InputInfo, OutputInfo, OutputKind
from turret.plugins.wrap_runtime import turret_runtime


def chain(x, w):
    return (x.sin() @ w).exp()


def pair():
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def test_forward_and_backward_are_given_boxed_arguments_that_they_may_clear():
    output = GraphOutput((3,), (1,), "float32", "cpu", differentiable=True, tangent_stride=(1,))
    signature = GraphSignature(
        (InputInfo(requires_grad=True, reached_from=(0,)),),
        (OutputInfo(OutputKind.FRESH, 0, True),),
        (output,),
        training=True,
    )
    alive = []

    def forward(args):
        assert type(args) is list
        (x,) = args
        args.clear()
        return [x * 2, x.detach().clone()]

    def backward(args):
        assert type(args) is list
        saved = weakref.ref(args[0])
        args.clear()
        gc.collect()
        alive.append(saved() is not None)
        return [torch.full((3,), 2.0)]

    run = turret_runtime(signature, 1, 0, forward, lambda: backward)
    x = torch.ones(3, requires_grad=True)
    (y,) = run(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert alive == [False], "a saved tensor outlived the backward's use of it"


def test_a_second_backward_without_retain_graph_is_autograds_own_error():
    x, w = pair()
    out = compiled(chain)(x, w).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_retain_graph_allows_a_second_backward():
    x, w = pair()
    out = compiled(chain)(x, w).sum()
    out.backward(retain_graph=True)
    once = x.grad.clone()
    out.backward()
    torch.testing.assert_close(x.grad, once * 2)


def test_create_graph_without_a_second_backward_gives_the_gradients():
    x, w = pair()
    (ours,) = torch.autograd.grad(compiled(chain)(x, w).sum(), x, create_graph=True)
    (eagers,) = torch.autograd.grad(chain(x, w).sum(), x)
    torch.testing.assert_close(ours.detach(), eagers)


def test_hooks_on_saved_tensors_see_them_and_what_they_return_is_used():
    packed, unpacked = [], []

    def pack(value):
        packed.append(value)
        return value.numpy(force=True).copy()

    def unpack(value):
        unpacked.append(value)
        return torch.from_numpy(value)

    x, w = pair()
    made = compiled(chain)
    made(x, w)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = made(x, w)
    assert len(packed) == len(made.cuts[-1].saved_tensors) > 0 and not unpacked
    out.sum().backward()
    assert len(unpacked) == len(packed)
    ours = x.grad, w.grad
    x.grad = w.grad = None
    chain(x, w).sum().backward()
    torch.testing.assert_close(ours, (x.grad, w.grad))


def test_hooks_that_are_there_while_the_graph_is_traced_are_not_called_with_fakes():
    kinds = []

    def pack(value):
        kinds.append(type(value))
        return value

    x, w = pair()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda v: v):
        compiled(chain)(x, w).sum().backward()
    assert set(kinds) <= {torch.Tensor, torch.nn.Parameter}


def test_saved_tensors_that_are_written_to_before_the_backward_are_an_error():
    x, w = pair()
    data = torch.randn(3, 4)
    out = compiled(lambda x, w, d: x * d)(x, w, data)
    data.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_an_output_that_is_a_view_of_a_buffer_may_be_written_to():
    x, w = pair()
    x = x.detach()[None].repeat(2, 1, 1)

    def gradient(function):
        w.grad = None
        out = function(x, w)
        out.mul_(3)
        (out * out).sum().backward()
        return w.grad

    expected = gradient(torch.nn.functional.linear)
    assert torch.equal(gradient(compiled(lambda x, w: torch.nn.functional.linear(x, w))), expected)
    with torch.no_grad():
        out = compiled(lambda x, w: torch.nn.functional.linear(x, w))(x, w)
    assert (out.mul_(w[0, 0]) - torch.nn.functional.linear(x, w) * w[0, 0]).abs().max() < 1e-5


def test_a_write_to_an_output_that_shares_memory_with_a_saved_tensor_is_an_error_in_the_backward():
    def both(x, w):
        product = torch.nn.functional.linear(x, w)
        return product, product.sin()

    x, w = pair()
    x = x.detach()[None].repeat(2, 1, 1)
    for function in (both, compiled(both)):
        product, sine = function(x, w)
        product.add_(1)
        with pytest.raises(RuntimeError, match=r"modified (by an inplace|inplace)"):
            sine.sum().backward()


def test_an_empty_tensor_that_is_saved_may_be_written_to_before_the_backward():
    def write(x, other):
        flat = x.flatten()
        flat.mul_(2)
        x.copy_(other)
        return torch.lgamma(flat.abs() + 1)

    def gradient(function):
        leaf = torch.ones(9, requires_grad=True)
        base = leaf.clone()
        function(*(base.as_strided((3, 3, 0), (3, 1, 1)) for _ in range(2))).sum().backward()
        return leaf.grad

    assert torch.equal(gradient(compiled(write)), gradient(write))


def test_sizes_are_saved_beside_tensors():
    made = compiled(lambda x, w: (x @ w).sum(0) * x.shape[0], dynamic=True)
    for rows in (3, 5, 9):
        x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        made(x, w).sum().backward()
        ours = x.grad, w.grad
        x.grad = w.grad = None
        ((x @ w).sum(0) * rows).sum().backward()
        torch.testing.assert_close(ours, (x.grad, w.grad))
    assert len(made.joints) == 1 and made.cuts[-1].saved_sizes


def test_a_backward_from_some_outputs_leaves_inputs_of_the_others_alone():
    def function(x, w):
        return x * 2, w * 3, x * w

    both = (True, True)
    for chosen, expected in (((0,), (True, False)), ((1,), (False, True)), ((0, 1), both), ((2,), both)):
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        outputs = compiled(function)(x, w)
        sum(outputs[n].sum() for n in chosen).backward()
        assert (x.grad is not None, w.grad is not None) == expected
    outputs = compiled(function)(x, w)
    assert torch.autograd.grad(outputs[0].sum(), (x, w), allow_unused=True)[1] is None


def test_gradients_of_any_strides_and_kind_are_taken():
    x, w = pair()
    for gradient in (torch.randn(4, 3).t(), torch.ones(()).expand(3, 4), torch.randn(3, 8)[:, ::2]):
        made = compiled(chain)
        ours = torch.autograd.grad(made(x, w), (x, w), gradient)
        torch.testing.assert_close(ours, torch.autograd.grad(chain(x, w), (x, w), gradient))
    lazily = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert lazily.is_neg()
    ours = torch.autograd.grad(compiled(chain)(x, w), (x, w), lazily)
    torch.testing.assert_close(ours, torch.autograd.grad(chain(x, w), (x, w), lazily))


def test_a_sparse_gradient_becomes_dense():
    table = torch.randn(5, 3, requires_grad=True)
    index = torch.tensor([1, 1, 4])

    def loss(f):
        return torch.nn.functional.embedding(index, f(table), sparse=True).sum()

    loss(compiled(lambda t: t.exp())).backward()
    ours, table.grad = table.grad, None
    loss(torch.exp).backward()
    torch.testing.assert_close(ours.to_dense(), table.grad.to_dense())


class Marked(torch.Tensor):
    pass


TANGENTS = {
    "wrapper": lambda like: TwoTensor(torch.ones_like(like), torch.full_like(like, 2)),
    "marked": lambda like: torch.ones_like(like).as_subclass(Marked),
    "parameter": lambda like: torch.nn.Parameter(torch.ones_like(like)),
}


@pytest.mark.parametrize("second", [False, True], ids=["gradients", "gradients of gradients"])
@pytest.mark.parametrize("roots", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("kind", TANGENTS)
def test_gradients_of_other_classes_than_the_results_are_taken_op_by_op(kind, roots, second):
    def gradients(function):
        x, w = pair_of_ones()
        results = function(x, w)
        tangents = [
            TANGENTS[kind](results[n].detach()) if n == roots[0] else torch.ones_like(results[n]) for n in roots
        ]
        found = torch.autograd.grad(
            [results[n] for n in roots], [x, w], tangents, create_graph=second, allow_unused=True
        )
        if second:
            found += torch.autograd.grad(found[0].sum(), [x, w], allow_unused=True)
        return found

    def function(x, w):
        return (x.sin() @ w).exp(), x.cos()

    expected, found = gradients(function), gradients(turret.compile(function))
    assert [type(v) for v in found] == [type(v) for v in expected]
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, TwoTensor):
            torch.testing.assert_close((ours.a, ours.b), (theirs.a, theirs.b))
        else:
            torch.testing.assert_close(ours, theirs)


def pair_of_ones():
    return torch.ones(3, 4, requires_grad=True), torch.full((4, 4), 0.1, requires_grad=True)


def test_a_gradient_of_another_class_is_refused_where_the_graph_cannot_run_once_more():
    def draws(x):
        return x.sin() * torch.rand(3, 4)

    x, _ = pair()
    out = turret.compile(draws)(x)
    with pytest.raises(UnsupportedError, match=r"Marked.*random"):
        torch.autograd.grad(out, x, torch.ones(3, 4).as_subclass(Marked))


def test_hooks_on_inputs_and_outputs_run():
    seen = []
    x, w = pair()
    x.register_hook(lambda g: seen.append("input"))
    out = compiled(chain)(x, w)
    out.register_hook(lambda g: g * 2)
    out.sum().backward()
    ours, x.grad = x.grad, None
    (chain(x, w) * 2).sum().backward()
    torch.testing.assert_close(ours, x.grad)
    assert seen == ["input", "input"]


def test_the_backward_is_made_once_by_many_threads():
    made = []
    output = GraphOutput((3,), (1,), "float32", "cpu", differentiable=True, tangent_stride=(1,))
    signature = GraphSignature(
        (InputInfo(True, reached_from=(0,)),), (OutputInfo(OutputKind.FRESH, 0, True),), (output,), training=True
    )

    def backward():
        made.append(1)
        threading.Event().wait(0.05)
        return lambda args: [args.pop() * 2]

    run = turret_runtime(signature, 0, 0, lambda args: [args.pop() * 2], backward)
    gradients = []

    def work():
        x = torch.ones(3, requires_grad=True)
        run(x)[0].sum().backward()
        gradients.append(x.grad)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and len(gradients) == 8
    assert all(torch.equal(g, torch.full((3,), 2.0)) for g in gradients)


def test_inputs_that_the_backward_does_not_need_are_freed_after_the_forward():
    made = compiled(lambda x, w: (x * 1.5).relu() + w)
    w = torch.randn(3, requires_grad=True)
    made(torch.randn(3), w)
    x = torch.randn(3)
    held = weakref.ref(x)
    out = made(x, w)
    del x
    gc.collect()
    assert held() is None
    out.sum().backward()
    assert torch.equal(w.grad, torch.ones(3))


def test_a_training_graph_called_without_gradients_records_none():
    x, w = pair()
    made = assert_same(chain, [x, w])
    with torch.no_grad():
        assert not made(x, w).requires_grad


def test_autocast_of_the_caller_does_not_reach_into_compiled_code():
    x, w = pair()
    made = compiled(chain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = made(x, w)
        out.sum().backward()
    assert out.dtype == torch.bfloat16 and x.grad.dtype == torch.float32


def test_a_backward_that_no_gradient_reaches_does_not_look_at_what_was_saved():
    """In eager as well a tensor written to since the forward counts only where a gradient needs it."""
    leaf = torch.rand(3, requires_grad=True)
    other = torch.rand(3, requires_grad=True)
    x = leaf * 1
    y = compiled(lambda x: x.abs().sqrt())(x)
    x.unsqueeze_(0)

    class Ignoring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, one, other):
            return other * 2

        @staticmethod
        def backward(ctx, gradient):
            return None, gradient * 2

    Ignoring.apply(y, other).sum().backward(retain_graph=True)
    assert leaf.grad is None
    assert torch.equal(other.grad, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_hooks_are_called_once_for_each_saved_tensor_from_the_first_call_on():
    packed = []

    def pack(value):
        packed.append(type(value))
        return value

    fast = turret.compile(chain, options={"cache": False, "on_error": "raise"})
    counts = []
    for _ in range(3):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda v: v):
            fast(*pair()).sum().backward()
        counts.append(len(packed))
        assert set(packed) <= {torch.Tensor, torch.nn.Parameter}
    assert counts[0] == counts[1] == counts[2] > 0


def test_what_a_hook_on_saved_tensors_raises_is_the_programs():
    class Refusal(RuntimeError):
        pass

    def pack(value):
        raise Refusal

    fast, calls = turret.compile(chain, options={"cache": False}), []
    for hook in (pack, Packing(pack, calls), Packing(pack, calls).pack):
        with torch.autograd.graph.saved_tensors_hooks(hook, lambda v: v), pytest.raises(Refusal):
            fast(*pair())
    assert len(calls) == 2, "the frame ran once more as Python"


class Packing:
    def __init__(self, function, calls):
        self.function, self.calls = function, calls

    def __call__(self, value):
        return self.pack(value)

    def pack(self, value):
        self.calls.append(value)
        return self.function(value)


def test_where_hooks_are_disabled_compiled_code_runs():
    x, w = pair()
    fast = turret.compile(chain, options={"cache": False, "on_error": "raise"})
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        fast(x, w).sum().backward()
    assert x.grad is not None


def test_tangents_of_forward_mode_reach_the_results_of_compiled_functions():
    def program(x):
        return (x.sin() * x).exp()

    def inside(x, t):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(program(forward_ad.make_dual(x, t)))

    def over(x, t):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(fast(forward_ad.make_dual(x, t)))

    x, t = torch.randn(3), torch.randn(3)
    fast = turret.compile(program, options={"cache": False, "on_error": "raise"})
    for call in (over, turret.compile(inside, options={"cache": False, "on_error": "raise"})):
        for given in (x, x.clone().requires_grad_(), x):
            torch.testing.assert_close(call(given, t), inside(given, t))
            fast(given)
    torch.testing.assert_close(torch.func.jvp(fast, (x,), (t,)), torch.func.jvp(program, (x,), (t,)))


def test_a_gradient_with_a_tangent_is_refused_by_a_compiled_backward():
    x = torch.randn(3, requires_grad=True)
    out = turret.compile(torch.sin, options={"cache": False, "on_error": "raise"})(x)
    with forward_ad.dual_level():
        gradient = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(UnsupportedError, match="forward-mode AD"):
            torch.autograd.grad(out, x, gradient, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(out, x, torch.ones(3))[0], x.cos())


def test_compiled_functions_are_recorded_by_scripts():
    net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), torch.randn(2, 3)
    for warm in (False, True):
        fast = turret.compile(net, options={"cache": False, "on_error": "raise"})
        if warm:
            fast(x)
        traced = torch.jit.trace(fast, x)
        torch.testing.assert_close(traced(x * 2), net(x * 2))
        torch.testing.assert_close(fast(x), net(x))


def test_on_the_meta_device_compiled_code_gives_shapes():
    net = torch.nn.Linear(3, 4, device="meta")
    with pytest.warns(UserWarning, match="eagerly"):
        out = turret.compile(net, options={"cache": False})(torch.ones(2, 3, device="meta"))
    assert out.shape == (2, 4) and out.device.type == "meta"
    out.sum().backward()
    assert net.weight.grad.shape == net.weight.shape


class _Placements:
    """Where backwards add up by index, in the order in which they are compiled."""

    cache_key = "placements"

    def __init__(self):
        self.sums = []

    @turret.hookimpl
    def turret_event(self, event):
        placement = event.product
        if isinstance(placement, Placement):
            self.sums += [p.where for name, p in placement.nodes.items() if name.startswith("index_put")]


@pytest.mark.parametrize("given", (("first",), ("first", "second")))
def test_a_backward_is_as_deterministic_as_is_asked_for_when_gradients_are_computed(given, tmp_path):
    def program(x, rows):
        return {"first": x[rows].sin(), "second": x[rows].cos()}

    def run(fast, forward, backward):
        x = torch.arange(6.0).view(3, 2).requires_grad_()
        torch.use_deterministic_algorithms(forward)
        made = fast(x, torch.tensor([0, 2, 2]))
        torch.use_deterministic_algorithms(backward)
        sum(made[name].sum() for name in given).backward()

    for stored in (False, True):
        seen = _Placements()
        fast = turret.compile(program, plugins=[seen], options={"on_error": "raise", "cache_dir": str(tmp_path)})
        try:
            for forward in (False, True):
                for backward in (False, True):
                    before = len(seen.sums)
                    run(fast, forward, backward)
                    made = set(seen.sums[before:])
                    assert made == (set() if stored else {"eager" if backward else "compiled"})
        finally:
            torch.use_deterministic_algorithms(False)


APART = {
    "dead": lambda x, w, b: (w.exp(), x * b)[1],
    "detached": lambda x, w, b: x * w.detach(),
    "condition": lambda x, w, b: torch.where(w > 0, x, b),
    "shape": lambda x, w, b: x + torch.zeros_like(w),
    "without gradients": lambda x, w, b: x * without_gradients(torch.exp, w),
    "function": lambda x, w, b: x * step(w.detach()),
    "saved by another": lambda x, w, b: (x @ w.detach()) * b,
}


def without_gradients(function, value):
    with torch.no_grad():
        return function(value)


def step(value):
    return (value > 0).float()


@pytest.mark.parametrize("second", [False, True], ids=["gradients", "gradients of gradients"])
@pytest.mark.parametrize("program", APART)
def test_hooks_of_inputs_that_no_gradient_flows_to_are_not_called(program, second):
    def called(function):
        leaves = [torch.full((2, 2), float(n + 1), requires_grad=True) for n in range(3)]
        calls = []
        for n, leaf in enumerate(leaves):
            leaf.register_hook(lambda g, n=n: calls.append((n, g is None)))
            leaf.register_post_accumulate_grad_hook(lambda v, n=n: calls.append((n, "kept")))
        function(*leaves).sum().backward()
        (gradient,) = torch.autograd.grad(function(*leaves).sin().sum(), leaves[0], create_graph=second)
        gradients = [leaf.grad for leaf in leaves]
        if second:
            gradients += torch.autograd.grad(gradient.sum(), leaves, allow_unused=True)
        return sorted(calls, key=str), gradients

    expected, found = called(APART[program]), called(turret.compile(APART[program], options={"on_error": "raise"}))
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1])


def test_results_of_a_leaf_within_the_program_require_a_gradient():
    def program(x, w):
        return x.detach().clone().requires_grad_() * w.detach()

    x, w = pair()
    made = turret.compile(program, options={"on_error": "raise"})(x.t(), w[0, :3])
    assert made.requires_grad
    made.sum().backward()
    assert x.grad is None
