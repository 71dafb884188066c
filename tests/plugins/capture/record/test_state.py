"""Modes of torch that compiled code finds, sets and leaves as eager code does."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed
from turret.torch_compat import modes


def test_the_order_of_kernels_of_attention_is_part_of_the_graph():
    order = torch._C._get_sdp_priority_order()
    kernels = [torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION]
    attention = torch.nn.attention.sdpa_kernel(kernels, set_priority=True)(
        torch.nn.functional.scaled_dot_product_attention
    )
    observed = Observed(lambda q: (attention(q, q, q), torch._C._get_sdp_priority_order()), fullgraph=True)
    query = torch.randn(1, 2, 4, 8)
    found, inside = observed(query)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(query, query, query))
    assert inside == order and torch._C._get_sdp_priority_order() == order


def test_torch_makes_up_the_order_before_the_first_capture(monkeypatch: pytest.MonkeyPatch):
    """As on a GPU: the first question which kernel a call takes sets the order, as though the program had."""
    order = modes.attention_order()
    settled = [order[-1], *order[:-1]]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "empty", lambda *size, **_: torch.zeros(size))
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *args: modes.set_attention_order(settled))
    modes._settle_attention_order.cache_clear()
    try:
        assert modes.attention_order() == settled
        modes.set_attention_order(order)
        assert modes.attention_order() == order
    finally:
        modes.set_attention_order(order)
        modes._settle_attention_order.cache_clear()
