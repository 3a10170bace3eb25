"""ModernBERT [Warner et al. 2024]: a pre-norm BERT without biases, with rotary positions, GeGLU and local attention."""

from __future__ import annotations

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import activation, choice, entry, equal_heads, read_only, split
from anyformer.families.shared import nested_rope, prediction
from anyformer.families.shared.layer_types import pattern, window_around
from anyformer.parts import (
    Attention, Block, EncoderModel, Full, GatedMLP, LaterLayerNorm, LayerNorm, Mask, Rope, Stack, Sublayer,
    TextEmbedding, Tokens, TruncatedNormal, Window,
)  # fmt: skip

ATTENTION, MLP = "encoder.layers.attention.op", "encoder.layers.feedforward.op"
ROPE = "encoder.layers.{}.attention.op.position"
THETAS = {"full_attention": ("global_rope_theta", 160000.0), "sliding_attention": ("local_rope_theta", 10000.0)}
NORM = LayerNorm(eps=1e-5, bias=False)
NORMS = ("embedding.norm", "encoder.layers.*.pre_norm", "encoder.norm", "head.**.norm")
OUT = ("*.o.weight", "*.down.weight", "head.*dense.weight", "head.out.weight")
INIT = {**dict.fromkeys(OUT, TruncatedNormal(std=0.02, residual=True)), "*": TruncatedNormal(std=0.02)}


def layer(mask: Mask, theta: float) -> Block:
    attention = Attention(num_heads=12, bias="", mask=mask, position=Rope(base=theta))
    return Block(
        attention=Sublayer(pre_norm=LaterLayerNorm(eps=1e-5, bias=False), op=attention),
        feedforward=Sublayer(pre_norm=NORM, op=GatedMLP(width=1152, activation="gelu", bias=False)),
    )


LAYERS = {"full": layer(Full(), theta=160000.0), "sliding": layer(Window(size=65, ahead=True), theta=10000.0)}
LARGE = {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16}

MODERNBERT = Family(
    name="modernbert",
    about="encoders for long texts",
    template=EncoderModel(
        width=768,
        length=8192,
        embedding=TextEmbedding(tokens=Tokens(vocab_size=50368, padding_index=50283), norm=NORM),
        encoder=Stack(depth=22, layers=LAYERS, pattern=("full", "sliding", "sliding"), norm=NORM),
        init=INIT,
    ),
    classes=prediction.classes("ModernBert", 50368, NORM, INIT),
    config={
        "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
        "hidden_size": "width",
        "intermediate_size": f"{MLP}.width",
        "num_hidden_layers": "encoder.depth",
        "num_attention_heads": f"{ATTENTION}.num_heads",
        "hidden_activation": activation(f"{MLP}.activation"),
        "max_position_embeddings": "length",
        "initializer_range": "init.*[TruncatedNormal].std",
        "initializer_cutoff_factor": entry(  # null is 3; it would be the default if that were a float
            "init.*.cutoff", default=2, read=lambda value, c: 3.0 if value is None else value
        ),
        **{f"norm_{field}": tuple(f"{norm}.{field}" for norm in NORMS) for field in ("eps", "bias")},
        "pad_token_id": "embedding.tokens.padding_index",
        "attention_bias": choice(f"{ATTENTION}.bias", {False: "", True: "qkvo"}),
        "attention_dropout": (f"{ATTENTION}.dropout", "encoder.layers.attention.dropout"),
        "layer_types": pattern("encoder", is_windowed=lambda c, layer: layer % c.global_attn_every_n_layers > 0),
        "global_attn_every_n_layers": read_only(3),
        "local_attention": window_around("encoder.layers.sliding.attention.op.mask"),
        **nested_rope.entries(ROPE, THETAS),
        "embedding_dropout": "embedding.dropout",
        **{f"mlp_{field}": f"{MLP}.{field}" for field in ("bias", "dropout")},
        **prediction.FIELDS,
        **{f"{name}_token_id": Ignored(50281, "used by tokenizers") for name in ("bos", "cls")},
        **{f"{name}_token_id": Ignored(50282, "used by tokenizers") for name in ("eos", "sep")},
        "deterministic_flash_attn": Ignored(False, "how a kernel is executed"),
        "layer_norm_eps": Removed(1e-5, "an old copy of norm_eps"),
        "position_embedding_type": Removed("absolute", "positions are rotary"),
    },
    computed=nested_rope.read_ropes(ROPE, THETAS),
    weights={
        "~embeddings.{tok_embeddings,norm}": "embedding.{tokens,norm}",
        "~layers.{i}.{attn,mlp}_norm": "encoder.layers.{i}.{attention,feedforward}.pre_norm",
        "~layers.{i}.attn.Wqkv": split("encoder.layers.{i}.attention.op.{q,k,v}"),
        "~layers.{i}.mlp.Wi": split("encoder.layers.{i}.feedforward.op.{gate,up}"),
        "~layers.{i}.{attn,mlp}.Wo": "encoder.layers.{i}.{attention.op.o,feedforward.op.down}",
        "~final_norm": "encoder.norm",
    },
    prefix="model.",
    checks=(equal_heads, prediction.check_labels),
    sizes={"modernbert-base": Size({}, 149e6), "modernbert-large": Size(LARGE, 395e6)},
)
