"""What holds for a frame of the user's code: sources, guards and the tree they are checked by, the frame hook."""
