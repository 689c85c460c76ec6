"""Convolutions, their gradients, and the choice among algorithms and engines that they alone have."""
