"""What is known of plugins once they are registered: their order, ops that they answer for, failures of theirs."""
