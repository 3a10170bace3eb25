"""Look inside a model while it runs. Every function takes a run of `af.trace` and works for every family.

>>> import anyformer as af
>>> run = af.trace(model, input_ids=ids)  # doctest: +SKIP
>>> af.look.attention(run)["decoder.layers.0.attention"].weights  # (B, H, T, S)  # doctest: +SKIP
>>> af.look.logit_lens(run).top(5)  # doctest: +SKIP
>>> af.look.contributions(run, position=-1).lines()  # doctest: +SKIP
>>> af.look.neurons(run, position=-1).best()  # doctest: +SKIP
>>> af.look.patch(run, other, at="decoder.layers.3", positions=[4]).output.logits  # doctest: +SKIP
>>> af.look.head_scores(af.look.repeated(model)).best("induction")  # doctest: +SKIP
>>> af.look.attention_distance(run)["encoder.layers.0.attention"]  # (H,), vision models  # doctest: +SKIP

A run contains only the values listed in `keep`. A function that needs more values runs the model again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.specs.lazy import lazy_names

if TYPE_CHECKING:
    from anyformer.look.attribution import contributions
    from anyformer.look.maps import attention, routing
    from anyformer.look.neuron_attribution import neurons
    from anyformer.look.patching import patch, patch_table
    from anyformer.look.residual_stream import logit_lens, stream_norms
    from anyformer.look.scores import head_scores, repeated
    from anyformer.look.vision import attention_distance, windows

_PUBLIC = {
    "attention": "maps",
    "routing": "maps",
    "logit_lens": "residual_stream",
    "stream_norms": "residual_stream",
    "contributions": "attribution",
    "neurons": "neuron_attribution",
    "patch": "patching",
    "patch_table": "patching",
    "head_scores": "scores",
    "repeated": "scores",
    "attention_distance": "vision",
    "windows": "vision",
}

__all__ = [
    "attention", "routing", "logit_lens", "stream_norms", "contributions", "neurons", "patch", "patch_table",
    "head_scores", "repeated", "attention_distance", "windows",
]  # fmt: skip


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {name: f"{__name__}.{module}" for name, module in _PUBLIC.items()})
