"""Memory of a training step from descriptions only, compared with what autograd keeps and what is allocated in a real
one.

Where a CPU differs from a CUDA device, the test follows CUDA: a dropout mask has one byte per element, RMSNorm keeps
its input and one number per vector.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import Case, cases, spec_of
from test_flops import one_row
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import anyformer as af
from anyformer.counting.flops import inputs_of
from anyformer.counting.step_memory import Live, run_step
from anyformer.models.construct import skeleton
from anyformer.objectives.heads import forward_to_head
from anyformer.parts.head.language import LMHeadModule
from anyformer.specs.part import walk
from anyformer.transforms.fuse import fuse
from anyformer.transforms.recompute import recompute

BATCH = 16


class FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        factor = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, factor)
        return x * factor if weight is None else x * factor * weight

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.zeros_like(x), None if weight is None else torch.zeros_like(weight), None


@pytest.fixture(autouse=True)
def cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    monkeypatch.setattr(F, "dropout", dropout)
    monkeypatch.setattr(F, "rms_norm", lambda x, shape, weight=None, eps=1e-6: FusedNorm.apply(x, weight, eps))


def plain(spec: Any) -> Any:
    """Attention without dropout, for which a CPU has no fused kernel, and an even vocabulary size."""
    values: dict[str, Any] = {}
    for path, part in walk(spec):
        values |= {f"{path}.vocab_size": 128} if hasattr(part, "vocab_size") else {}
        values |= {f"{path}.dropout": 0.0} if getattr(part, "num_heads", None) and hasattr(part, "dropout") else {}
    return af.override(spec, values)


class Real:
    """Run a training step."""

    def __init__(self, spec: Any, batch: dict[str, Tensor], half: bool = False, again: bool = False) -> None:
        self.spec, self.batch, self.half = spec, batch, half
        self.model = fuse(af.build(spec).train(), training=True)
        if again:
            recompute(self.model)
        self.weights = (*self.model.parameters(), *self.model.buffers())
        self.known = {tensor.untyped_storage().data_ptr() for tensor in self.weights}
        self.held: dict[int, torch.UntypedStorage] = {}
        self.kept = 0

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.held[storage.data_ptr()] = storage
        return tensor

    def go(self) -> None:
        batch = {name: value.clone() for name, value in self.batch.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            states = forward_to_head(self.model, batch)
            head = getattr(self.model.head, "lm", self.model.head)
            if isinstance(head, LMHeadModule):
                x = states.x.flatten(0, 1)
                x = x if head.part.shift or self.spec.pair else x[torch.arange(round(0.15 * len(x)))]
                x = x if head.transform is None else head.transform(x)
                loss = head.cross_entropy(x, torch.ones(len(x)).long(), 0.0)
                # the loss has already computed their gradients
                self.kept -= sum(t.nbytes for t in (head.out.weight, head.out.bias) if t is not None)
                del x
            else:
                loss = head.answer(states.x, states.ctx, states.inputs)["logits"].float().sum()
            del states
        for value in batch.values():
            self.keep(value)
        self.kept += sum(storage.nbytes() for storage in self.held.values())
        self.held.clear()
        loss.backward()

    def keeps(self) -> int:
        """Return the bytes that autograd keeps, and the batch."""
        with torch.autograd.graph.saved_tensors_hooks(self.keep, lambda tensor: tensor):
            self.go()
        return self.kept

    def most(self) -> int:
        """Return the maximum of allocated bytes."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            self.go()
        events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
        return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda each: each.start_ns())))

    def live(self) -> int:
        """The same without temporary tensors inside one operation."""
        with Live(self.weights) as live:
            self.go()
        return live.most


# not T5 and Swin: a CPU has no fused kernel for a learned bias
KEPT = ("GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM", "MixtralForCausalLM", "BartForConditionalGeneration",
        "ViTForImageClassification")  # fmt: skip
over_kept = pytest.mark.parametrize("case", [case for case in cases() if case.id in KEPT], ids=lambda case: case.id)


def batches(case: Case) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """Return the description, a batch, and its shapes on meta."""
    spec = plain(spec_of(case))
    inputs, length, source = one_row(case, spec)
    shaped = {name: value.expand(BATCH, *value.shape[1:]) for name, value in inputs_of(spec, length, source).items()}
    return spec, {name: inputs[name].expand(value.shape) for name, value in shaped.items()}, shaped


@over_kept
def test_a_step_keeps_and_holds_what_it_says(case: Case) -> None:
    spec, batch, shaped = batches(case)
    ours = run_step(skeleton(spec), shaped)
    assert ours.kept == pytest.approx(Real(spec, batch).keeps(), rel=0.001) and ours.copies == 0
    assert ours.most == pytest.approx(Real(spec, batch).most(), rel=0.02)


@over_kept
def test_a_step_in_half_precision(case: Case) -> None:
    """CUDA's autocast casts a norm's input to fp32, a CPU's does not: here this is one norm, in BERT's head."""
    spec, batch, shaped = batches(case)
    ours = run_step(skeleton(spec), shaped, torch.bfloat16)
    assert ours.kept == pytest.approx(Real(spec, batch, half=True).keeps(), rel=0.01)
    assert 0 < ours.copies <= 2 * af.count(spec).parameters


def test_a_weight_is_cast_once_per_step() -> None:
    """Layers that share weights share their half-precision copies; only q, k and v are joined again in each layer."""

    def copies(depth: int) -> int:
        sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_hidden_layers": depth}
        spec = plain(spec_of(Case("albert", "AlbertModel", {"vocab_size": 99, **sizes})))
        return run_step(skeleton(spec), inputs_of(spec, 8), torch.bfloat16).copies

    assert copies(3) - copies(1) == 2 * (3 * 32**2) * 2  # bytes


@over_kept
def test_a_step_that_computes_layers_again(case: Case) -> None:
    """Experts too: recomputed router outputs keep no memory."""
    spec, batch, shaped = batches(case)
    real = Real(spec, batch, again=True).live()
    assert run_step(skeleton(spec), shaped, None, True).most == pytest.approx(real, rel=0.01)


def test_the_highest_of_a_step() -> None:
    """Few texts: weights, moments and gradients; the gradient of the tied table exists twice before it is added. Many
    texts: activations, and the memory of the loss."""
    counted = af.count(af.override(af.spec("gpt2"), {"decoder.depth": 6}))
    P, table = counted.parameters, 4 * 50304 * 768
    few, many = (counted.memory(torch.bfloat16, batch, 64, training=True) for batch in (1, 64))
    assert few.gradients == 4 * P == few.optimizer // 2 and 4 * P < few.weights < 6 * P
    assert 16 * P + table < few.peak < 16 * P + 3 * table
    assert many.weights + many.optimizer + many.activations < many.peak < many.total + 2e9
    assert many.activations == pytest.approx(64 * few.activations, rel=0.001)
    deeper = af.count(af.override(af.spec("gpt2"), {"decoder.depth": 7}))
    once, more = (each.memory(length=64, training=True, recompute=True).activations for each in (counted, deeper))
    assert more - once == 64 * 768 * 4 and once < counted.memory(length=64, training=True).activations / 3
