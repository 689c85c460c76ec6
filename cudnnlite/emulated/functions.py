"""`IMPLEMENTATIONS`: the C functions that the emulated device serves, and their emulations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cudnnlite.emulated import (
    activation,
    attention,
    backend,
    batch_normalization,
    convolution,
    convolution_backward,
    convolution_bias,
    ctc,
    dropout,
    execution,
    finalization,
    fused_convolution,
    handles,
    im2col,
    lrn,
    pointwise,
    pooling,
    rnn,
    rnn_layout,
    softmax,
    spatial_transformer,
    transform,
)
from cudnnlite.emulated.operation_call import OperationEmulation, call_operation
from cudnnlite.emulated.registry import Emulation, Implementation
from cudnnlite.problems.operation import Operation

# Emulations of declared operations, in NumPy alone.
OPERATION_EMULATIONS: tuple[OperationEmulation, ...] = (
    activation.forward,
    activation.backward,
    batch_normalization.inference,
    batch_normalization.training,
    batch_normalization.training_relu,
    batch_normalization.training_of_batch,
    batch_normalization.training_of_batch_relu,
    batch_normalization.training_of_batch_add_relu,
    batch_normalization.training_add_relu,
    batch_normalization.backward,
    batch_normalization.backward_relu,
    batch_normalization.backward_add_relu,
    convolution_bias.backward,
    dropout.forward,
    dropout.backward,
    im2col.im2col,
    lrn.forward,
    lrn.backward,
    lrn.divisive,
    lrn.divisive_around,
    lrn.divisive_backward,
    lrn.divisive_around_backward,
    pointwise.add,
    pointwise.scale,
    pointwise.fill,
    pointwise.combine,
    pointwise.reduce,
    pointwise.reduce_with_indices,
    pooling.forward,
    pooling.backward,
    softmax.forward,
    softmax.backward,
    spatial_transformer.grid,
    spatial_transformer.grid_backward,
    spatial_transformer.sample,
    spatial_transformer.sample_backward,
    transform.copy,
    transform.extend,
    transform.extend_filter,
)
# Emulations of C functions that read their arguments by hand.
EMULATIONS: tuple[Emulation, ...] = (
    attention.buffers,
    attention.weight,
    attention.forward,
    attention.backward_data,
    attention.backward_weights,
    backend.create,
    backend.destroy,
    backend.initialize,
    backend.set_attribute,
    backend.get_attribute,
    batch_normalization.reserve_size,
    convolution.forward,
    convolution.workspace_size,
    convolution.max_count,
    convolution.heuristic,
    convolution.search,
    convolution_backward.data_gradient,
    convolution_backward.data_workspace_size,
    convolution_backward.data_max_count,
    convolution_backward.data_heuristic,
    convolution_backward.data_search,
    convolution_backward.filter_gradient,
    convolution_backward.filter_workspace_size,
    convolution_backward.filter_max_count,
    convolution_backward.filter_heuristic,
    convolution_backward.filter_search,
    ctc.workspace_size,
    ctc.workspace_size_v8,
    ctc.loss,
    ctc.loss_v8,
    dropout.states_size,
    dropout.set_descriptor,
    dropout.restore_descriptor,
    dropout.get_descriptor,
    dropout.destroy,
    execution.execute,
    finalization.finalize,
    fused_convolution.forward,
    handles.create,
    handles.destroy,
    handles.set_stream,
    handles.get_stream,
    rnn.set_descriptor,
    rnn.destroy,
    rnn.build_dynamic,
    rnn.temp_space_sizes,
    rnn.forward,
    rnn.backward_data,
    rnn.backward_weights,
    rnn_layout.weight_space_size,
    rnn_layout.weight_params,
    spatial_transformer.set_descriptor,
    spatial_transformer.destroy,
    transform.set_descriptor,
    transform.get_descriptor,
    transform.destroy,
)
# The emulations of operations, by declaration.
EMULATED_OPERATIONS: Mapping[Operation, OperationEmulation] = {
    emulation.operation: emulation for emulation in OPERATION_EMULATIONS
}


def _operations_by_function() -> dict[str, dict[Operation, Implementation]]:
    """Return what serves each C function of the declared operations, by declaration."""
    table: dict[str, dict[Operation, Implementation]] = {}
    for operation, emulation in EMULATED_OPERATIONS.items():
        table.setdefault(operation.function, {})[operation] = emulation.run
        if operation.workspace:
            entries = table.setdefault(operation.workspace, {})
            entries[operation] = emulation.write_workspace_size
    return table


IMPLEMENTATIONS: dict[str, Implementation] = {
    **{emulation.function: emulation.implementation for emulation in EMULATIONS},
    **{
        function: partial(call_operation, operations)
        for function, operations in _operations_by_function().items()
    },
}
