"""Small vocabularies of every type, trained here and written to folders in the published formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

WORDS = """The quick brown fox jumps over the lazy dog. It's a naïve café, isn't it? Don't say "we've", said the dog;
they're 42 dogs and 1,234 foxes! Die Füchse springen über den faulen Hund. 素早い茶色の狐 이것은 🦊🦙 emoji. Привет!
def f(x):\n    return x + 1\n\n\tA tab, and   three spaces. transformers transform transformed transforming."""
CORPUS = [line for line in WORDS.split("\n") for _ in range(3)] + WORDS.split()
TEXTS = [
    "The fox says hello.", "", " ", "  two  spaces, and one at the end ", "naïve café 🦙🇩🇪 日本語 हिन्दी",
    "it's don't 'm .",
    "x = 1\n\n\treturn", "unseen words: zyzzyva", "ﬁ ｆｕｌｌ ½ İ ẞ", "\u200d \u00a0x", "🦊", "a", "1234", WORDS,
]  # fmt: skip


def write(folder: Path, name: str, content: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")


def byte_trainer(size: int, special: list[str]) -> Any:
    letters = pre_tokenizers.ByteLevel.alphabet()
    return trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=letters, show_progress=False)


def gpt2(folder: Path, **config: Any) -> Path:
    """vocab.json + merges.txt, byte-level."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    marked = {"RobertaTokenizer": (["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]),
              "DebertaTokenizer": (["[CLS]", "[PAD]", "[SEP]", "[UNK]"], ["[MASK]"])}  # fmt: skip
    special, last = marked.get(str(config.get("tokenizer_class")), (["<|endoftext|>"], []))
    core.train_from_iterator(CORPUS, byte_trainer(400, special))
    state = json.loads(core.to_str())["model"]
    vocabulary = {**state["vocab"], **{token: len(state["vocab"]) + i for i, token in enumerate(last)}}
    write(folder, "vocab.json", vocabulary)
    write(folder, "merges.txt", "\n".join(["#version: 0.2", *(" ".join(pair) for pair in state["merges"]), ""]))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", **config})
    return folder


def bert(folder: Path, **config: Any) -> Path:
    """vocab.txt, WordPiece."""
    core = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=config.get("do_lower_case", True))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    vocabulary = core.get_vocab()
    write(folder, "vocab.txt", "".join(f"{word}\n" for word in sorted(vocabulary, key=vocabulary.__getitem__)))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **config})
    return folder


def words(folder: Path, **config: Any) -> Path:
    """vocab.txt of WordPiece with fixed words, letters and endings (a trained vocabulary differs between runs)."""
    text = normalizers.BertNormalizer().normalize_str(WORDS)
    found = sorted({word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)})
    letters = sorted({letter for word in found for letter in word})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    known = [*special, *letters, *(f"##{letter}" for letter in letters if letter.isalnum())]
    known += ["transform", "spring", "##ers", "##ing", "##en"] + [word for word in found if 1 < len(word) < 6]
    assert len(known) <= 300
    write(folder, "vocab.txt", "".join(f"{word}\n" for word in known))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **config})
    return folder


def pieces(folder: Path, name: str, kind: str, config: dict[str, Any] | None = None, **options: Any) -> Path:
    """Train a SentencePiece model and write its file `name`."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.txt").write_text("\n".join(line.strip() for line in CORPUS * 4), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"), model_prefix=str(folder / "trained"), model_type=kind, minloglevel=2,
        hard_vocab_limit=False, **options,
    )  # fmt: skip
    (folder / "trained.model").rename(folder / name)
    if config is not None:
        write(folder, "tokenizer_config.json", config)
    return folder


# training options of Meta and Google
LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
         "character_coverage": 0.98, "vocab_size": 420}  # fmt: skip
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "vocab_size": 180}


def llama(folder: Path, **config: Any) -> Path:
    return pieces(folder, "tokenizer.model", "bpe", {"tokenizer_class": "LlamaTokenizer", **config}, **LLAMA)


def t5(folder: Path, **config: Any) -> Path:
    return pieces(folder, "spiece.model", "unigram", {"tokenizer_class": "T5Tokenizer", **config}, **T5)


def xlm_roberta(folder: Path, **config: Any) -> Path:
    """Only sentencepiece.bpe.model, as for XLM-R and CamemBERT."""
    config = {"tokenizer_class": "XLMRobertaTokenizer", **config}
    return pieces(folder, "sentencepiece.bpe.model", "unigram", config, vocab_size=180)


def deberta_v2(folder: Path, **config: Any) -> Path:
    """spm.model that starts with DeBERTa's special tokens except the mask, as published."""
    names = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
             "eos_piece": "[SEP]", "unk_piece": "[UNK]"}  # fmt: skip
    config = {"tokenizer_class": "DebertaV2Tokenizer", **config}
    return pieces(folder, "spm.model", "unigram", config, vocab_size=180, **names)


def xlnet(folder: Path, **config: Any) -> Path:
    """spiece.model with all special tokens of XLNet."""
    marked = {"control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>", "user_defined_symbols": "<eop>"}
    config = {"tokenizer_class": "XLNetTokenizer", **config}
    return pieces(folder, "spiece.model", "unigram", config, vocab_size=190, **marked)


def camembert(folder: Path, **config: Any) -> Path:
    return xlm_roberta(folder, tokenizer_class="CamembertTokenizer", **config)


def m2m(folder: Path, kind: str = "unigram", **config: Any) -> Path:
    """vocab.json, sentencepiece.bpe.model and two configs, as for M2M-100; some pieces have no id and some words no
    piece."""
    import sentencepiece

    from anyformer.inputs.languages import LANGUAGES

    pieces(folder, "sentencepiece.bpe.model", kind, vocab_size=180)
    model = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
    known = [model.id_to_piece(i) for i in range(3, model.get_piece_size()) if i % 11]
    words = ["<s>", "<pad>", "</s>", "<unk>", *reversed(known), "▁nowhere"]
    write(folder, "vocab.json", {word: i for i, word in enumerate(words)})
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
    more = [f"__{code}__" for code in LANGUAGES[config.get("language_codes", "m2m100")]]
    write(folder, "special_tokens_map.json", {**special, "additional_special_tokens": more})
    write(folder, "tokenizer_config.json", {
        "src_lang": None, "tgt_lang": None, **special, "model_max_length": 1024, "tokenizer_class": "M2M100Tokenizer",
        "language_codes": "m2m100", "num_madeup_words": 8, **config,
    })  # fmt: skip
    return folder


def whole(folder: Path) -> Path:
    """tokenizer.json with truncation and padding enabled, as in some published models."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(CORPUS, byte_trainer(350, ["<s>", "</s>"]))
    core.enable_truncation(4)
    core.enable_padding(length=9)
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    end = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": False, "rstrip": False}
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": end, "pad_token": None,
        "add_bos_token": True, "padding_side": "left", "model_max_length": 1e30,
        "added_tokens_decoder": {"350": {"content": "<|end|>", "special": True, "normalized": False, "lstrip": False,
                                         "rstrip": False, "single_word": False}},
        "additional_special_tokens": ["<|end|>"],
    })  # fmt: skip
    return folder
