"""All instructions: importing the families fills the table."""

from __future__ import annotations

from turret.plugins.capture.interpreter import opcodes_control
from turret.plugins.capture.interpreter.opcodes import HANDLERS

__all__ = ["HANDLERS", "opcodes_control"]
