"""Operators of torch: as objects and by name, the functions behind them, and the rules that they follow."""
