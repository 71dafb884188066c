"""What is asked of programs and expressions: which size symbols they mention, and which sums are contractions."""
