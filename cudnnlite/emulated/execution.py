"""`cudnnBackendExecute`, emulated.

A plan has an engine and its graph; a variant pack has the address of each tensor of the graph that
is in memory, by the tensor's unique id.  Tensors between two operations are virtual: they have an
id and no address.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnnlite.devices.storage import read_values, share_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated import graph_values
from cudnnlite.emulated.backend import BackendObject, final_object
from cudnnlite.emulated.convolution_call import accumulator_dtype, convolve_batches
from cudnnlite.emulated.engines import ENGINES, kernel_of
from cudnnlite.emulated.fusion import compute_pointwise, spec_of
from cudnnlite.emulated.graph_engines import GraphFormula
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.operation_graph import GraphConvolution
from cudnnlite.emulated.precision import scale_add, to_output
from cudnnlite.emulated.registry import EmulationState, Work, bad_parameter, check_aligned, emulates
from cudnnlite.enums import DataType
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.filter import as_tensor

Array = np.ndarray[Any, Any]
Addresses = Mapping[int, int | None]  # by the unique ids of tensors
_ALIGNMENT = 16  # of every address in a variant pack


def check_variant_pack(pack: BackendObject) -> None:
    """Refuse a "VARIANT_PACK" that does not have one address for each of its tensors."""
    ids, pointers = pack.attributes["unique_ids"], pack.attributes["data_pointers"]
    if len(ids) != len(pointers) or len(set(ids)) != len(ids):
        raise bad_parameter(f"{len(ids)} unique_ids and {len(pointers)} data_pointers")


@emulates("cudnnBackendExecute")
def execute(c_call: SimpleNamespace) -> Work:
    """`cudnnBackendExecute`: compute a plan's graph over the addresses of a variant pack."""
    api: EmulationState = c_call.api
    plan = final_object(api, c_call.executionPlan, "EXECUTION_PLAN")
    pack = final_object(api, c_call.variantPack, "VARIANT_PACK")
    if plan.value("handle") != c_call.handle.value:
        raise bad_parameter("the plan was made for another handle")
    engine = plan.content  # what the plan was finalised from
    graph: GraphFormula | GraphConvolution = engine.value("operation_graph").content
    if isinstance(graph, GraphFormula):
        return _formula_work(api, graph, pack)
    problem = graph
    properties = ENGINES[engine.value("global_index")]
    workspace_bytes = plan.value("workspace_size")
    workspace = pack.value("workspace") or 0
    if workspace_bytes:
        check_aligned("the workspace", workspace, _ALIGNMENT)
    ids, pointers = pack.attributes["unique_ids"], pack.attributes["data_pointers"]
    addresses = dict(zip(ids, pointers, strict=True))
    # Addresses are checked now, and again at each launch.
    _GraphTensors(api, problem, addresses)

    def work() -> None:
        scratch = api.memory.view(workspace, workspace_bytes)
        tensors = _GraphTensors(api, problem, addresses)
        operands = {
            name: tensors.read(uid)
            for name, uid in problem.uids.items()
            if name != problem.output_name
        }
        kernel = kernel_of(problem, properties)
        is_tf32 = properties.uses_tensor_cores and problem.x.dtype == DataType.FLOAT
        api.kernels_run.add((kernel, is_tf32))  # which tests ask for
        result_uid = problem.uids[problem.output_name]
        shape = tensors.specs[result_uid].shape
        accumulator = accumulator_dtype(problem.x, problem.conv)
        for batch, result in convolve_batches(
            kernel, problem.conv, operands, shape, accumulator, scratch, is_tf32
        ):
            tensors.finish(batch, result)

    return work


def _formula_work(api: EmulationState, graph: GraphFormula, pack: BackendObject) -> Work:
    """Return the work of any other graph; addresses are checked now and at each launch."""
    ids, pointers = pack.attributes["unique_ids"], pack.attributes["data_pointers"]
    addresses = dict(zip(ids, pointers, strict=True))
    graph_values.check_addresses(graph, api, addresses)
    scalars = graph_values.numbers_of(graph, addresses)

    def work() -> None:
        api.kernels_run.add(tuple(graph.kinds))
        graph_values.compute(graph, api, addresses, scalars)

    return work


class _GraphTensors:
    """The tensors of a convolution's graph by their unique ids: specs, and views of memory."""

    def __init__(
        self, api: EmulationState, problem: GraphConvolution, addresses: Addresses
    ) -> None:
        self._problem = problem
        self.specs = _specs_of(problem)
        # The convolution's result and those of the pointwise operations; the last is in memory.
        results = [problem.uids[problem.output_name]]
        results += [operation.value("ydesc").value("unique_id") for operation in problem.pointwise]
        *virtual, self._output = results
        self._views = {
            uid: self._view(api, uid, addresses) for uid in self.specs if uid not in virtual
        }
        self._check_overlaps(addresses)

    def _check_overlaps(self, addresses: Addresses) -> None:
        """Refuse operands that overlap the output, except an addition at the same place.

        Every engine of an H200 reads a pixel of the image that it adds, and then writes the
        result's pixel to the same place.
        """
        output = self._output
        additions = {
            operation.value("bdesc").value("unique_id")
            for operation in self._problem.pointwise
            if operation.value("bdesc")
        }
        for uid in self._views:
            is_same_place = addresses[uid] == addresses[output]
            is_same = is_same_place and self.specs[uid] == self.specs[output]
            is_added_in_place = uid in additions and is_same
            if uid == output or is_added_in_place:
                continue
            tensors = [
                (as_tensor(self.specs[number]), addresses[number] or 0) for number in (uid, output)
            ]
            if share_values(*tensors[0], *tensors[1]):
                raise bad_parameter(f"operands {uid} and {output} overlap in memory")
        if self.specs[output].overlaps_itself:
            raise bad_parameter("values of the output overlap each other in memory")

    def _view(self, api: EmulationState, uid: int, addresses: Addresses) -> Bytes:
        if uid not in addresses:
            raise bad_parameter(f"the variant pack has no tensor {uid}")
        address = addresses[uid] or 0
        check_aligned(f"tensor {uid}", address, _ALIGNMENT)
        return api.memory.view(address, self.specs[uid].nbytes)

    def read(self, uid: int) -> Array:
        """Return the values of a tensor in memory."""
        return read_values(self._views[uid], self.specs[uid])

    def finish(self, batch: slice, result: Array) -> None:
        """Scale a result, run the pointwise operations on it, and write the last one's result."""
        problem = self._problem
        spec = self.specs[self._output]
        dtype = numpy_dtype(spec.dtype)
        result_uid = problem.uids[problem.output_name]
        old_values = self.read(result_uid)[batch] if problem.beta else None
        # Between operations the result keeps the accumulator's type.
        result_dtype = result.dtype if problem.pointwise else dtype
        values = scale_add(result, problem.alpha, problem.beta, old_values, result_dtype)
        values_by_uid = {result_uid: values}
        with np.errstate(all="ignore"):
            for operation in problem.pointwise:
                operands = [
                    self._operand(operation.value(name), batch, result.dtype, values_by_uid)
                    for name in ("xdesc", "bdesc")
                    if name in operation.attributes
                ]
                values = compute_pointwise(operation, *operands)
                values_by_uid[operation.value("ydesc").value("unique_id")] = values
        output = to_output(values_by_uid[self._output], dtype)
        write_values(self._views[self._output], spec, batch, output)

    def _operand(
        self,
        tensor: BackendObject,
        batch: slice,
        dtype: np.dtype[Any],
        values_by_uid: Mapping[int, Array],
    ) -> Array:
        """Return the values of a pointwise operation's operand that belong to a batch."""
        uid = tensor.value("unique_id")
        if uid in values_by_uid:
            return values_by_uid[uid]
        values = self.read(uid).astype(dtype)
        return values[batch] if values.shape[0] > 1 else values


def _specs_of(problem: GraphConvolution) -> dict[int, TensorSpec]:
    """Return the specs of all tensors of a graph, by their unique ids."""
    # In the order of `uids`.
    convolution_specs = (problem.x, problem.w.tensor, problem.y)
    specs = dict(zip(problem.uids.values(), convolution_specs, strict=True))
    for operation in problem.pointwise:
        for name in ("xdesc", "bdesc", "ydesc"):
            tensor = operation.value(name)
            if tensor is not None:
                specs[tensor.value("unique_id")] = spec_of(tensor)
    return specs
