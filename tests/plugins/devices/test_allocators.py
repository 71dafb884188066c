"""Memory of a call: the layout asked for, on the device asked for, whichever is current."""

from __future__ import annotations

import pytest
import torch

from turret.hooks.devices import allocator


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_a_tensor_has_the_layout_and_the_dtype_asked_for(dtype: torch.dtype) -> None:
    made = allocator(torch.device("cpu"))((3, 0, 4), (1, 7, 5), dtype)
    assert (made.shape, made.stride(), made.dtype, made.device.type) == ((3, 0, 4), (1, 7, 5), dtype, "cpu")
    assert allocator(torch.device("cpu"))((), (), dtype).shape == ()


def test_devices_without_an_entry_of_their_own_go_through_the_dispatcher() -> None:
    assert allocator(torch.device("meta"))((2, 3), (3, 1), torch.float16).device.type == "meta"


def test_the_direct_way_is_taken_on_the_current_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [1]
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", lambda *_: "direct", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    monkeypatch.setattr(torch, "empty_strided", lambda *_, dtype, device: device)
    empty = allocator(torch.device("cuda", 1))
    assert empty((2,), (1,), torch.float32) == "direct"
    current[0] = 0
    assert empty((2,), (1,), torch.float32) == torch.device("cuda", 1)
