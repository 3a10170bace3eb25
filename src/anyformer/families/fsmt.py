"""fairseq's WMT19 translation models [Ng et al. 2019]: the original Transformer with two vocabularies; positions start
after the padding token's id and skip padding."""

from __future__ import annotations

from anyformer.families.bart import BART, ONLY_BART, SHARED_WITH_MARIAN, equal_heads, scale_at
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry
from anyformer.families.shared.transformer import ALIASES, TOKENS, check_padding
from anyformer.parts import (
    HiddenTokenText, LMHead, LastTokenStartModel, Model, Sinusoidal, TextEmbedding, Tokens, VocabularyOutput,
    WithoutToken,
)  # fmt: skip
from anyformer.specs.addresses import edit

OUT, STARTS = "~decoder.output_projection", "shifted labels start with their last token"
EMBEDDING = TextEmbedding(
    tokens=Tokens(vocab_size=42024, padding_index=1),
    scale=32.0,
    dropout=0.1,
    position=Sinusoidal(length=1024, offset=2, inclusive=True, stored=True),
    numbering=WithoutToken(token=1),
)


def share_tables(spec: Model, tie: bool, c: Config) -> Model:
    """Tie the source embedding and the output to the decoder's table."""
    ties = [(name, f"decoder_{TOKENS}") for name in (TOKENS, "head.out.weight")]
    return spec.replace(ties=tuple(ties)) if tie else spec


def check_vocabularies(c: Config) -> None:
    pad, source, target = c.pad_token_id, c.src_vocab_size, c.tgt_vocab_size
    if pad is None or pad < 0:
        raise ValueError(f"pad_token_id must be an id of at least 0, because positions start after it; got {pad}")
    if c.tie_word_embeddings and source != target:
        raise ValueError(f"tie_word_embeddings needs src_vocab_size {source} = tgt_vocab_size {target}")
    check_padding(c, source, target)


FSMT = BART.but(
    "fsmt",
    about="translation: fairseq's WMT19 models",
    tokenizer="FSMTTokenizer",
    template=edit(
        BART.template,
        {
            "embedding": EMBEDDING,
            "decoder_embedding": EMBEDDING.as_kind(HiddenTokenText, hidden_token=1),
            "*.layers.feedforward.op.activation": "relu",
            "state_offered": "always",
        },
    ).as_kind(LastTokenStartModel, start_token=None),
    classes={
        "FSMTForConditionalGeneration": Class(LMHead(vocab_size=42024, shift=False), OUT),
        "FSMTModel": Class(VocabularyOutput(vocab_size=42024), OUT, prefix=""),
    },
    config={
        **dict.fromkeys((*ONLY_BART, *SHARED_WITH_MARIAN, "vocab_size", "is_causal")),
        "src_vocab_size": "embedding.tokens.vocab_size",
        "tgt_vocab_size": ("decoder_embedding.tokens.vocab_size", "head.vocab_size"),
        "scale_embedding": scale_at("embedding.scale", "decoder_embedding.scale"),
        "tie_word_embeddings": Entry(False, lambda spec: bool(spec.ties), build=share_tables),
        "pad_token_id": ("padding_token", "*.tokens.padding_index", "*.numbering.token", "*.hidden_token"),
        "decoder_start_token_id": Ignored(2, f"used by generation; {STARTS}"),
        "eos_token_id": Ignored(2, "used by generation"),
        "langs": Ignored(["en", "de"], "used by tokenizers"),
        "decoder": Ignored(None, "a field of old configs that nothing reads"),
    },
    computed={"*.position.offset": lambda c: c.pad_token_id + 1},
    weights={"~{encoder,decoder}.layernorm_embedding": None},
    checks=(check_vocabularies, equal_heads),
    aliases={**ALIASES, "vocab_size": "tgt_vocab_size"},
    dropped=(),
)
