"""What libcudnn exports, generated from NVIDIA's headers, and the one place where C functions are called."""
