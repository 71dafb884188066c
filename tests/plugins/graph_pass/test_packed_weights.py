"""``freezing``: weights are packed in inference, and results are eager's whatever happens to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import turret
from turret.graph.ops import packed_ops

measured = packed_ops.gains_by_packing
pytestmark = pytest.mark.skipif(not packed_ops.packs(torch.float32), reason="torch without oneDNN")


class ChannelsLast(nn.Module):
    """Images as channels-last ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last)


def network(width: int = 512) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, width), nn.GELU(), nn.Linear(width, 256, bias=False), nn.Unflatten(1, (64, 2, 2)),
        ChannelsLast(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(64, 4, 2),
    ).eval()  # fmt: skip


@pytest.fixture(autouse=True)
def gains(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What packing is measured to gain, whatever the processor: the last one holds."""
    answers = [True]
    monkeypatch.setattr(packed_ops, "gains_by_packing", lambda *sizes: answers[-1])
    return answers


def test_products_that_packing_makes_no_faster_keep_their_weights(packed, gains: list[bool]) -> None:
    gains.append(False)
    model = nn.Sequential(nn.Linear(256, 520), nn.GELU(), nn.Linear(520, 256)).eval()
    with torch.no_grad():
        check(model, compiled(model, cache=False))
    assert packed() == 0


def test_what_packing_gains_is_measured_outside_of_traces() -> None:
    with FakeTensorMode():
        assert measured(16, 32, 48, torch.float32, 1) in (True, False)
    assert measured.cache_info().currsize > 0


@pytest.fixture
def packed():
    """How many weights are packed, of those that are new to the test."""
    before = set(packed_ops._seen)
    return lambda: sum(bool(seen.packed) for number, seen in packed_ops._seen.items() if number not in before)


def compiled(model: nn.Module, **options) -> nn.Module:
    return turret.compile(model, fullgraph=True, options={"freezing": True, "on_error": "raise", **options})


def check(model: nn.Module, function: nn.Module, calls: int = 3) -> None:
    for _ in range(calls):
        x = torch.randn(128, 256)
        wanted, got = model(x), function(x)
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_products_and_convolutions_are_packed_and_writes_to_weights_noticed(packed) -> None:
    model = network()
    function = compiled(model)
    with torch.no_grad():
        check(model, function)
        assert packed() == 3
        model[0].weight.mul_(2)
        check(model, function)
        model[5].weight.data = torch.randn_like(model[5].weight)
        check(model, function)
        model.load_state_dict(network().state_dict())
        check(model, function)
        model[2].weight = nn.Parameter(torch.randn(256, 512))
        check(model, function)
        assert packed() == 3


def test_it_is_off_by_default_and_where_gradients_are_wanted(packed) -> None:
    model = network()
    plain, frozen = turret.compile(model), compiled(model)
    with torch.no_grad():
        check(model, plain)
    x = torch.randn(128, 256)
    for _ in range(3):
        model.zero_grad()
        frozen(x).square().mean().backward()
        got = model[0].weight.grad.clone()
        model.zero_grad()
        model(x).square().mean().backward()
        torch.testing.assert_close(got, model[0].weight.grad, rtol=1e-3, atol=1e-5)
    assert packed() == 0


def test_small_products_stay_as_they_are(packed) -> None:
    model = nn.Linear(16, 16).eval()
    function = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 16)
            torch.testing.assert_close(function(x), model(x))
    assert packed() == 0


@pytest.mark.parametrize(("layout", "count"), [(torch.contiguous_format, 0), (torch.channels_last, 1)])
def test_kernels_are_packed_for_channels_last_images_alone(packed, layout: torch.memory_format, count: int) -> None:
    model = nn.Conv2d(32, 32, 3, padding=1).eval()
    function = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 32, 32, 32).contiguous(memory_format=layout)
            wanted, got = model(x), function(x)
            assert got.stride() == wanted.stride()
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert packed() == count


def test_products_that_cost_more_to_ask_for_packed_stay_as_they_are(packed) -> None:
    model = nn.Linear(128, 64).eval()
    function = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(512, 128)
            torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-4)
    assert packed() == 0


def test_a_stored_graph_packs_too(packed, tmp_path) -> None:
    for _ in range(2):
        model = network()
        function = compiled(model, cache_dir=str(tmp_path))
        with torch.no_grad():
            check(model, function)
        assert packed() == 3
        del model, function


def test_torchs_name_of_the_option_is_ours() -> None:
    assert "freezing" in turret.list_options()
