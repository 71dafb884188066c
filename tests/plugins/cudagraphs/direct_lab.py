"""What is said about library calls that are launched by themselves."""

from __future__ import annotations

import turret
from turret.hooks.events import Event


class Heard:
    """A plugin that notes it."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    @turret.hookimpl
    def turret_event(self, event: Event) -> None:
        if event.kind == "direct_calls":
            self.messages.append(event.message)

    def expect(self, *counts: str) -> None:
        """Each of the graphs so far has launches of so many of its calls."""
        found = [message.partition(": ")[2].partition(" library")[0] for message in self.messages]
        assert found == list(counts), self.messages
