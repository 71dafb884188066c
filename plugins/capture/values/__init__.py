"""What the interpreter computes with: a value for each object of the program, and the interface that they see."""
