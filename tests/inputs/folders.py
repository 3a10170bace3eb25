"""A folder for each family, as users have it: config.json and the files that transformers' classes save."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

import vocabularies

transformers = pytest.importorskip("transformers")

END = "<|endoftext|>"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FUNNEL = ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<s>", "</s>"]
WHISPER = ["<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]


# -- fixed vocabularies -----------------------------------------------------------------------------------------------


def word_pieces(special: list[str]) -> dict[str, Any]:
    words = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "fox", "##es", "##ing"]
    return {"vocab": {word: i for i, word in enumerate(words)}}


def byte_pairs(special: list[str], last: tuple[str, ...] = ()) -> dict[str, Any]:
    merges = [("t", "h"), ("th", "e"), ("\u0120", "f"), ("o", "x"), ("\u0120f", "ox")]
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges), *last]
    return {"vocab": {word: i for i, word in enumerate([*special, *letters])}, "merges": merges}


def ended_pairs(special: list[str], bytes_too: bool) -> dict[str, Any]:
    """Byte pairs whose last letter of a word is marked (CLIP, GPT)."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) if bytes_too else [*LETTERS]
    merges = [("t", "h"), ("th", "e</w>"), ("o", "x</w>"), ("f", "ox</w>")]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges), *special]
    return {"vocab": {word: i for i, word in enumerate(words)}, "merges": merges}


def unigrams(special: list[str]) -> dict[str, Any]:
    letters = [*LETTERS, *LETTERS[:26].upper(), "\u00fc"]
    pieces = [(token, 0.0) for token in special] + [("\u2581", -3.0), ("\u2581the", -2.0), ("fox", -2.5)]
    return {"vocab": pieces + [(letter, -5.0) for letter in letters]}


def joined_pieces(special: list[str], fallback: bool = True) -> dict[str, Any]:
    """SentencePiece's byte pairs, with byte tokens for letters that are not in the vocabulary (Llama)."""
    merges = [("t", "h"), ("th", "e"), ("\u2581", "f"), ("o", "x"), ("\u2581f", "ox")]
    single = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    words = [*special, *single, "\u2581", *LETTERS, *LETTERS[:26].upper(), *("".join(pair) for pair in merges)]
    return {"vocab": {word: i for i, word in enumerate(words)}, "merges": merges}


def generic(special: list[str], ends: tuple[str, str] | None = None, **config: Any) -> Any:
    """A tokenizer of the generic class."""
    core = Tokenizer(models.BPE(**byte_pairs(special)))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if ends is not None:
        ids = [(token, core.token_to_id(token)) for token in special[:2]]
        core.post_processor = processors.TemplateProcessing(single=ends[0], pair=ends[1], special_tokens=ids)
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **config)


# -- files of folders -------------------------------------------------------------------------------------------------


def saved(*parts: Any, **config: Any) -> Callable[[Path], None]:
    """Save these tokenizers and processors, and add the fields `config` to tokenizer_config.json."""

    def write(folder: Path) -> None:
        for part in parts:
            made = part() if callable(part) and not hasattr(part, "save_pretrained") else part
            made.save_pretrained(folder)
        if config:
            path = folder / "tokenizer_config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **config}))

    return write


def tokenizer(kind: str, vocabulary: dict[str, Any], **options: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, kind)(**vocabulary, **options)


def images(kind: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, kind)(**options)


SMALL = {"height": 12, "width": 12}
NEOX = tokenizer("GPTNeoXTokenizer", byte_pairs([END, "<|padding|>"]))
ROBERTA_BPE = byte_pairs(ROBERTA[:4], ("<mask>",))
VIT = images("ViTImageProcessor", size=SMALL)
CLIP_IMAGES = images("CLIPImageProcessor", size={"shortest_edge": 12}, crop_size=SMALL)
CLIP_TEXT = tokenizer("CLIPTokenizer", ended_pairs(["<|startoftext|>", END], True))
T5 = tokenizer("T5Tokenizer", unigrams(["<pad>", "</s>", "<unk>"]), extra_ids=3)
MARK = "<image>"


def whisper() -> Any:
    features = transformers.WhisperFeatureExtractor(feature_size=8, n_fft=40, hop_length=16, chunk_length=1)
    words = transformers.WhisperTokenizer(**byte_pairs([END]))
    words.add_special_tokens({"additional_special_tokens": WHISPER})
    return transformers.WhisperProcessor(features, words)


def letters_heard(folder: Path) -> Any:
    words = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS.upper()[:26]]
    path = folder / "letters.json"
    path.write_text(json.dumps({word: i for i, word in enumerate(words)}))
    return transformers.Wav2Vec2CTCTokenizer(str(path))


def wav2vec2(folder: Path) -> None:
    features = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    transformers.Wav2Vec2Processor(features, letters_heard(folder)).save_pretrained(folder)


def parakeet() -> Any:
    """Parakeet's tokenizer. Its audio class needs librosa; test_audio_features.py compares with its code."""
    core = Tokenizer(models.BPE(**joined_pieces(["<unk>", "<pad>"], fallback=False), unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return transformers.ParakeetTokenizer(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>")


def clip(folder: Path) -> None:
    transformers.CLIPProcessor(CLIP_IMAGES(), CLIP_TEXT()).save_pretrained(folder)


def llava(folder: Path) -> None:
    words = tokenizer("LlamaTokenizer", joined_pieces(["<unk>", "<s>", "</s>"]), add_bos_token=True)()
    words.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": [MARK]})
    made = transformers.LlavaProcessor(
        CLIP_IMAGES(), words, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    made.save_pretrained(folder)


def imagegpt() -> Any:
    colours = np.linspace(-1, 1, 24).reshape(8, 3)
    return transformers.ImageGPTImageProcessor(clusters=colours, size=SMALL)


def llama(**config: Any) -> Callable[[], Any]:
    return tokenizer("LlamaTokenizer", joined_pieces(["<unk>", "<s>", "</s>"]), **config)


def deepseek() -> Any:
    ends = ("<s>:0 $A:0", "<s>:0 $A:0 <s>:1 $B:1")
    return generic(["<s>", "</s>"], ends, bos_token="<s>", eos_token="</s>", pad_token="</s>")


# model_type -> function that writes its folder
FAMILIES: dict[str, Callable[[Path], Any]] = {
    "albert": saved(tokenizer("AlbertTokenizer", unigrams(["<pad>", "<unk>", *BERT[2:]]))),
    "bart": saved(tokenizer("BartTokenizer", ROBERTA_BPE)),
    "bert": saved(tokenizer("BertTokenizer", word_pieces(BERT), model_max_length=512)),
    "big_bird": saved(tokenizer("BigBirdTokenizer", unigrams(["<pad>", "</s>", "<s>", "<unk>", *BERT[2:]]))),
    "bloom": saved(lambda: generic(["<unk>", "<s>", "</s>", "<pad>"], bos_token="<s>", eos_token="</s>",
                                   pad_token="<pad>", unk_token="<unk>", padding_side="left"),
                   tokenizer_class="BloomTokenizerFast"),
    "camembert": saved(tokenizer("CamembertTokenizer", unigrams(ROBERTA))),
    "clip": clip,
    "clip_text_model": saved(CLIP_TEXT),
    "clip_vision_model": saved(CLIP_IMAGES),
    "deberta": saved(tokenizer("DebertaTokenizer", byte_pairs(BERT))),
    "deberta-v2": saved(tokenizer("DebertaV2Tokenizer", unigrams(BERT))),
    "deepseek_v2": saved(deepseek, tokenizer_class="LlamaTokenizerFast"),
    "deepseek_v3": saved(deepseek, tokenizer_class="LlamaTokenizerFast"),
    "deit": saved(images("DeiTImageProcessor", size={"height": 16, "width": 16}, crop_size=SMALL)),
    "distilbert": saved(tokenizer("DistilBertTokenizer", word_pieces(BERT))),
    "electra": saved(tokenizer("ElectraTokenizer", word_pieces(BERT))),
    "ernie": saved(tokenizer("BertTokenizer", word_pieces(BERT))),
    "funnel": saved(tokenizer("FunnelTokenizer", word_pieces(FUNNEL))),
    "gpt2": saved(tokenizer("GPT2Tokenizer", byte_pairs([END]), pad_token=END)),
    "gpt_neox": saved(NEOX),
    "imagegpt": saved(imagegpt),
    "llama": saved(llama(pad_token="</s>", add_bos_token=True)),
    "llava": llava,
    "longformer": saved(tokenizer("LongformerTokenizer", ROBERTA_BPE)),
    "m2m_100": vocabularies.m2m,
    "mamba": saved(NEOX),
    "mamba2": saved(NEOX),
    "marian": lambda folder: marian(folder),
    "mixtral": saved(llama(pad_token="</s>", add_bos_token=True)),
    "nystromformer": saved(tokenizer("AlbertTokenizer", unigrams(["<pad>", "<unk>", *BERT[2:]]))),
    "openai-gpt": saved(tokenizer("OpenAIGPTTokenizer", ended_pairs(["<unk>"], False), pad_token="<unk>")),
    "opt": saved(tokenizer("GPT2Tokenizer", byte_pairs(["<s>", "<pad>", "</s>"]), bos_token="</s>", eos_token="</s>",
                           unk_token="</s>", pad_token="<pad>", add_bos_token=True)),
    "parakeet_ctc": saved(parakeet),
    "siglip_vision_model": saved(images("SiglipImageProcessor", size=SMALL)),
    "perceiver": saved(lambda: transformers.PerceiverTokenizer()),
    "reformer": saved(tokenizer("ReformerTokenizer", joined_pieces(["</s>", "<unk>", "<pad>"], False),
                                pad_token="<pad>")),
    "resnet": saved(images("ConvNextImageProcessor", size={"shortest_edge": 12}, crop_pct=0.875)),
    "roberta": saved(tokenizer("RobertaTokenizer", ROBERTA_BPE)),
    "roberta-prelayernorm": saved(tokenizer("RobertaTokenizer", ROBERTA_BPE)),
    "rwkv": saved(NEOX),
    "swin": saved(VIT),
    "swinv2": saved(VIT),
    "switch_transformers": saved(T5),
    "t5": saved(T5),
    "vit": saved(VIT),
    "wav2vec2": wav2vec2,
    "wav2vec2-conformer": wav2vec2,
    "whisper": saved(whisper),
    "xlm-roberta": saved(tokenizer("XLMRobertaTokenizer", unigrams(ROBERTA))),
    "xlm-roberta-xl": saved(tokenizer("XLMRobertaTokenizer", unigrams(ROBERTA))),
    "xlnet": saved(tokenizer("XLNetTokenizer", unigrams(["<unk>", *FUNNEL[2:], "<pad>", "<eod>", "<eop>"]))),
}  # fmt: skip


def marian(folder: Path) -> None:
    """Pieces of each language and one vocab.json with the ids of both, the only format of Marian's folders."""
    import sentencepiece

    vocabularies.pieces(folder, "source.spm", "unigram", vocab_size=150)
    shutil.copy(folder / "source.spm", folder / "target.spm")
    source = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    words = ["</s>", "<unk>", *(source.id_to_piece(i) for i in range(3, source.get_piece_size())), "<pad>"]
    vocabularies.write(folder, "vocab.json", {word: i for i, word in enumerate(words)})
    vocabularies.write(folder, "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer"})


def family_folder(family: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    FAMILIES[family](folder)
    return folder
