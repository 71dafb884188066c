"""The dispatch modes that a plan runs under."""

from __future__ import annotations

import functools
from typing import Any

from turret.torch_compat.dispatch import AutoDispatchBelowAutograd, DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard
from turret.torch_compat.modes import is_any_autocast_enabled

_keys = DispatchKeySet(DispatchKey.AutogradFunctionality)
for _name, _key in DispatchKey.__members__.items():
    if _name in ("AutogradOther", "AutogradNestedTensor") or _name.startswith("Autocast"):
        _keys = _keys | DispatchKeySet(_key)

_below_both = functools.partial(ExcludeDispatchKeyGuard, _keys)


def below_autograd() -> Any:
    """A context in which ops record nothing for autograd and cast nothing: a plan's graph has every cast already.

    The guard of the two together is the slower one, so it is taken only where a caller has autocast on.
    """
    return _below_both() if is_any_autocast_enabled() else AutoDispatchBelowAutograd()
