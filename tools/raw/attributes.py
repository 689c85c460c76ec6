"""The backend's attributes by kind of descriptor, with their types, from the regular names in the headers.

The headers list the names of attributes and of types, and not which belongs to which.  The names
say it: these rules were checked against what libcudnn says of a wrong type
(`tests/graph/test_backend_attributes.py` asks the installed one).
"""

from __future__ import annotations

import re

# kinds whose attributes abbreviate their names
_PREFIXES = {
    "OPERATION_CONVOLUTION_BACKWARD_DATA": "OPERATION_CONVOLUTION_BWD_DATA",
    "OPERATION_CONVOLUTION_BACKWARD_FILTER": "OPERATION_CONVOLUTION_BWD_FILTER",
    "OPERATION_GEN_STATS": "OPERATION_GENSTATS",
    "OPERATION_BN_FINALIZE_STATISTICS": "OPERATION_BN_FINALIZE",
    "OPERATION_NORM_FORWARD": "OPERATION_NORM_FWD",
    "OPERATION_NORM_BACKWARD": "OPERATION_NORM_BWD",
}
# the first that matches a whole name; the types are members of cudnnBackendAttributeType_t
_TYPES = (
    (r".*_HANDLE", "HANDLE"),
    (r".*_JSON_REPRESENTATION", "CHAR"),
    (
        r"OPERATION_(CONVOLUTION|RESAMPLE)_.*_(ALPHA|BETA)|OPERATION_POINTWISE_ALPHA.|TENSOR_CONSTANT_VALUE",
        "FLOAT",
    ),
    (r".*_(PAD_VALUE|DROPOUT_PROBABILITY|OUTPUT_SCALE)", "FLOAT"),
    (
        r"POINTWISE_(RELU|ELU|SOFTPLUS|SWISH)_.*|RNG_(NORMAL|UNIFORM|BERNOULLI)_.*|MATMUL_PADDING_VALUE",
        "DOUBLE",
    ),
    (
        r"VARIANT_PACK_(DATA_POINTERS|WORKSPACE|OVERRIDE_SHAPES|OVERRIDE_STRIDES)|OPERATION_REDUCTION_INIT_VALUES",
        "VOID_PTR",
    ),
    (
        r".*_(SM_COUNT_TARGET|SHARED_MEMORY_LIMIT|SHARED_MEMORY_USED|DEVICE_ID)|.*_(BLOCK_SIZE|TOP_K)",
        "INT32",
    ),
    (
        r".*_IS_.*|.*_DISABLE_.*|.*_(UNFUSE_FMA|NEG_SCALE|STATS_LOG2|USE_DETERMINISTIC_ALGORITHM)",
        "BOOLEAN",
    ),
    (r".*_NAN_PROPAGATION", "NAN_PROPOGATION"),
    (r"CONVOLUTION_CONV_MODE", "CONVOLUTION_MODE"),
    (r"ENGINEHEUR_MODE", "HEUR_MODE"),
    (r"KNOB_CHOICE_KNOB_TYPE|KNOB_INFO_TYPE", "KNOB_TYPE"),
    (r"ENGINE_(NUMERICAL_NOTE|BEHAVIOR_NOTE)", r"\1"),
    (r"LAYOUT_INFO_TYPES", "LAYOUT_TYPE"),
    (r"INTERMEDIATE_INFO_DEPENDENT_ATTRIBUTES", "ATTRIB_NAME"),
    (r"REDUCTION_OPERATOR", "REDUCTION_OPERATOR_TYPE"),
    (r"RESAMPLE_PADDING_MODE", "PADDING_MODE"),
    (
        r"EXECUTION_PLAN_(CUDA_GRAPH_RETENTION)|OPERATION_(NORM_FWD_PHASE)|(RNG_DISTRIBUTION)",
        r"\1\2\3",
    ),
    (r"OPERATION_NORM_..._MODE", "NORM_MODE"),
    (r"OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE", "POINTWISE_MODE"),
    (
        r"(?:OPERATION_)?((POINTWISE|GENSTATS|BN_FINALIZE_STATS|SIGNAL|MOE_GROUPED_MATMUL|RESHAPE|RESAMPLE)_MODE)",
        r"\1",
    ),
    (r"OPERATIONGRAPH_MODE|TENSOR_REORDERING_MODE", r"\g<0>"),
    (r".*_(PREC|COMP_TYPE|DATA_TYPE|COMPUTE_TYPES?)", "DATA_TYPE"),
    (
        r".*(DESC|DESCS|DESCRIPTOR|_DEVICEPROP|_KERNEL_CACHE|_SUBGRAPH|_OPERATION_GRAPH|_EQ_BIAS)",
        "BACKEND_DESCRIPTOR",
    ),
    (
        r"ENGINE.*_(ENGINE|INTERMEDIATE_INFO|KNOB_CHOICES|RESULTS|KNOB_INFO|LAYOUT_INFO)",
        "BACKEND_DESCRIPTOR",
    ),
    (
        r"OPERATION_CONVOLUTION_.*_D?[XWY]|.*_(ENGINE_CONFIG|INTERMEDIATES)|OPERATIONGRAPH_OPS",
        "BACKEND_DESCRIPTOR",
    ),
    (r".*", "INT64"),
)
_MANY = re.compile(
    r"(?!VARIANT_PACK_OVERRIDE_S).*(DIMENSIONS|STRIDES|PADDINGS|DILATIONS|WINDOW_DIMS|REDUCTION_DIMS|_OPS|_RESULTS|_CHOICES|KNOB_INFO|LAYOUT_INFO|_NOTE"
    r"|UIDS|_IDS|POINTERS|INTERMEDIATES|DESCS|_TYPES|INDICES|PERMUTATION|ATTRIBUTES|SHAPES|_VALUES|JSON_REPRESENTATION)"
)


def attributes_of(
    kinds: list[str], numbers: dict[str, int]
) -> dict[str, dict[str, tuple[int, str, bool]]]:
    """Return of each kind of descriptor its attributes, by name in lower case and without the kind's own.

    Each with its number, its type, and whether it takes several values.
    """
    by_length = sorted(
        ((_PREFIXES.get(kind, kind) + "_", kind) for kind in kinds), key=lambda pair: -len(pair[0])
    )
    found: dict[str, dict[str, tuple[int, str, bool]]] = {kind: {} for kind in kinds}
    for name, number in numbers.items():
        prefix, kind = next(
            ((prefix, kind) for prefix, kind in by_length if name.startswith(prefix)), ("", "")
        )
        if kind:
            found[kind][name.removeprefix(prefix).lower()] = (
                number,
                _type(name),
                _MANY.fullmatch(name) is not None,
            )
    return {kind: attributes for kind, attributes in found.items() if attributes}


def _type(name: str) -> str:
    return next(
        match.expand(kind) for pattern, kind in _TYPES if (match := re.fullmatch(pattern, name))
    )
