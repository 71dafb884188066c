"""Audits of guard filters: on a share of the calls the guards that a filter dropped are checked all the same.

So a filter can be tried in production: the first call that it would have answered wrongly is found after ``1 / share``
such calls on average, said, and answered rightly, and the guard is kept from then on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from turret.frames.guard_tree import check_of
from turret.frames.guards import Guard, GuardCheck, GuardSet
from turret.frames.sources import Source


class GuardAudit:
    """The audits of one compiled callable.

    Args:
        share: of the calls for which all other guards hold, how many are audited, from 0 to 1.
        report: is given what to say of a guard that does not hold, once for all that look at the same.
    """

    def __init__(self, share: float, report: Callable[[str], None]) -> None:
        self.share = share
        self.report = report
        self.violated: set[tuple[Source | None, tuple[Source, ...]]] = set()
        self._draw = random.Random().random  # the program's random numbers are not Turret's to draw

    def keeps(self, guard: Guard) -> bool:
        """Whether an audit has shown that a guard is needed, whatever filters say."""
        return (guard.source, guard.others) in self.violated

    def watch(self, kept: GuardSet, check: GuardCheck, dropped: GuardSet) -> AuditedCheck:
        """A check of ``kept`` that is ``check``, and on a share of the calls one of ``dropped``."""
        return AuditedCheck(self, kept, check, dropped)

    def is_due(self) -> bool:
        """Whether this call is one of the share."""
        return self._draw() < self.share

    def violation(self, guard: Guard, message: str) -> None:
        """Keep guards that look at what ``guard`` looks at from now on, and say why."""
        known = self.keeps(guard)
        self.violated.add((guard.source, guard.others))
        if not known:
            self.report(f"a guard that a filter dropped does not hold, and is kept from now on: {message}")


class AuditedCheck:
    """The check of guards that filters kept, and now and then of those that they dropped; a ``GuardCheck``."""

    def __init__(self, audit: GuardAudit, kept: GuardSet, check: GuardCheck, dropped: GuardSet) -> None:
        self.audit = audit
        self.kept, self.check = kept, check
        self.dropped, self.others = dropped, check_of(dropped)
        self.failed_before: set[int] = set()

    def __call__(self, function: Any, /, *arguments: Any) -> bool:
        if not self.check(function, *arguments):
            return False
        if not self.audit.is_due() or self.others(function, *arguments):
            return True
        return self._keep(self.dropped.first_failing(function, arguments), function, arguments)

    def _keep(self, guard: Guard | None, function: Any, arguments: tuple[Any, ...]) -> bool:
        """Check a guard that was dropped from now on; whether the call may be answered."""
        if guard is None:
            return True
        self.audit.violation(guard, self.dropped.explain(function, arguments))
        self.failed_before = {*self.failed(), len(self.kept.guards)}
        left = tuple(g for g in self.dropped.guards if not self.audit.keeps(g))
        again = tuple(g for g in self.dropped.guards if self.audit.keeps(g))
        self.kept = GuardSet((*self.kept.guards, *again), self.kept.parameters)
        self.dropped = GuardSet(left, self.kept.parameters)
        self.check, self.others = check_of(self.kept), check_of(self.dropped)
        return False

    def failed(self) -> list[int]:
        """As of ``GuardCheck``, among the guards in ``kept``."""
        return sorted({*self.failed_before, *self.check.failed()})
