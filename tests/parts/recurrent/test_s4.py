"""S4: recurrence and convolution agree with the published formula, and HiPPO's matrix is diagonalised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.kernels.capture import without_reading
from anyformer.kernels.s4 import s4, s4_by_steps
from anyformer.parts.recurrent.s4 import S4, hippo
from small import close, context, made
from swaps import plain

D = 16


def start(part: S4) -> Any:
    """Return the mixer as a model initialises it."""
    model = af.build(af.override(plain(), {"decoder.layers.attention.op": part}), seed=1)
    return model.decoder.layers[0].attention.op.eval().requires_grad_(False)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def reference(module: Any, x: Tensor) -> Tensor:
    """Outputs of the states (B, T, D) in fp64: a matrix, a step and a zero-order hold per channel, with both conjugates
    of each state."""
    y, x = torch.zeros(x.shape, dtype=torch.float64), x.double()
    for channel in range(x.shape[2]):
        half = torch.complex(-module.rate[channel].double().exp(), module.frequency[channel].double())
        read = torch.view_as_complex(module.read[channel].double())
        A, C, dt = torch.cat((half, half.conj())).diag(), torch.cat((read, read.conj())), module.step[channel].exp()
        B = torch.ones(len(C), dtype=C.dtype)
        decay = torch.matrix_exp(dt.double() * A)
        write = torch.linalg.solve(A, (decay - torch.eye(len(C), dtype=C.dtype)) @ B)
        h = torch.zeros(x.shape[0], len(C), dtype=C.dtype)
        for t in range(x.shape[1]):
            h = h @ decay.T + x[:, t, channel, None] * write
            y[:, t, channel] = (h @ C).real + module.skip[channel].double() * x[:, t, channel]
    return y


def test_recurrence_and_convolution_are_the_reference() -> None:
    """With the published size, at initialisation, over 400 tokens: equal to 1e-5 in fp32, and to fp64."""
    module, x = start(S4()), draw(2, 400, D)
    system = module.system(torch.float32)
    steps, state = s4_by_steps(x, *system)
    convolved, last = s4(x, *system)
    close(convolved, steps, 1e-5)
    close(torch.view_as_real(last), torch.view_as_real(state), 1e-5)
    expected = reference(module, x[:, :, :3]).float()
    for y in (steps, convolved):
        close((y + x * module.skip)[:, :, :3], expected, 1e-5)
    mixed = torch.nn.functional.gelu(convolved + x * module.skip)
    close(module(x, context(400)), torch.nn.functional.glu(module.o(mixed), dim=-1))
    plain_out = start(S4(gated=False))
    close(plain_out(x, context(400)), plain_out.o(mixed), 1e-5)


@pytest.mark.parametrize("length", [1, 2, 9, 10, 17])
def test_what_goes_on_with_documents_and_pads(length: int) -> None:
    """In fp64, for any split of the length: after a state, with separate documents, with pads at the end."""
    generator = torch.Generator().manual_seed(length)
    pace, c = torch.randn(2, 3, 4, generator=generator, dtype=torch.complex128)
    pace = torch.complex(-pace.real.abs(), pace.imag)
    x = torch.randn(2, length, 3, generator=generator, dtype=torch.float64)
    state = torch.randn(2, 3, 4, generator=generator, dtype=torch.complex128)
    keep, real = torch.ones(2, 2, length).unbind(0)
    keep[0, length // 2 :: 4] = 0
    keep[:, 0] = 1
    real[1, length // 3 :] = 0
    x = x * real[..., None]
    for more in ({}, {"keep": keep}, {"real": real}, {"keep": keep, "real": real}):
        for before in (None, state):
            expected, found = s4_by_steps(x, pace, c, before, **more), s4(x, pace, c, before, **more)
            close(found[0] * real[..., None], expected[0] * real[..., None], 1e-12)
            close(torch.view_as_real(found[1]), torch.view_as_real(expected[1]), 1e-12)


def test_gradients_are_those_of_the_recurrence() -> None:
    module, x = made(S4(states=4), 3), draw(1, 7, 3)
    keep = torch.tensor([[1.0, 1, 1, 0, 1, 1, 1]])
    leaves = [*(getattr(module, name) for name in ("step", "rate", "frequency", "read")), x.requires_grad_()]
    for keeps in (None, keep):
        found = [torch.autograd.grad(f(x, *module.system(torch.float32), None, keeps)[0].pow(2).sum(), leaves)
                 for f in (s4, s4_by_steps)]  # fmt: skip
        for a, b in zip(*found, strict=True):
            close(a, b, 1e-5)


def test_documents_and_pads() -> None:
    """N4 and N7: a padded or packed text gives the same result as in its own row, also if values cannot be read."""
    module, a, b = made(S4(states=4), D), draw(1, 3, D), draw(1, 4, D)
    first, second = module(a, context(3)), module(b, context(4))
    documents = torch.tensor([[0] * 3 + [1] * 4])
    expected = torch.cat((first, second), 1)
    close(module(torch.cat((a, b), 1), context(7, documents=documents)), expected)
    with without_reading():
        close(module(torch.cat((a, b), 1), context(7, documents=documents)), expected)
    real = torch.tensor([[False] * 4 + [True] * 3])
    close(module(torch.cat((b, a), 1), context(7, is_token=real))[:, 4:], first)
    # a Fourier transform spreads the rounding of its largest number, so pads may not enter it
    close(module(torch.cat((1e6 * b, a), 1), context(7, is_token=real))[:, 4:], first)


def test_hippo() -> None:
    """The frequencies are eigenvalues of HiPPO-LegS [Gu et al. 2020, theorem 2] plus P P^T, whose real parts are all
    -1/2; the sizes are the magnitudes of B in the basis of its eigenvectors."""
    N = 8
    A, n = torch.zeros(N, N, dtype=torch.float64), torch.arange(N).double()
    for row in range(N):
        for column in range(row + 1):
            A[row, column] = -(row + 1) if row == column else -((2 * row + 1) ** 0.5) * (2 * column + 1) ** 0.5
    P, B = (n + 0.5).sqrt(), (2 * n + 1).sqrt()
    values, vectors = torch.linalg.eig(A + torch.outer(P, P))
    close(values.real, torch.full((N,), -0.5), 1e-12)
    order = values.imag.argsort()[N // 2 :]
    frequencies, sizes = hippo(N)
    close(frequencies, values.imag[order], 1e-10)
    close(sizes, torch.linalg.solve(vectors, B.to(vectors.dtype)).abs()[order], 1e-10)


def test_how_it_starts() -> None:
    module = start(S4(states=8, step_low=0.01, step_high=0.5))
    assert float(module.step.exp().min()) >= 0.01 and 0.2 < float(module.step.exp().max()) <= 0.5
    close(module.rate.exp(), torch.full((D, 4), 0.5))
    close(module.frequency, hippo(8)[0].float().expand(D, -1))
    sizes = torch.view_as_complex(start(S4(states=4)).read).abs().pow(2).mean(0).sqrt()
    assert 0.6 < float((sizes / hippo(4)[1]).mean()) < 1.4  # 16 channels: a mean of 1
    with pytest.raises(ValueError, match="S4.states is 3; it must be even"):
        S4(states=3)
    with pytest.raises(ValueError, match="S4.step_low is .* at most step_high, 0.1"):
        S4(step_low=2.0)
