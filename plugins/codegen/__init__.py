"""Code generators, one folder for each kind of device."""
