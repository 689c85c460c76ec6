"""Other libraries: those that are installed have to work, and only absent ones are skipped."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from typing import Any

import pytest

os.environ.setdefault(
    "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
)  # JAX would take three quarters of the GPU's memory

# For tests that have nothing to do on the emulated device: CuPy, JAX on a GPU and Numba use CUDA's
# memory only.
cuda_only = pytest.mark.parametrize(
    "device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True
)


def library(name: str) -> Any:
    """Import a library, or skip the test if it is not installed.

    A library that is installed and cannot be imported is a failure.
    """
    try:
        is_installed = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        is_installed = False
    if not is_installed:
        pytest.skip(f"{name} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says of itself while it is imported is not ours
        return importlib.import_module(name)
