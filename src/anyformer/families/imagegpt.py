"""ImageGPT [Chen et al. 2020]: GPT-2 over the pixels of an image, one colour token per pixel, with RMSNorm."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Absent, Fixed, Ignored
from anyformer.families.base.template import Class, Config, Entry
from anyformer.families.gpt2 import GPT2
from anyformer.parts import ClassifyHead, LMHead, MeanColumns, Model, OwnVocabularyHead, Pool, RMSNorm

NOT_HERE = (
    "pad_token_id",
    "is_causal",
    "bos_token_id",
    "eos_token_id",
    "classifier_dropout",
    "hidden_dropout",
    "n_ctx",
)


def size(n_layer: int, n_embd: int, n_head: int, published: float) -> Size:
    return Size({"n_layer": n_layer, "n_embd": n_embd, "n_head": n_head}, published)


def tie(spec: Model, value: bool, c: Config) -> Model:
    if not value or not isinstance(spec.head, LMHead):
        return spec
    return spec.replace(head=spec.head.as_kind(LMHead), ties=(("head.out.weight", "embedding.tokens.weight"),))


def is_tied(spec: Model) -> bool:
    if not isinstance(spec.head, LMHead):
        raise Absent
    return bool(spec.ties)


IMAGEGPT = GPT2.but(
    "imagegpt",
    about="decoder that generates images pixel by pixel",
    tokenizer=None,
    changes={
        "width": 512,
        "embedding.tokens.vocab_size": 513,
        "decoder.depth": 24,
        "decoder.layers.cross": None,
        "decoder.layers.*.op[Attention].num_heads": 8,
        "decoder.layers.*.pre_norm": RMSNorm(eps=1e-5),
        "decoder.layers.feedforward.op.width": 2048,
        "decoder.layers.feedforward.op.activation": "quick_gelu",
        "decoder.norm": RMSNorm(eps=1e-5),
    },
    classes={
        "ImageGPTForCausalImageModeling": Class(OwnVocabularyHead(vocab_size=512), "lm_head"),
        "ImageGPTModel": Class(prefix=""),
        "ImageGPTForImageClassification": Class(
            ClassifyHead(num_labels=2, pool=Pool(take=MeanColumns()), bias=False), "score"
        ),
    },
    config={
        "vocab_size": "embedding.tokens.vocab_size",
        "tie_word_embeddings": Entry(False, is_tied, build=tie),
        "add_cross_attention": Fixed(False, "the published class fails with it if a cache or padding is used"),
        "is_decoder": Ignored(False, "the model is always causal"),
        **dict.fromkeys((*NOT_HERE, *(name for name in GPT2.config if name.startswith("summary_")))),
    },
    computed={
        **GPT2.computed,
        # the last token starts an image and is never generated
        "head.vocab_size": lambda c: c.vocab_size - (not c.tie_word_embeddings),
    },
    pictures="ImageGPT",
    sizes={
        "imagegpt-small": size(24, 512, 8, 76e6),
        "imagegpt-medium": size(36, 1024, 8, 455e6),
        "imagegpt-large": size(48, 1536, 16, 1.36e9),
    },
)
