"""Ops of Turret's own, which graphs call beside ATen's."""
