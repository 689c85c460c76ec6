"""The emulated device: the half of the function table that needs a GPU, in NumPy."""
