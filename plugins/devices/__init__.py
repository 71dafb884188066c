"""The built-in devices, one module each: nothing else in Turret names their types."""
