"""Captures kept on disk, and what names their objects in another process."""
