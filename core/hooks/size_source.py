"""Where size symbols take their values from; apart from the IR, whose expressions need sympy."""

from __future__ import annotations

from typing import Literal

import attrs

from turret.storage.codec import record


@record
@attrs.frozen
class SizeSource:
    """Where a size symbol's value comes from at run time.

    ``dimension`` d >= 0: ``input.shape[d]``; ``dimension`` None: input number ``input`` is that number itself, an
    int, or for ``kind`` ``"float"`` a float; for ``kind`` ``"stride"`` or ``"offset"`` the stride of that dimension,
    or the storage offset.
    """

    input: int
    dimension: int | None
    kind: Literal["size", "stride", "offset", "float"] = "size"


@record
@attrs.frozen
class Binding:
    """A number that is known once a call has run: ``symbol`` is the size of its ``output`` in ``dimension``, or the
    output itself (``dimension`` None), an int unless ``is_float``."""

    symbol: str
    output: int
    dimension: int | None
    is_float: bool = False
