"""Capture by torch._dynamo: the bridge that gives Turret its graphs.

``turret_capture`` serves ``turret.compile``; ``backend`` is the entry point behind
``torch.compile(model, backend="turret")``.
"""

from turret.contrib.dynamo.bridge import backend, turret_capture

__all__ = ["backend", "turret_capture"]
