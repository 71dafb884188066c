"""The checks of ``check.py`` as tests, for a machine with a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.gpu.cases import CASES, Case
from tests.gpu.compare import check
from tests.gpu.direct_checks import DIRECT_CHECKS
from tests.gpu.graph_checks import GRAPH_CHECKS, Place
from tests.gpu.graph_sequences import play
from tests.gpu.special import SPECIAL
from turret.hooks.devices import device_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_comes_out_as_eager_s(case: Case, dtype: torch.dtype, train: bool, dynamic: bool) -> None:
    if dtype not in case.dtypes or (train and not case.train):
        pytest.skip("not asked of this case")
    found, allowed = check(case, dtype, train, dynamic=dynamic)
    assert found <= allowed


@pytest.mark.parametrize("run", SPECIAL, ids=lambda run: run.__name__)
def test_special(run: Callable[[], None]) -> None:
    run()


@pytest.mark.parametrize("run", DIRECT_CHECKS, ids=lambda run: run.__name__)
def test_launched_calls(run: Callable[[], None]) -> None:
    run()


@pytest.mark.parametrize("run", GRAPH_CHECKS, ids=lambda run: run.__name__)
def test_recordings(run: Callable[[Place], list[str]]) -> None:
    print("\n".join(run(Place(device_for("cuda").graphs, torch.device("cuda", 0)))))


def test_any_sequence_of_recorded_calls_gives_what_eager_gives() -> None:
    print("\n".join(play(Place(device_for("cuda").graphs, torch.device("cuda", 0)), 500).lines(500)))
