"""The emulated device: the GPU half of the function table, in NumPy.

The same C signatures, the right numbers, slow, and stricter than hardware.  Only `cudnnlite.device` imports it.
"""
