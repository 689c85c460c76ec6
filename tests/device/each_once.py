"""Every operation once, by name: what `compute-sanitizer` is run over.

    export PYTHONPATH=.
    compute-sanitizer --tool initcheck python tests/device/each_once.py cuda > findings.txt
    python tests/device/each_once.py --count findings.txt

The last line counts the findings by operation and kernel.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import cudnnlite as dnn


def calls(handle: dnn.Handle) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what each operation's sample does, and by hand those that are no data."""
    from device.operation_samples import SAMPLES, Case

    for name in SAMPLES:
        yield name, Case(handle, name).call
    rng = np.random.default_rng(0)

    def random(*shape: int, dtype: str = "float32") -> dnn.DeviceArray:
        return handle.array(rng.standard_normal(shape), dtype=dtype)

    x, w = random(2, 8, 14, 13), random(6, 8, 3, 3)
    for conv in (dnn.ConvolutionSpec(1), dnn.ConvolutionSpec(1, math_type="fma")):
        for row in dnn.convolution_forward.heuristic(handle, x, w, conv):
            if row.ok:
                yield (
                    f"convolution_forward {row.algorithm}",
                    lambda conv=conv, row=row: dnn.convolution_forward(
                        handle, x, w, conv, algorithm=row
                    ),
                )
    yield "transform_filter", lambda: dnn.transform_filter(handle, w, layout="NHWC")
    state = dnn.DropoutState(handle, 3)

    def dropout() -> None:
        y, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
        dnn.dropout_backward(handle, y, 0.5, reserve, dropout_state=state)

    yield "dropout", dropout
    logits = random(5, 2, 4)
    for algorithm in ("deterministic", "non_deterministic"):
        yield (
            f"ctc_loss {algorithm}",
            lambda algorithm=algorithm: dnn.ctc_loss(
                handle, logits, [1, 2, 3], [2, 1], [5, 4], algorithm=algorithm
            ),
        )
    attention = dnn.AttentionSpec(2, 8, q_proj_size=4, k_proj_size=4, v_proj_size=4, o_proj_size=8)
    projections, queries = dnn.AttentionWeights(handle, attention), random(2, 5, 8)
    for projection in projections.values():
        projection.fill(0.25)

    def attend() -> None:
        out = dnn.multi_head_attention_forward(
            handle, attention, projections, queries, queries, queries, training=True
        )
        dnn.multi_head_attention_backward_data(handle, out.reserve, queries)
        dnn.multi_head_attention_backward_weights(handle, out.reserve)

    yield "multi_head_attention", attend
    for cell in ("lstm", "gru", "tanh"):
        for lengths in ([5, 5, 5], [5, 3, 2]):
            yield (
                f"rnn {cell} {lengths}",
                lambda cell=cell, lengths=lengths: recurrent(handle, cell, lengths, random),
            )


def recurrent(
    handle: dnn.Handle, cell: str, lengths: list[int], random: Callable[..., dnn.DeviceArray]
) -> None:
    """Go forward and backward through two layers."""
    spec = dnn.RNNSpec(cell, 6, 8, num_layers=2, bidirectional=True)
    weights = dnn.RNNWeights(handle, spec)
    weights.array.copy_from(np.random.default_rng(1).standard_normal(weights.array.shape) / 4)
    out = dnn.rnn_forward(handle, spec, weights, random(5, 3, 6), lengths=lengths, training=True)
    dnn.rnn_backward_data(handle, out.reserve, random(*out.y.shape))
    dnn.rnn_backward_weights(handle, out.reserve)


def count(text: str) -> Counter[tuple[str, str, str]]:
    """Count findings by (operation, kind, kernel)."""
    findings: Counter[tuple[str, str, str]] = Counter()
    running = kind = ""
    for line in text.splitlines():
        if line.startswith("RUN "):
            running = line[4:]
        elif match := re.match(
            r"=+ ((?:Uninitialized|Invalid|Misaligned|Host API|Program hit) ?.*)", line
        ):
            kind = match[1]
        elif kind and (match := re.match(r"=+ +at (.*?)(\+0x|$)", line)):
            findings[running, kind, match[1][:100]] += 1
            kind = ""
    return findings


def main() -> None:
    """Run them on a device, or count findings."""
    if sys.argv[1] == "--count":
        for (running, kind, kernel), number in count(
            Path(sys.argv[2]).read_text(errors="replace")
        ).items():
            print(f"{number:6} {running}: {kind}, {kernel}")
        return
    with dnn.Handle(sys.argv[1]) as handle:
        for name, call in calls(handle):
            print("RUN", name, flush=True)
            try:
                call()
            except dnn.NotSupportedError as error:
                print("    refused", error.function)
            handle.synchronize()
    print("RUN end", flush=True)


if __name__ == "__main__":
    main()
