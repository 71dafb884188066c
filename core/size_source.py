"""Where size symbols take their values from; apart from the IR, whose expressions need sympy."""

from __future__ import annotations

from typing import Literal

import attrs

from turret.codec import record


@record
@attrs.frozen
class SizeSource:
    """Where a size symbol's value comes from at run time.

    ``dimension`` d >= 0: ``input.shape[d]``; ``dimension`` None: input number ``input`` is that int itself; for
    ``kind`` ``"stride"`` or ``"offset"`` the stride of that dimension, or the storage offset.
    """

    input: int
    dimension: int | None
    kind: Literal["size", "stride", "offset"] = "size"
