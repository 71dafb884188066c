"""Triton must be there."""

import pytest

pytest.importorskip("triton", reason="Triton kernels are tested where Triton is installed")
