"""GPT-NeoX [Black et al. 2022] and Pythia [Biderman et al. 2023]: attention and feed-forward run in parallel on the
same input, and rotary positions apply to a part of each head."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import (
    Class,
    Config,
    activation,
    choice,
    divides,
    entry,
    interleave,
    read_only,
    tied,
)
from anyformer.families.shared.heads import decoder_classes
from anyformer.families.shared.rope import ROPE, read_rope, write_rope
from anyformer.parts import (
    Attention, Block, Causal, DecoderModel, Full, LMHead, LayerNorm, MLP, Mask, Model, Normal, Parallel, Rope, Stack,
    Sublayer, TagHead, TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at

# parallel steps are in `both`, sequential steps directly in the layer
ATTENTION, INNER = "decoder.layers.**.attention.op", "decoder.layers.**.feedforward.op"
NORM = LayerNorm(eps=1e-5)

TEMPLATE = DecoderModel(
    width=6144,
    length=2048,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=50432)),
    decoder=Stack(
        depth=44,
        layers=Block(
            both=Parallel(
                attention=Sublayer(
                    pre_norm=NORM,
                    op=Attention(num_heads=64, bias="qkvo", mask=Causal(), position=Rope(base=10000.0, fraction=0.25)),
                ),
                feedforward=Sublayer(pre_norm=NORM, op=MLP(width=24576, activation="gelu")),
            )
        ),
        norm=NORM,
    ),
    init={"*": Normal(std=0.02)},
)


def is_parallel(spec: Model) -> bool:
    return "both" in value_at(spec, "decoder.layers").steps


def make_sequential(spec: Model, parallel: bool, c: Config) -> Model:
    """Without use_parallel_residual, the feed-forward reads the output of attention."""
    return spec if parallel else edit(spec, {"decoder.layers": Block(**value_at(spec, "decoder.layers.both").steps)})


def is_causal(mask: Mask) -> bool:
    if mask.sees == "past":
        raise Absent  # written only if False
    return False


def rotary(value: Any, c: Config) -> Rope:
    given = {**(c.rope_scaling or value or {})}
    given.setdefault("rope_theta", 10000.0 if c.rotary_emb_base is None else c.rotary_emb_base)
    fraction = given.setdefault("partial_rotary_factor", 0.25 if c.rotary_pct is None else c.rotary_pct)
    return read_rope(Config(**{**vars(c), "rope_scaling": None, "rope_parameters": given}), fraction)


OLD = "an old name that the published class does not read"
OLD_FORM = "duplicates rotary_emb_base and rotary_pct, which the published class reads"

CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "hidden_size": "width",
    "num_hidden_layers": "decoder.depth",
    "num_attention_heads": f"{ATTENTION}.num_heads",
    "intermediate_size": f"{INNER}.width",
    "hidden_act": activation(f"{INNER}.activation"),
    "attention_dropout": f"{ATTENTION}.dropout",
    "hidden_dropout": ("embedding.dropout", "decoder.layers.both.*.dropout"),
    "classifier_dropout": "head[TagHead].dropout",
    "max_position_embeddings": "length",
    "initializer_range": "init.*.std",
    "layer_norm_eps": ("decoder.norm.eps", "decoder.layers.both.*.pre_norm.eps"),
    "use_parallel_residual": entry(default=True, path=is_parallel, build=make_sequential),
    "rope_parameters": entry(
        f"{ATTENTION}.position",
        default=None,
        within=ROPE,
        read=rotary,
        write=lambda rope: {**write_rope(rope), "partial_rotary_factor": rope.fraction},
    ),
    "rope_scaling": read_only(within=ROPE),
    **dict.fromkeys(("original_max_position_embeddings", "rotary_emb_base", "rotary_pct"), read_only()),
    **{name: Ignored(None, OLD_FORM) for name in ("rope_theta", "partial_rotary_factor")},
    "head_dim": read_only(),  # published: only used by rotary positions
    "attention_bias": choice(f"{ATTENTION}.bias", {True: "qkvo", False: ""}),
    "tie_word_embeddings": tied(False, LMHead="head.out.weight"),
    "pad_token_id": "head.pool.take.padding_token",
    "is_causal": entry(
        f"{ATTENTION}.mask", default=True, read=lambda value, c: Causal() if value else Full(), write=is_causal
    ),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "is_decoder": Ignored(False, "the model is always causal"),
    "attention_probs_dropout_prob": Removed(0.0, OLD),
    "hidden_dropout_prob": Removed(0.0, OLD),
}


def weights(spec: Model) -> dict[str, Any]:
    layer = "decoder.layers.{i}.both" if is_parallel(spec) else "decoder.layers.{i}"
    return {
        "~embed_in": "embedding.tokens",
        "~layers.{i}.input_layernorm": f"{layer}.attention.pre_norm",
        "~layers.{i}.attention.query_key_value": interleave(f"{layer}.attention.op.{{q,k,v}}"),
        "~layers.{i}.attention.dense": f"{layer}.attention.op.o",
        "~layers.{i}.post_attention_layernorm": f"{layer}.feedforward.pre_norm",
        "~layers.{i}.mlp.{dense_h_to_4h,dense_4h_to_h}": f"{layer}.feedforward.op.{{up,down}}",
        "~final_layer_norm": "decoder.norm",
    }


def check_head_dim(c: Config) -> None:
    if c.head_dim not in (None, c.hidden_size // c.num_attention_heads):
        raise ValueError(f"head_dim={c.head_dim} must equal hidden_size / num_attention_heads")


def pythia(depth: int, width: int, heads: int, published: float, vocab_size: int = 50304) -> Size:
    config = {"num_hidden_layers": depth, "hidden_size": width, "num_attention_heads": heads, "vocab_size": vocab_size}
    return Size({**config, "intermediate_size": 4 * width}, published)


GPT_NEOX = Family(
    name="gpt_neox",
    about="decoder language models",
    tokenizer="GPTNeoXTokenizer",
    template=TEMPLATE,
    classes={
        **decoder_classes("GPTNeoX", 50432),
        "GPTNeoXForCausalLM": Class(LMHead(vocab_size=50432), "embed_out"),
        "GPTNeoXForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
    },
    config=CONFIG,
    weights=weights,
    prefix="gpt_neox.",
    checks=(divides("num_attention_heads", "hidden_size"), check_head_dim),
    dropped=tuple(f"~layers.{{i}}.attention.{n}" for n in ("bias", "masked_bias", "rotary_emb.inv_freq")),
    legacy={"lm_head.weight": "embed_out.weight"},
    sizes={
        "gpt-neox-20b": Size({"hidden_act": "gelu_fast"}, 20e9),
        "pythia-70m": pythia(6, 512, 8, 70.4e6),
        "pythia-160m": pythia(12, 768, 12, 162.3e6),
        "pythia-410m": pythia(24, 1024, 16, 405.3e6),
        "pythia-1.4b": pythia(24, 2048, 16, 1.41e9),
        "pythia-12b": pythia(36, 5120, 40, 11.8e9, 50688),
    },
)
