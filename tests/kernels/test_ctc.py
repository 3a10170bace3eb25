"""The CTC loss in Triton, on a GPU or interpreted, against torch's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from anyformer.kernels.ctc import ctc_losses

INTERPRETER = "TRITON_INTERPRET"
HAS_TRITON = importlib.util.find_spec("triton") is not None
ON_GPU = HAS_TRITON and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
programs = pytest.mark.skipif(
    not ON_GPU and not (HAS_TRITON and os.environ.get(INTERPRETER) == "1"),
    reason="needs Triton, and CUDA or its interpreter (TRITON_INTERPRET=1)",
)


def torchs(log_probs, labels, kept, frames, blank):
    return F.ctc_loss(
        log_probs.transpose(0, 1), labels.masked_select(kept), frames, kept.sum(-1), blank=blank, reduction="none"
    )


LARGE = [pytest.param(*shape, marks=pytest.mark.gpu) for shape in ((16, 499, 32, 120), (5, 700, 1025, 300))]


@programs
@pytest.mark.parametrize("blank", [0, 3])
@pytest.mark.parametrize("B, T, V, S", [(1, 1, 5, 1), (4, 12, 5, 4), (3, 30, 7, 9), (2, 9, 40, 1), *LARGE])
def test_programs(B: int, T: int, V: int, S: int, blank: int) -> None:
    """Losses and gradients of rows with padded labels, padded frames and repeated labels."""
    torch.manual_seed(0)
    logits = torch.randn(B, T, V, device=DEVICE, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, min(V, 4), (B, S), device=DEVICE)
    labels[:, ::3] = (blank + 1) % V
    kept, frames = labels != blank, torch.arange(T, T - B, -1, device=DEVICE).clamp(min=1)
    weight = torch.rand(B, device=DEVICE)
    exact = torchs(logits.log_softmax(-1), labels, kept, frames, blank)
    finite = exact.isfinite()
    found = ctc_losses(logits.float().log_softmax(-1), labels, kept, frames, blank)
    assert torch.equal(found.isfinite(), finite)
    assert torch.allclose(found[finite].double(), exact[finite], rtol=1e-5)
    theirs = torchs(logits.float().log_softmax(-1), labels, kept, frames, blank)
    wanted, got, rounded = (
        torch.autograd.grad((each * weight)[finite].sum(), logits)[0] for each in (exact, found, theirs)
    )
    # losses of long texts are large: torch's fp32 loss has a similar error
    assert (got - wanted).abs().max() <= 1e-5 + 2 * (rounded - wanted).abs().max()


@programs
def test_no_labels_and_too_many() -> None:
    log_probs = torch.randn(3, 2, 4, device=DEVICE).log_softmax(-1).requires_grad_()
    labels = torch.tensor(
        [[0, 0, 0], [1, 1, 0], [1, 2, 0]], device=DEVICE
    )  # the second row needs a blank between its labels
    found = ctc_losses(log_probs, labels, labels != 0, torch.tensor([2, 2, 2], device=DEVICE), 0)
    assert torch.allclose(found[0], -log_probs[0, :, 0].sum()) and found[1].isinf()
    assert torch.allclose(found[2], -log_probs[2, 0, 1] - log_probs[2, 1, 2])
    (gradient,) = torch.autograd.grad(found.masked_fill(found.isinf(), 0.0).sum(), log_probs)
    assert gradient[1].count_nonzero() == 0  # a text with too many labels for its frames, whose loss is ignored


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.skipif(ON_GPU or os.environ.get(INTERPRETER) == "1", reason="the tests above ran as they are")
def test_in_the_interpreter() -> None:
    """Runs the tests above in a new process, because Triton chooses its interpreter at import."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not interpreter"]
    done = subprocess.run(command, env={**os.environ, INTERPRETER: "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and "9 passed" in done.stdout, done.stdout[-3000:]
