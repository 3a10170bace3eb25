"""LLaVA [Liu et al. 2023]: a Llama that reads CLIP patch vectors, projected by an MLP, among its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, activation, head_is_tied
from anyformer.families.clip_vision_model import IMAGE
from anyformer.families.llama import LLAMA
from anyformer.families.shared.nested import nested_config, nested_rules, read_nested
from anyformer.parts import DecoderModel, MLPProjector, Model, Tower, TowerDecoderModel
from anyformer.parts.activation import activation_named
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rename, Rule

VISION = {
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "projection_dim": 768,
}


def describe(c: Config) -> Model:
    has_head = c.architecture != "LlavaModel"
    text: Any = read_inner_config(c, "text_config", LLAMA, "LlamaForCausalLM" if has_head else "LlamaModel")
    image: Any = read_inner_config(c, "vision_config", IMAGE, "CLIPVisionModel", VISION)
    layers = c.vision_feature_layer
    if c.vision_feature_select_strategy not in ("default", "full"):
        strategy = quote(c.vision_feature_select_strategy)
        raise ValueError(f"vision_feature_select_strategy={strategy} is not valid; valid: default, full")
    tower = Tower(
        model=image,
        token=c.image_token_index,
        layers=(layers,) if isinstance(layers, int) else tuple(layers),
        skip=int(c.vision_feature_select_strategy == "default"),
        projector=MLPProjector(activation=activation_named(c.projector_hidden_act), bias=c.multimodal_projector_bias),
    )
    if c.tie_word_embeddings and has_head:
        text = text.replace(ties=(("head.out.weight", "embedding.tokens.weight"),))
    return TowerDecoderModel(**dict(text.items()), image=tower)


def read_inner_config(
    c: Config, name: str, family: Family, architecture: str, default: Mapping[str, Any] | None = None
) -> Model:
    """Return the description of the config in the field `name`."""
    config = getattr(c, name)
    config = default or {} if config is None else config
    kind = config.get("model_type", family.name) if isinstance(config, Mapping) else family.name
    if kind != family.name:
        raise ValueError(f"{name}.model_type={quote(kind)} is not supported; valid: {family.name}")
    return read_nested(name, config, family, architecture)


def text_of(spec: TowerDecoderModel) -> DecoderModel:
    """Return the language model without towers."""
    fields = {name: value for name, value in spec.items() if name not in ("image", "audio")}
    return DecoderModel(**{**fields, "architecture": "LlamaForCausalLM" if spec.head else "LlamaModel"})


def feature_layer(spec: Model) -> int | list[int]:
    layers = [*value_at(spec, "image.layers")]
    return layers[0] if len(layers) == 1 else layers


def rules(spec: TowerDecoderModel) -> list[Rule]:
    return [
        Rename("multi_modal_projector.linear_1.{p}", "image.projector.up.{p}"),
        Rename("multi_modal_projector.linear_2.{p}", "image.projector.down.{p}"),
        *nested_rules(IMAGE.rules(value_at(spec, "image.model")), "vision_tower.", ours="image.model."),
        *nested_rules(LLAMA.rules(text_of(spec)), "model.", "language_model."),
    ]


LLAVA = Family(
    name="llava",
    about="chat about images: a Llama with an image encoder",
    base_tokenizer="always",
    template=describe,
    config={
        "text_config": nested_config(LLAMA, text_of),
        "vision_config": nested_config(IMAGE, lambda spec: spec.image.model),
        "image_token_index": Entry(32000, "image.token"),
        "projector_hidden_act": activation("image.projector.activation", default="gelu"),
        "vision_feature_select_strategy": Entry("default", lambda spec: "default" if spec.image.skip else "full"),
        "vision_feature_layer": Entry(-2, feature_layer),
        "multimodal_projector_bias": Entry(True, "image.projector.bias"),
        "tie_word_embeddings": Entry(False, head_is_tied("LMHead")),
        "image_seq_length": Ignored(576, "tokens per image; computed from the image size"),
        "ignore_index": Ignored(-100, "a field of old files that nothing reads"),
        "vocab_size": Ignored(None, "a field of old files; text_config decides"),
        "tie_last_hidden_states": Ignored(None, "text_config decides"),
        "problem_type": None,
    },
    weights=rules,
    classes={"LlavaForConditionalGeneration": Class(), "LlavaModel": Class()},
    aliases={"image_token_id": "image_token_index"},
    moved={
        "vision_tower.vision_model.": "vision_tower.",
        "model.vision_tower.": "vision_tower.",
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    },
    dropped=(
        "language_model.model.layers.{i}.self_attn.rotary_emb.inv_freq",
        "vision_tower.embeddings.position_ids",
    ),
    pictures="Llava",
    sizes={
        "llava-1.5-7b": Size(
            {"text_config": {"vocab_size": 32064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}}, 7.06e9
        ),
        "llava-1.5-13b": Size(
            {
                "text_config": {
                    "vocab_size": 32064,
                    "max_position_embeddings": 4096,
                    "rms_norm_eps": 1e-5,
                    "hidden_size": 5120,
                    "intermediate_size": 13824,
                    "num_hidden_layers": 40,
                    "num_attention_heads": 40,
                    "num_key_value_heads": 40,
                }
            },
            13.35e9,
        ),
    },
)
