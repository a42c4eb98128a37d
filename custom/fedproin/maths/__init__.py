"""Pure tensor functions: the equations of the methods, and nothing else."""
