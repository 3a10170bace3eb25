"""Languages that models of many languages have a token for, in the order of their ids."""

from __future__ import annotations

import re

import tokenizers
from tokenizers import processors

_M2M = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
    "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
    "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
# `language_codes` of a tokenizer_config.json -> the codes [Fan et al. 2020, Tran et al. 2021]
LANGUAGES = {"m2m100": _M2M.split(), "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]}

# NLLB's tokens are codes of a language and its script
NLLB = re.compile("[a-z]{3}_[A-Z][a-z]{3}")


def between(core: tokenizers.Tokenizer, language: int, end: int) -> processors.PostProcessor:
    """Puts the token of its language before a text and the end token after it."""
    before, after = core.id_to_token(language), core.id_to_token(end)
    return processors.TemplateProcessing(
        single=[before, "$A", after], pair=[before, "$A", "$B", after],
        special_tokens=[(before, language), (after, end)],
    )  # fmt: skip
