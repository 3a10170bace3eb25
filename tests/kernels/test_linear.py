"""Linear layers whose backward pass reads each gradient once, against fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import linear as kernel
from anyformer.parts.fused_linear import JoinedInTraining, LinearThenGELU
from anyformer.transforms.fuse import fuse, unfuse
from anyformer.transforms.stream import narrow_stream
from tiny import inputs_of, model_of

cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() and kernel.HAS_TRITON), reason="needs a CUDA GPU and Triton"),
]


def test_used_in_training_only_where_the_program_is() -> None:
    model = fuse(model_of("gpt2"), training=True)
    found = [m for m in model.modules() if isinstance(m, LinearThenGELU)]
    assert len(found) == 2 and not found[0].covers(found[0].layer, torch.zeros(1))  # no CUDA, no half precision
    assert not list(unfuse(model).decoder.layers[0].feedforward.op.children())[2:]


def test_a_narrow_stream_is_bf16_under_autocast_alone() -> None:
    model, seen = narrow_stream(model_of("gpt2")), []
    model.decoder.layers[1].register_forward_hook(lambda module, args, out: seen.append((args[0].dtype, out.dtype)))
    plain = model(**inputs_of("gpt2")).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = model(**inputs_of("gpt2")).logits
    assert seen == [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)]
    assert 0 < float((plain - narrow).norm() / plain.norm()) < 0.05


@pytest.mark.parametrize("compiled", [pytest.param(False, marks=cuda), pytest.param(True, marks=cuda)])
def test_gradients_on_cuda(compiled: bool) -> None:
    """Odd sizes and several programs per dimension: outputs and gradients equal fp64 up to bf16's rounding."""
    torch.manual_seed(0)
    layers = [nn.Linear(72, size).cuda() for size in (200, 56, 56)]
    up = nn.Linear(72, 312).cuda()
    joined, gelu = JoinedInTraining(*layers), LinearThenGELU(up)
    x = torch.randn(3, 411, 72, device="cuda", requires_grad=True)
    above = [torch.randn(3, 411, size, device="cuda") for size in (200, 56, 56, 312)]

    def ours(x: Tensor) -> Tensor:
        outs = (*joined(x), gelu(x))
        return sum(((out.float() * g).sum() for out, g in zip(outs, above)), torch.zeros((), device="cuda"))

    def plain(x: Tensor, *ws: Tensor) -> Tensor:
        outs = [F.linear(x, w, b) for w, b in zip(ws[::2], ws[1::2])]
        outs[3] = F.gelu(outs[3], approximate="tanh")
        return sum(((out * g).sum() for out, g in zip(outs, above)), torch.zeros((), device="cuda"))

    parameters = [p for layer in (*layers, up) for p in (layer.weight, layer.bias)]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = torch.autograd.grad((torch.compile(ours) if compiled else ours)(x), [x, *parameters])
    wide = [t.detach().double().requires_grad_() for t in (x, *parameters)]
    right = torch.autograd.grad(plain(*wide), wide)
    for a, b in zip(found, right, strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.01 * b.norm()


@pytest.mark.parametrize("family", [pytest.param("gpt2", marks=cuda), pytest.param("bert", marks=cuda)])
def test_a_model_trains_alike_on_cuda(family: str) -> None:
    alone, together = model_of(family).cuda(), fuse(model_of(family).cuda(), training=True)
    inputs = {name: tensor.cuda() for name, tensor in inputs_of(family).items()}
    for model in (alone, together):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(**inputs).logits.float().square().mean().backward()
    for (name, a), (_, b) in zip(alone.named_parameters(), together.named_parameters(), strict=True):
        if a.grad is not None and float(a.grad.norm()) > 1e-4:
            assert (a.grad - b.grad).norm() < 0.05 * a.grad.norm(), name
