"""The version of cudnnlite."""

__version__ = "0.1.0"
