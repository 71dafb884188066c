"""Makes the helpers of this folder and of the C++ code generator's tests importable; Triton must be there."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "cpp")]
pytest.importorskip("triton", reason="Triton kernels are tested where Triton is installed")
