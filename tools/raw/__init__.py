"""The generator of `cudnnlite._raw`: from the headers of cuDNN to tables."""
