"""The operations: a declaration and a function each, and the one plan that runs them."""
