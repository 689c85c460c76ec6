"""The calls of cuDNN that a block of Python makes, as a list and as a program in C."""
