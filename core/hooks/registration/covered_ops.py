"""Operators that a plugin covers: its ``cache_key`` says all about them that a compiled graph depends on.

The code of an operator that was registered by ``torch.library.Library.impl`` cannot be looked at, so a graph that calls
one is compiled in every process.  A plugin that has a ``cache_key`` and names ``namespaces`` of its own answers for the
operators in them: the key changes whenever a kernel, a formula or a fake implementation does, and fake implementations
tell the truth.  Operators belong to the process, so this holds for all of it as soon as the plugin is registered.
"""

from __future__ import annotations

from typing import Any

import pluggy

from turret.errors import PluginError

_TAKEN = frozenset({"aten", "prim", "prims", "turret", "higher_order"})
_covered: dict[str, dict[str, str]] = {}
"""By namespace and by plugin, the plugin's key."""


def register_namespaces(manager: pluggy.PluginManager) -> None:
    """Note the namespaces that plugins of a manager answer for; ``PluginError`` for one that is none of theirs."""
    for plugin in manager.get_plugins():
        namespaces = getattr(plugin, "namespaces", ())
        key = getattr(plugin, "cache_key", None)
        if not namespaces or key is None:
            continue
        name = str(manager.get_name(plugin))
        if not _is_list(namespaces) or any(not isinstance(n, str) or n in _TAKEN for n in namespaces):
            raise PluginError(
                f"plugin {name!r} has the namespaces {namespaces!r}; expected a list of names, each the namespace of "
                "operators of its own"
            )
        for namespace in namespaces:
            _covered.setdefault(namespace, {})[name] = str(key)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset))


def cover(namespace: str) -> str:
    """What plugins say of the operators of a namespace, for keys; empty where none does."""
    found = _covered.get(namespace)
    return repr(sorted(found.items())) if found else ""
