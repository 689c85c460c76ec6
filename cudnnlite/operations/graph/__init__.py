"""Operation graphs, and one-line operations on them."""
