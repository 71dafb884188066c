"""Masks of attention: what is known of them, and the forms in which the library's fast kernels take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.plugins.graph_pass.attention.known_values import KnownValues
from turret.plugins.graph_pass.attention.written import Link, fake

HIDES = -1e8
"""What scores are replaced by at least that have no weight beside others."""
FLOOR = -1e30
"""The least number in a mask: with any score it sums to itself in float32, and kernels that compute powers of two do
not make it infinite.  A row of nothing else is the mean of all values, as of the least number of a dtype in eager."""


@attrs.frozen
class KnownMask:
    """A mask whose elements are known.

    ``visible``: it hides nothing; ``causal``: each query sees the keys up to its own number; ``sees``: each query sees
    some key.
    """

    visible: bool
    causal: bool
    sees: bool


@attrs.frozen
class MaskPlan:
    """How a call of the library masks: by ``mask`` (None: not), or causally.

    ``blind``: a tensor that is true for queries that see no key at all, whose results eager makes NaN.
    """

    mask: fx.Node | None = None
    causal: bool = False
    blind: fx.Node | None = None


def known_mask(mask: torch.Tensor) -> KnownMask:
    """What there is to know of a mask: true (or 0) where a query sees a key, false (or hugely negative) where not."""
    if mask.dtype == torch.bool:
        hidden, plain = ~mask, torch.tensor(True)
    else:
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        plain = ((mask == 0) | hidden).all()
    sees = bool((~hidden).any(-1).all())
    if mask.dim() < 2 or not bool(plain):
        return KnownMask(bool(plain) and not bool(hidden.any()), False, sees)
    later = torch.ones(mask.shape[-2:], dtype=torch.bool).triu(1)
    square = mask.shape[-1] == mask.shape[-2] > 1
    return KnownMask(not bool(hidden.any()), square and bool((hidden == later).all()), sees)


class MaskMaker:
    """Makes the masks of written-out attention ones of calls; nodes are put where the graph is being written to.

    ``exact``: the library's kernel computes with masks as they are, whatever numbers they hold.
    """

    def __init__(self, graph: fx.Graph, known: KnownValues, *, exact: bool) -> None:
        self.graph, self.known, self.exact = graph, known, exact

    def plan(self, links: Sequence[Link], dtype: torch.dtype, *, trained: bool) -> MaskPlan | str:
        """How a call masks as ``links`` do, or why none can; ``trained``: its gradients have to be right, too."""
        if not links:
            return MaskPlan()
        found = self._known_whole(links)
        if found is not None and (found.visible or found.causal):
            return MaskPlan(causal=found.causal and not found.visible)
        sees = found is not None and found.sees
        finite = len(links) == 1 and self._is_finite(links[0])
        reason = self._obstacle(links, dtype, sees)
        if not reason and trained and not sees:
            # Kernels take gradients from the logarithm of a sum of exponentials, which is lost beside such numbers.
            reason = "a mask may hide all keys from a query, whose gradients no kernel has as eager has them"
        return reason or self._with_mask(links, dtype, sees, finite)

    def _with_mask(self, links: Sequence[Link], dtype: torch.dtype, sees: bool, finite: bool) -> MaskPlan:
        """The plan of a call that is given a mask; ``sees``: each query sees a key, ``finite``: as ``is_finite``."""
        if sees and len(links) == 1 and links[0].hidden is not None:
            return MaskPlan(self._visible(links[0]))
        mask = self._sum(links, dtype)
        if sees or finite:
            return MaskPlan(mask if sees else self._floored(mask, dtype, finite=True))
        hidden = self._call("eq", mask, -math.inf)
        return MaskPlan(self._floored(mask, dtype, finite=False), blind=self._call("all", hidden, -1, True))

    def _known_whole(self, links: Sequence[Link]) -> KnownMask | None:
        """What is known of all masks together; None where one of them is not known."""
        total: torch.Tensor | None = None
        for link in links:
            found = self._tensor(link)
            if found is None:
                return None
            if total is not None and (link.added is None or total.dtype == torch.bool):
                return None
            total = found if total is None else total + found
        return None if total is None else known_mask(total)

    def _tensor(self, link: Link) -> torch.Tensor | None:
        found = self.known.tensor(link.added if link.hidden is None else link.hidden, link.node)
        if found is None or link.hidden is None:
            return found
        if link.value > HIDES:
            return None
        return found if link.keeps else ~found

    def _obstacle(self, links: Sequence[Link], dtype: torch.dtype, sees: bool) -> str:
        for link in links:
            added = fake(link.added)
            if added is not None and added.dtype != dtype:
                return "a mask is of another dtype than the scores"
            if self.exact and added is not None and added.requires_grad:
                return "no kernel for the host gives gradients of a mask"
            if link.hidden is not None and link.value > HIDES:
                return "scores are replaced by a number that may have weight beside others"
            if link.hidden is not None and dtype == torch.float16 and not sees:
                return "scores that are replaced cannot be told from others by a number of float16"
        return ""

    def _is_finite(self, link: Link) -> bool:
        if link.hidden is not None:
            return math.isfinite(link.value)
        return self.known.is_finite(link.added, link.node)

    def _call(self, method: str, *args: Any) -> fx.Node:
        return self.graph.call_method(method, args)

    def _visible(self, link: Link) -> fx.Node:
        """A mask of booleans, true where a query sees a key."""
        assert link.hidden is not None
        return link.hidden if link.keeps else self._call("logical_not", link.hidden)

    def _sum(self, links: Sequence[Link], dtype: torch.dtype) -> fx.Node:
        """All masks as one that is added to scores."""
        total: fx.Node | None = None
        for link in links:
            if link.added is not None:
                total = link.added if total is None else self._call("add", total, link.added)
                continue
            assert link.hidden is not None
            hidden = self._call("logical_not", link.hidden) if link.keeps else link.hidden
            lowest = link.value if math.isinf(link.value) else FLOOR
            if total is None:
                total = self._call("to", link.hidden, dtype)
                total = self._call("mul", total, 0)
            total = self._call("masked_fill", total, hidden, lowest)
        assert total is not None
        return total

    def _floored(self, mask: fx.Node, dtype: torch.dtype, *, finite: bool) -> fx.Node:
        """A mask without numbers that a kernel cannot compute with; infinite ones stay."""
        if self.exact or dtype == torch.float16:
            return mask
        floored = self._call("clamp", mask, FLOOR)
        if finite:
            return floored
        return self._call("masked_fill", floored, self._call("eq", mask, -math.inf), -math.inf)
