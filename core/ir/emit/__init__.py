"""What code generators share: expressions, blocks and statements as text."""
