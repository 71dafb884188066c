"""What one capture knows beside the values: facts that it relies on, what is symbolic, what tensors hold."""
