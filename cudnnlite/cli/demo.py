"""`cudnnlite demo`: find the edges in a photograph, and show how the algorithm was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import cudnnlite as dnn

# Laplacian: each pixel against its eight neighbours, summed over the three colours, for each of three output channels.
EDGE_KERNEL = np.broadcast_to(np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32), (3, 3, 3, 3))
Image = np.ndarray[Any, Any]


def load_photograph() -> Image:
    """Return the portrait of Grace Hopper that matplotlib carries (public domain): (height, width, 3) uint8."""
    from matplotlib import cbook
    from PIL import Image as PillowImage

    with PillowImage.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as photograph:
        return np.asarray(photograph.convert("RGB"))


def detect_edges(handle: dnn.Handle, photograph: Image) -> tuple[Image, dnn.AlgorithmTable, dnn.AlgorithmResult]:
    """Convolve a photograph, (height, width, 3) uint8, by the algorithm that cudnnFind ranks first.

    Returns the edges, (height, width) float32, summed over the colours in units of the input's 0 to 1; the table; the choice.
    """
    pixels = np.moveaxis(photograph, -1, 0)[np.newaxis].astype(np.float32) / 255
    x, w = handle.array(pixels), handle.array(EDGE_KERNEL)
    conv = dnn.ConvolutionSpec(padding=1, math_type=dnn.TRUE_FLOAT32)
    found = dnn.find_convolution_forward(handle, x, w, conv)
    choice = found.best(workspace_limit="256 MiB")
    y = dnn.convolution_forward(handle, x, w, conv, algorithm=choice)
    return y.numpy()[0, 0], found, choice


def save_side_by_side(path: Path, photograph: Image, edges: Image) -> None:
    """Write the photograph and, to its right, the edges (their magnitude, white at the 99th percentile) as a PNG."""
    from PIL import Image as PillowImage

    magnitude = np.abs(edges)
    grey = (magnitude / max(np.percentile(magnitude, 99), 1e-6)).clip(0, 1) * 255
    both = np.concatenate([photograph, np.repeat(grey[..., np.newaxis].astype(np.uint8), 3, axis=2)], axis=1)
    PillowImage.fromarray(both).save(path, format="PNG")
