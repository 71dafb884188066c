"""What the interpreter answers for instead of following it: builtins, torch's functions, libraries."""
