"""How candidates are measured and compared."""
