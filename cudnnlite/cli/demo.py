"""`cudnnlite demo`: find the edges in a photograph, and show how the algorithm was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import cudnnlite as dnn
from cudnnlite.arguments import absolute_path
from cudnnlite.cli.common import (
    DeviceOption,
    chosen_device,
    failure,
    path,
    report_errors,
    report_misuse,
    say,
)

# Laplacian: each pixel against its eight neighbours, summed over the three colours, for each of
# three output channels.
EDGE_KERNEL = np.broadcast_to(
    np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32), (3, 3, 3, 3)
)


def demo(
    output: Annotated[Path, typer.Option(parser=path, help="The PNG to write.")] = Path(
        "cudnnlite-demo.png"
    ),
    device: DeviceOption = None,
) -> None:
    """Find the edges in a photograph, with the algorithm that cudnnFind ranks first."""
    with report_misuse():
        folder = absolute_path(output, "--output").parent
    if output.suffix.lower() != ".png" or not folder.is_dir():
        raise failure(f"--output {output}: a .png in a folder that exists is needed")
    try:
        from matplotlib import cbook
        from PIL import Image as Pillow
    except ImportError as error:
        raise failure(
            f"the demo needs matplotlib and Pillow, the extra 'examples' ({error})"
        ) from error
    # the portrait of Grace Hopper that matplotlib carries (public domain): (height, width, 3) uint8
    with Pillow.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as file:
        photograph = np.asarray(file.convert("RGB"))
    with report_errors(), dnn.Handle(chosen_device(device)) as handle:
        library = handle.api.library
        note = (
            "  (NumPy computes; its times are not a GPU's)"
            if handle.device.kind == "emulated"
            else ""
        )
        say(f"device     {handle.device}{note}")
        say(f"cudnnlite  {dnn.__version__}")
        say(f"cuDNN      {library.version_text}  {library.path} (found through {library.how})")
        say(
            f"photograph {photograph.shape[1]} x {photograph.shape[0]} pixels, "
            "portrait of Grace Hopper\n"
        )
        x = handle.array(np.moveaxis(photograph, -1, 0)[np.newaxis].astype(np.float32) / 255)
        w = handle.array(EDGE_KERNEL)
        conv = dnn.ConvolutionSpec(padding=1, math_type=dnn.TRUE_FLOAT32)
        table = dnn.convolution_forward.find(handle, x, w, conv)
        choice = table.best(workspace_limit="256 MiB")
        edges = dnn.convolution_forward(handle, x, w, conv, algorithm=choice).numpy()[0, 0]
        say(f"{table}\n\nchosen     {choice}")
        say(f"workspace  {handle.workspace}")
    # The magnitude of the edges is white at its 99th percentile.
    magnitude = np.abs(edges)
    white = max(np.percentile(magnitude, 99), 1e-6)
    grey = (magnitude / white).clip(0, 1) * 255
    edge_picture = np.repeat(grey[..., np.newaxis].astype(np.uint8), 3, axis=2)
    pictures = np.concatenate([photograph, edge_picture], axis=1)
    Pillow.fromarray(pictures).save(output, format="PNG")
    say(f"written    {output.resolve()}")
