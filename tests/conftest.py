"""A run of the tests depends on nothing but the tree: what was drawn and compiled in earlier runs is not read.

Property tests draw the same examples in every run, so that a red build can be seen again; ``make fuzz`` explores, and
``HYPOTHESIS_PROFILE=explore`` draws anew.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True, suppress_health_check=_QUIET)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, metavar="N", help="about one test in N, always the same ones, none slow")
    parser.addoption("--thorough", action="store_true", help="all cases of the tables that are marked `thorough`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Chooses by the name of each test, so that every folder has its share and a new test changes no other's lot.

    Of tables of many cases that each compile something (marked ``thorough``) one case in three is run, or in as many as
    the mark says, always the same ones, and property tests that are so marked draw half of their examples; ``make
    thorough`` runs all.  Tests that are named on the command line are run, whole.
    """
    portion = config.getoption("--sample")
    if portion:
        _choose(config, items, lambda i: _lot(i) % portion == 0 and not i.get_closest_marker("slow"))
    elif not config.getoption("--thorough") and not any("::" in argument for argument in config.args):
        seen: set[Any] = set()
        _choose(config, items, lambda i: _is_first(i, seen) or _lot(i) % _one_in(i) == 0)
        for test in {getattr(item, "function", None) for item in items if item.get_closest_marker("thorough")}:
            _draw_half(test)


def _lot(item: pytest.Item) -> int:
    return crc32(item.nodeid.encode())


def _one_in(item: pytest.Item) -> int:
    """Of how many cases of an item's table ``make test`` runs one."""
    mark = item.get_closest_marker("thorough")
    return 1 if mark is None else (*mark.args, 3)[0]


def _draw_half(test: Any) -> None:
    """Has a property test, if this is one, draw half of its examples."""
    whole = getattr(test, "_hypothesis_internal_use_settings", None)
    if whole is not None:
        test._hypothesis_internal_use_settings = settings(whole, max_examples=(whole.max_examples + 1) // 2)


def _is_first(item: pytest.Item, seen: set[Any]) -> bool:
    """Whether an item is the first case of its table."""
    table = getattr(item, "function", item)
    return table not in seen and not seen.add(table)


def _choose(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    chosen = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    items[:] = chosen


_MANY = 100_000
"""Objects that a full garbage collection looks at in some hundredths of a second."""
_YOUNG = 10_000
"""Objects that are made before a garbage collection looks at them: 700, Python's, cost a twentieth of all time."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Has importing, a third of whose time would be garbage collections, go without them.

    Then takes what it made out of the collector's sight, which many tests call: it stays anyway.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        gc.set_threshold(_YOUNG)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between files, does the same to what tests have left in caches, torch's and the product's, once that is much.

    Functions of one code share what was captured of it, but not with those of another test.
    """
    alike = sys.modules.get("turret.plugins.capture.store.alike")
    if alike is not None:
        alike.function_groups.forget()
    if nextitem is not None and nextitem.path != item.path and len(gc.get_objects()) > _MANY:
        gc.collect()
        gc.freeze()


_CACHE_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Gives the run an artifact cache of its own, which the workers, started with this environment, share.

    Threads of kernels sleep while they wait for one another: those of several workers are more than the processors, and
    would take a quarter of their time for watching.
    """
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        config.stash[_CACHE_FOLDER] = tempfile.mkdtemp(prefix="turret-tests-")
        os.environ["TURRET_CACHE_DIR"] = config.stash[_CACHE_FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE_FOLDER in config.stash:
        shutil.rmtree(config.stash[_CACHE_FOLDER], ignore_errors=True)


@pytest.fixture
def fresh(monkeypatch):
    """Nothing captured before, the same random numbers, and a stage that fails raises."""
    import turret
    from turret.testing.corpus.seeding import seed_generators

    monkeypatch.setenv("TURRET_ON_ERROR", "raise")
    monkeypatch.setattr("turret.plugins.capture.store.units.find", lambda *call: None)  # observers are to see graphs
    turret.reset()
    seed_generators(0)
    yield
    turret.reset()


@pytest.fixture
def torchs_settings() -> Iterator[None]:
    """Settings of torch may be switched in a test, and are afterwards what they were.

    Torch's own testing modules, once imported, let flags of libraries be set in blocks of torch's alone.
    """
    import torch

    from turret.frames.trace_modes import mode_values, restore_modes

    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        torch.use_deterministic_algorithms(False)  # what it imports, it imports once
        before = mode_values()
        yield
        restore_modes(before)


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
    """What is logged in a test, by torch's loggers, too, which pass nothing on to the root; its trace is left out."""
    keeper, root = _Keeper(), logging.getLogger()
    named = [logger for logger in root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    loggers = [root, *(logger for logger in named if not logger.propagate and logger.name != "torch.__trace")]
    for logger in loggers:
        logger.addHandler(keeper)
    yield keeper.records
    for logger in loggers:
        logger.removeHandler(keeper)
