"""Fake tensors: running ops on them as eager would, and remembering what came out."""
