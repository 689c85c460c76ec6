"""The results of a tuning as an HTML page and as JSON."""
