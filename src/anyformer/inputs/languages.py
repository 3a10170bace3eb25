"""Language tokens of multilingual models, in the order of their ids."""

from __future__ import annotations

import re
from typing import Any

import tokenizers
from tokenizers import processors

from anyformer.specs.messages import nearest, quote

_M2M = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
    "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
    "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
# `language_codes` of a tokenizer_config.json -> the codes [Fan et al. 2020, Tran et al. 2021]
LANGUAGES = {"m2m100": _M2M.split(), "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]}

# spoken languages of Whisper [Radford et al. 2022]: code and name
_SPOKEN = (
    "en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese, "
    "tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi, "
    "fi finnish, vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish, "
    "hu hungarian, ta tamil, no norwegian, th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin, "
    "mi maori, ml malayalam, cy welsh, sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian, "
    "az azerbaijani, sl slovenian, kn kannada, et estonian, mk macedonian, br breton, eu basque, is icelandic, "
    "hy armenian, ne nepali, mn mongolian, bs bosnian, kk kazakh, sq albanian, sw swahili, gl galician, mr marathi, "
    "pa punjabi, si sinhala, km khmer, sn shona, yo yoruba, so somali, af afrikaans, oc occitan, ka georgian, "
    "be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic, yi yiddish, lo lao, uz uzbek, fo faroese, "
    "ht haitian-creole, ps pashto, tk turkmen, nn nynorsk, mt maltese, sa sanskrit, lb luxembourgish, my myanmar, "
    "bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian, ln lingala, ha hausa, ba bashkir, "
    "jw javanese, su sundanese, yue cantonese"
)
SPOKEN = dict(pair.replace("-", " ").split(" ", 1) for pair in _SPOKEN.split(", "))
OTHER_NAMES = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb", "pushto": "ps",
    "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si", "castilian": "es", "mandarin": "zh",
}  # fmt: skip
CODES = {**{name: code for code, name in SPOKEN.items()}, **OTHER_NAMES}

# NLLB's tokens are codes of a language and its script
NLLB = re.compile("[a-z]{3}_[A-Z][a-z]{3}")


def language_processor(core: tokenizers.Tokenizer, language: int, end: int) -> processors.PostProcessor:
    """Return a post-processor that adds the language token before a text and the end token after it."""
    before, after = core.id_to_token(language), core.id_to_token(end)
    return processors.TemplateProcessing(
        single=[before, "$A", after],
        pair=[before, "$A", "$B", after],
        special_tokens=[(before, language), (after, end)],
    )


def add_whisper_prompt(core: tokenizers.Tokenizer, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """Add Whisper's prompt before each text: the start token, and language and task if the config names them."""
    tokens = ["<|startoftranscript|>"]
    if (language := config.get("language")) is not None:
        code = CODES.get(str(language).lower(), str(language).lower())
        if code not in SPOKEN:
            raise ValueError(f"language is {quote(language)}; {nearest(code, {**SPOKEN, **CODES})}")
        tokens.append(f"<|{code}|>")
    if (task := config.get("task")) is not None:
        if task not in ("transcribe", "translate"):
            raise ValueError(f"task is {quote(task)}; valid: 'transcribe', 'translate'")
        tokens.append(f"<|{task}|>")
    tokens += [] if config.get("predict_timestamps") else ["<|notimestamps|>"]
    end = "<|endoftext|>"
    ids = [(token, core.token_to_id(token)) for token in (*tokens, end)]
    if all(number is not None for _, number in ids):  # otherwise the file's post-processor is kept
        core.post_processor = processors.TemplateProcessing(
            single=[*tokens, "$A", end], pair=[*tokens, "$A", "$B:1", f"{end}:1"], special_tokens=ids
        )
    return core
