"""ALBERT [Lan et al. 2020]: BERT with weights shared by all layers, token vectors narrower than the model, and
sentence-order prediction instead of next-sentence prediction."""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, read_only, rules_of, tied
from anyformer.families.shared import bert_like
from anyformer.families.shared.bert_like import NORM
from anyformer.parts import (
    Attention, Block, ClassifyHead, EncoderModel, FirstToken, LMHead, Learned, MLP, MultipleChoiceHead, Normal, Pool,
    PooledOutput, SentenceOrderHead, SpanHead, Stack, Sublayer, TagHead, TextEmbedding, Tokens, Transform,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rule

TEMPLATE = EncoderModel(
    width=4096,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=30000, width=128, padding_index=0),
        position=Learned(length=512),
        segments=2,
        norm=NORM,
        dropout=0.0,
    ),
    encoder=Stack(
        depth=1,
        order=(0,) * 12,  # one layer, run twelve times
        layers=Block(
            attention=Sublayer(op=Attention(num_heads=64, dropout=0.0), out_norm=NORM, dropout=0.0),
            feedforward=Sublayer(op=MLP(width=16384, activation="gelu_tanh"), out_norm=NORM),
        ),
    ),
    init={"*": Normal(std=0.02)},
)
POOL = Pool(take=FirstToken(), dense=True, activation="tanh")
DROPPED = POOL.replace(dropout=0.1)
LM = LMHead(vocab_size=30000, bias=True, transform=Transform(activation="gelu_tanh", norm=NORM, width=128), shift=False)


def group_size(spec: EncoderModel) -> int:
    """Return the number of layers in a group."""
    return max(len(value_at(spec, "encoder.pattern")), 1)


def share_layers(spec: EncoderModel, n: int, c: Config) -> EncoderModel:
    """Divide the depth equally among groups of `n` layers; each group runs repeatedly."""
    L, G, layer = c.num_hidden_layers, c.num_hidden_groups, value_at(spec, "encoder.layers")
    kinds = {f"inner_{j}": layer for j in range(n)}
    stack = Stack(
        layers=layer if n == 1 else kinds,
        pattern=() if n == 1 else tuple(kinds),
        depth=G * n,
        order=tuple(int(i / (L / G)) * n + j for i in range(L) for j in range(n)),
    )
    return spec.replace(encoder=stack)


def check(c: Config) -> None:
    L, G, n = c.num_hidden_layers, c.num_hidden_groups, c.inner_group_num
    if not 1 <= G <= L or n < 1:
        raise ValueError(f"num_hidden_groups {G} must be 1 to num_hidden_layers {L}, inner_group_num {n} at least 1")
    bert_like.check(c)
    if c.architecture == "AlbertForPreTraining" and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for sentence order, got {c.num_labels}")


def layer_rules(theirs: str, spec: EncoderModel) -> Iterator[Rule]:
    for k in range(value_at(spec, "encoder.depth")):
        group, j = divmod(k, group_size(spec))
        layer, ours = f"{theirs}.{group}.albert_layers.{j}", f"encoder.layers.{k}"
        names = {
            f"{layer}.attention.{{query,key,value,dense}}": f"{ours}.attention.op.{{q,k,v,o}}",
            f"{layer}.attention.LayerNorm": f"{ours}.attention.out_norm",
            f"{layer}.{{ffn,ffn_output}}": f"{ours}.feedforward.op.{{up,down}}",
            f"{layer}.full_layer_layer_norm": f"{ours}.feedforward.out_norm",
        }
        yield from rules_of(names, spec)


def size(width: int, depth: int, num_heads: int, published: float, note: str = "") -> Size:
    shape = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": num_heads}
    return Size({**shape, "intermediate_size": 4 * width}, published, note)


ORIGINAL = "from experiments in the original code; the published class does not read it"

ALBERT = Family(
    name="albert",
    about="text encoders whose layers share their weights",
    tokenizer="AlbertTokenizer",
    template=TEMPLATE,
    classes={
        "AlbertForPreTraining": Class(SentenceOrderHead(lm=LM, pool=DROPPED), "sop_classifier.classifier"),
        "AlbertForMaskedLM": Class(LM),
        "AlbertModel": Class(PooledOutput(pool=POOL), prefix=""),
        "AlbertForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=DROPPED), "classifier"),
        "AlbertForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "AlbertForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
        "AlbertForMultipleChoice": Class(MultipleChoiceHead(pool=DROPPED), "classifier"),
    },
    config={
        **bert_like.CONFIG,
        "embedding_size": Entry(
            path=lambda spec: spec.embedding.tokens.width or spec.width,
            addresses=("embedding.tokens.width", "**.transform.width"),
        ),
        "num_hidden_layers": Entry(12, lambda spec: len(spec.encoder.steps) // group_size(spec)),
        "num_hidden_groups": Entry(1, lambda spec: spec.encoder.depth // group_size(spec)),
        "inner_group_num": Entry(1, group_size, build=share_layers),
        "hidden_dropout_prob": ("embedding.dropout", "*.layers.attention.dropout"),  # not after the feed-forward
        "classifier_dropout_prob": read_only(
            0.1,
            addresses=(
                "head[SentenceOrderHead].pool.dropout",
                "head[ClassifyHead].pool.dropout",
                "head[MultipleChoiceHead].pool.dropout",
                "head[TagHead].dropout",
            ),
        ),
        "tie_word_embeddings": tied(True, LMHead="head.out.weight", SentenceOrderHead="head.lm.out.weight"),
        "bos_token_id": Ignored(2, "used by tokenizers and generation"),
        "eos_token_id": Ignored(3, "used by tokenizers and generation"),
        "down_scale_factor": Removed(1, ORIGINAL),
        **{name: Removed(0, ORIGINAL) for name in ("gap_size", "net_structure_type", "num_memory_blocks")},
        "layers_to_keep": Removed([], ORIGINAL),
        "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
    },
    computed={"**.unused_bias": lambda c: not c.tie_word_embeddings},
    weights={
        "~embeddings.{word,position,token_type}_embeddings": "embedding.{tokens,position,segments}",
        "~embeddings.LayerNorm": "embedding.norm",
        "~encoder.embedding_hidden_mapping_in": "embedding.project",
        "~encoder.albert_layer_groups": layer_rules,
        "~pooler": "head.pool.dense",
        "predictions": bert_like.vocabulary("dense", "LayerNorm"),
    },
    prefix="albert.",
    checks=(check,),
    # left over from pretraining; most classes do not use them
    dropped=("~embeddings.position_ids", "~pooler.{p}", "sop_classifier.classifier.{p}"),
    sizes={
        "albert-base": size(768, 12, 12, 12e6),
        "albert-large": size(1024, 24, 16, 18e6),
        "albert-xlarge": size(2048, 24, 16, 60e6),
        "albert-xxlarge": size(4096, 12, 64, 223e6, "235M in the paper; the released files have 223M"),
    },
)
