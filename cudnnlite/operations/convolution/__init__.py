"""Convolutions, their gradients, and the choice of their algorithm or engine."""
