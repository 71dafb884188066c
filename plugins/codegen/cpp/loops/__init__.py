"""Loop nests of a kernel as C++."""
