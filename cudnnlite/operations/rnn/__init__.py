"""Recurrent networks: stateful, and so by hand where `operations.operation` does not fit."""
