"""GPUs that are absent: cuDNN plans for them in a process without a driver."""
