"""``torch.istft`` in compiled code: eager's values, gradients, layouts and refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, outcome
from turret.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore:The length of signal")


@st.composite
def calls(draw):
    length = draw(st.sampled_from([8, 9, 16]))
    width = draw(st.sampled_from([length, length - 2]))
    complex_result = draw(st.booleans())
    sided = False if complex_result else draw(st.sampled_from([True, False, None]))
    options = {
        "n_fft": length, "hop_length": draw(st.sampled_from([None, 1, 3, width])), "win_length": width,
        "center": draw(st.booleans()), "normalized": draw(st.booleans()), "onesided": sided,
        "length": draw(st.sampled_from([None, 11, 60])), "return_complex": complex_result,
    }  # fmt: skip
    window = draw(st.sampled_from([None, torch.hamming_window(width), torch.hann_window(width), torch.zeros(width)]))
    channels = draw(st.sampled_from([(), (2,)]))
    frequencies = length if sided is False else length // 2 + 1
    return (*channels, frequencies, 6), window, options


@given(calls())
@settings(max_examples=30, deadline=None)
def test_signals_of_spectrograms_are_eagers(call):
    shape, window, options = call
    torch.manual_seed(0)
    given_value = torch.randn(shape, dtype=torch.complex64)

    def program(spectrum):
        return torch.istft(spectrum, window=window, **options)

    worlds = []
    for run in (program, Observed(program, fullgraph=True)):
        spectrum = given_value.clone().requires_grad_()
        kind, found = outcome(run, (spectrum,), {})
        if kind == "returned":
            found.abs().sum().backward()
        worlds.append((kind, found, spectrum.grad))
    (expected_kind, expected, gradient), (kind, found, mine) = worlds
    assert kind == expected_kind
    if kind == "raised":
        assert isinstance(found, (RuntimeError, CaptureError)), found
        return
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine, gradient, equal_nan=True, rtol=1e-3, atol=1e-3)


def test_compiled_code_refuses_windows_that_leave_samples_out():
    fast = turret.compile(
        lambda v, w: torch.istft(v, 8, window=w), fullgraph=True, options={"on_error": "raise", "cache": False}
    )
    spectrum, window = torch.randn(5, 6, dtype=torch.complex64), torch.hann_window(8)
    torch.testing.assert_close(fast(spectrum, window), torch.istft(spectrum, 8, window=window))
    with pytest.raises(RuntimeError, match="window overlap add min"):
        fast(spectrum, torch.zeros(8))
    torch.testing.assert_close(fast(spectrum, window), torch.istft(spectrum, 8, window=window))
