"""Graph capture: calls of compiled graphs recorded once and replayed; options by which users choose how."""

from __future__ import annotations

from turret.plugins.cudagraphs.options import turret_options

__all__ = ["turret_options"]
