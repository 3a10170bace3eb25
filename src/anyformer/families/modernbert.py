"""ModernBERT [Warner et al. 2024]: a pre-norm BERT without biases, with rotary positions, GeGLU and local attention."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, activation, choice, entry, equal_heads, read_only, split, tied
from anyformer.families.shared import nested_rope
from anyformer.families.shared.layer_types import pattern
from anyformer.models import EncoderModel, Model
from anyformer.parts import Attention, Block, Full, GatedMLP, LayerNorm, Rope, Stack, Sublayer, TextEmbedding, Tokens
from anyformer.parts import ClassifyHead, LMHead, MultipleChoiceHead, Window
from anyformer.parts.head.prediction import PredictionPool, PredictionSpanHead, PredictionTagHead, PredictionTransform
from anyformer.parts.head.sparse import SparseHead
from anyformer.parts.later_norm import LaterLayerNorm
from anyformer.parts.truncated_init import TruncatedLeCun, TruncatedNormal
from anyformer.runtime.mask import Mask

ATTENTION, MLP = "encoder.layers.attention.op", "encoder.layers.feedforward.op"
NORM = LayerNorm(eps=1e-5, bias=False)
NORMS = ("embedding.norm", "encoder.layers.*.pre_norm", "encoder.norm", "head.**.norm")
ROPE = "encoder.layers.{}.attention.op.position"
THETAS = {"full_attention": ("global_rope_theta", 160000.0), "sliding_attention": ("local_rope_theta", 10000.0)}
TOKEN_HEADS = ("PredictionTagHead", "PredictionSpanHead")
TRANSFORM = PredictionTransform(activation="gelu", norm=NORM)
POOL = PredictionPool(take="first", transform=TRANSFORM)
OUT = TruncatedNormal(std=0.02, residual=True)
INIT = {
    **dict.fromkeys(("*.o.weight", "*.down.weight", "head.*dense.weight", "head.out.weight"), OUT),
    "*": TruncatedNormal(std=0.02),
}


def layer(mask: Mask, theta: float) -> Block:
    attention = Attention(num_heads=12, bias="", mask=mask, position=Rope(base=theta))
    return Block(
        attention=Sublayer(pre_norm=LaterLayerNorm(eps=1e-5, bias=False), op=attention),
        feedforward=Sublayer(pre_norm=NORM, op=GatedMLP(width=1152, activation="gelu", bias=False)),
    )


LAYERS = {"full": layer(Full(), theta=160000.0), "sliding": layer(Window(size=65, ahead=True), theta=10000.0)}


def classifier(head: Any, transform: str = "head.transform") -> Class:
    init = {**INIT, "head.out.weight": TruncatedLeCun()}
    return Class(head, "classifier", changes={"init": init}, weights={"head.{dense,norm}": transform + ".{dense,norm}"})


def check_labels(c: Config) -> None:
    if c.architecture.endswith("QuestionAnswering") and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")


def set_sparse(spec: Any, value: bool, c: Config) -> Any:
    if not value or not isinstance(spec.head, LMHead):
        return spec
    return spec.replace(head=SparseHead(**dict(spec.head.items()), ignored=c.sparse_pred_ignore_index))


LM = LMHead(vocab_size=50368, bias=True, shift=False, transform=TRANSFORM)
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
    classes={
        "ModernBertForMaskedLM": Class(LM, "decoder", weights={"head.{dense,norm}": "head.transform.{dense,norm}"}),
        "ModernBertModel": Class(prefix=""),
        "ModernBertForSequenceClassification": classifier(ClassifyHead(num_labels=2, pool=POOL), "head.pool.transform"),
        "ModernBertForTokenClassification": classifier(PredictionTagHead(num_labels=2, transform=TRANSFORM)),
        "ModernBertForQuestionAnswering": classifier(PredictionSpanHead(transform=TRANSFORM)),
        "ModernBertForMultipleChoice": classifier(MultipleChoiceHead(pool=POOL), "head.pool.transform"),
    },
    config={
        "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
        "hidden_size": "width",
        "intermediate_size": f"{MLP}.width",
        "num_hidden_layers": "encoder.depth",
        "num_attention_heads": f"{ATTENTION}.num_heads",
        "hidden_activation": activation(f"{MLP}.activation"),
        "max_position_embeddings": "length",
        "initializer_range": "init.*[TruncatedNormal].std",
        "initializer_cutoff_factor": entry(
            "init.*.cutoff", default=2, read=lambda value, c: 3.0 if value is None else value
        ),  # an integer, because null means the default in fields of floats
        "norm_eps": tuple(f"{norm}.eps" for norm in NORMS),
        "norm_bias": tuple(f"{norm}.bias" for norm in NORMS),
        "pad_token_id": "embedding.tokens.padding_index",
        "attention_bias": choice(f"{ATTENTION}.bias", {False: "", True: "qkvo"}),
        "attention_dropout": (f"{ATTENTION}.dropout", "encoder.layers.attention.dropout"),
        "layer_types": pattern("encoder", is_windowed=lambda c, layer: layer % c.global_attn_every_n_layers > 0),
        "global_attn_every_n_layers": read_only(3),
        **nested_rope.entries(ROPE, THETAS),
        "local_attention": entry(
            "encoder.layers.sliding.attention.op.mask",
            read=lambda size, c: Window(size=size // 2 + 1, ahead=True),  # half of it on each side of the query
            write=lambda mask: 2 * (mask.size - 1),
        ),
        "embedding_dropout": "embedding.dropout",
        "mlp_bias": f"{MLP}.bias",
        "mlp_dropout": f"{MLP}.dropout",
        "decoder_bias": "head[LMHead].bias",
        "classifier_pooling": choice("head.pool.take", {"cls": "first", "mean": "mean"}),
        "classifier_dropout": ("head.pool.transform.dropout", *(f"head[{h}].transform.dropout" for h in TOKEN_HEADS)),
        "classifier_bias": "head.**.transform.bias",
        "classifier_activation": activation("head.**.transform.activation"),
        "sparse_prediction": Entry(False, lambda spec: isinstance(spec.head, SparseHead), build=set_sparse),
        "sparse_pred_ignore_index": Entry(-100, "head.ignored"),
        "tie_word_embeddings": tied(True, LMHead="head.out.weight", SparseHead="head.out.weight"),
        "deterministic_flash_attn": Ignored(False, "how a kernel is executed"),
        "bos_token_id": Ignored(50281, "used by tokenizers"),
        "eos_token_id": Ignored(50282, "used by tokenizers"),
        "cls_token_id": Ignored(50281, "used by tokenizers"),
        "sep_token_id": Ignored(50282, "used by tokenizers"),
        "layer_norm_eps": Removed(1e-5, "an old copy of norm_eps"),
        "position_embedding_type": Removed("absolute", "not read, as positions are rotary"),
    },
    computed=nested_rope.computed(ROPE, THETAS),
    weights={
        "~embeddings.tok_embeddings": "embedding.tokens",
        "~embeddings.norm": "embedding.norm",
        "~layers.{i}.attn_norm": "encoder.layers.{i}.attention.pre_norm",
        "~layers.{i}.attn.Wqkv": split("encoder.layers.{i}.attention.op.{q,k,v}"),
        "~layers.{i}.attn.Wo": "encoder.layers.{i}.attention.op.o",
        "~layers.{i}.mlp_norm": "encoder.layers.{i}.feedforward.pre_norm",
        "~layers.{i}.mlp.Wi": split("encoder.layers.{i}.feedforward.op.{gate,up}"),
        "~layers.{i}.mlp.Wo": "encoder.layers.{i}.feedforward.op.down",
        "~final_norm": "encoder.norm",
    },
    prefix="model.",
    checks=(equal_heads, check_labels),
    sizes={
        "modernbert-base": Size({}, 149e6),
        "modernbert-large": Size(
            {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16}, 395e6
        ),
    },
)

FAMILIES = (MODERNBERT,)
