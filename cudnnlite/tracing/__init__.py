"""What a block of Python asks of cuDNN, written down call by call, and as a program in C."""
