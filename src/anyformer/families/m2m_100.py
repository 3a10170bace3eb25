"""M2M-100 [Fan et al. 2020]: translation between any two of 100 languages; pre-norm; sinusoidal positions start after
the padding token's id and skip padding."""

from __future__ import annotations

from anyformer.families.bart import BART, NORM, ONLY_BART, SHARED_WITH_MARIAN, shared_table
from anyformer.families.base.family import Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, Config
from anyformer.families.shared.transformer import weights
from anyformer.parts import ByPlace, LMHead, Sinusoidal, TextEmbedding, Tokens, WithoutToken

EMBEDDING = TextEmbedding(
    tokens=Tokens(vocab_size=128112, padding_index=1, scale=32.0),
    dropout=0.1,
    position=Sinusoidal(length=1024, offset=2, inclusive=True),
    numbering=WithoutToken(token=1),
)
LARGE = {"encoder_layers": 24, "encoder_ffn_dim": 8192, "decoder_layers": 24, "decoder_ffn_dim": 8192}


def check_pad_token(c: Config) -> None:
    if c.pad_token_id is None:
        raise ValueError("pad_token_id is None, but positions start after it; set pad_token_id")


M2M_100 = BART.but(
    "m2m_100",
    about="translation between 100 languages",
    tokenizer="M2M100Tokenizer",
    changes={
        "embedding": EMBEDDING,
        "decoder_embedding": EMBEDDING,
        "*.layers.*.out_norm": None,
        "*.layers.*.pre_norm": NORM,
        "encoder.norm": NORM,
        "decoder.norm": NORM,
        "*.layer_drop": 0.05,
        "*.layers.*.op[Attention].dropout": 0.1,
        "*.layers.feedforward.op.activation": "relu",
        "state_offered": "always",
        "reads_source": False,
    },
    classes={
        "M2M100ForConditionalGeneration": Class(LMHead(vocab_size=128112, shift=False), "lm_head"),
        "M2M100Model": Class(prefix=""),
    },
    config={
        **dict.fromkeys((*ONLY_BART, *SHARED_WITH_MARIAN)),
        "eos_token_id": Ignored(2, "used by generation"),
        "normalize_before": Removed(True, "the published class is always pre-norm"),
    },
    computed={
        "*.position.offset": lambda c: c.pad_token_id + 1,
        "*.numbering": lambda c: ByPlace() if c.pad_token_id < 0 else WithoutToken(token=c.pad_token_id),
    },
    weights={"~shared": shared_table, **weights("pre_norm"), "~{encoder,decoder}.layernorm_embedding": None},
    checks=(check_pad_token, *BART.checks),
    dropped=tuple(
        f"~{side}.{name}"
        for side in ("encoder", "decoder")
        for name in ("version", "embed_positions.weights", "embed_positions._float_tensor")
    ),
    sizes={
        "m2m100-418m": Size({}, None, "named 418M; the released weights have 484M"),
        "m2m100-1.2b": Size(LARGE, 1.2e9),
    },
)
