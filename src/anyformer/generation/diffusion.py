"""Drawing out of noise: from the noisiest step to none, the model says which noise is there and some of it is taken
away [Ho et al. 2020; Song et al. 2021].

B pictures, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.models import TransformerModule
from anyformer.parts.diffusion import NoiseHead


def cleaner(
    x: Tensor,
    noise: Tensor,
    left: float,
    then: float,
    *,
    eta: float = 0.0,
    clip: float | None = None,
    chance: Tensor | None = None,
) -> Tensor:
    """x, of whose variance the share `left` is the picture's, as it is where the share is `then`. With eta 0 all the
    noise that stays is the one that was found (DDIM), with 1 as much of it is new (`chance`) as where it was put in
    (DDPM). What is drawn stays within `clip`."""
    drawn = (x - (1 - left) ** 0.5 * noise) / left**0.5
    if clip is not None:
        drawn = drawn.clamp(-clip, clip)
        noise = (x - left**0.5 * drawn) / (1 - left) ** 0.5
    fresh = eta**2 * (1 - then) / (1 - left) * (1 - left / then)  # variance
    x = then**0.5 * drawn + max(1 - then - fresh, 0.0) ** 0.5 * noise
    return x if chance is None or not fresh else x + fresh**0.5 * chance


@torch.no_grad()
def denoise(
    model: TransformerModule,
    asked: Mapping[str, Tensor],
    otherwise: Mapping[str, Tensor] | None = None,
    *,
    seeds: Sequence[int],
    steps: int = 50,
    guidance: float = 1.0,
    eta: float = 0.0,
    clip: float | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Tensor:
    """(B, C, height, width): a picture a seed, whatever else is in the batch. `asked` are the model's inputs that say
    what to draw, `otherwise` those that ask for nothing. With a guidance above 1 what is asked for counts by so much
    more than what would be drawn otherwise [Ho and Salimans 2022]."""
    spec: Any = model.spec
    if not isinstance(spec.head, NoiseHead):
        raise ValueError("only a model that says which noise is in a picture (a NoiseHead) draws out of noise")
    if not 0 <= eta <= 1 or guidance < 0:
        raise ValueError(f"eta is {eta} and guidance {guidance}; 0 <= eta <= 1, and guidance is at least 0")
    schedule, batch = spec.head.schedule, len(seeds)
    shape, device, dtype = (spec.embedding.channels, *spec.embedding.image_size), model.device, model.dtype
    rng = [torch.Generator().manual_seed(seed) for seed in seeds]

    def noise() -> Tensor:
        return torch.stack([torch.randn(shape, generator=each) for each in rng]).to(device)

    inputs = {name: value.to(device) for name, value in asked.items()}
    guided = guidance != 1 and otherwise is not None
    if otherwise is not None and guided:
        inputs = {name: torch.cat((value, otherwise[name].to(device))) for name, value in inputs.items()}
    x, shares, places = noise(), schedule.alphas_cumprod().tolist(), schedule.sampling_steps(steps)
    for done, place in enumerate(places):
        progress(done, len(places))
        seen = torch.cat((x, x)) if guided else x
        step = torch.full((len(seen),), place, device=device)
        found = model(hidden_states=seen.to(dtype), timestep=step, **inputs).sample[:, : shape[0]].float()
        if guided:
            wanted, plain = found.split(batch)
            found = plain + guidance * (wanted - plain)
        then = shares[places[done + 1]] if done + 1 < len(places) else 1.0
        x = cleaner(x, found, shares[place], then, eta=eta, clip=clip, chance=noise() if eta and then < 1 else None)
    progress(len(places), len(places))
    return x
