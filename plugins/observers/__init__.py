"""Observers: plugins that are told what a compile does, and change nothing."""
