"""From a call to captured code: guards checked, frames compiled on a miss, recompiles."""
