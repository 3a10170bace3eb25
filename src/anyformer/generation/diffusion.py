"""Image generation by diffusion: in every step, the model predicts the noise in an image and part of it is removed
[Ho et al. 2020; Song et al. 2021].

B images, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.models import TransformerModule
from anyformer.parts.diffusion import NoiseHead


def remove_noise(
    x: Tensor,
    noise: Tensor,
    left: float,
    then: float,
    *,
    eta: float = 0.0,
    clip: float | None = None,
    chance: Tensor | None = None,
) -> Tensor:
    """Return the next, less noisy x, given the predicted `noise`.

    `left` and `then` are alpha_bar (the image's share of the variance) before and after the step. eta 0 keeps only the
    predicted noise (DDIM); eta 1 replaces part of it by new noise, `chance`, as in DDPM. The predicted image is clamped
    to [-clip, clip]."""
    drawn = (x - (1 - left) ** 0.5 * noise) / left**0.5
    if clip is not None:
        drawn = drawn.clamp(-clip, clip)
        noise = (x - left**0.5 * drawn) / (1 - left) ** 0.5
    fresh = eta**2 * (1 - then) / (1 - left) * (1 - left / then)  # variance
    x = then**0.5 * drawn + max(1 - then - fresh, 0.0) ** 0.5 * noise
    return x if chance is None or not fresh else x + fresh**0.5 * chance


def noisy_inputs(model: TransformerModule, picture: Tensor, step: Tensor) -> dict[str, Tensor]:
    """Return the inputs with an image and its noise step. A decoder's inputs are named decoder_*."""
    prefix = model.spec.target.removesuffix("embedding")
    return {f"{prefix}hidden_states": picture, f"{prefix}timestep": step}


@torch.no_grad()
def denoise(
    model: TransformerModule,
    conditional: Mapping[str, Tensor],
    unconditional: Mapping[str, Tensor] | None = None,
    *,
    seeds: Sequence[int],
    steps: int = 50,
    guidance: float = 1.0,
    eta: float = 0.0,
    clip: float | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Tensor:
    """Return images (B, C, height, width), one per seed. An image does not depend on the others in the batch.

    `conditional` are the model's inputs, `unconditional` those without a label or text. `guidance` is the scale of
    classifier-free guidance [Ho and Salimans 2022]; 1 means no guidance."""
    spec: Any = model.spec
    if not isinstance(spec.head, NoiseHead):
        raise ValueError("denoise needs a model with a NoiseHead, which predicts the noise in an image")
    if not 0 <= eta <= 1 or guidance < 0:
        raise ValueError(f"eta is {eta} and guidance is {guidance}; eta must be in [0, 1] and guidance at least 0")
    schedule, batch, embedding = spec.head.schedule, len(seeds), getattr(spec, spec.target)
    shape, device, dtype = (embedding.channels, *embedding.image_size), model.device, model.dtype
    rng = [torch.Generator().manual_seed(seed) for seed in seeds]

    def noise() -> Tensor:
        return torch.stack([torch.randn(shape, generator=each) for each in rng]).to(device)

    inputs = {name: value.to(device) for name, value in conditional.items()}
    guided = guidance != 1 and unconditional is not None
    if unconditional is not None and guided:
        inputs = {name: torch.cat((value, unconditional[name].to(device))) for name, value in inputs.items()}
    x, alphas, timesteps = noise(), schedule.alphas_cumprod().tolist(), schedule.sampling_steps(steps)
    for done, timestep in enumerate(timesteps):
        progress(done, len(timesteps))
        seen = torch.cat((x, x)) if guided else x
        step = torch.full((len(seen),), timestep, device=device)
        noisy = noisy_inputs(model, seen.to(dtype), step)
        predicted = model(**noisy, **inputs).sample[:, : shape[0]].float()
        if guided:
            guided_to, plain = predicted.split(batch)
            predicted = plain + guidance * (guided_to - plain)
        then = alphas[timesteps[done + 1]] if done + 1 < len(timesteps) else 1.0
        fresh = noise() if eta and then < 1 else None
        x = remove_noise(x, predicted, alphas[timestep], then, eta=eta, clip=clip, chance=fresh)
    progress(len(timesteps), len(timesteps))
    return x
