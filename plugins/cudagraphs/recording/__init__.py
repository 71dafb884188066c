"""Recordings: a call recorded over its own and other memory, what has to hold for a replay, and its replay."""
