"""How products are written as text."""
