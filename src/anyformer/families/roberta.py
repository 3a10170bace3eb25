"""RoBERTa [Liu et al. 2019]: BERT trained longer, without next-sentence prediction; positions count only tokens that
are not padding, as in fairseq. XLM-R [Conneau et al. 2020] and CamemBERT [Martin et al. 2020] have other vocabularies;
XLM-R XL [Goyal et al. 2021] and RoBERTa-PreLayerNorm [Wettig et al. 2023] are pre-norm."""

from __future__ import annotations

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, activation
from anyformer.families.shared import bert_like
from anyformer.families.shared.bert_like import LAYERS, NORM
from anyformer.parts import (
    Attention, Block, ClassifyHead, EncoderModel, FirstToken, LMHead, Learned, MLP, MultipleChoiceHead, Normal, Pool,
    PooledOutput, SpanHead, Stack, Sublayer, TagHead, TextEmbedding, Tokens, Transform, WithoutToken,
)  # fmt: skip

TEMPLATE = EncoderModel(
    width=768,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=50265, padding_index=1),
        position=Learned(length=510, offset=2, padding=True),
        numbering=WithoutToken(token=1, first=2),
        segments=2,
        norm=NORM,
        dropout=0.1,
    ),
    encoder=Stack(depth=12, layers=LAYERS),
    init={"*": Normal(std=0.02)},
)
PRE_NORM = Block(
    attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12, dropout=0.1), dropout=0.1),
    feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="gelu"), dropout=0.1),
)
POOL = Pool(take=FirstToken(), dense=True, activation="tanh")


def classes(name: str, vocab_size: int, tagger: TagHead = TagHead(num_labels=2, dropout=0.1)) -> dict[str, Class]:
    lm = LMHead(vocab_size=vocab_size, bias=True, transform=Transform(activation="gelu", norm=NORM), shift=False)
    return {
        f"{name}ForMaskedLM": Class(lm),
        f"{name}ForCausalLM": Class(lm.replace(shift=True)),
        f"{name}Model": Class(PooledOutput(pool=POOL), prefix=""),
        f"{name}ForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=POOL.replace(input_dropout=0.1, dropout=0.1)),
            "classifier.out_proj",
            weights={"classifier.dense": "head.pool.dense"},
        ),
        f"{name}ForTokenClassification": Class(tagger, "classifier"),
        f"{name}ForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
        f"{name}ForMultipleChoice": Class(MultipleChoiceHead(pool=POOL.replace(dropout=0.1)), "classifier"),
    }


BASE = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
XLM, FRENCH = {**BASE, "vocab_size": 250002}, {**BASE, "vocab_size": 32005}
XXL = {"hidden_size": 4096, "num_hidden_layers": 48, "intermediate_size": 16384}

ROBERTA = Family(
    name="roberta",
    about="text encoders, and decoders with the same layers",
    tokenizer="RobertaTokenizer",
    template=TEMPLATE,
    classes=classes("Roberta", 50265),
    config={
        **bert_like.CONFIG,
        **bert_like.DECODER_FIELDS,
        **bert_like.COUNTED_CONFIG,
        "hidden_act": activation("*.layers.feedforward.op.activation"),  # the head always has "gelu"
        "hidden_dropout_prob": ("embedding.dropout", "*.layers.*.dropout", "head[MultipleChoiceHead].pool.dropout"),
        "classifier_dropout": bert_like.head_dropout(
            "head[ClassifyHead].pool.input_dropout", "head[ClassifyHead].pool.dropout", "head[TagHead].dropout"
        ),
        "bos_token_id": Ignored(0, "used by tokenizers and generation"),
        "eos_token_id": Ignored(2, "used by tokenizers and generation"),
        "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
    },
    computed={**bert_like.COUNTED, "head.unused_bias": lambda c: not c.tie_word_embeddings},
    weights={**bert_like.WEIGHTS, "lm_head": bert_like.vocabulary("dense", "layer_norm")},
    prefix="roberta.",
    checks=(bert_like.check_decoder,),
    dropped=("~embeddings.position_ids", "~embeddings.token_type_ids", "~pooler.dense.{p}"),
    sizes={"roberta-base": Size(BASE, 125e6), "roberta-large": Size({**BASE, **LARGE}, 355e6)},
)

XLM_ROBERTA = ROBERTA.but(
    name="xlm-roberta",
    about="XLM-R: encoders for text in 100 languages, and decoders with the same layers",
    tokenizer="XLMRobertaTokenizer",
    classes=classes("XLMRoberta", 30522),
    changes={"embedding.tokens.vocab_size": 30522},
    sizes={"xlm-roberta-base": Size(XLM, 278e6), "xlm-roberta-large": Size({**XLM, **LARGE}, 560e6)},
)

CAMEMBERT = XLM_ROBERTA.but(
    name="camembert",
    about="encoders for French text, and decoders with the same layers",
    tokenizer="CamembertTokenizer",
    classes=classes("Camembert", 30522),
    sizes={"camembert-base": Size(FRENCH, 110e6), "camembert-large": Size({**FRENCH, **LARGE}, 337e6)},
)

PRE_LAYER_NORM = ROBERTA.but(
    name="roberta-prelayernorm",
    about="pre-norm text encoders, and decoders with the same layers",
    classes=classes("RobertaPreLayerNorm", 50265),
    changes={"encoder.layers": PRE_NORM, "encoder.norm": NORM},
    weights={
        "~encoder.layer.{i}.{attention,crossattention}.LayerNorm": "*.layers.{i}.{attention,cross}.pre_norm",
        "~encoder.layer.{i}.intermediate.LayerNorm": "*.layers.{i}.feedforward.pre_norm",
        "~LayerNorm": "*.norm",
    },
    prefix="roberta_prelayernorm.",
    sizes={"efficient-mlm": Size({**BASE, **LARGE})},
)

XLM_ROBERTA_XL = PRE_LAYER_NORM.but(
    name="xlm-roberta-xl",
    about="large encoders for text in 100 languages, and decoders with the same layers",
    tokenizer="XLMRobertaTokenizer",
    base_tokenizer="always",
    classes=classes("XLMRobertaXL", 250880, TagHead(num_labels=2, dropout=0.1, counts_pads=False)),
    changes={
        "width": 2560,
        "embedding.tokens.vocab_size": 250880,
        "embedding.position.length": 512,
        "embedding.segments": 1,
        "embedding.norm": None,
        "encoder.depth": 36,
        "encoder.layers.attention.op.num_heads": 32,
        "encoder.layers.feedforward.op.width": 10240,
        "encoder.layers.feedforward.dropout": 0.0,
        "**.eps": 1e-5,
    },
    config={
        "hidden_dropout_prob": (
            "embedding.dropout",
            "*.layers.attention.dropout",
            "head[MultipleChoiceHead].pool.dropout",
        ),
    },
    weights={
        "~encoder.layer.{i}.{attention,crossattention}.self_attn_layer_norm": "*.layers.{i}.{attention,cross}.pre_norm",
        "~encoder.layer.{i}.LayerNorm": "*.layers.{i}.feedforward.pre_norm",
        "~encoder.LayerNorm": "*.norm",
    },
    prefix="roberta.",
    sizes={"xlm-roberta-xl": Size({}, 3.5e9), "xlm-roberta-xxl": Size(XXL, 10.7e9)},
)
