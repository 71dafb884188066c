"""Plans: what runs of a compiled graph, as data; how it is made of a schedule, and how it runs."""

from turret.plan.plan import (
    SCRATCH_ALIGNMENT,
    Allocate,
    Call,
    Compute,
    Copy,
    Free,
    Launch,
    Plan,
    Section,
    SizeRef,
    SizeText,
    Slot,
    SlotRef,
    Step,
    View,
    size_text,
)

__all__ = [
    "SCRATCH_ALIGNMENT",
    "Allocate",
    "Call",
    "Compute",
    "Copy",
    "Free",
    "Launch",
    "Plan",
    "Section",
    "SizeRef",
    "SizeText",
    "Slot",
    "SlotRef",
    "Step",
    "View",
    "size_text",
]
