"""Vocabulary files from before tokenizer.json, with few or no settings: they are read as in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyformer.inputs.tokenizer import Tokenizer
from vocabularies import T5, TEXTS, bert, camembert, deberta_v2, gpt2, pieces, t5, words, write, xlm_roberta, xlnet

transformers = pytest.importorskip("transformers")

ROBERTA = {"tokenizer_class": "RobertaTokenizer"}
MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False,
        "normalized": False, "special": True}  # fmt: skip
DEBERTA = {"tokenizer_class": "DebertaTokenizer"}


def bare(folder: Path, **config: Any) -> Path:
    """Keep only the vocabulary, and write a config.json if `config` has fields."""
    (folder / "tokenizer_config.json").unlink()
    if config:
        write(folder, "config.json", config)
    return folder


def settings(folder: Path, **values: Any) -> Path:
    write(folder, "tokenizer_config.json", values)
    write(folder, "config.json", {"model_type": "bert"})
    return folder


def with_added(folder: Path) -> Path:
    size = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    end = {"content": "[SEP]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = {"unk_token": "[UNK]", "sep_token": end, "cls_token": "[CLS]", "additional_special_tokens": ["<new>"]}
    write(folder, "added_tokens.json", {"<new>": size, "zyzzyva": size + 1})
    write(folder, "special_tokens_map.json", special)
    return bare(folder, model_type="bert")


def funnel(folder: Path) -> Path:
    bert(folder)
    text = (folder / "vocab.txt").read_text(encoding="utf-8")
    for name in ("UNK", "SEP", "PAD", "CLS", "MASK"):
        text = text.replace(f"[{name}]", f"<{name.lower()}>")
    write(folder, "vocab.txt", text + "<s>\n</s>\n")
    return bare(folder, model_type="funnel")


def perceiver(folder: Path, **config: Any) -> Path:
    """Bytes need no vocabulary file; transformers reads only the name of the class."""
    folder.mkdir()
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PerceiverTokenizer", **config})
    write(folder, "config.json", {"model_type": "perceiver"})
    return folder


def as_json(folder: Path, **config: Any) -> Path:
    """Convert a model file to tokenizer.json with transformers, and remove all other settings."""
    made = transformers.AutoTokenizer.from_pretrained(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    made.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return bare(folder, **config)


def xlm_roberta_as(folder: Path, name: str, kind: str) -> Path:
    """A model file without most special tokens of the class."""
    xlm_roberta(folder, tokenizer_class=kind)
    (folder / "sentencepiece.bpe.model").rename(folder / name)
    return folder


OLD: dict[str, tuple[Callable[[Path], Path], str]] = {  # folder, and the class if the folder names none
    "vocab.txt": (lambda folder: bare(bert(folder)), "BertTokenizer"),
    "vocab.txt of BERT": (lambda folder: bare(bert(folder), model_type="bert"), ""),
    "vocab.txt of DistilBERT": (lambda folder: bare(bert(folder), model_type="distilbert"), ""),
    "vocab.txt of Funnel": (funnel, ""),
    "settings without a word": (lambda folder: settings(bert(folder)), ""),
    "settings of 2019": (lambda folder: settings(bert(folder), max_len=512, init_inputs=[]), ""),
    "cased": (lambda folder: settings(bert(folder), do_lower_case=False), ""),
    "added tokens": (lambda folder: with_added(bert(folder)), ""),
    "vocab.json": (lambda folder: bare(gpt2(folder)), "GPT2Tokenizer"),
    "vocab.json of GPT-2": (lambda folder: bare(gpt2(folder), model_type="gpt2"), ""),
    "vocab.json with <s>": (lambda folder: bare(gpt2(folder, **ROBERTA), vocab_size=400), "RobertaTokenizer"),
    "vocab.json of RoBERTa": (lambda folder: bare(gpt2(folder, **ROBERTA), model_type="roberta"), ""),
    "vocab.json of DeBERTa": (lambda folder: bare(gpt2(folder, **DEBERTA), model_type="deberta"), ""),
    "no words of the Perceiver": (perceiver, ""),
    "bytes with another mask": (lambda folder: perceiver(folder, mask_token="<hidden>"), ""),
    "vocab.json of Longformer": (lambda folder: bare(gpt2(folder, **ROBERTA), model_type="longformer"), ""),
    "vocab.json of a pre-norm RoBERTa": (
        lambda folder: bare(gpt2(folder, **ROBERTA), model_type="roberta-prelayernorm"),
        "",
    ),
    "pieces of XLM-R": (lambda folder: bare(xlm_roberta(folder), model_type="xlm-roberta"), ""),
    "pieces of XLM-R XL": (
        lambda folder: bare(xlm_roberta(folder), model_type="xlm-roberta-xl"),
        "XLMRobertaTokenizer",
    ),
    "pieces of CamemBERT": (lambda folder: bare(camembert(folder), model_type="camembert"), ""),
    "pieces that are named": (xlm_roberta, ""),
    "pieces without a space first": (lambda folder: camembert(folder, add_prefix_space=False), ""),
    "pieces and a mask that takes its space": (lambda folder: xlm_roberta(folder, mask_token=MASK), ""),
    "pieces of other special words": (lambda folder: xlm_roberta(folder, pad_token="<nothing>", unk_token="[?]"), ""),
    "pieces of DeBERTa v2": (lambda folder: bare(deberta_v2(folder), model_type="deberta-v2"), ""),
    "pieces of DeBERTa v2, lower case": (lambda folder: deberta_v2(folder, do_lower_case=True), ""),
    "pieces of DeBERTa v2, signs apart": (lambda folder: deberta_v2(folder, split_by_punct=True), ""),
    "pieces of DeBERTa v2 without a space first": (lambda folder: deberta_v2(folder, add_prefix_space=False), ""),
    "pieces without DeBERTa's words": (lambda folder: xlm_roberta_as(folder, "spm.model", "DebertaV2Tokenizer"), ""),
    "pieces of XLNet": (lambda folder: bare(xlnet(folder), model_type="xlnet"), ""),
    "pieces of XLNet, lower case": (lambda folder: xlnet(folder, do_lower_case=True), ""),
    "pieces without XLNet's words": (lambda folder: xlm_roberta_as(folder, "spiece.model", "XLNetTokenizer"), ""),
    "XLM-R's tokenizer.json": (lambda folder: as_json(xlm_roberta(folder), model_type="xlm-roberta"), ""),
    "CamemBERT's tokenizer.json": (lambda folder: as_json(camembert(folder), model_type="camembert"), ""),
}


@pytest.mark.parametrize("form", OLD)
def test_old_files_are_read_as_transformers_does(tmp_path: Path, form: str) -> None:
    make, name = OLD[form]
    if "pieces" in form or "tokenizer.json" in form:
        pytest.importorskip("sentencepiece")
        pytest.importorskip("google.protobuf", reason="transformers reads model files with it")
    folder = make(tmp_path / "words")
    theirs = getattr(transformers, name or "AutoTokenizer").from_pretrained(folder)
    ours = Tokenizer.load(folder)
    assert ours.special == {n: t for n, t in theirs.special_tokens_map.items() if isinstance(t, str)}
    texts = [*TEXTS, *(f"a{token} b {token}" for token in (*ours.special.values(), "<new>", "zyzzyva"))]
    for text in texts:
        expected = theirs(text, "The fox", return_token_type_ids=True)
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, "The fox") == expected["input_ids"], text
        for skip in {False, "<new>" not in text}:  # transformers does not treat this token as special
            read = theirs.decode(theirs.encode(text), skip_special_tokens=skip)
            assert ours.decode(ours.encode(text), skip_special_tokens=skip) == read, text
        kinds = ours.batch([text], ["The fox"], names=["token_type_ids"])["token_type_ids"]
        assert kinds[0].tolist() == expected["token_type_ids"], text


@pytest.mark.parametrize("config", [{}, {"do_lower_case": False}], ids=["usual", "cased"])
@pytest.mark.parametrize("named", [True, False], ids=["class", "model type"])
def test_pieces_of_siglip(tmp_path: Path, config: dict[str, Any], named: bool) -> None:
    """Texts that end with </s> are left out: transformers does not add a second one."""
    pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf", reason="transformers reads model files with it")
    words = {"tokenizer_class": "SiglipTokenizer"} if named else {}
    folder = pieces(tmp_path, "spiece.model", "unigram", {**words, **config}, **T5)
    write(folder, "config.json", {"model_type": "siglip"})
    theirs, ours = transformers.SiglipTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    assert ours.special == theirs.special_tokens_map
    for text in [*TEXTS, "Hello, World! (a-b) [c] `d` {e~}", "THE FOX", "a </s> b", "a<unk> b <unk>", "</s>a"]:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, "The fox") == theirs(text, "The fox")["input_ids"], text


def test_null_is_the_usual_value(tmp_path: Path) -> None:
    usual = Tokenizer.load(settings(words(tmp_path / "a")))
    names = ("do_lower_case", "padding_side", "truncation_side", "model_max_length", "tokenize_chinese_chars",
             "strip_accents", "added_tokens_decoder", "additional_special_tokens", "tokenizer_class")  # fmt: skip
    null = Tokenizer.load(settings(words(tmp_path / "b"), **dict.fromkeys(names)))
    assert (null.padding_side, null.truncation_side, null.max_length) == ("right", "right", None)
    assert null.special == usual.special and len(null) == len(usual)
    assert all(null.encode(text) == usual.encode(text) for text in TEXTS)
    pytest.importorskip("sentencepiece")
    folder = t5(tmp_path / "t5", extra_ids=None)
    assert Tokenizer.load(folder).id("<extra_id_99>") is not None


@pytest.mark.parametrize(("kind", "reason"), [
    ("albert", "AlbertTokenizer"), ("ctrl", "the tokenizer of ctrl"),
    ("openai-gpt", "OpenAIGPTTokenizer"), ("", "a class without a name"),
])  # fmt: skip
def test_words_that_another_class_would_read_otherwise_are_refused(tmp_path: Path, kind: str, reason: str) -> None:
    if kind in ("albert", ""):
        pytest.importorskip("sentencepiece")
        pieces(tmp_path, "spiece.model", "unigram", vocab_size=150)
    else:
        bare(gpt2(tmp_path))
    if kind:
        write(tmp_path, "config.json", {"model_type": kind})
    with pytest.raises(ValueError, match=f"{reason} needs a tokenizer.json; save one with transformers"):
        Tokenizer.load(tmp_path)
