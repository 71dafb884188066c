"""Compiled functions on a device that records."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import itertools
import random
import sys
import types
import unittest.mock
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.utils.rnn import pack_padded_sequence

import turret
from tests.plugins.devices import acme_plugin
from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.api import cudagraphs
from turret.plugins.cudagraphs.recording import replay
from turret.testing import Features, check, program_of_seed

GRAPHS = {"cudagraphs": True}


def kept_results(compiled: Any, function: Any, *shape: int) -> list[Any]:
    """What four calls gave, all of which is eager's when the last has run."""
    kept = []
    for _ in range(4):
        x = rand(*shape)
        kept.append((compiled(x), function(x)))
    for found, expected in kept:
        torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected])
    return [found for found, _ in kept]


@on_acme
def test_a_replay_gives_what_a_call_gives_and_never_overwrites_it(world: World) -> None:
    def f(x, w):
        return torch.softmax(torch.relu(x @ w) + 1, -1), x * 2

    w = rand(16, 32)
    compiled = world.compile(f, **GRAPHS)
    kept = []
    for _ in range(5):
        x = rand(8, 16)
        kept.append((compiled(x, w), f(x, w)))
    for found, expected in kept:
        torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected])
    assert turret.cudagraphs.report().replays == 4


@on_acme
def test_an_output_that_is_one_view_of_a_buffer_is_made_as_it_lies_and_no_view(world: World) -> None:
    def f(x):
        product = torch.bmm(x, x)
        return torch.mm(x[0], x[1]).t(), torch.cumsum(x, 1)[:, 1:], product.permute(2, 0, 1), product.sum(0)

    compiled = world.compile(f, **GRAPHS)
    for found in kept_results(compiled, f, 3, 4, 4)[1:]:
        assert [t.stride() for t in found] == [t.stride() for t in f(rand(3, 4, 4).cpu())]
    (graphed,) = (g for g in cudagraphs.functions if g.reported().replays)
    assert "view(" not in inspect.getsource(graphed.latest.replay)
    assert cudagraphs.report().bytes_copied == 0


@on_acme
@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_a_graph_that_nobody_asked_to_record_is_recorded_once_it_was_called_often(world: World, mode: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURRET_CUDAGRAPH_AFTER_CALLS", "3")
        compiled = turret.compile(lambda x: torch.softmax(x + 1, -1), mode=mode, plugins=[world.plugin])
        for _ in range(8):
            x = rand(3, 4)
            torch.testing.assert_close(compiled(x).cpu(), torch.softmax(x + 1, -1).cpu())
    report = turret.cudagraphs.report()
    assert (report.recordings, report.replays) == ((1, 5) if mode == "default" else (0, 0))


def chain(x: torch.Tensor) -> torch.Tensor:
    for layer in range(3):
        x = torch.softmax(x * (layer + 1), -1)
        x = x - x.sum(0, keepdim=True)
    return x


@on_acme
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_chain_of_kernels_is_recorded_unasked_and_reserves_nothing_between_calls(world: World, dynamic: bool) -> None:
    options = {"cudagraph_min_kernels": 6, "on_error": "raise"}
    compiled = turret.compile(chain, dynamic=dynamic, plugins=[world.plugin], options=options)
    kept = []
    for call in range(12):
        x = rand(3 + dynamic * call % 5, 4)
        kept.append((compiled(x), chain(x)))
    for found, expected in kept:
        torch.testing.assert_close(found.cpu(), expected.cpu())
    report = turret.cudagraphs.report()
    (told,) = report.functions
    assert (told.warm_ups, told.any_size, told.replays, report.bytes_copied) == (8, 1, 4, 0)
    assert all(pool.reserved_bytes == 0 for pool in report.pools)


@on_acme
def test_no_shorter_chain_is_recorded_unasked_and_none_with_a_library_call(world: World) -> None:
    options = {"cudagraph_min_kernels": 6, "on_error": "raise"}
    for function in (lambda x: torch.softmax(x, -1) - x.sum(0), lambda x: chain(chain(x) @ x.t())):
        compiled = turret.compile(function, plugins=[world.plugin], options=options)
        for _ in range(12):
            x = rand(3, 4)
            torch.testing.assert_close(compiled(x).cpu(), function(x).cpu())
    assert not turret.cudagraphs.report().functions


@on_acme
def test_what_a_chain_s_recording_does_not_serve_runs_as_it_is(world: World) -> None:
    options = {"cudagraph_min_kernels": 6, "on_error": "raise"}
    compiled = turret.compile(chain, dynamic=True, plugins=[world.plugin], options=options)
    for length in (3, 0) * 12:
        x = rand(length, 4)
        torch.testing.assert_close(compiled(x).cpu(), chain(x).cpu())
    report = turret.cudagraphs.report()
    assert report.recordings == 1 and all(pool.reserved_bytes == 0 for pool in report.pools)


@on_acme
def test_training_steps_are_eager_s(world: World) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to("acme")
    other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to("acme")
    other.load_state_dict(model.state_dict())
    compiled = world.compile(model, **GRAPHS)
    ours, theirs = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, other))
    for _ in range(6):
        x = rand(5, 8)
        for run, optimizer in ((compiled, ours), (other, theirs)):
            optimizer.zero_grad()
            run(x).square().sum().backward()
            optimizer.step()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a.cpu(), b.cpu())
    assert turret.cudagraphs.report().replays >= 8


class _Stack(torch.nn.Module):
    """Layers that each save small tensors, and hand some of them out."""

    def __init__(self, widths: list[int], shown: int) -> None:
        super().__init__()
        pairs = itertools.pairwise([4, *widths, 4])
        self.layers, self.shown = torch.nn.ModuleList(torch.nn.Linear(n, m) for n, m in pairs), shown

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        seen = []
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
            seen.append(x)
        return x * 2, seen[: self.shown]


@on_acme
@settings(max_examples=2, deadline=None)
@given(wide=st.sets(st.integers(0, 11), max_size=2), shown=st.integers(0, 3), order=st.permutations(range(3)))
def test_small_saved_tensors_lie_in_one_block_that_no_output_lies_in(
    world: World, wide: set[int], shown: int, order: list[int]
) -> None:
    others = set(cudagraphs.functions)
    model = _Stack([8 if n in wide else 4 for n in range(12)], shown).to("acme")
    compiled, parameters = world.compile(model, **GRAPHS), list(model.parameters())
    saved: list[torch.Tensor] = []

    def gradients(run: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Of calls that are all made before the first is differentiated, in another order."""
        made = [run(x) for x in inputs]
        losses = [(y * y).sum() + sum(v.sum() for v in seen) for y, seen in made]
        found = [torch.autograd.grad(losses[n], [*parameters, inputs[n]], retain_graph=n == 1) for n in order]
        again = torch.autograd.grad(losses[1], parameters)
        return [g.cpu() for gs in (*found, again) for g in gs] + [t.cpu() for y, seen in made for t in (y, *seen)]

    for _ in range(3):
        inputs = [rand(3, 4, grad=True) for _ in range(3)]
        torch.testing.assert_close(gradients(compiled, inputs), gradients(model, inputs))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y, seen = compiled(rand(3, 4, grad=True))
    own = {p.untyped_storage()._cdata for p in parameters}
    blocks = Counter(t.untyped_storage()._cdata for t in saved if t.untyped_storage()._cdata not in own)
    assert max(blocks.values()) >= 8, "as many have four columns and are no outputs"
    for output in (y, *seen):
        assert output.untyped_storage().nbytes() == output.nbytes
    (forward,) = (f.reported() for f in set(cudagraphs.functions) - others if f.work.role == "forward")
    assert (forward.warm_ups, forward.replays, forward.recordings) == (1, 3 * 3, 1)


@on_acme
def test_floats_that_change_are_patched_and_no_part_of_the_size_key(world: World) -> None:
    options = {"on_error": "raise", "cache": False, **GRAPHS}
    function = lambda x, y, a, b: (x * a + y * b, x.sin() - a, x * -a + y / (a + 2))  # noqa: E731
    compiled = turret.compile(function, dynamic=True, plugins=[world.plugin], options=options)
    for n, (a, b) in enumerate([(0.5, -2.0), (0.25, 3.0), (1.0, 1.0), (0.0, -0.0), (1e30, 1e-300), (2.5, 0.5)]):
        x, y = rand(3, 4), rand(3, 4)
        found, expected = compiled(x, y, a, b), function(x, y, a, b)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other.cpu(), equal_nan=True, msg=lambda text, n=n: f"{n}: {text}")
    report = turret.cudagraphs.report()
    assert (report.recordings, report.replays) == (1, 4) and report.bytes_copied == 0
    assert sum("float" in decision for f in report.functions for decision in f.decisions) >= 2


@on_acme
def test_a_float_that_is_computed_and_stays_as_it_was_keeps_a_graph_from_being_recorded(world: World) -> None:
    def bounded(x, a):
        return x * max(a, 2.0) + a

    options = {"on_error": "raise", "cache": False, **GRAPHS}
    compiled = turret.compile(bounded, dynamic=True, plugins=[world.plugin], options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a in (0.5, 0.25, 0.75, 1.0, 3.0, 5.0):
            x = rand(4, 4)
            torch.testing.assert_close(compiled(x, a).cpu(), bounded(x, a).cpu())


@on_acme
def test_a_call_that_takes_a_float_is_left_out_and_kernels_that_do_are_recorded(world: World) -> None:
    def scaled(x, a):
        return torch.addmm(x, x, x, alpha=a) + a

    options = {"on_error": "raise", "cache": False, **GRAPHS}
    compiled = turret.compile(scaled, dynamic=True, plugins=[world.plugin], options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a in (0.5, 0.25, 3.0, 1.0):
            x = rand(4, 4)
            torch.testing.assert_close(compiled(x, a).cpu(), scaled(x, a).cpu())
    report = turret.cudagraphs.report()
    assert report.recordings == 1 and "aten::addmm works with unbacked symbols" in str(report)


@on_acme
def test_optimizers_under_a_learning_rate_schedule_are_recorded_once(world: World) -> None:
    ours = [torch.nn.Parameter(w) for w in (rand(4, 3), rand(5))]
    theirs = [torch.nn.Parameter(w.detach().clone()) for w in ours]
    optimizers = [torch.optim.SGD(w, lr=0.1, momentum=0.9, foreach=False) for w in (ours, theirs)]
    step = world.compile(optimizers[0].step, **GRAPHS)
    for n in range(10):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = rand(*one.shape)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 / (n + 1)
        step()
        optimizers[1].step()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.detach().cpu(), other.detach().cpu())
    assert turret.cudagraphs.report().replays >= 5, turret.cudagraphs.report()


def compared_at_indices(tensors: list[torch.Tensor], addresses: list[int], indices: list[int]) -> bool:
    """What torch's builds for CUDA have in native code: both lists are read at the same indices."""
    return all(tensors[n].data_ptr() == addresses[n] for n in indices)


@on_acme
@pytest.mark.parametrize("same", [None, compared_at_indices], ids=["in Python", "in one call"])
def test_static_inputs_are_compared_wherever_they_stand_among_the_inputs(world: World, same) -> None:
    weights = [torch.nn.Parameter(rand(4)) for _ in range(6)]

    def f(x, y):
        return [x * w + y for w in weights]

    compiled = world.compile(f, **GRAPHS)
    with torch.no_grad(), unittest.mock.patch.object(replay, "same_addresses", same):
        for _ in range(5):
            x, y = rand(4), rand(4)
            found, expected = compiled(x, y), f(x, y)
            torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected])
    assert turret.cudagraphs.report().replays == 4


@on_acme
@pytest.mark.parametrize("natively", [True, False], ids=["in one call", "one by one"])
def test_gradients_and_saved_tensors_of_many_layers_are_eager_s_however_they_are_made(
    world: World, natively: bool
) -> None:
    weights = [torch.nn.Parameter(rand(4, 4)) for _ in range(12)]
    others = [torch.nn.Parameter(w.detach().clone()) for w in weights]

    def f(x, ws):
        for w in ws:
            x = torch.tanh(x @ w)
        return x.sum()

    def unable(*arguments: Any) -> Any:
        raise turret.errors.CodegenError("there is no compiler")

    compiled = world.compile(f, **GRAPHS)
    with contextlib.nullcontext() if natively else unittest.mock.patch.object(acme_plugin, "tensor_maker", unable):
        kept = []
        for _ in range(5):
            x = rand(2, 4)
            for w in (*weights, *others):
                w.grad = None
            compiled(x, weights).backward()
            f(x, others).backward()
            kept.append([(w.grad, o.grad) for w, o in zip(weights, others, strict=True)])
    for pairs in kept:
        for found, expected in pairs:
            torch.testing.assert_close(found.cpu(), expected.cpu())
            assert not found._is_view() and found.untyped_storage().nbytes() == 64
    assert turret.cudagraphs.report().replays == 8
    sources = [inspect.getsource(g.latest.replay) for g in cudagraphs.functions if g.reported().replays]
    assert [("= make()" in text, "empty(" in text) for text in sources] == [(natively, not natively)] * 2


@on_acme
def test_drawn_programs_give_what_eager_gives_call_after_call(world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        replays = 0
        for seed in range(12):
            turret.reset()
            program = program_of_seed(seed, Features(device="acme"))
            check(program, lambda f: world.compile(f, **GRAPHS), calls=4)
            replays += turret.cudagraphs.report().replays
    assert replays > 12


@on_acme
def test_what_a_library_call_returns_is_copied_out_by_the_recording(world: World) -> None:
    def f(x):
        values, indices = torch.topk(x * 2, 2, 0)
        return values, indices, values[0]

    for found in kept_results(world.compile(f, **GRAPHS), f, 5, 3):
        assert found[2].data_ptr() == found[0].data_ptr()
    told = turret.cudagraphs.report()
    assert told.replays == 3 and told.bytes_copied == 0


@on_acme
def test_products_write_to_the_memory_that_a_replay_is_given(world: World) -> None:
    w = rand(4, 5)

    def f(x):
        y = x @ w
        return y, torch.relu(y), (x + 1) @ w.t().contiguous().t()

    kept_results(world.compile(f, **GRAPHS), f, 3, 4)
    (graphed,) = (each for each in cudagraphs.functions if getattr(each, "latest", None))
    assert graphed.reported().replays == 3
    assert "copy" not in [node.kind for node in graphed.latest.recorded.recording.nodes]


@on_acme
def test_as_before_trees_outputs_are_overwritten_by_the_next_replay(world: World) -> None:
    compiled = world.compile(lambda x, y: x @ y + 1, **GRAPHS, cudagraph_trees=False)
    for _ in range(4):
        x, y = rand(3, 4), rand(4, 5)
        found = compiled(x, y)
        torch.testing.assert_close(found.cpu(), (x @ y + 1).cpu())
    later = compiled(rand(3, 4), rand(4, 5))
    assert later.data_ptr() == found.data_ptr()
    assert turret.cudagraphs.report().bytes_copied == (3 * 4 + 4 * 5) * 4


@on_acme
def test_a_parameter_whose_data_is_another_tensor_is_followed(world: World) -> None:
    layer = torch.nn.Linear(4, 4).to("acme")
    compiled = world.compile(layer, **GRAPHS)
    with torch.no_grad():
        for n in range(8):
            if n > 3:
                layer.weight.data = rand(4, 4)
            x = rand(2, 4)
            torch.testing.assert_close(compiled(x).cpu(), layer(x).cpu())
    told = turret.cudagraphs.report()
    assert told.recordings <= 2 and told.replays >= 6


@on_acme
def test_inputs_at_any_offset_in_inference_mode_and_copies_of_outputs(world: World) -> None:
    def f(x):
        return torch.cumsum(x, 0) * 2

    compiled = world.compile(f, **GRAPHS)
    with torch.inference_mode():
        for n in range(8):
            x = rand(12)[n % 4 : n % 4 + 6]
            found, expected = compiled(x), f(x)
            again = copy.deepcopy(found)
            found.add_(1)
            torch.testing.assert_close(again.cpu(), expected.cpu())
            torch.testing.assert_close(found.cpu(), (expected + 1).cpu())
    assert turret.cudagraphs.report().replays >= 3


@on_acme
def test_reset_drops_recordings_and_calls_go_on(world: World) -> None:
    compiled = world.compile(lambda x: torch.cumsum(x, 0), **GRAPHS)
    for _ in range(2):
        for _ in range(3):
            x = rand(4)
            torch.testing.assert_close(compiled(x).cpu(), torch.cumsum(x, 0).cpu())
        assert turret.cudagraphs.report().replays == 2
        turret.reset()
        gc.collect()
        assert turret.cudagraphs.report().replays == 0


@on_acme
def test_a_compiled_call_in_a_recording_of_the_user_s_runs_plainly(world: World) -> None:
    compiled = world.compile(lambda x: torch.cumsum(x, 0) + 1, **GRAPHS)
    x = rand(4)
    for _ in range(3):
        compiled(x)
    results = []
    recording = world.graphs.record(0, lambda: results.append(compiled(x)))
    recording.replay(0)
    torch.testing.assert_close(results[0].cpu(), (torch.cumsum(x, 0) + 1).cpu())
    (told,) = turret.cudagraphs.report().functions
    assert told.plain_calls == {"it is called while somebody else records": 1}


@on_acme
def test_torch_s_own_mark_begins_a_step(world: World) -> None:
    def f(x):
        return torch.cumsum(x, 0)

    compiled = world.compile(f, **GRAPHS, cudagraph_outputs="pool")
    box = types.SimpleNamespace(MarkStepBox=types.SimpleNamespace(mark_step_counter=0))  # what torch counts down
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch._inductor.cudagraph_trees", box)
        for _ in range(4):
            box.MarkStepBox.mark_step_counter -= 1
            x, y = rand(4), rand(4)
            found = compiled(x), compiled(y)
            torch.testing.assert_close([t.cpu() for t in found], [f(x).cpu(), f(y).cpu()])
        box.MarkStepBox.mark_step_counter -= 1
        compiled(x)
        with pytest.raises(RuntimeError, match="overwritten"):
            found[0].cpu()


@on_acme
def test_an_overwritten_output_as_an_input_raises_and_leaves_all_usable(world: World) -> None:
    compiled = world.compile(lambda x: torch.cumsum(x, 0), **GRAPHS, cudagraph_outputs="pool")
    x = rand(4)
    for _ in range(3):
        y = compiled(x)
        with pytest.raises(RuntimeError, match="overwritten"):
            compiled(y)
        torch.testing.assert_close(compiled(x).cpu(), torch.cumsum(x, 0).cpu())


@on_acme
def test_hooks_on_saved_tensors_see_what_the_backward_is_given(world: World) -> None:
    weight = rand(4, 4, grad=True)
    compiled = world.compile(lambda x: torch.tanh(x @ weight).sum(), **GRAPHS)
    for _ in range(4):
        x = rand(3, 4)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            compiled(x).backward()
        found, weight.grad = weight.grad, None
        torch.tanh(x @ weight).sum().backward()
        expected, weight.grad = weight.grad, None
        torch.testing.assert_close(found.cpu(), expected.cpu())
    assert turret.cudagraphs.report().replays == 6


@on_acme
def test_random_numbers_go_on_with_each_replay_as_they_would_with_a_call(world: World) -> None:
    def f(x):
        return torch.nn.functional.dropout(x, 0.5, True) + 0

    recorded, plain = world.compile(f, **GRAPHS), world.compile(f)
    x = torch.ones(100).to("acme")
    for _ in range(2):
        recorded(x)
    torch.manual_seed(3)
    found = [recorded(x).cpu() for _ in range(4)]
    torch.manual_seed(3)
    expected = [plain(x).cpu() for _ in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not torch.equal(found[0], found[1])
    assert turret.cudagraphs.report().replays == 5


@pytest.mark.parametrize("outputs", ["fresh", "pool"])
@on_acme
def test_on_a_device_that_keeps_arenas_recordings_have_one_of_their_own(world: World, outputs: str) -> None:
    def f(x, w):
        return torch.softmax(torch.relu(x @ w) + 1, -1).cumsum(0), (x @ w).sum(0)

    keeping = World(world.native, keeps_arena=True)
    recorded = keeping.compile(f, **GRAPHS, cudagraph_outputs=outputs)
    w = rand(16, 32)
    for _ in range(5):
        x = rand(8, 16)
        torch.testing.assert_close([t.cpu() for t in recorded(x, w)], [t.cpu() for t in f(x, w)])
    assert turret.cudagraphs.report().replays == 4


@on_acme
def test_conjugated_inputs_are_patched_like_others(world: World) -> None:
    def f(x):
        return torch.mm(x.imag, x.real), x * 2

    compiled = world.compile(f, **GRAPHS)
    for _ in range(4):
        x = torch.complex(rand(3, 3).cpu(), rand(3, 3).cpu()).to("acme").conj()
        torch.testing.assert_close([t.cpu() for t in compiled(x)], [t.cpu() for t in f(x)])
    (function,) = [f for f in turret.cudagraphs.report().functions if f.replays]
    assert function.replays == 3 and not function.bytes_copied, function.decisions


@on_acme
def test_the_report_has_the_decisions_of_every_recording_that_is_kept(world: World) -> None:
    w = rand(4, 4)
    compiled = world.compile(lambda x: torch.cumsum(x @ w, 0), **GRAPHS)
    memory = rand(2 * 3 * 4)
    for start in (0, 0, 1, 0, 1):
        x = memory[start : start + 12].view(3, 4)
        torch.testing.assert_close(compiled(x).cpu(), torch.cumsum(x @ w, 0).cpu())
    (told,) = cudagraphs.report().functions
    assert [each.why.partition(" (")[0] for each in told.recorded] == ["", "input 1 is aligned otherwise"], str(told)
    assert all(any("input 1 patched" in d for d in each.decisions) for each in told.recorded)
    assert sum(each.replays for each in told.recorded) == told.replays == 4
    assert str(told).count("Graph[") == 2 and str(told).count("input 1 patched") == 1


@on_acme
def test_explain_tells_what_graph_capture_made_of_its_calls(world: World) -> None:
    w = rand(4, 4)

    def cut(x):
        return torch.softmax(x @ w, -1).cpu().to(x.device).cumsum(0)

    options = {"on_error": "raise", "cudagraph_outputs": "pool", **GRAPHS}
    found = turret.explain(cut, calls=3, plugins=[world.plugin], options=options)(rand(3, 4))
    assert found.captures is not None and found.captures.recordings == 2 and found.captures.replays == 4
    (pool,) = found.captures.pools
    assert pool.paths and all(path.bytes_kept for path in pool.paths)
    assert not any("recorded" in message for message in found.not_recorded)
    assert any("copies between" in message for message in found.not_recorded)
    for text in ("bytes copied", "nodes patched", "bytes kept", "CUDA Graph Tree"):
        assert text in str(found)
    once = turret.explain(cut, plugins=[world.plugin], options=options)(rand(3, 4))
    assert once.captures is not None and once.captures.recordings == 0 and not once.captures.pools
    off = turret.explain(cut, plugins=[world.plugin], options={"on_error": "raise"})(rand(3, 4))
    assert off.captures is None


def _two_devices(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    there = torch.cumsum(y @ y, 0)
    return torch.cumsum(x @ x, 0) + there.to("acme:0"), there * 2


def _looping(x: torch.Tensor) -> torch.Tensor:
    start = torch.zeros((), dtype=torch.int64, device=x.device), torch.cumsum(x, 0)
    _, y = while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, torch.sin(v) + 1), start)
    return torch.softmax(y, -1)


def _scattering(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, 0).index_put((i,), x[:2], accumulate=True) * 2


def _packing(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    weighed = torch.softmax(x @ x.transpose(1, 2), -1)
    return pack_padded_sequence(weighed, lengths, batch_first=True, enforce_sorted=False).data * 2


def _masking(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x @ x, 0)[x > 0].sum() + torch.softmax(x, -1)


def _jagged(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows = torch.nested.nested_tensor_from_jagged(torch.softmax(x @ x.t(), -1), offsets)
    return (rows * 2).values().cumsum(0)


CUTS: dict[str, tuple[Any, Any, str]] = {
    "two devices": (_two_devices, lambda: [rand(4, 4), torch.randn(4, 4).to("acme:1")], "works on acme:1"),
    "while_loop": (_looping, lambda: [rand(3, 4)], "while_loop decides on the host what runs next"),
    "deterministic scatter": (
        _scattering,
        lambda: [rand(4, 4), torch.tensor([1, 1]).to("acme")],
        "deterministic algorithms",
    ),
    "packed sequence": (_packing, lambda: [rand(3, 4, 4), torch.randint(1, 5, (3,))], "copies between acme:0 and cpu"),
    "mask": (_masking, lambda: [rand(4, 4)], ""),
    "jagged": (_jagged, lambda: [rand(6, 4), torch.tensor([0, random.randint(1, 5), 6]).to("acme")], ""),
}
"""Programs of which a part cannot be recorded: the function, what makes its inputs, the reason on record (a graph break
has none)."""


def _listed(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize("name", sorted(CUTS))
@on_acme
def test_what_is_around_a_part_that_cannot_be_recorded_is(world: World, name: str) -> None:
    function, make, reason = CUTS[name]
    compiled = world.compile(function, **GRAPHS)
    torch.use_deterministic_algorithms(name == "deterministic scatter")
    try:
        for _ in range(5):
            inputs = make()
            found, expected = (f(*inputs) for f in (compiled, function))
            for one, other in zip(_listed(found), _listed(expected), strict=True):
                torch.testing.assert_close(one.cpu(), other.cpu())
    finally:
        torch.use_deterministic_algorithms(False)
    told = cudagraphs.report().functions
    assert sum(f.replays for f in told) >= 3 and any(reason in f.skipped for f in told), list(map(str, told))


@on_acme
def test_a_recording_that_an_op_makes_fail_names_it_and_what_leaves_it_out(world: World) -> None:
    @torch.library.custom_op("turret_graphs::host_number", mutates_args=())
    def host_number(x: torch.Tensor) -> torch.Tensor:
        if world.graphs.is_recording(0):
            raise RuntimeError("not while recording")
        return x * 2

    host_number.register_fake(torch.empty_like)

    def f(x):
        return torch.sin(host_number(torch.cos(x) + 1)) * 3

    def calls(**options):
        compiled = world.compile(f, **GRAPHS, **options)
        for _ in range(4):
            x = rand(8, 16)
            torch.testing.assert_close(compiled(x).cpu(), f(x).cpu())
        return cudagraphs.report()

    asked = "cudagraph_split_ops=('turret_graphs::host_number.default',)"
    with pytest.warns(turret.TurretWarning, match=r"not while recording.*host_number.default.*cudagraph_split_ops"):
        report = calls()
    assert asked in str(report) and not report.replays
    assert calls(cudagraph_split_ops=("turret_graphs::host_number.default",)).replays >= 4
