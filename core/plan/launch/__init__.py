"""Running the kernels of a plan on a device: launch tables, the native launcher, captured graphs."""
