"""The samples that torch's own tests draw for its operators; a module of its own, for it takes seconds to import."""

from __future__ import annotations

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

__all__ = ["OpInfo", "SampleInput", "op_db"]
