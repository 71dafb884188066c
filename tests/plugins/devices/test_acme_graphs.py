"""The recording fake: pools of acme's allocator, and recordings, replayed over the addresses that they hold then."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.benchmarks import graph_replay, kernel_chains
from tests.gpu.graph_checks import GRAPH_CHECKS, Place
from tests.gpu.graph_sequences import play
from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.errors import TurretError
from turret.hooks.graph_capture import Moved, Patch, address_words, tensor_at

BLOCK = 256
"""Bytes that the device's blocks are multiples of."""


def take(pool: Any, nbytes: int) -> torch.Tensor:
    """Memory from a pool."""
    with pool.allocating():
        return torch.empty(nbytes, dtype=torch.uint8, device="acme")


class FirstFit:
    """What a pool should do, in Python: offsets and lengths of blocks in use."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        length, start = math.ceil(nbytes / BLOCK) * BLOCK, 0
        for begin in sorted(self.blocks):
            if start + length <= begin:
                break
            start = begin + self.blocks[begin]
        self.blocks[start] = length
        return start


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 2000)),
        st.tuples(st.just("free"), st.integers(0, 10)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 10)),
    ),
    max_size=40,
)


@on_acme
@given(actions=ACTIONS, dead=st.sets(st.integers(0, 10)))
@settings(max_examples=80)
def test_a_pool_hands_out_first_fit_and_restores_what_was_in_use(world: World, actions: list, dead: set) -> None:
    pool, model = world.graphs.pool(0), FirstFit()
    start = take(pool, 1).data_ptr()
    live: list[tuple[int, torch.Tensor]] = []
    saved: list[tuple[Any, dict[int, int]]] = []
    for action, number in actions:
        if action == "take":
            live.append((model.take(number), take(pool, number)))
            assert live[-1][1].data_ptr() - start == live[-1][0]
        elif action == "free" and live:
            begin, _ = live.pop(number % len(live))
            del model.blocks[begin], _
        elif action == "checkpoint":
            saved.append((pool.checkpoint(), dict(model.blocks)))
        elif action == "restore" and saved:
            live.clear()
            checkpoint, blocks = saved[number % len(saved)]
            gone = {begin for n, begin in enumerate(sorted(blocks)) if n in dead}
            pool.restore(checkpoint, [start + begin for begin in gone])
            model.blocks = {begin: length for begin, length in blocks.items() if begin not in gone}
        assert dict(pool.checkpoint()) == {start + begin: length for begin, length in model.blocks.items()}


@on_acme
def test_a_pool_is_not_restored_under_a_tensor_that_owns_its_memory(world: World) -> None:
    pool = world.graphs.pool(0)
    empty = pool.checkpoint()
    kept = take(pool, 100)
    with pytest.raises(TurretError, match="while a tensor allocated from it lives: 256 bytes"):
        pool.restore(empty, [])
    checkpoint = pool.checkpoint()
    del kept
    with pytest.raises(TurretError, match="no block of the checkpoint begins at the dead address 0x1"):
        pool.restore(checkpoint, [1])
    assert pool.checkpoint() == empty
    pool.restore(checkpoint, [])
    assert pool.checkpoint() == checkpoint


@on_acme
def test_memory_of_a_pool_is_poisoned_when_it_is_handed_out(world: World) -> None:
    pool = world.graphs.pool(0)
    with pool.allocating():
        first = torch.ones(4, device="acme")
        address = first.data_ptr()
        del first
        again = torch.empty(4, device="acme")
    assert again.data_ptr() == address and again.cpu().isnan().all()


@on_acme
def test_a_pool_is_of_the_thread_and_the_device_that_it_was_entered_for(world: World) -> None:
    pool, other = world.graphs.pool(0), world.graphs.pool(0)
    with pool.allocating():
        with other.allocating():
            inner = torch.empty(300, dtype=torch.uint8, device="acme")
        outer = torch.empty(300, dtype=torch.uint8, device="acme")
        elsewhere = torch.empty(300, dtype=torch.uint8, device="acme:1")
    ordinary = torch.empty(300, dtype=torch.uint8, device="acme")
    blocks = [dict(p.checkpoint()) for p in (pool, other)]
    assert [list(b.values()) for b in blocks] == [[512], [512]]
    assert outer.data_ptr() in blocks[0] and inner.data_ptr() in blocks[1]
    assert not {elsewhere.data_ptr(), ordinary.data_ptr()} & {*blocks[0], *blocks[1]}
    assert pool.reserved_bytes == 1 << 16


@on_acme
def test_a_pool_has_one_user_at_a_time_as_cuda_s_do(world: World) -> None:
    pool = world.graphs.pool(0)
    with pool.allocating():
        for begin in (lambda: take(pool, 8), lambda: world.graphs.record(0, lambda: None, pool)):
            with pytest.raises(TurretError, match="somebody allocates in this pool already"):
                begin()
    assert take(pool, 8).numel() == 8


@on_acme
def test_a_pool_lives_as_long_as_its_recordings_and_tensors(world: World) -> None:
    before, x = world.native.acme_pools(), rand(4)
    made: list[torch.Tensor] = []
    recording = world.graphs.record(0, lambda: made.append(x + 1))
    recording.replay(0)
    torch.testing.assert_close(made[0].cpu(), x.cpu() + 1)
    assert world.native.acme_pools() == before + 1
    del recording
    torch.testing.assert_close(made.pop().cpu(), x.cpu() + 1)
    assert world.native.acme_pools() == before


@on_acme
def test_storages_that_are_resized_take_memory_from_the_pool(world: World) -> None:
    pool = world.graphs.pool(0)
    kept = torch.empty(10, dtype=torch.uint8, device="acme")
    with pool.allocating():
        kept.untyped_storage().resize_(1000)
    assert dict(pool.checkpoint()) == {kept.data_ptr(): 1024}
    kept.untyped_storage().resize_(0)
    assert pool.checkpoint() == ()


@on_acme
def test_an_invalidated_storage_says_why_whoever_asks(world: World) -> None:
    pool = world.graphs.pool(0)
    owner = take(pool, 64)
    given = tensor_at(owner.data_ptr(), (4, 4), (4, 1), torch.float32, owner.device)
    view = given[1:]
    pool.invalidate(given.untyped_storage(), "overwritten by a later run")
    for ask in (given.data_ptr, view.data_ptr, given.cpu, lambda: view + 1, lambda: print(given)):
        with pytest.raises(RuntimeError, match="overwritten by a later run"):
            ask()
    assert owner.cpu().shape == (64,) and view.shape == (3, 4)


@on_acme
def test_replays_in_the_wrong_order_give_the_wrong_numbers_of_the_document(world: World) -> None:
    x1, x2, pool = torch.tensor([1.0]).to("acme"), torch.tensor([2.0]).to("acme"), world.graphs.pool(0)
    y: dict[int, torch.Tensor] = {}

    def first() -> None:
        t1 = x1 * 3
        y[1] = t1 + 5

    def second() -> None:
        y[2] = x2**2

    one, two = world.graphs.record(0, first, pool), world.graphs.record(0, second, pool)
    for order, expected in (((one, two), (8.0, 4.0)), ((two, one), (8.0, 3.0))):
        for recording in order:
            recording.replay(0)
        assert (y[1].item(), y[2].item()) == expected


@on_acme
def test_recording_a_branch_without_restoring_writes_over_what_a_replay_gave(world: World) -> None:
    for restores, right in ((True, True), (False, False)):
        x, pool = torch.tensor([3.0]).to("acme"), world.graphs.pool(0)
        y = world.graphs.pool(0)
        values: dict[str, torch.Tensor] = {}
        a = world.graphs.record(0, lambda: values.update(y=x * x), pool)  # noqa: B023 (called at once)
        after_a, at = pool.checkpoint(), values["y"].data_ptr()
        del values["y"]
        y = tensor_at(at, (1,), (1,), torch.float32, x.device)
        a.replay(0)
        if restores:
            pool.restore(after_a, [])
        c = world.graphs.record(0, lambda: values.update(t=y - 1, z=y * 10), pool)  # noqa: B023
        c.replay(0)
        assert (values["z"].item() == 90.0) is right


def library_calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions of tensors, with what makes those."""
    x, y, i = (lambda: rand(4, 6)), (lambda: rand(6, 5)), (lambda: torch.randint(0, 4, (7,)).to("acme"))
    half = lambda: rand(4, 6).to(torch.bfloat16)  # noqa: E731
    return {
        "mm": (lambda x, y: x @ y, (x, y)),
        "addmm": (lambda b, x, y: torch.addmm(b, x, y), (lambda: rand(5), x, y)),
        "mm_out": (lambda x, y: torch.mm(x, y, out=torch.empty(4, 5, device=x.device)), (x, y)),
        "out_that_gets_a_size": (lambda x, y: torch.mm(x, y, out=torch.empty(0, device=x.device)), (x, y)),
        "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)), (lambda: rand(3, 4, 6),)),
        "transposed": (lambda x, y: (x.t() @ x) @ y, (x, y)),
        "softmax": (lambda x: torch.softmax(x, -1), (x,)),
        "sort": (lambda x: torch.sort(x, 1, descending=True), (x,)),
        "topk": (lambda x: x.topk(3, 1), (x,)),
        "index_put": (lambda x, i: x.clone().index_put((i,), x[0, 0], accumulate=True), (x, i)),
        "index": (lambda x, i: x[i], (x, i)),
        "embedding": (lambda x, i: F.embedding(i, x), (x, i)),
        "in_place": (lambda x: x.clone().mul_(2).add_(1).relu_(), (x,)),
        "views": (lambda x: (x.t()[1:].reshape(-1)[::2], x[1].unsqueeze(0).expand(3, 6)), (x,)),
        "view_written_to": (lambda x: x.clone()[1:, ::2].zero_().add_(x[1:, 1::2]), (x,)),
        "cleared": (lambda x: x.clone().zero_(), (x,)),
        "copied": (lambda x: x.clone().t().contiguous(), (x,)),
        "cat": (lambda x: torch.cat([x, x * 2], 1), (x,)),
        "split": (lambda x: [p * 2 for p in x.split(2, 1)], (x,)),
        "cast": (lambda x: x.to(torch.float64).sum(0).to(torch.bfloat16), (x,)),
        "bfloat16": (lambda x: F.gelu(x) + x, (half,)),
        "complex": (lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)).conj() * 2), (x,)),
        "layer_norm": (lambda x: F.layer_norm(x, (6,)), (x,)),
        "numbers": (lambda x: torch.where(x > 0, x, 3.0) + torch.full_like(x, 2), (x,)),
        "host_number": (lambda x: x * torch.tensor(3.0), (x,)),
        "conv": (lambda x: F.conv2d(x, x[:1], padding=1), (lambda: rand(2, 3, 4, 4),)),
        "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (lambda: rand(2, 2, 4, 8),)),
        "arange": (lambda x: torch.arange(6, device=x.device) + x, (x,)),
        "empty": (lambda x: x[:0] * 2 + x[:0], (x,)),
        "foreach": (lambda x: torch._foreach_add([x, x * 2], 1), (x,)),
        "loss": (lambda x, y: F.mse_loss(x, y, reduction="sum"), (x, x)),
        "batch_norm": (lambda x: F.batch_norm(x, x[0] * 0, x[0] * 0 + 1), (x,)),
        "gather": (lambda x, i: x.gather(0, i.view(1, 7)[:, :6]).scatter(1, i.view(1, 7)[:, :2], 1.0), (x, i)),
    }


def flat(value: Any) -> list[torch.Tensor]:
    """Tensors of a result, on the host."""
    return [value.cpu()] if isinstance(value, torch.Tensor) else [t.cpu() for t in value]


@pytest.mark.parametrize("name", sorted(library_calls()))
@on_acme
def test_library_calls_are_replayed_over_what_their_inputs_hold_then(world: World, name: str) -> None:
    function, makers = library_calls()[name]
    inputs = [make() for make in makers]
    made: list[Any] = []
    recording = world.graphs.record(0, lambda: made.append(function(*inputs)))
    for _ in range(2):
        for given_, fresh in zip(inputs, (make() for make in makers), strict=True):
            given_.copy_(fresh)
        recording.replay(0)
        for found, expected in zip(flat(made[0]), flat(function(*[x.cpu() for x in inputs])), strict=True):
            torch.testing.assert_close(found, expected)
    assert not world.driver.strangers


@pytest.mark.parametrize("name", sorted(library_calls()))
@on_acme
def test_two_recordings_say_where_addresses_of_library_calls_lie(world: World, name: str) -> None:
    function, makers = library_calls()[name]
    real = [make() for make in makers]
    pool = world.graphs.pool(0)
    results: list[Any] = []

    def recorded(inputs: list[torch.Tensor]) -> Any:
        start = pool.checkpoint()
        made: list[Any] = []
        recording = world.graphs.record(0, lambda: made.append(function(*inputs)), pool)
        results.append([(t.data_ptr(), t.shape, t.stride(), t.dtype) for t in as_list(made.pop())])
        pool.restore(start, [])
        return recording

    def as_list(value: Any) -> list[torch.Tensor]:
        return [value] if isinstance(value, torch.Tensor) else list(value)

    first, again = recorded(real), recorded(real)
    del results[1]
    step = 2 << 20
    far = [tensor_at(x.data_ptr() + n * step, x.shape, x.stride(), x.dtype, x.device) for n, x in enumerate(real, 1)]
    second = recorded(far)  # where there is no memory: nothing reads it while it is recorded
    moved = {n: Moved(x.data_ptr(), y.data_ptr(), x.nbytes) for n, (x, y) in enumerate(zip(real, far, strict=True))}
    found = address_words(first, second, moved, again)
    assert not found.unclear
    fresh = [make() for make in makers]
    replay = first.bind([found.words[n] for n in range(len(real))], [x.data_ptr() for x in real])
    for inputs in (fresh, real, [make() for make in makers]):
        replay([x.data_ptr() for x in inputs], 0)
        expected = flat(function(*[x.cpu() for x in inputs]))
        lies_in = [(x.data_ptr(), x.data_ptr() + x.nbytes, n) for n, x in enumerate(real)]
        for (address, *layout), value in zip(results[0], expected, strict=True):
            for start, end, n in lies_in:  # a view of an input is no part of the recording
                if start <= address < end:
                    address += inputs[n].data_ptr() - start
            torch.testing.assert_close(tensor_at(address, *layout, real[0].device).cpu(), value)


@on_acme
def test_random_numbers_go_on_with_every_replay_as_with_calls(world: World) -> None:
    ones = torch.ones(50).to("acme")

    def run() -> tuple[torch.Tensor, ...]:
        return (
            F.dropout(ones, 0.5),
            torch.rand(4, device="acme"),
            ones.clone().bernoulli_(0.5),
            torch.randperm(5, device="acme"),
        )

    torch.manual_seed(3)
    expected = [flat(run()) for _ in range(3)]
    made: list[Any] = []
    torch.manual_seed(3)
    recording = world.graphs.record(0, lambda: made.append(run()))
    for values in expected:
        recording.replay(0)
        for found, value in zip(flat(made[0]), values, strict=True):
            assert torch.equal(found, value)
    assert not torch.equal(expected[0][1], expected[1][1])


@on_acme
def test_kernels_of_plans_without_kept_arenas_are_recorded_with_their_library_calls(world: World) -> None:
    w = rand(16, 16)
    program = world.compile(lambda x: torch.softmax((x @ w).sin() @ w, -1) + 1)
    x = rand(16, 16)
    program(x)
    pool, made = world.graphs.pool(0), []
    recording = world.graphs.record(0, lambda: made.append(program(x)), pool)
    kinds = [node.name.startswith("aten::") for node in recording.nodes]
    assert True in kinds and False in kinds
    for _ in range(2):
        x.copy_(rand(16, 16))
        recording.replay(0)
        torch.testing.assert_close(made[0].cpu(), torch.softmax((x.cpu() @ w.cpu()).sin() @ w.cpu(), -1) + 1)
    assert pool.reserved_bytes and not world.driver.strangers


UNRECORDABLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: (x * 2).sum().item(),
    "branch": lambda x: bool((x > 0).all()),
    "to_host": lambda x: (x * 2).cpu(),
    "from_host": lambda x: x + torch.ones(4).to("acme"),
    "nonzero": lambda x: torch.nonzero(x),
    "mask": lambda x: x[x > 0],
    "other_device": lambda x: torch.ones(4, device="acme:1"),
    "copy_to_other_device": lambda x: (x * 2).to("acme:1"),
}


@pytest.mark.parametrize("name", sorted(UNRECORDABLE))
@on_acme
def test_what_cannot_be_recorded_is_an_error_that_leaves_the_device_usable(world: World, name: str) -> None:
    x, pool = rand(4), world.graphs.pool(0)
    with pytest.raises(RuntimeError):
        world.graphs.record(0, lambda: UNRECORDABLE[name](x), pool)
    assert pool.checkpoint() == () and not world.native.acme_recording()
    torch.testing.assert_close((x * 2).cpu(), x.cpu() * 2)
    before = x.cpu()
    world.graphs.record(0, lambda: x.mul_(3), pool).replay(0)
    torch.testing.assert_close(x.cpu(), before * 3)


@on_acme
def test_an_error_of_the_user_s_ends_the_recording_and_comes_out(world: World) -> None:
    x, pool = rand(4), world.graphs.pool(0)

    def run() -> None:
        x.add_(1)
        raise KeyError("mine")

    before = x.cpu()
    with pytest.raises(KeyError, match="mine"):
        world.graphs.record(0, run, pool)
    torch.testing.assert_close(x.cpu(), before)
    assert pool.checkpoint() == () and not world.native.acme_recording()


@on_acme
def test_a_recording_whose_error_was_caught_inside_is_void(world: World) -> None:
    x = rand(4)

    def run() -> None:
        try:
            x.sum().item()
        except RuntimeError:
            x.add_(1)

    with pytest.raises(RuntimeError, match="_local_scalar_dense cannot be recorded"):
        world.graphs.record(0, run)


@on_acme
def test_recordings_do_not_nest_and_pools_are_of_their_device(world: World) -> None:
    with pytest.raises(TurretError, match="records already"):
        world.graphs.record(0, lambda: world.graphs.record(0, lambda: None))
    done = world.graphs.record(0, lambda: None)
    with pytest.raises(RuntimeError, match="a replay cannot be recorded"):
        world.graphs.record(0, lambda: done.replay(0))
    with pytest.raises(TurretError, match="no pool of acme:1"):
        world.graphs.record(1, lambda: None, world.graphs.pool(0))


@on_acme
def test_memory_that_is_gone_is_an_illegal_access_of_a_replay(world: World) -> None:
    x = rand(4)
    recording = world.graphs.record(0, lambda: x * 2)
    (node,) = recording.nodes
    recording.patch([Patch(0, 0, 64)])
    with pytest.raises(RuntimeError, match=r"illegal memory access: aten::mul.* was handed 0x40"):
        recording.replay(0)
    recording.patch([Patch(0, 0, x.data_ptr())])
    recording.replay(0)
    for bad in (Patch(0, len(node.arguments), 1), Patch(0, -8, 1)):
        with pytest.raises(TurretError, match="lies outside of the node's 24 bytes"):
            recording.patch([bad])


@on_acme
def test_other_threads_run_while_one_records(world: World) -> None:
    import threading

    x, found = rand(4), []

    def run() -> Any:
        thread = threading.Thread(target=lambda: found.append((x * 2).cpu()))
        thread.start()
        thread.join()
        return x + 1

    recording = world.graphs.record(0, run)
    assert len(recording.nodes) == 1
    torch.testing.assert_close(found[0], x.cpu() * 2)


def steps(names: list[str]) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """A program of random steps over a square matrix; every value that it keeps is a result."""
    table: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "mm": lambda a, b: a @ b / 4,
        "add": lambda a, b: a + b,
        "view": lambda a, b: a.t(),
        "in_place": lambda a, b: a.clone().mul_(b),
        "softmax": lambda a, b: torch.softmax(a, -1),
        "sort": lambda a, b: a.sort(0)[0],
        "rows": lambda a, b: a[b[:, 0].argsort()],
        "clear": lambda a, b: torch.zeros_like(a).add_(b),
    }

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        values = [x, x.cos()]
        for name in names:
            values.append(table[name](values[-1], values[-2]))
            if len(values) > 4:
                values.pop(0)  # its memory is the next one's
        return values

    return program


NAMES = ("mm", "add", "view", "in_place", "softmax", "sort", "rows", "clear")


@on_acme
@given(names=st.lists(st.sampled_from(NAMES), max_size=12), seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3))
@example(names=[], seeds=[0, 0])
@settings(max_examples=30)
def test_a_random_program_s_replays_are_eager_s(world: World, names: list[str], seeds: list[int]) -> None:
    program, x, made = steps(names), rand(4, 4), []
    recording = world.graphs.record(0, lambda: made.extend(program(x)))
    for seed in itertools.chain(seeds, seeds):
        x.copy_(torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)))
        recording.replay(0)
        for found, expected in zip(made, program(x.cpu()), strict=True):
            torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("name", [check.__name__ for check in GRAPH_CHECKS])
@on_acme
def test_the_checks_for_gpus_hold(world: World, name: str) -> None:
    (check,) = [check for check in GRAPH_CHECKS if check.__name__ == name]
    print("\n".join(check(Place(world.graphs, torch.device("acme", 0), scale=8, plugins=(world.plugin,)))))


@on_acme
def test_sequences_for_gpus_give_what_eager_gives(world: World) -> None:
    place = Place(world.graphs, torch.device("acme", 0), scale=8, plugins=(world.plugin,))
    told = play(place, 24, seed=100)
    print("\n".join(told.lines(24)))
    for happened in ("backwards", "overwritten", "marks", "in threads", "failed before", "failed inside"):
        assert told.games[happened], happened
    assert all(told.graphs[outputs]["replays"] > 9 for outputs in ("fresh", "pool", "legacy"))
    assert told.graphs["pool"]["siblings because of what lives"] and told.graphs["fresh"]["re-recordings"]


@on_acme
def test_the_benchmark_of_replays_measures_patched_and_copied_ones(world: World) -> None:
    found = graph_replay.measured(world.graphs, torch.device("acme", 0), 12, 0, lambda: None)
    assert len(found) == 4 and all(us > 0 for us in found.values())


@on_acme
def test_the_benchmark_of_chains_measures_one_recording_for_all_sizes(world: World) -> None:
    device, given = torch.device("acme", 0), (world.plugin,)
    plain, *_, replayed = kernel_chains.measured(1, device, given, calls=2, rounds=1)
    assert (plain.graphs, plain.sizes, plain.recordings) == (False, "static", 0) and plain.microseconds > 0
    assert (replayed.graphs, replayed.sizes, replayed.recordings) == (True, "changing", 1) and replayed.nodes
