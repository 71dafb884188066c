"""The device "acme" for the conformance kit.

pytest --turret-plugin tests.plugins.devices.acme_kit:plugin --turret-device acme
"""

from __future__ import annotations

from tests.plugins.devices import acme_shim
from tests.plugins.devices.acme_plugin import AcmePlugin


def plugin() -> AcmePlugin:
    """A plugin on the driver of this process, whose device torch knows from here on."""
    return AcmePlugin(acme_shim.load())
