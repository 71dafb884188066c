"""Units of the frames of one ``turret.compile``, and captures kept on disk: what names their objects elsewhere."""
