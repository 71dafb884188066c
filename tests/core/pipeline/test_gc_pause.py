from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

import turret
from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl
from turret.pipeline.gc_pause import full_gc_paused


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def full_collections() -> int:
    return gc.get_stats()[2]["collections"]


def make_garbage(rounds: int = 200_000) -> list:
    kept = []
    for _ in range(rounds):
        item: list = []
        item.append(item)
        kept.append(item)
    return kept


def test_no_full_collection_starts_within_and_one_does_after() -> None:
    gc.set_threshold(700, 10, 10)
    before = full_collections()
    with full_gc_paused():
        kept = make_garbage()
        assert full_collections() == before
    kept += make_garbage()
    assert full_collections() > before


def test_young_garbage_is_collected_within() -> None:
    with full_gc_paused():
        before = gc.get_stats()[0]["collections"]
        make_garbage()
        assert gc.get_stats()[0]["collections"] > before


def test_thresholds_come_back_after_the_outermost_and_after_errors() -> None:
    gc.set_threshold(600, 9, 8)
    with pytest.raises(KeyError), full_gc_paused():
        with full_gc_paused():
            pass
        assert gc.get_threshold()[2] > 8
        raise KeyError
    assert gc.get_threshold() == (600, 9, 8)


def test_thresholds_come_back_when_the_last_thread_is_done() -> None:
    gc.set_threshold(600, 9, 8)
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with full_gc_paused():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=work)
    with full_gc_paused():
        thread.start()
        assert inside.wait(10)
    assert gc.get_threshold()[2] > 8
    go_on.set()
    thread.join()
    assert gc.get_threshold() == (600, 9, 8)


def test_a_threshold_that_the_program_sets_meanwhile_stays() -> None:
    with full_gc_paused():
        gc.set_threshold(500, 5, 5)
    assert gc.get_threshold() == (500, 5, 5)


def test_every_stage_of_forward_and_backward_runs_without_full_collections() -> None:
    seen: dict[str, int] = {}

    class Watch:
        @hookimpl
        def turret_event(self, event: Event) -> None:
            if event.kind == "stage_started":
                seen[f"{event.stage} of {event.name}"] = gc.get_threshold()[2]

    before = gc.get_threshold()
    x = torch.randn(4, requires_grad=True)
    turret.compile(lambda x: x.sin().sum(), plugins=[Watch()], options={"cache": False})(x).backward()
    assert {stage.partition(" ")[0] for stage in seen} >= {"joint", "codegen"} and any("backward" in s for s in seen)
    assert min(seen.values()) > before[2]
    assert gc.get_threshold() == before
