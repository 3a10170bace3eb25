"""Operations, memory and depth of a forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer.counting.flops import Work
from anyformer.counting.step_memory import Live
from anyformer.kernels import scan
from anyformer.models import Model
from anyformer.parts.recurrent.lstm import LSTM
from anyformer_course.lab.forward_cost import Meter, forward_cost
from anyformer_course.lab.runs import writer

WIDTH, HEADS, LENGTH = 32, 4, 48


def decoder(length: int = LENGTH) -> Model:
    return writer(WIDTH, 2, HEADS, length)


def recurrent(length: int) -> Model:
    return writer(WIDTH, 2, HEADS, length, {"decoder.layers.attention.op": LSTM()})


def test_products_are_those_that_torch_counts() -> None:
    """All other operations are a small part of the total."""
    model = af.build(decoder(), seed=0).eval()
    model.kernel = "eager"  # torch does not count the fused kernel of a CPU
    with FlopCounterMode(display=False) as torchs, torch.no_grad():
        model(input_ids=torch.ones(1, LENGTH, dtype=torch.long), use_cache=False)
    assert torchs.get_total_flops() < forward_cost(decoder(), LENGTH).flops < 1.05 * torchs.get_total_flops()


@pytest.mark.parametrize("length", [64, 65])
def test_fourier_transforms(length: int) -> None:
    """N log N per row of N numbers: half as much for real numbers, the same for the inverse."""
    real, number = torch.zeros(3, length, device="meta"), 3 * length * math.log2(length)
    spectrum = torch.fft.rfft(real)
    runs: list[tuple[Callable[[], Tensor], float]] = [
        (lambda: torch.fft.rfft(real), 2.5), (lambda: torch.fft.irfft(spectrum, length), 2.5),
        (lambda: torch.fft.fft(torch.complex(real, real)), 5),
    ]  # fmt: skip
    for run, share in runs:
        with Meter(torch.nn.Module()) as meter:
            run()
        extra = real.numel() if share == 5 else 0  # building complex numbers from two real ones
        assert meter.flops - extra == pytest.approx(share * number, abs=1)


def test_a_scan_costs_about_as_much_as_its_steps() -> None:
    x, A, b = (torch.zeros(size, device="meta") for size in ((2, 9, 8), (16, 8), (2, 9, 16)))
    with Meter(torch.nn.Module()) as whole, torch.no_grad():
        scan.scan(x, x, A, b, b)
    with Meter(torch.nn.Module()) as step:
        scan.scan_step(x[:, 0], x[:, 0], A, b[:, 0], b[:, 0], x.new_zeros(2, 16, 8))
    assert whole.flops == pytest.approx(9 * step.flops, rel=0.2)


def test_layers_that_are_computed_again_keep_their_inputs() -> None:
    """With recomputation, memory has the inputs of all layers and the activations inside one layer, the largest."""
    work = Work({}, {}, {}, {}, kept=1000, layers=((10, 300), (20, 200), (30, 400)))
    outside, inputs = 1000 - 900, 60
    assert work.recompute_bytes() == outside + inputs + 400
    assert Work({}, {}, {}, {}, kept=1000).recompute_bytes() == 1000


def test_memory_is_that_of_a_real_pass() -> None:
    """With fused attention, memory is linear in the text; with stored scores it is not."""
    for length in (128, 256):
        model = af.build(decoder(length), seed=0).eval()
        model.kernel = "eager"
        with Live((*model.parameters(), *model.buffers())) as live, torch.no_grad():
            model(input_ids=torch.ones(1, length, dtype=torch.long), use_cache=False)
        assert forward_cost(decoder(length), length, fused=False).bytes == pytest.approx(live.most, rel=0.1)
    fused, scores = ([forward_cost(decoder(n), n, fused=each).bytes for n in (512, 1024)] for each in (True, False))
    assert fused[1] == pytest.approx(2 * fused[0], rel=0.01)
    assert scores[1] > 3.5 * scores[0] and scores[1] >= 4 * HEADS * 1024**2


def test_depth_of_recurrence_grows_with_the_text() -> None:
    parallel = [forward_cost(decoder(n), n).depth for n in (16, 32)]
    steps = [forward_cost(recurrent(n), n).depth for n in (16, 32, 48)]
    assert parallel[0] == parallel[1] < steps[0]
    assert steps[2] - steps[1] == steps[1] - steps[0] >= 16 * 3


def test_a_step_with_a_state_costs_the_same_anywhere() -> None:
    short, long = (forward_cost(recurrent(n), n, step=True).flops for n in (8, 40))
    assert short == long < forward_cost(recurrent(8), 8).flops
    near, far = (forward_cost(decoder(n), n, step=True).flops for n in (8, 40))
    assert near < far < forward_cost(decoder(40), 40).flops / 20
