"""The named outputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor
from torch.utils._pytree import MappingKey, register_pytree_node

from anyformer.runtime.state import State

PerLayer = Literal["hidden_states", "attentions", "cross_attentions", "router_logits"]


class Output(dict[str, Any]):
    """Named outputs, by attribute, key or index: `out[0]` is the first. Fields that are None are left out. It is a dict
    and a torch pytree, so that DDP, torch.export and other trainers find the tensors in it.

    The fields below are all outputs of our heads, for editors and type checkers: each with the type that it has if the
    model returns it. An output of a head of your own has a key: `out["name"]`.
    """

    loss: Tensor
    logits: Tensor
    last_hidden_state: Tensor
    pooler_output: Tensor
    hidden_states: tuple[Tensor, ...]
    attentions: tuple[Tensor, ...]
    cross_attentions: tuple[Tensor, ...]
    router_logits: tuple[Tensor, ...]
    past_key_values: State
    # other names of the state: Mamba, RWKV, Reformer, XLNet
    cache_params: State
    state: State
    past_buckets_states: State
    mems: State
    # an encoder next to a decoder
    encoder_last_hidden_state: Tensor
    encoder_hidden_states: tuple[Tensor, ...]
    encoder_attentions: tuple[Tensor, ...]
    encoder_router_logits: tuple[Tensor, ...]
    decoder_hidden_states: tuple[Tensor, ...]
    decoder_attentions: tuple[Tensor, ...]
    decoder_router_logits: tuple[Tensor, ...]
    aux_loss: Tensor  # of mixtures of experts
    # heads
    predictions: Tensor
    start_logits: Tensor
    end_logits: Tensor
    start_top_log_probs: Tensor
    start_top_index: Tensor
    end_top_log_probs: Tensor
    end_top_index: Tensor
    cls_logits: Tensor
    distillation_logits: Tensor
    prediction_logits: Tensor
    seq_relationship_logits: Tensor
    sop_logits: Tensor
    mc_logits: Tensor
    mc_loss: Tensor
    # pictures and speech
    reshaped_hidden_states: tuple[Tensor, ...]
    feature_maps: tuple[Tensor, ...]
    global_attentions: tuple[Tensor, ...]
    reconstruction: Tensor
    sample: Tensor
    image_hidden_states: Tensor
    audio_hidden_states: Tensor
    attention_mask: Tensor
    embeddings: Tensor
    extract_features: Tensor
    projected_states: Tensor
    projected_quantized_states: Tensor
    codevector_perplexity: Tensor
    contrastive_loss: Tensor
    diversity_loss: Tensor
    # towers
    logits_per_image: Tensor
    logits_per_text: Tensor
    text_embeds: Tensor
    image_embeds: Tensor
    text_model_output: Output
    vision_model_output: Output
    # decisions
    state_preds: Tensor
    action_preds: Tensor
    return_preds: Tensor
    # `generate` with return_dict
    sequences: Tensor
    scores: tuple[Tensor, ...]
    log_probs: Tensor
    finish_reasons: list[str]
    sequences_scores: Tensor
    beam_indices: Tensor

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})

    @overload
    def __getitem__(self, key: PerLayer) -> tuple[Tensor, ...]: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, key: Literal["past_key_values"]) -> State: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, key: str | int) -> Tensor: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]

    if not TYPE_CHECKING:  # otherwise type checkers accept every name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self.get(name)  # as in published classes, a field that was not requested is None

    def __repr__(self) -> str:
        shown = {k: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for k, v in self.items()}
        return f"Output({', '.join(f'{k}: {v}' for k, v in shown.items())})"


register_pytree_node(
    Output,
    lambda out: ([*out.values()], [*out]),
    lambda values, names: Output(dict(zip(names, values, strict=True))),
    serialized_type_name="anyformer.Output",
    flatten_with_keys_fn=lambda out: ([(MappingKey(name), value) for name, value in out.items()], [*out]),
)
