"""Property tests draw the same examples in every run, so that a red build can be seen again; ``make fuzz`` explores.

``HYPOTHESIS_PROFILE=explore`` draws anew.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True, suppress_health_check=_QUIET)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
