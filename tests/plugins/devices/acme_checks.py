"""What must hold on the device "acme": each function is a test, run by ``test_acme.py`` in one process of its own."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from typing import Any

import torch
import torch.nn.functional as F

import turret
from tests.plugins.devices import acme_shim
from tests.plugins.devices.acme_world import World, rand
from turret.hooks.graph_capture import AddressWord, Moved, Patch, address_words
from turret.plan.launch.functions import NativeFunctions


def kernels_run_on_the_device_s_own_memory(world: World) -> None:
    world.agree(lambda x, y: torch.softmax(torch.relu(x) * 2 + y, -1), rand(16, 8), rand(8))


def library_calls_and_kernels_go_together(world: World) -> None:
    world.agree(lambda x, w: F.layer_norm(torch.relu(x @ w) + 1, (5,)), rand(3, 4), rand(4, 5))


def sizes_that_change_are_arguments(world: World) -> None:
    compiled = world.compile(lambda x: torch.sin(x).sum(0))
    for length in (3, 5, 8, 13):
        x = rand(length, 4)
        torch.testing.assert_close(compiled(x).cpu(), torch.sin(x.cpu()).sum(0))
    assert not world.driver.strangers


def views_of_inputs_and_results_stay_views(world: World) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return x.t()[1:], y.view(-1)[::2]

    x = rand(4, 6)
    base, cut = world.compile(program)(x)
    assert base._base is x and base.data_ptr() == x.data_ptr() + x.element_size()
    torch.testing.assert_close(cut.cpu(), program(x.cpu())[1])


def inputs_are_written_to(world: World) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x[1:].mul_(3)
        return x.sin()

    x = rand(5, 4)
    other = x.cpu()
    version = x._version
    torch.testing.assert_close(world.compile(program)(x).cpu(), program(other))
    torch.testing.assert_close(x.cpu(), other)
    assert x._version > version


def a_model_trains_as_in_eager(world: World) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        layers = torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 3)
        return torch.nn.Sequential(*layers).to("acme")

    ours, eagers = model(), model()
    step = world.compile(lambda x, y: F.cross_entropy(ours(x), y))
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (ours, eagers)]
    for _ in range(3):
        x, y = rand(8, 6), torch.randint(0, 3, (8,)).to("acme")
        losses = step(x, y), F.cross_entropy(eagers(x), y)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[0].cpu(), losses[1].cpu())
    for one, other in zip(ours.parameters(), eagers.parameters(), strict=True):
        assert one.device.type == "acme"
        torch.testing.assert_close(one.cpu(), other.cpu())
    assert {plan.name.partition(".")[2] for plan in world.plugin.device.loaded} == {"forward", "backward"}
    assert not world.driver.strangers


def convolutions_train_and_running_statistics_move_on_and_serve_afterwards(world: World) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        layers = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
        return torch.nn.Sequential(*layers).to("acme")

    ours, eagers = model(), model()
    compiled = world.compile(ours)
    for _ in range(2):
        x = rand(2, 3, 5, 5)
        results = compiled(x), eagers(x)
        torch.testing.assert_close(results[0].cpu(), results[1].cpu())
        for result in results:
            result.square().sum().backward()
    for one, other in zip(ours.parameters(), eagers.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad.cpu(), rtol=1e-4, atol=1e-4)
    for one, other in zip(ours.buffers(), eagers.buffers(), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())
    assert bool((ours[1].running_mean.cpu() != 0).all())
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            torch.testing.assert_close(compiled.eval()(x).cpu(), eagers.eval()(x).cpu())
    assert not world.driver.strangers


def autocast_around_a_call_is_eager_s(world: World) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) + 1

    compiled, x, w = world.compile(program), rand(3, 4), rand(4, 5, grad=True)
    for wanted in (None, torch.bfloat16, torch.float16, None, torch.bfloat16):
        with torch.autocast("acme", dtype=wanted or torch.bfloat16, enabled=wanted is not None):
            found, expected = compiled(x, w), program(x, w)
        assert found.dtype == expected.dtype == (wanted or torch.float32)
        torch.testing.assert_close(found.cpu(), expected.cpu())
        found.sum().backward()
        assert w.grad.dtype == torch.float32


def autocast_inside_a_program_is_eager_s_and_restored(world: World) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x @ w
        with torch.autocast("acme", dtype=torch.bfloat16):
            inner = x @ w
            with torch.autocast("acme", enabled=False):
                off = x @ w
        return before, inner, off, x @ w

    x, w, before = rand(3, 4), rand(4, 5), torch.get_autocast_dtype("acme")
    found = world.compile(program)(x, w)
    assert [v.dtype for v in found] == [v.dtype for v in program(x, w)]
    assert not torch.is_autocast_enabled("acme") and torch.get_autocast_dtype("acme") is before


def no_grad_and_inference_mode_are_seen(world: World) -> None:
    compiled, x = world.compile(lambda x: torch.tanh(x) * 2), rand(4, grad=True)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    assert compiled(x).requires_grad


def launches_go_to_the_current_stream_of_their_device(world: World) -> None:
    compiled = world.compile(lambda x: torch.sin(x) + 1)
    for index, stream in ((0, 7), (1, 9), (0, 0)):
        world.native.acme_set_stream(index, stream)
        x = torch.randn(6).to(f"acme:{index}")
        world.driver.launched.clear()
        torch.testing.assert_close(compiled(x).cpu(), torch.sin(x.cpu()) + 1)
        assert [s for _, s in world.driver.launched] == [stream]
        world.native.acme_set_stream(index, 0)


def an_index_out_of_range_is_an_error(world: World) -> None:
    compiled, table = world.compile(lambda t, i: t[i] * 2), rand(5, 3)
    good, bad = torch.tensor([0, 4]).to("acme"), torch.tensor([0, 9]).to("acme")
    torch.testing.assert_close(compiled(table, good).cpu(), table.cpu()[[0, 4]] * 2)
    for _ in range(2):
        try:
            compiled(table, bad)
        except IndexError:
            pass
        else:
            raise AssertionError("an index out of range was taken")
    torch.testing.assert_close(compiled(table, good).cpu(), table.cpu()[[0, 4]] * 2)


def dtypes_are_those_of_the_kernels_that_eager_runs(world: World) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        world.agree(lambda x: torch.softmax(x * 4, -1), rand(4, 8).to(dtype))
        for parameter in (None, rand(8).to(dtype)):
            given = (rand(4, 8).to(dtype), (8,), parameter, parameter, 1e-5)
            expected = torch.native_layer_norm(*given)
            for one, other in zip(world.compile(torch.native_layer_norm)(*given), expected, strict=True):
                assert one.dtype == other.dtype
                torch.testing.assert_close(one.cpu(), other.cpu(), atol=0.05, rtol=0.05)


def numbers_on_the_host_and_copies_go_along(world: World) -> None:
    def program(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x * scale) + 1
        return y, y.cpu().sum(0)

    x, scale = rand(4, 5), torch.tensor(3.0)
    for found, expected in zip(world.compile(program)(x, scale), program(x, scale), strict=True):
        assert found.device == expected.device
        torch.testing.assert_close(found.cpu(), expected.cpu())


def data_decides_sizes_and_branches(world: World) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        found = (x * 2)[x > 0]
        return found + 1 if found.sum().item() > 0 else found - 1

    compiled = world.compile(program)
    for _ in range(3):
        x = rand(9)
        torch.testing.assert_close(compiled(x).cpu(), program(x.cpu()))


def dropout_has_its_rate_and_its_gradient(world: World) -> None:
    x = torch.ones(4000).to("acme").requires_grad_()
    found = world.compile(lambda x: F.dropout(x * 2, 0.25))(x)
    found.sum().backward()
    kept = found.detach().cpu() != 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(x.grad.cpu(), torch.where(kept, 2 / 0.75, 0.0))


def functions_that_read_an_arena_s_slots_are_refused_where_none_is_kept(world: World) -> None:
    device = world.plugin.device
    device.keeps_arena = False
    device.load = lambda plan, store: NativeFunctions(plan, b"", "")
    try:
        world.compile(lambda x, w: torch.relu(x @ w) @ w + 1)(rand(8, 8), rand(8, 8))
    except turret.TurretError as error:
        assert "keeps no arenas" in str(error)
    else:
        raise AssertionError("kernels that read the slots of an arena were loaded for a device that keeps none")


def an_arena_may_be_taken_for_each_call(world: World) -> None:
    world.plugin.device.keeps_arena = False
    compiled = world.compile(lambda x, w: torch.softmax((x @ w).sin() @ w, -1) + 1)
    w = rand(64, 64)
    compiled(rand(64, 64), w)
    held = world.native.acme_held()
    for _ in range(3):
        x = rand(64, 64)
        torch.testing.assert_close(compiled(x, w).cpu(), torch.softmax((x.cpu() @ w.cpu()).sin() @ w.cpu(), -1) + 1)
        del x
    assert world.native.acme_held() == held and not world.driver.strangers
    plan, *_ = world.plugin.device.loaded
    assert plan.arena_bytes and held < plan.arena_bytes + 2 * w.nbytes


def no_memory_of_the_device_is_lost(world: World) -> None:
    compiled, x = world.compile(lambda x: torch.softmax(x.sin() @ x.cos(), -1)), rand(32, 32)
    compiled(x)
    before = world.native.acme_held()
    for _ in range(8):  # in the third the library call is recorded, and launched from then on
        compiled(x)
    assert world.native.acme_held() == before


def properties_are_part_of_target_plan_and_key(world: World) -> None:
    targets: list[Any] = []

    class Look:
        cache_key = "look"

        @turret.hookimpl
        def turret_codegen(self, schedule: Any, target: Any) -> None:
            targets.append(target)

    world.compile(lambda x: x.sin() + 1, Look())(rand(4))
    (target,), (plan,) = targets, world.plugin.device.loaded
    assert (target.device, target.arch, target.cores, target.memory) == ("acme:0", "acme1", 4, 1 << 30)
    assert plan.arch == "acme1" and plan.device == "acme:0"


def a_stored_graph_is_not_taken_for_another_architecture(world: World) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x) * 3 + 1

    def misses(arch: str) -> int:
        events: list[Any] = []

        class Watch:
            @turret.hookimpl
            def turret_event(self, event: Any) -> None:
                events.append(event)

        turret.reset()
        other = World(world.native)
        facts = other.plugin.device.properties(0)
        other.plugin.device.properties = lambda index: type(facts)(facts.name, arch, facts.cores, facts.memory)
        x = rand(4)
        compiled = other.compile(program, Watch(), cache=True)
        torch.testing.assert_close(compiled(x).cpu(), program(x.cpu()))
        return sum(e.kind == "stage_started" and e.stage == "codegen" for e in events)

    found = [misses("acme1"), misses("acme1"), misses("acme2"), misses("acme2"), misses("acme1")]
    assert found == [1, 0, 1, 0, 0], found


def without_the_plugin_graphs_run_call_by_call_and_say_so(world: World) -> None:
    compiled, x = turret.compile(lambda x: torch.sin(x) @ x, options={"on_error": "raise", "cache": False}), rand(4, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(compiled(x).cpu(), torch.sin(x.cpu()) @ x.cpu())
    (message,) = [str(w.message) for w in caught if w.category is turret.TurretWarning]
    assert "device type acme" in message and "call by call" in message


class Recorder:
    """A small graph runtime: records an executable twice, finds the addresses, and replays over any memory."""

    def __init__(self, device: Any) -> None:
        self.device, self.replays = device, 0

    @turret.hookimpl
    def turret_wrap_runtime(self, function: Any) -> Any:
        runs: list[tuple[Any, list[torch.Tensor]]] = []
        words: dict[int, tuple[AddressWord, ...]] = {}

        def record(inputs: list) -> None:
            results: list[torch.Tensor] = []
            recording = self.device.graphs.record(0, lambda: results.extend(function(list(inputs))))
            runs.append((recording, [*inputs, *results]))

        def call(args: list) -> list:
            if not runs:
                record(args)
                record([x.clone() for x in args])  # the same work over other memory
                (first, old), (second, other) = runs
                both = enumerate(zip(old, other, strict=True))
                moved = {n: Moved(a.data_ptr(), b.data_ptr(), a.untyped_storage().nbytes()) for n, (a, b) in both}
                words.update(address_words(first, second, moved).words)
            recording, old = runs[0]
            memory = [*args, *map(torch.empty_like, old[len(args) :])]
            recording.patch(
                [Patch(w.node, w.offset, memory[n].data_ptr() + w.delta) for n, found in words.items() for w in found]
            )
            recording.replay(0)
            self.replays += 1
            return memory[len(args) :]

        return call


def a_recorded_graph_is_replayed_over_other_memory(world: World) -> None:
    recorder = Recorder(world.plugin.device)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(x) * 2 + y, -1).sum(-1)

    compiled = world.compile(program, recorder)
    kept = []
    for _ in range(5):
        x, y = rand(16, 8), rand(8)
        kept.append((x, y, compiled(x, y)))
        torch.testing.assert_close(kept[-1][-1].cpu(), program(x.cpu(), y.cpu()))
    for x, y, found in kept:  # what was given out before stays as it was
        torch.testing.assert_close(found.cpu(), program(x.cpu(), y.cpu()))
    assert recorder.replays == 5 and not world.driver.strangers


CHECKS = [
    value for value in list(globals().values()) if callable(value) and "world" in getattr(value, "__annotations__", {})
]


def main() -> None:
    """Run every check and print what came of it, as JSON."""
    native = acme_shim.load()
    results = {}
    for check in CHECKS:
        try:
            check(World(native, keeps_arena=True, noise=False))
            results[check.__name__] = ""
        except BaseException:
            results[check.__name__] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())
