"""Record, on a GPU, which RNN algorithms cuDNN runs.

    python -m tools.record.rnn_support OUT.json

The emulated device's refusals are tested against this table.

For every combination below and every algorithm: whether inference, training and the backward passes
run ("ok"), or which C function refuses.  The math type makes no difference: 4124 combinations on an
H200 with cuDNN 9.19 did not depend on it.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.errors import CudnnError
from tools.record.support import write

CELLS = ("relu", "tanh", "lstm", "gru")
ALGORITHMS = ("STANDARD", "PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H")
BASE = {"input_size": 32, "hidden_size": 64, "batch": 4, "steps": 3}
# Of each combination: what differs from BASE.
VARIANTS = (
    {},
    {"dtype": "float64"},
    {"dtype": "float16"},
    {"dtype": "bfloat16"},
    {"num_layers": 2},
    {"num_layers": 3, "bidirectional": True},
    {"bidirectional": True},
    {"layout": "batch_major"},
    {"layout": "batch_major", "lengths": "unequal"},
    {"layout": "packed"},
    {"layout": "packed", "lengths": "unequal"},
    {"lengths": "unequal"},
    {"lengths": "short"},
    {"lengths": "given"},
    {"bias": "none"},
    {"bias": "single_input"},
    {"bias": "single_recurrent"},
    {"input_mode": "skip", "input_size": 64},
    {"projection_size": 48},
    {"projection_size": 64},
    {"clip": (-1.0, 1.0)},
    {"dropout": 0.5, "num_layers": 2},
    {"dtype": "float16", "compute_type": "float16"},
    {"input_size": 33},
    {"input_size": 1, "hidden_size": 1, "batch": 1},
    {"batch": 1},
    {"batch": 3},
    {"batch": 64},
    {"batch": 256},
    {"steps": 1},
    *(
        {"hidden_size": size}
        for size in (
            2,
            33,
            50,
            96,
            128,
            160,
            192,
            200,
            256,
            320,
            384,
            400,
            512,
            640,
            768,
            1024,
            1032,
        )
    ),
    *({"hidden_size": size} for size in (1280, 1536, 1792)),
    *({"hidden_size": size, "batch": 32} for size in (2048, 2560, 4096)),
    *(
        {"hidden_size": size, "dtype": "float16"}
        for size in (50, 96, 192, 256, 384, 512, 1024, 1032, 1536, 2048)
    ),
    *({"hidden_size": size, "bidirectional": True} for size in (128, 256, 512, 1024)),
    *({"hidden_size": size, "num_layers": 2, "batch": 64} for size in (128, 256, 512, 1024)),
)
SLOW = {"PERSIST_DYNAMIC"}  # builds a kernel each time


def lengths_of(kind, batch, steps):
    """Return the lengths of a variant."""
    unequal = tuple(sorted((1 + number % steps for number in range(batch)), reverse=True))
    return {
        None: None,
        "given": (steps,) * batch,
        "unequal": unequal,
        "short": (max(1, steps - 1),) * batch,
    }[kind]


def combinations():
    """Yield (cell, variant)."""
    for cell, variant in itertools.product(CELLS, VARIANTS):
        if cell == "lstm" or not {"projection_size", "clip"} & variant.keys():
            yield cell, variant


def input_shape(layout, lengths, batch, steps):
    """Return the shape of sequences in a layout, without the vectors."""
    if layout == "packed":
        return (sum(lengths),)
    return (batch, steps) if layout == "batch_major" else (steps, batch)


def outcome(handle, cell, variant, algorithm):
    """Return 'ok', or what failed, for inference, training and backward."""
    options = BASE | variant
    batch, steps = options.pop("batch"), options.pop("steps")
    lengths = lengths_of(options.pop("lengths", None), batch, steps)
    layout = options.pop("layout", "sequence_major")
    spec = dnn.RNNSpec(cell, **options)
    if layout == "packed" and lengths is None:
        lengths = (steps,) * batch
    dtype = numpy_dtype(parse_dtype(options.get("dtype", "float32")))
    shape = input_shape(layout, lengths, batch, steps)
    x = handle.array(np.ones((*shape, spec.input_size), dtype))
    weights = dnn.RNNWeights(handle, spec)
    state = dnn.DropoutState(handle, 1) if spec.dropout else None
    outcomes = []
    for training in (False, True):
        try:
            forward_pass = dnn.rnn_forward(
                handle,
                spec,
                weights,
                x,
                lengths=lengths,
                layout=layout,
                training=training,
                algorithm=algorithm,
                dropout_state=state,
            )
            outcomes.append("ok")
        except CudnnError as error:
            outcomes.append(f"{error.function} {error.status.name}")
    if outcomes[1] == "ok":
        try:
            dnn.rnn_backward_data(handle, forward_pass.reserve, forward_pass.y)
            dnn.rnn_backward_weights(handle, forward_pass.reserve)
            outcomes.append("ok")
        except CudnnError as error:
            outcomes.append(f"{error.function} {error.status.name}")
    return outcomes


def main() -> None:
    """Record."""
    rows = []
    with dnn.Handle("cuda") as handle:
        for cell, variant in combinations():
            for algorithm in ALGORITHMS:
                if algorithm in SLOW and (
                    cell not in ("lstm", "tanh") or variant.get("hidden_size", 64) > 512
                ):
                    continue
                rows.append([cell, variant, algorithm, outcome(handle, cell, variant, algorithm)])
        about = {
            "what": "outcomes of inference, training and backward passes, by cell, variant of the "
            "base problem, and algorithm",
            "base": BASE,
            "device": handle.device.name,
            "cudnn": handle.version,
        }
    write(sys.argv[1], rows, about=about)
    print(len(rows), "rows")


if __name__ == "__main__":
    main()
