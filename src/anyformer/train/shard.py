"""Tensor and expert parallelism.

Tensor parallelism [Shoeybi et al. 2019]: several processes compute each layer together. q, k, v, gate and up are split
by output (heads, inner features), o and down by input, and the results of o and down are summed over processes. Each
process keeps some of the experts. Everything else (norms, embeddings, model heads, other mixers) is replicated.
Expert parallelism [Lepikhin et al. 2020]: processes read different examples and keep different experts; each token is
sent to the processes of its experts. Parameters are DTensors, which FSDP2 and checkpoints understand.
H heads, E experts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from anyformer.kernels.grouped import cast
from anyformer.parts.attention.attention import AttentionModule
from anyformer.parts.attention.deberta import DebertaAttentionModule
from anyformer.parts.attention.transparent import TransparentAttentionModule
from anyformer.parts.feedforward.mlp import GatedMLPModule, MLPModule
from anyformer.parts.feedforward.moe import ExpertsModule
from anyformer.parts.feedforward.routers import Routing
from anyformer.parts.forward_override import is_plain
from anyformer.parts.position.bias import AlibiModule, BucketedBiasModule, DistanceBiasModule
from anyformer.parts.position.rotary import RopeModule

ATTENTIONS = (AttentionModule, DebertaAttentionModule, TransparentAttentionModule)
# module class -> its layers that are split by output, and by input
SPLIT: dict[type, tuple[str, str]] = {
    **dict.fromkeys(ATTENTIONS, ("q k v", "o")),
    MLPModule: ("up", "down"),
    GatedMLPModule: ("gate up", "down"),
}
STATIC = (AlibiModule, BucketedBiasModule, DistanceBiasModule)  # bias (.., H, T, S) independent of the queries


def plan(model: nn.Module, num: int) -> dict[str, ParallelStyle]:
    """Return the parallel style of every linear layer to split, by address; ValueError if a layer cannot be split."""
    styles: dict[str, ParallelStyle] = {}
    for address, module in model.named_modules():
        if isinstance(module, ExpertsModule):
            _check_divides(f"{address}: {module.num_experts} experts", module.num_experts, num)
        if type(module) not in SPLIT:
            continue
        columns, rows = SPLIT[type(module)]
        if isinstance(module, AttentionModule):
            _check_heads(address, module, num)
        for name in f"{columns} {rows}".split():
            layer = getattr(module, name)
            if not is_plain(layer):
                lack = "only a plain nn.Linear can be split (no adapter)"
                raise ValueError(f"{address}.{name}: {lack}; set mesh.tensor=1")
            width = layer.in_features if name in rows.split() else layer.out_features
            _check_divides(f"{address}.{name}: {width} features", width, num)
            styles[f"{address}.{name}"] = RowwiseParallel() if name in rows.split() else ColwiseParallel()
    if not styles:
        raise ValueError("no layer of this model can be split over processes; set mesh.tensor=1")
    return styles


def _check_heads(address: str, module: AttentionModule, num: int) -> None:
    _check_divides(f"{address}: {module.part.num_heads} heads", module.part.num_heads, num)
    _check_divides(f"{address}: {module.num_kv_heads} key and value heads", module.num_kv_heads, num)
    if module.position is not None and not isinstance(module.position, (*STATIC, RopeModule)):
        kind = type(module.position).__name__.removesuffix("Module")
        raise ValueError(f"{address}: heads with {kind} positions cannot be split; set mesh.tensor=1")
    for name in ("scores", "normalizer"):
        changed = module.get_submodule(name) if getattr(module, name) is not None else nn.Module()
        if next(changed.parameters(), None) is not None:
            raise ValueError(f"{address}.{name}: its parameters belong to heads and cannot be split; set mesh.tensor=1")


def _check_divides(name: str, size: int, num: int, field: str = "tensor") -> None:
    if size % num:
        raise ValueError(f"{name} cannot be split over mesh.{field}={num} processes")


def split(model: nn.Module, mesh: Any) -> list[tuple[nn.Module, str]]:
    """Split the layers of a model, which every process has in full, in place. Returns the parameters, as (module,
    name), whose gradients are partial in each process."""
    parallelize_module(model, mesh, plan(model, mesh.size()), src_data_rank=None)
    partial: list[tuple[nn.Module, str]] = []
    for module in model.modules():
        if isinstance(module, AttentionModule) and type(module) in ATTENTIONS:
            module.register_forward_pre_hook(functools.partial(_local_bias, mesh))
            if isinstance(module.position, STATIC):
                module.position.bias = functools.partial(_local_position, mesh, module.position.bias)  # type: ignore
            for norm in (module.q_norm, module.k_norm):  # shared by all heads; this process has only some heads
                partial += [] if norm is None else [(norm, name) for name, _ in norm.named_parameters()]
        elif isinstance(module, ExpertsModule):
            _split_experts(module, mesh)
    return partial


# -- replicated and local tensors -------------------------------------------------------------------------------------


def _share_input(x: Tensor, mesh: Any) -> Tensor:
    """Make a replicated tensor the input of a partial computation: its gradients are summed over processes."""
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def _sum_partial(x: Tensor, mesh: Any) -> Tensor:
    """Sum a partial tensor over processes; every process gets the sum."""
    return DTensor.from_local(x, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()


def _local_heads(x: Tensor, mesh: Any) -> Tensor:
    """Return this process's heads of a replicated (.., H, T, S) tensor."""
    heads = [Shard(x.dim() - 3)]
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).redistribute(placements=heads).to_local()


def _local_bias(mesh: Any, module: AttentionModule, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Forward pre-hook of an attention: keep only this process's heads of the bias that all layers share."""
    x, ctx = args
    if ctx.bias is not None and not module.part.memory:
        ctx = dataclasses.replace(ctx, bias=_local_heads(ctx.bias, mesh))
    return x, ctx


def _local_position(mesh: Any, inner: Any, q: Tensor, *args: Any) -> tuple[Tensor, Tensor | None]:
    q, bias = inner(q, *args)
    return q, None if bias is None else _local_heads(bias, mesh)


# -- experts ----------------------------------------------------------------------------------------------------------


def _split_experts(module: ExpertsModule, mesh: Any) -> None:
    """Give each process E / num experts; it computes the tokens routed to them."""
    _keep_experts(module, mesh)
    module.forward = functools.partial(_local_experts, mesh, module, module.forward)  # type: ignore[method-assign]


def _keep_experts(module: ExpertsModule, mesh: Any) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        pieces = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        setattr(module, name, nn.Parameter(pieces, requires_grad=parameter.requires_grad))
    module.num_experts //= mesh.size()


def _local_experts(mesh: Any, module: ExpertsModule, inner: Any, x: Tensor, routing: Routing) -> Tensor:
    index = routing.experts - mesh.get_local_rank() * module.num_experts
    is_local = (index >= 0) & (index < module.num_experts)
    weights = torch.where(is_local, _share_input(routing.weights, mesh), 0)
    local = Routing(torch.where(is_local, index, module.num_experts), weights, routing.logits)
    with _local_parameters(module):
        return _sum_partial(inner(_share_input(x, mesh), local), mesh)


def check_experts(model: nn.Module, num: int) -> list[ExpertsModule]:
    """Return all expert modules; ValueError if num_sent are none or `num` does not divide their number of experts."""
    expert_modules = {address: module for address, module in model.named_modules() if isinstance(module, ExpertsModule)}
    if not expert_modules:
        raise ValueError("this model has no experts to split over processes; set mesh.expert=1")
    for address, module in expert_modules.items():
        _check_divides(f"{address}: {module.num_experts} experts", module.num_experts, num, "expert")
    return [*expert_modules.values()]


def spread_experts(model: nn.Module, mesh: Any) -> list[ExpertsModule]:
    """Apply expert parallelism in place: each process of the mesh keeps E / num experts per layer and receives the
    tokens that all processes route to them. Returns the expert modules."""
    expert_modules = check_experts(model, mesh.size())
    for module in expert_modules:
        _keep_experts(module, mesh)
        module.forward = functools.partial(_exchange_tokens, mesh, module, module.forward)  # type: ignore[method-assign]
    return expert_modules


def _exchange_tokens(mesh: Any, module: ExpertsModule, inner: Any, x: Tensor, routing: Routing) -> Tensor:
    """(N, D) -> (N, D): send tokens to the processes of their experts, and receive the outputs."""
    num, E, k, group = mesh.size(), module.num_experts, routing.experts.shape[1], mesh.get_group()
    chosen, order = routing.experts.flatten().sort(stable=True)
    sent = torch.bincount(chosen // E, minlength=num + 1)[:num]  # tokens without an expert are not sent
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    num_sent, num_received = sent.tolist(), received.tolist()
    order = order[: sum(num_sent)]
    with _local_parameters(module):
        rows = cast(x, x)[0].index_select(0, order // k)  # in the dtype of the matrix products
        rows = _Exchange.apply(rows, num_received, num_sent, group)
        experts = _Exchange.apply(chosen[: len(order)] % E, num_received, num_sent, group)[:, None]
        y = inner(rows, Routing(experts, torch.ones_like(experts, dtype=rows.dtype), routing.logits))
    y = _Exchange.apply(y, num_sent, num_received, group) * routing.weights.flatten()[order, None]
    return y.new_zeros(x.shape).index_add(0, order // k, y).to(x.dtype)


class _Exchange(torch.autograd.Function):
    """All-to-all: rows sorted by target process -> rows sorted by source process; the backward pass reverses it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int], group: Any) -> Tensor:
        ctx.sizes = sent, received, group
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return _Exchange.apply(gradients[0], *ctx.sizes), None, None, None


@contextlib.contextmanager
def _local_parameters(module: nn.Module) -> Iterator[None]:
    """Replace DTensor parameters by their local tensors, which our kernels need."""
    kept = module._parameters
    local = {name: p.to_local() if isinstance(p, DTensor) else p for name, p in kept.items()}
    module.__dict__["_parameters"] = local
    try:
        yield
    finally:
        module.__dict__["_parameters"] = kept
