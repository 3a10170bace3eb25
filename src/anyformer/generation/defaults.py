"""Settings of a call: the caller's options override generation_config.json, which overrides the config's token ids."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.generation.options import ONLY_BEAMS, ONLY_SAMPLING, Settings
from anyformer.models import TransformerModule
from anyformer.specs.messages import nearest, quote, shorten

NAMES = {field.name: field.default for field in dataclasses.fields(Settings)}

# fields of generation_config.json that do not change the text
IGNORED = {
    "_from_model_config", "transformers_version", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate", "cache_implementation", "cache_config", "max_cache_len",
    "disable_compile", "return_legacy_cache", "trust_remote_code", "use_model_defaults", "low_memory",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "is_assistant", "target_lookbehind", "assistant_lookbehind", "compile_config",
    "assistant_early_exit", "continuous_batching_config", "speculation_type", "alignment_heads",
    # for long recordings: used by tasks/each/transcribe.py
    "condition_on_prev_tokens", "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold",
}  # fmt: skip
# unsupported fields, and the values that have no effect
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "guidance_scale": (1, 1.0),
    "token_healing": (False,),
    "use_mtp": (False,),
    "constraints": ([],),
    "force_words_ids": ([],),
    "watermarking_config": ({},),
}
NOT_COLLECTED = ("output_attentions", "output_hidden_states")


def settings_for(model: TransformerModule, given: Mapping[str, Any]) -> Settings:
    for name in given:
        if name in NOT_COLLECTED:
            raise ValueError(f"{name}: generate does not collect it; call the model with the generated sequences")
        if name not in NAMES:
            raise ValueError(f"generate has no option {quote(name)}; {nearest(name, NAMES)}")
    from anyformer.families.shared.special_tokens import token_ids

    fields: dict[str, Any] = {n: v for n, v in token_ids(model.spec).items() if n in NAMES}
    folder = model.folder
    if folder is not None and (Path(folder) / "generation_config.json").is_file():
        fields |= read_generation_config(Path(folder) / "generation_config.json")
    options = {n: v for n, v in given.items() if v is not None}
    if "max_new_tokens" in options:
        fields.pop("max_length", None)
    elif "max_length" in options:
        fields.pop("max_new_tokens", None)
    fields |= options
    if isinstance(fields.get("exponential_decay_length_penalty"), list):
        fields["exponential_decay_length_penalty"] = tuple(fields["exponential_decay_length_penalty"])
    out = Settings(**fields)
    out.check_kinds()
    only_sampling = ONLY_SAMPLING if out.contrastive else (*ONLY_SAMPLING, "top_k")
    for name in (name for name in options if options[name] != NAMES[name]):
        out.need(out.do_sample is not False or name not in only_sampling, name, "does nothing without do_sample=True")
        out.need(out.num_beams != 1 or name not in ONLY_BEAMS, name, "does nothing without num_beams above 1")
    return out


def read_generation_config(path: Path) -> dict[str, Any]:
    """Read the settings in a generation_config.json. Raises ValueError for a field that is not supported."""
    from anyformer.weights.io import read_json

    fields = {name: value for name, value in read_json(path).items() if value is not None}
    for name, value in fields.items():
        known = name in NAMES or name in IGNORED or name.endswith(("_token_id", "_token_ids"))
        neutral = any(value is v or (type(value) is type(v) and value == v) for v in NEUTRAL.get(name, ()))
        if not known and not neutral:
            raise ValueError(f"{path}: {name}={shorten(json.dumps(value))} is not supported")
    return {name: value for name, value in fields.items() if name in NAMES and name not in IGNORED}
