"""What cuDNN computes wrongly, as data: which versions, which operations or engines, what was seen.

The library reports success, so a graph with a fault is refused before the library is asked, and an
engine with a fault is passed over.  `tests/device/test_faults.py` runs each fault's graphs with all
rules off, in processes that may die, and compares the outcome with `Fault.seen`.
All were seen on an H100 or an H200, compute capability 9.0, and are taken to hold on other GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import NamedTuple

from cudnnlite._raw.library import format_version, version_number
from cudnnlite.graph import (
    attention_faults,
    chain_faults,
    engine_faults,
    layer_faults,
    operand_strides,
    operand_types,
)
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.exclusions import ATTENTION, Exclusion, user_exclusions
from cudnnlite.graph.questions import is_attention

_ALL_BUT_BUILT_IN = range(1, 1000)  # engine 0 has its epilogues built in
RIGHT, NOT_SERVED = "right", "not served"


class Fault(NamedTuple):
    """What cuDNN computes wrongly.

    Attributes
    ----------
    name : str
        A name of its own.
    operation : str
        The operation of the graphs that may have it, or "attention"; empty for all.
    why : callable
        Returns the reason why a graph has it, for messages, or None.
    seen : mapping of str to str
        By cuDNN's version, what `tests/device/fault_examples.py` did: "right", or instead "wrong"
        numbers, "fails" with an error of cuDNN, the "context" is lost, the "process" ends, or no
        engine is named: "not served".  Then the graph stays refused, as an engine that a later
        version names may be wrong.
    engines : container of int, optional
        The engines that have it, by their numbers, which are passed over.  If it is None all have
        it, and the graph is refused.
    """

    name: str
    operation: str
    why: Callable[[GraphData], str | None]
    seen: Mapping[str, str]
    engines: Container[int] | None = None

    def is_in(self, version: int) -> bool:
        """Whether a version of cuDNN has the fault, or may have it.

        It may if nobody tried it, and a tried version before or behind it has the fault.
        """
        tried = {version_number(text): outcome for text, outcome in self.seen.items()}
        if version in tried:
            return tried[version] != RIGHT
        before = max((number for number in tried if number < version), default=None)
        behind = min((number for number in tried if number > version), default=None)
        return any(tried[number] != RIGHT for number in (before, behind) if number is not None)

    def reason(self, graph: GraphData, version: int) -> str | None:
        """Return why a graph has the fault with a version of cuDNN, or None."""
        why = self.why(graph)
        if why is None or not self.is_in(version):
            return None
        if version in map(version_number, self.seen):
            return why
        seen = " and ".join(
            text for text, outcome in self.seen.items() if outcome not in (RIGHT, NOT_SERVED)
        )
        return f"{why} (seen with cuDNN {seen}; nobody tried {format_version(version)})"


def _both(outcome: str) -> dict[str, str]:
    return {"9.19.0": outcome, "9.28.0": outcome}


# A message is that of the first row that a graph has.
FAULTS: tuple[Fault, ...] = (
    # ---- pooling and normalisations
    Fault(
        "indices",
        "RESAMPLE_FWD",
        layer_faults.why_no_indices,
        {"9.19.0": "wrong", "9.28.0": NOT_SERVED},
    ),
    Fault(
        "gradient of maxima, channels last",
        "RESAMPLE_BWD",
        layer_faults.why_gradient_of_maxima_ends_the_process,
        {"9.19.0": "process", "9.28.0": NOT_SERVED},
    ),
    Fault(
        "gradient of maxima, strides of dx",
        "RESAMPLE_BWD",
        layer_faults.why_gradient_of_maxima_is_misplaced,
        _both("wrong"),
    ),
    Fault(
        "gradient of maxima, gaps",
        "RESAMPLE_BWD",
        layer_faults.why_gradient_of_maxima_reads_gaps,
        _both("wrong"),
    ),
    Fault(
        "pooling of bfloat16",
        "RESAMPLE_FWD",
        layer_faults.why_bfloat16_is_pooled_wrongly,
        _both("wrong"),
    ),
    Fault(
        "averages over padding",
        "",
        layer_faults.why_averages_over_padding_are_wrong,
        {"9.19.0": "wrong", "9.28.0": "fails"},
    ),
    Fault(
        "parameters of a normalisation",
        "",
        layer_faults.why_normalization_is_wrong,
        _both("wrong"),
    ),
    # ---- pointwise operations
    Fault(
        "gradient behind a normalisation",
        "NORM_FORWARD",
        chain_faults.why_gradient_behind_normalization_ends_the_process,
        {"9.19.0": "process", "9.28.0": NOT_SERVED},
    ),
    Fault(
        "sum behind a convolution",
        "CONVOLUTION_FORWARD",
        chain_faults.why_sum_behind_convolution_is_wrong,
        _both("fails"),
    ),
    Fault("slope of ReLU", "POINTWISE", chain_faults.why_a_relu_is_wrong, _both("wrong")),
    Fault(
        "shape behind a convolution",
        "CONVOLUTION_FORWARD",
        chain_faults.why_a_shape_behind_convolution_is_wrong,
        _both("context"),
    ),
    Fault(
        "shape of a pointwise operand",
        "POINTWISE",
        chain_faults.why_a_shape_alone_is_wrong,
        _both("wrong"),
    ),
    # ---- attention
    Fault(
        "outputs within attention",
        ATTENTION,
        attention_faults.why_outputs_are_unwritten,
        _both("wrong"),
    ),
    # ---- all
    Fault("data types", "", operand_types.why_types_are_wrong, _both("wrong")),
    # ---- attention
    Fault("no softmax", ATTENTION, attention_faults.why_no_softmax, _both("wrong")),
    Fault(
        "heads with gaps",
        ATTENTION,
        attention_faults.why_heads_are_not_packed,
        _both("process"),
    ),
    Fault(
        "strides between vectors",
        ATTENTION,
        attention_faults.why_a_stride_is_wrong,
        _both("context"),
    ),
    Fault(
        "missing subtractions",
        ATTENTION,
        attention_faults.why_subtractions_are_missing,
        _both("process"),
    ),
    Fault(
        "lengths with gaps",
        ATTENTION,
        attention_faults.why_lengths_are_not_packed,
        _both("context"),
    ),
    Fault(
        "heads of a single query",
        ATTENTION,
        attention_faults.why_heads_of_one_query_are_wrong,
        _both("wrong"),
    ),
    Fault(
        "bias that steps share",
        ATTENTION,
        attention_faults.why_shared_bias_is_wrong,
        _both("wrong"),
    ),
    Fault("masks", ATTENTION, attention_faults.why_a_mask_is_wrong, _both("wrong")),
    Fault("attention in float32", ATTENTION, attention_faults.why_float32_is_wrong, _both("wrong")),
    Fault("keys beside a bias", ATTENTION, attention_faults.why_keys_are_wrong, _both("wrong")),
    # ---- strides
    Fault("matrices", "MATMUL", operand_strides.why_matrices_are_wrong, _both("wrong")),
    Fault("pixels", "POINTWISE", operand_strides.why_pixels_are_wrong, _both("wrong")),
    Fault(
        "rows behind a normalisation",
        "NORM_FORWARD",
        operand_strides.why_rows_are_wrong,
        {"9.19.0": "context"},
    ),
    Fault(
        "gaps behind a convolution",
        "CONVOLUTION_FORWARD",
        operand_strides.why_gaps_behind_convolution_are_read,
        _both("wrong"),
    ),
    # ---- engines
    Fault(
        "variance of rows",
        "NORM_FORWARD",
        engine_faults.why_variance_is_wrong,
        {"9.19.0": RIGHT, "9.28.0": "wrong"},
        frozenset({3, 4, 5, 6}),
    ),
    Fault(
        "default stream",
        "NORM_BACKWARD",
        engine_faults.why_stream_is_ignored,
        {"9.19.0": "wrong", "9.28.0": RIGHT},
        frozenset({0}),
    ),
    Fault(
        "float32 to a narrow result",
        "MATMUL",
        engine_faults.why_float32_is_not_narrowed,
        {"9.19.0": "wrong", "9.28.0": NOT_SERVED},
        frozenset({0}),
    ),
    Fault(
        "clips behind a product",
        "MATMUL",
        engine_faults.why_clips_are_ignored,
        _both("wrong"),
        frozenset({0}),
    ),
    Fault(
        "one bias for all matrices",
        "MATMUL",
        engine_faults.why_one_bias_is_taken_for_all,
        {"9.19.0": "wrong", "9.28.0": RIGHT},
        frozenset({0}),
    ),
    Fault(
        "result of one column",
        "MATMUL",
        engine_faults.why_a_column_is_not_written,
        _both("wrong"),
        frozenset({4}),
    ),
    Fault(
        "misaligned rows",
        "MATMUL",
        engine_faults.why_rows_are_misaligned,
        _both("wrong"),
        frozenset({2}),
    ),
    Fault(
        "tanh behind a convolution",
        "CONVOLUTION_FORWARD",
        engine_faults.why_tanh_is_wrong,
        _both("wrong"),
        frozenset({0}),
    ),
    Fault(
        "gradient behind a convolution",
        "CONVOLUTION_FORWARD",
        engine_faults.why_gradients_of_activations_are_wrong,
        {"9.19.0": "wrong", "9.28.0": RIGHT},
        frozenset({8}),
    ),
    Fault(
        "images behind a convolution",
        "CONVOLUTION_FORWARD",
        operand_strides.why_images_are_wrong,
        _both("wrong"),
        _ALL_BUT_BUILT_IN,
    ),
    Fault(
        "uneven padding",
        "CONVOLUTION_FORWARD",
        engine_faults.why_uneven_padding_is_wrong,
        _both("wrong"),
        frozenset({5}),
    ),
    Fault(
        "uneven padding, dx",
        "CONVOLUTION_BACKWARD_DATA",
        engine_faults.why_uneven_padding_is_wrong,
        _both("wrong"),
        frozenset({6, 50}),
    ),
    Fault(
        "uneven padding, dw",
        "CONVOLUTION_BACKWARD_FILTER",
        engine_faults.why_uneven_padding_is_wrong,
        _both("wrong"),
        frozenset({1, 16, 18, 20}),
    ),
    Fault(
        "gradient of one axis",
        "CONVOLUTION_BACKWARD_FILTER",
        engine_faults.why_lines_are_wrong,
        _both("wrong"),
        frozenset({4}),
    ),
    Fault(
        "unwritten scratch",
        "CONVOLUTION_FORWARD",
        engine_faults.why_scratch_is_read_unwritten,
        _both("wrong"),
        frozenset({72}),
    ),
    Fault(
        "unwritten scratch, dx",
        "CONVOLUTION_BACKWARD_DATA",
        engine_faults.why_scratch_is_read_unwritten,
        _both("wrong"),
        frozenset({78}),
    ),
    Fault(
        "unwritten scratch, dw",
        "CONVOLUTION_BACKWARD_FILTER",
        engine_faults.why_scratch_is_read_unwritten,
        _both("wrong"),
        frozenset({70}),
    ),
    Fault(
        "alpha of dw",
        "CONVOLUTION_BACKWARD_FILTER",
        engine_faults.why_alpha_comes_too_late,
        _both("wrong"),
        frozenset({37, 39}),
    ),
)


def why_wrong(graph: GraphData, version: int) -> str | None:
    """Return why every engine of a version would compute a graph wrongly, or None.

    So may the user's file say.
    """
    return _first_reason((rule for rule in _rules() if rule.engines is None), graph, version)


def why_engine_is_wrong(engine: int, graph: GraphData, version: int) -> str | None:
    """Return why an engine of a version of cuDNN would compute a graph wrongly, or None.

    So may the user's file say.
    """
    known = (rule for rule in _rules() if rule.engines is not None and engine in rule.engines)
    return _first_reason(known, graph, version)


def _rules() -> Iterator[Fault | Exclusion]:
    yield from FAULTS
    yield from user_exclusions()


def _first_reason(rules: Iterator[Fault | Exclusion], graph: GraphData, version: int) -> str | None:
    kinds = {node.kind for node in graph.nodes}
    operations = {ATTENTION} if is_attention(graph) else kinds
    for rule in rules:
        # A row of the table about products alone is not one about attention; a user's is.
        meant = operations if isinstance(rule, Fault) else operations | kinds
        if not rule.operation or rule.operation in meant:
            reason = rule.reason(graph, version)
            if reason is not None:
                return reason
    return None
