"""libcudnn's exports, generated from NVIDIA's headers, and the calls of C functions."""
