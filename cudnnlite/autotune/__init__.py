"""Choosing algorithms by measurement, remembering what was chosen, and finding out what there is to choose for."""
