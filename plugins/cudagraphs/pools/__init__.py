"""Where recordings lie and what keeps their memory: fresh outputs, or trees of recordings in a shared pool."""
