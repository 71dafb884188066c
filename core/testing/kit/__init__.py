"""Conformance runs: what is under test, items by level, workers, shrinking, reports."""
