"""Defaults of published tokenizer classes, for settings that model folders omit."""

from __future__ import annotations

import dataclasses
from typing import Any

PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclasses.dataclass(frozen=True)
class ClassDefaults:
    """Defaults of a tokenizer class: the format of its vocabulary files (`words`, a key of tokenizer_files.MAKERS; ""
    if only tokenizer.json can be read), and the special tokens and settings that its files may omit."""

    words: str = ""
    special: dict[str, str] = dataclasses.field(default_factory=dict)
    # templates of a text A and of a pair A, B: names of special tokens, with :segment if it is not 0
    ends: tuple[str, str] | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


# tokenizer class and `Family.base_tokenizer` of model types without a family here
OTHERS = {
    "gpt_neo": ("GPT2Tokenizer", ""),
    "mt5": ("MT5Tokenizer", ""),
    "umt5": ("T5Tokenizer", "always"),
}

END = "<|endoftext|>"
ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
DEBERTA = {"bos_token": "[CLS]", "eos_token": "[SEP]", **BERT}
FUNNEL = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "<sep>",
    "pad_token": "<pad>",
    "cls_token": "<cls>",
    "mask_token": "<mask>",
}
LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
M2M = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
GPT2 = {"bos_token": END, "eos_token": END, "unk_token": END}
NEOX = {**GPT2, "pad_token": "<|padding|>"}
CLIP = {"bos_token": "<|startoftext|>", "eos_token": END, "unk_token": END, "pad_token": END}
SIGLIP = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
ALBERT = {**DEBERTA, "unk_token": "<unk>", "pad_token": "<pad>"}
BIG_BIRD = {**ALBERT, "bos_token": "<s>", "eos_token": "</s>"}
QWEN = {"eos_token": END, "pad_token": END, "unk_token": END}
LETTERS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# special tokens before the tokens of bytes, in this order
PERCEIVER = {
    "pad_token": "[PAD]",
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "mask_token": "[MASK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
}

# settings of a class that a folder may omit; the base class pads on the right
INPUT_NAMES = ["input_ids", "attention_mask"]
WITH_TYPES = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
LEFT = {"padding_side": "left"}
# tokenizers in Python: if a pair is cut to an odd number of tokens, the first text keeps one more
FIRST_LONGER = {"longer_text": "first"}
TWO_ENDS = ("cls A sep", "cls A sep sep B sep")  # two separators between the texts
SEGMENTS = ("cls A sep", "cls A sep B:1 sep:1")
AFTER = ("A eos", "A eos B eos")
CLASSES: dict[str, ClassDefaults] = {
    "": ClassDefaults(),
    **dict.fromkeys(("GPT2Tokenizer", "WhisperTokenizer"), ClassDefaults("byte pairs", GPT2)),
    "Qwen2Tokenizer": ClassDefaults("byte pairs", QWEN),
    "GPTNeoXTokenizer": ClassDefaults("", NEOX),
    "AlbertTokenizer": ClassDefaults("", ALBERT),
    "BigBirdTokenizer": ClassDefaults("", BIG_BIRD),
    "CLIPTokenizer": ClassDefaults("", CLIP),
    "OpenAIGPTTokenizer": ClassDefaults("", {"unk_token": "<unk>"}),
    "ReformerTokenizer": ClassDefaults("", {"eos_token": "</s>", "unk_token": "<unk>"}),
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),
        ClassDefaults("byte pairs", ROBERTA, TWO_ENDS),
    ),
    "DebertaTokenizer": ClassDefaults("byte pairs", DEBERTA, TWO_ENDS, WITH_TYPES),
    **dict.fromkeys(
        ("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer", "LayoutLMTokenizer"),
        ClassDefaults("word pieces", BERT, SEGMENTS, WITH_TYPES),
    ),
    "DistilBertTokenizer": ClassDefaults("word pieces", BERT, SEGMENTS),
    "FunnelTokenizer": ClassDefaults("word pieces", FUNNEL, ("cls:2 A sep", "cls:2 A sep B:1 sep:1")),
    "PerceiverTokenizer": ClassDefaults("bytes", PERCEIVER, SEGMENTS, FIRST_LONGER),
    "Wav2Vec2CTCTokenizer": ClassDefaults("letters", LETTERS, None, FIRST_LONGER),
    **dict.fromkeys(("LlamaTokenizer", "CodeLlamaTokenizer"), ClassDefaults("pieces", LLAMA, None, LEFT)),
    "MistralTokenizer": ClassDefaults("pieces", LLAMA),
    **dict.fromkeys(("T5Tokenizer", "MT5Tokenizer"), ClassDefaults("pieces", T5, AFTER)),
    **dict.fromkeys(
        ("XLMRobertaTokenizer", "CamembertTokenizer"),
        ClassDefaults("fairseq", ROBERTA, ("bos A eos", "bos A eos eos B eos")),
    ),
    "NllbTokenizer": ClassDefaults("", ROBERTA),
    "MarianTokenizer": ClassDefaults("marian", T5, ("A eos", "A B eos"), FIRST_LONGER),
    "M2M100Tokenizer": ClassDefaults("m2m", M2M, None, FIRST_LONGER),
    "DebertaV2Tokenizer": ClassDefaults("DeBERTa's pieces", DEBERTA, SEGMENTS, WITH_TYPES),
    "SiglipTokenizer": ClassDefaults("SigLIP's pieces", SIGLIP, AFTER, FIRST_LONGER),
    "XLNetTokenizer": ClassDefaults("XLNet's pieces", FUNNEL, ("A sep cls:2", "A sep B:1 sep:1 cls:2"), LEFT),
}


def class_defaults(kind: str) -> ClassDefaults:
    return CLASSES.get(kind, CLASSES[""])
