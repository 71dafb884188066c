"""Graph capture: calls of compiled graphs recorded once and replayed; options by which users choose how."""

from __future__ import annotations

from turret.plugins.cudagraphs.options import turret_options
from turret.plugins.cudagraphs.wrap import turret_wrap_runtime

__all__ = ["turret_options", "turret_wrap_runtime"]
