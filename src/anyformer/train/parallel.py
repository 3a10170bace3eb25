"""Distribute a run over processes: `torchrun --nproc-per-node 8 -m anyformer train RECIPE --set mesh.shard=8`.

All wrappers of a module are here and come from torch: DistributedDataParallel for copies of the model, FSDP2
[Zhao et al. 2023] for sharded parameters, DTensor for tensor parallelism (see shard.py). Losses are already
divided by the weight of the whole batch, so gradients are summed over processes, not averaged.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anyformer.kernels import hardware
from anyformer.specs.field_types import Count
from anyformer.specs.part import Part
from anyformer.stacks.stack import StackModule
from anyformer.weights import manifest

Result = TypeVar("Result")
TIMEOUT = datetime.timedelta(hours=1)  # how long processes wait for one another


class Mesh(Part, called=("DDP", "FSDP", "tensor parallel", "expert parallel", "data parallel", "ZeRO", "multi-GPU")):
    """Processes = replicate x shard x expert x tensor. There are `replicate` copies of the model (default: as many as
    fit), each with its parameters sharded over `shard` processes (FSDP2) and each layer computed by `tensor` processes.
    With `expert`, that many processes keep different experts and exchange tokens [Lepikhin et al. 2020]; the other
    parameters are sharded over shard x expert processes."""

    replicate: Count | None = None
    shard: Count = 1
    tensor: Count = 1
    expert: Count = 1

    def check(self) -> None:
        if self.tensor > 1 and self.expert > 1:
            raise ValueError("mesh.tensor splits the experts too; set mesh.tensor or mesh.expert to 1")


# -- processes --------------------------------------------------------------------------------------------------------


def start(device: str | torch.device | None = "auto") -> torch.device:
    """Join the process group if torchrun started several processes. Returns the device of this process."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    device = hardware.device(device)
    if several and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if several and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store, number, num = next(dist.rendezvous("env://", timeout=TIMEOUT))
        # torchrun's store outlives a restart: do not read what the dead processes wrote
        store = dist.PrefixStore(f"start-{restart_count()}", store)
        dist.init_process_group(backend, store=store, rank=number, world_size=num, timeout=TIMEOUT)
    return device


def end() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def process_group(device: str | torch.device | None = "auto") -> Iterator[torch.device]:
    """Call `start` and `end` around a block. Raises ConnectionError, with one line, if another process ended."""
    here = start(device)
    try:
        yield here
    except RuntimeError as error:
        lost = any(word in str(error) for word in ("gloo", "NCCL", "Connection", "connection"))
        if world_size() == 1 or not lost:
            raise
        line = str(error).splitlines()[0][:100]
        raise ConnectionError(f"process {rank()}: another process of this run ended ({line})") from None
    end()


def restart_count() -> int:
    """Return how often torchrun restarted this run after a process died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def broadcast_result(function: Callable[[], Result]) -> Result:
    """Call `function` on rank 0 and return its result, or raise its error, in all processes."""
    if world_size() == 1:
        return function()
    shared: list[Any] = [None, None]
    if rank() == 0:
        try:
            shared = [function(), None]
        except Exception as error:
            shared = [None, error]
    dist.broadcast_object_list(shared)
    if shared[1] is not None:
        raise shared[1]
    return shared[0]


def first_value(value: Result | None) -> Result | None:
    """Return the first value that is not None over all processes."""
    if world_size() == 1:
        return value
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return next((v for v in values if v is not None), None)


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """`manifest.atomic_folder` for all processes: they write to one folder, which is renamed when all are done."""
    if world_size() == 1:
        with manifest.atomic_folder(target) as folder:
            yield folder
        return
    with contextlib.ExitStack() as stack:
        folder = broadcast_result(lambda: stack.enter_context(manifest.atomic_folder(target)))
        failure: Exception | None = None
        try:
            yield folder
        except Exception as error:
            failure = error
        shared = first_value(None if failure is None else f"{type(failure).__name__}: {failure}")
        if shared is not None:
            raise failure or OSError(f"another process could not save: {shared}")
        broadcast_result(stack.close)  # all processes wait for the rename


# -- sharded tensors -------------------------------------------------------------------------------------------------


def mesh_of(tensor: Any) -> Any:
    """Return the device mesh of a sharded tensor, otherwise None; does not import torch.distributed.tensor."""
    return getattr(tensor, "device_mesh", None)


def full_tensor(tensor: Any) -> Tensor:
    """Gather a tensor that may be sharded. All processes that have a shard must call this."""
    return tensor if mesh_of(tensor) is None else tensor.full_tensor()


def local_tensor(tensor: Any) -> Tensor:
    """Return this process's shard of a tensor, in the same memory."""
    return tensor if mesh_of(tensor) is None else tensor.to_local()


def group_by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by device mesh: all tensors of a foreach call must have the same mesh."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(mesh_of(tensor), []).append(tensor)
    return list(groups.values())


# -- the layout -------------------------------------------------------------------------------------------------------


class Layout:
    """A mesh over the processes of this run. This process gets share `data_rank` of `data_size` of each batch;
    processes that compute a layer together (`tensor`) get the same share."""

    def __init__(self, mesh: Mesh, device: torch.device) -> None:
        num, inner = world_size(), mesh.shard * mesh.tensor * mesh.expert
        replicate = mesh.replicate or max(num // inner, 1)
        if replicate * inner != num:
            sizes = f"replicate={replicate}, shard={mesh.shard}, tensor={mesh.tensor}"
            sizes += f", expert={mesh.expert}" if mesh.expert > 1 else ""
            many = "one process" if num == 1 else f"{num} processes"
            raise ValueError(f"the mesh ({sizes}) needs {replicate * inner} processes; torchrun started {many}")
        self.device, self.sharded = device, inner > 1
        self.data_rank, self.data_size = rank() // mesh.tensor, num // mesh.tensor
        self.tensor, self.expert = mesh.tensor, mesh.expert
        self.partial: list[tuple[nn.Module, str]] = []  # parameters whose gradients must be summed over `tensor`
        self.statistics: list[tuple[nn.Module, str]] = []
        self.copies: Any = None  # DistributedDataParallel
        if num == 1:
            return
        columns = [list(range(first, num, mesh.tensor)) for first in range(mesh.tensor)]
        self.data_group = dist.new_subgroups_by_enumeration(columns)[0] if mesh.tensor > 1 else None  # None: all
        if self.sharded:
            logging.getLogger("torch.distributed.tensor._redistribute").setLevel(
                logging.ERROR
            )  # its advice about flattening
            names = ("replicate", "shard", "tensor")
            shape = (replicate, mesh.shard * mesh.expert, mesh.tensor)
            self.mesh = dist.device_mesh.init_device_mesh(device.type, shape, mesh_dim_names=names)
            self.data_mesh = self.mesh["replicate", "shard"] if replicate > 1 else self.mesh["shard"]
        if self.expert > 1:  # a second mesh of the same processes: each expert has replicate x shard copies or shards
            names, shape = ("replicate", "shard", "expert"), (replicate, mesh.shard, mesh.expert)
            self.expert_mesh = dist.device_mesh.init_device_mesh(device.type, shape, mesh_dim_names=names)

    def place(self, step: nn.Module) -> nn.Module:
        """Distribute `step.module` in place. Returns the module to call in training."""
        if world_size() == 1:
            return step.to(self.device)
        self.statistics = [
            (module, name)
            for module in step.modules()
            for name, value in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set and value.is_floating_point()
        ]
        if not self.sharded:
            self.copies = _data_parallel(step.to(self.device))
            return self.copies
        for address, stack in step.named_modules():
            if isinstance(stack, StackModule) and stack.part.layer_drop:
                where = f"{address.removeprefix('module.')}.layer_drop is {stack.part.layer_drop}"
                raise ValueError(f"{where}: each process would drop different layers; set it to 0, or mesh.shard=1")
        if self.tensor > 1:
            from anyformer.train.shard import split

            self.partial = split(step.module, self.mesh["tensor"])  # type: ignore[arg-type]
        if self.data_size > 1:
            _fully_shard(step, self.data_mesh, self._place_experts(step.module) if self.expert > 1 else set())  # type: ignore[arg-type]
        return step.to(self.device)

    def _place_experts(self, model: nn.Module) -> set[nn.Parameter]:
        """Distribute the experts. Returns the parameters that FSDP2 must ignore: experts that only one process has."""
        from torch.distributed.fsdp import fully_shard

        from anyformer.train.shard import spread_experts

        modules = spread_experts(model, self.expert_mesh["expert"])
        if self.expert == self.data_size:
            return {parameter for module in modules for parameter in module.parameters()}
        data = self.expert_mesh["replicate", "shard"] if self.expert_mesh.shape[0] > 1 else self.expert_mesh["shard"]
        for module in modules:
            fully_shard(module, mesh=data)
        return set()

    def sync_context(self, last: bool) -> AbstractContextManager[Any]:
        """Context for forward and backward of a micro-batch: gradients are synchronized only in the last one."""
        return self.copies.no_sync() if self.copies is not None and not last else contextlib.nullcontext()

    def sum_gradients(self) -> None:
        """After the last micro-batch, sum the gradients that DistributedDataParallel and FSDP2 do not sum."""
        for module, name in self.partial:
            gradient = getattr(module, name).grad
            if gradient is not None:
                dist.all_reduce(local_tensor(gradient), group=self.mesh.get_group("tensor"))

    def sum_over_processes(self, values: Tensor) -> Tensor:
        """Sum losses or counts over the processes; each process has a share of the batch."""
        if self.data_size > 1:
            dist.all_reduce(values, group=self.data_group)
        return values

    def count_requests(self, request: bool) -> Tensor:
        """Return how many of the processes that compute a layer together have this request."""
        total = torch.full((), float(request), device=self.device)
        if self.tensor > 1:
            dist.all_reduce(total, group=self.mesh.get_group("tensor"))
        return total

    def broadcast_statistics(self) -> None:
        """Copy the running statistics (of batch norms) of rank 0 to all processes, after each step."""
        for module, name in self.statistics:
            dist.broadcast(getattr(module, name), 0)

    def like(self, module: nn.Module) -> Callable[[str, str, tuple[int, ...]], Tensor | None]:
        """Return a function of a checkpoint tensor's (kind, address, shape), which returns a tensor with the sharding
        to use, or None if it is not sharded."""
        parameters = module.state_dict(keep_vars=True) if self.sharded else {}

        def sharded_like(kind: str, address: str, shape: tuple[int, ...]) -> Tensor | None:
            from torch.distributed.tensor import DTensor, Replicate, zeros

            parameter = parameters.get(address.rpartition("/")[0] if kind == "optimizer" else address)
            if not isinstance(parameter, DTensor) or not shape:
                return None
            if tuple(parameter.shape) == shape:
                return parameter
            everywhere = [Replicate()] * parameter.device_mesh.ndim
            return zeros(shape, device_mesh=parameter.device_mesh, placements=everywhere)

        return sharded_like


def _data_parallel(step: nn.Module) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    def add(state, bucket):  # no annotations: DistributedDataParallel accepts only its own types, or none
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    # Parameters that a batch does not use (a pooler) have no gradient, as in one process. Finding them also keeps the
    # buckets unchanged from the first step on, so that a resumed run adds in the same order.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about a renamed option of DistributedDataParallel
        copies = DistributedDataParallel(step, broadcast_buffers=False, find_unused_parameters=True)
    copies.register_comm_hook(None, add)
    return copies


def _fully_shard(step: nn.Module, mesh: Any, ignored: set[nn.Parameter]) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    blocks = [layer for stack in step.modules() if isinstance(stack, StackModule) for layer in stack.layers]
    seen: dict[int, int] = {}  # parameter id -> number of blocks; shared parameters are sharded with the root
    for block in blocks:
        for parameter in set(block.parameters()):
            seen[id(parameter)] = seen.get(id(parameter), 0) + 1
    outside = {id(p) for n, p in step.named_parameters() if not any(p is q for b in blocks for q in b.parameters())}
    for block in blocks:
        ids = {id(parameter) for parameter in block.parameters()}
        if ids and not ids & outside and all(seen[i] == 1 for i in ids):
            fully_shard(block, mesh=mesh, ignored_params=ignored)
    # reshard the rest after each pass too: the average may be swapped in between passes
    fully_shard(step, mesh=mesh, reshard_after_forward=True, ignored_params=ignored)
    for module in step.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
