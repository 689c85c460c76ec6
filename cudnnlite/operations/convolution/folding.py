"""`fold_batch_normalization`: fold a batch normalisation into the convolution before it."""

from __future__ import annotations

from math import prod
from typing import Any

from cudnnlite.arguments import real_number, refused_as
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.errors import ArgumentError
from cudnnlite.unknown import suggest_keywords


@suggest_keywords
def fold_batch_normalization(
    w: Any, bias: Any, scale: Any, shift: Any, mean: Any, var: Any, epsilon: float = 1e-5
) -> tuple[Any, Any]:
    """Fold a batch normalisation into the filter and the bias of the convolution before it.

    In inference, the convolution with this filter and bias computes what the original convolution
    and the normalisation compute together.  The arrays' own operators do it, in float32 or float64.
    No array is written to.

    Parameters
    ----------
    w : array
        The filter, ``(K, C / groups, *taps)``: an array of NumPy, CuPy, PyTorch, or another library
        with such arrays.
    bias : array or None
        The bias of the convolution, K values in any shape; None if it has none.
    scale, shift, mean, var : arrays
        The parameters of the normalisation, K values each, of the same library: y = scale *
        (x - mean) / sqrt(var + epsilon) + shift.
    epsilon : float
        The number that the normalisation adds to the variance.

    Returns
    -------
    w, bias : arrays
        Arrays of the same library, in the data type of `w`.  `bias` has the shape ``(1, K, 1,
        ...)`` that `convolution_bias_activation_forward` takes.

    Raises
    ------
    ArgumentError
        An array does not have K values or has no arithmetic, or the arrays cannot be combined.

    Examples
    --------
    >>> w, ones = np.full((2, 1, 1, 1), 3.0), np.ones(2)
    >>> scale, mean, var = 2 * ones, 5 * ones, 4 * ones
    >>> w, bias = dnn.fold_batch_normalization(w, None, scale, ones, mean, var, epsilon=0)
    >>> print(w.ravel(), bias.ravel(), bias.shape)
    [3. 3.] [-4. -4.] (1, 2, 1, 1)
    """
    epsilon = real_number(epsilon, "epsilon")
    shape = _shape(w)
    has_arithmetic = hasattr(w, "__mul__") and not isinstance(w, DeviceArray)
    if len(shape) < 2 or not has_arithmetic:
        raise ArgumentError(
            f"w of type {type(w).__name__} has no arithmetic, or no shape (K, C / groups, *taps); "
            "fold on the host, or in CuPy or PyTorch"
        )
    filters = shape[0]
    vectors = {"scale": scale, "shift": shift, "mean": mean, "var": var}
    if bias is not None:
        vectors = {"bias": bias} | vectors
    for name, array in vectors.items():
        if prod(_shape(array) or (0,)) != filters:
            raise ArgumentError(
                f"{name} has shape {_shape(array)}; "
                f"needed: {filters} values, one for each filter of w"
            )
    # Each library raises exceptions of its own.
    with refused_as(ArgumentError, "w and the others cannot be folded", Exception):
        wide = {name: _wide(array.reshape(-1)) for name, array in vectors.items()}
        factor = wide["scale"] * (wide["var"] + epsilon) ** -0.5
        folded_bias = wide["shift"] - wide["mean"] * factor
        if bias is not None:
            folded_bias = wide["shift"] + (wide["bias"] - wide["mean"]) * factor
        ones = (1,) * (len(shape) - 2)
        folded_w = _wide(w) * factor.reshape((filters, 1, *ones))
        folded_bias = folded_bias.reshape((1, filters, *ones))
        return _converted(folded_w, w.dtype), _converted(folded_bias, w.dtype)


def _shape(array: object) -> tuple[int, ...]:
    """Return the shape of an array, or an empty one for anything else."""
    shape = getattr(array, "shape", ())
    if isinstance(shape, tuple) and hasattr(array, "reshape"):
        return tuple(shape)
    return ()


def _wide(array: Any) -> Any:
    """Return an array in float32; in float64 if that is its type."""
    is_double = array.dtype.itemsize == 8
    if hasattr(array, "astype"):
        return array.astype("float64" if is_double else "float32")
    return array.double() if is_double else array.float()


def _converted(array: Any, dtype: Any) -> Any:
    """Return an array in a data type of its library."""
    if hasattr(array, "astype"):
        return array.astype(dtype)
    return array.to(dtype)
