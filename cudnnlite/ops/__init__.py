"""The operations: one module for each family; arrays and specs in, one C call, arrays out."""
