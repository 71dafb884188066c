"""The contracts: hooks, the products that stages hand on, options, devices, and who implements what."""
