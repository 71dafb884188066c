"""What is asked of programs and expressions: their size symbols, sums that are contractions, groups of rows."""
