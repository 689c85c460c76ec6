"""Choose algorithms by measurement, save the choices, and list the problems of a model."""
