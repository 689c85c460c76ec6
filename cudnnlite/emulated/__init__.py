"""The emulated device: the half of the function table that needs a GPU, in NumPy.

Every module of this folder is imported with it: emulations are found by being there.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
