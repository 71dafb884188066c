"""The levels of a conformance run, by name, in the order in which they are run."""

from __future__ import annotations

from turret.testing.kit.levels.cases import Cases
from turret.testing.kit.levels.faults import Faults
from turret.testing.kit.levels.kernels import Kernels
from turret.testing.kit.levels.level import Level, Settings, file_text
from turret.testing.kit.levels.models import Models
from turret.testing.kit.levels.ops import Ops
from turret.testing.kit.levels.programs import Programs

LEVELS: dict[str, Level] = {level.name: level for level in (Cases(), Ops(), Programs(), Kernels(), Models(), Faults())}

__all__ = ["LEVELS", "Level", "Settings", "file_text"]
