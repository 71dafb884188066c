"""From a call to captured code: units, their guards, recompiles, failures."""
