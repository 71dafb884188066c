"""From statements to kernels: what is inlined, which groups share a loop nest, and what waits for what."""
