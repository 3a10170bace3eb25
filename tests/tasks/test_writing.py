"""translate and summarize, compared with transformers for every way to select languages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli import main
from vocabularies import gpt2, m2m, pieces, write

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

TEXTS = ["The quick brown fox.", "a dog", "Die Füchse springen über den faulen Hund", "naïve café 🦙"]
SMALL = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 48,
         "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}  # fmt: skip
TASKS = {
    "summarization": {"prefix": "sum up: ", "num_beams": 3, "max_length": 9, "early_stopping": True,
                      "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    "translation_en_to_de": {"prefix": "English to German: ", "num_beams": 2, "max_length": 8},
    "translation_en_to_fr": {"prefix": "English to French: ", "max_length": 8},
}  # fmt: skip
T5 = {"num_layers": 2, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "vocab_size": 401, "pad_token_id": 1,
      "eos_token_id": 2, "decoder_start_token_id": 1, "task_specific_params": TASKS}  # fmt: skip
Folders = Callable[[str], Path]


def marian(folder: Path) -> Path:
    import sentencepiece

    pieces(folder, "source.spm", "unigram", vocab_size=150)
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    source = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    first = ["▁zzzq", "<pad>", "</s>", "<unk>"]
    words = [*first, *(source.id_to_piece(i) for i in range(3, source.get_piece_size())), ">>fr<<", ">>deu<<"]
    write(folder, "vocab.json", {word: i for i, word in enumerate(words)})
    write(folder, "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer"})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A random model of a published class in a folder with its type of tokenizer; created once."""
    roberta = {"tokenizer_class": "RobertaTokenizer"}
    makers: dict[str, tuple[Any, Callable[[Path], Path], dict[str, Any]]] = {
        "m2m": (transformers.M2M100ForConditionalGeneration, m2m, {**SMALL, "decoder_start_token_id": 2}),
        "bart": (transformers.BartForConditionalGeneration, lambda folder: gpt2(folder, **roberta),
                 {**SMALL, "decoder_start_token_id": 2, "forced_eos_token_id": None}),
        "t5": (transformers.T5ForConditionalGeneration, lambda folder: gpt2(folder, **roberta), T5),
        "marian": (transformers.MarianMTModel, marian, {**SMALL, "decoder_start_token_id": 1}),
    }  # fmt: skip
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            cls, vocabulary, config = makers[name]
            made[name] = vocabulary(tmp_path_factory.mktemp(name))
            size = len(transformers.AutoTokenizer.from_pretrained(made[name]))
            torch.manual_seed(0)
            model = cls(cls.config_class(**{"vocab_size": size, **config}))
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():  # the next token depends on the source and on the tokens before
                for place, parameter in model.named_parameters():
                    if parameter.dim() == 2:
                        scale = 1.0 if "shared" in place or "embed" in place else 3.0
                        values = torch.randn(parameter.shape, generator=generator)
                        parameter.copy_(values * scale / parameter.shape[1] ** 0.5)
            model.save_pretrained(made[name])
        return made[name]

    return folder


def theirs(folder: Path, text: str, language: str | None = None, **options: Any) -> str:
    """Return transformers' output for one text."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if language is not None:
        tokenizer.src_lang = language
    ids = model.generate(
        **tokenizer(text, return_tensors="pt", return_token_type_ids=False), do_sample=False, **options
    )
    return tokenizer.decode(ids[0], skip_special_tokens=True).strip()


def test_m2m_translates_between_languages(folders: Folders) -> None:
    folder = folders("m2m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reader = af.tasks.open_model(folder, batch=3)
    seen = set()
    for source, target, beams in (("en", "de", 1), ("de", "zu", 3), (None, "fr", 2)):
        found = af.tasks.translate(reader, TEXTS, source=source, target=target, num_beams=beams, max_new_tokens=9)
        forced = tokenizer.get_lang_id(target)
        assert found == [
            theirs(folder, text, source or "en", forced_bos_token_id=forced, num_beams=beams, max_new_tokens=9)
            for text in TEXTS
        ]
        seen |= set(found)
    assert len(seen) > 6
    rows = [{"text": TEXTS[0], "target": "de"}, {"text": TEXTS[1], "source": "fr", "target": "zu"}, TEXTS[2]]
    mixed = af.tasks.translate(reader, rows, target="fr", max_new_tokens=9)
    assert mixed == [
        af.tasks.translate(reader, TEXTS[0], target="de", max_new_tokens=9),
        af.tasks.translate(reader, TEXTS[1], source="fr", target="zu", max_new_tokens=9),
        af.tasks.translate(reader, TEXTS[2], target="fr", max_new_tokens=9),
    ]


def test_t5_is_told_by_its_config(folders: Folders) -> None:
    folder = folders("t5")
    for target in ("de", "fr"):
        usual = dict(TASKS[f"translation_en_to_{target}"])
        first = usual.pop("prefix")
        wanted = [theirs(folder, first + text, **usual) for text in TEXTS]
        assert af.tasks.translate(folder, TEXTS, source="en", target=target) == wanted
    usual = dict(TASKS["summarization"])
    first = usual.pop("prefix")
    assert af.tasks.summarize(folder, TEXTS) == [theirs(folder, first + text, **usual) for text in TEXTS]
    alone = af.tasks.summarize(folder, TEXTS[0], prefix="", num_beams=1, max_new_tokens=5)
    assert alone == theirs(folder, TEXTS[0], max_new_tokens=5, no_repeat_ngram_size=2)


def test_marian_has_a_word_for_a_language(folders: Folders) -> None:
    folder = folders("marian")
    wanted = [theirs(folder, f">>deu<< {text}", max_new_tokens=7) for text in TEXTS]
    assert af.tasks.translate(folder, TEXTS, target="deu", max_new_tokens=7) == wanted
    with pytest.raises(ValueError, match="^no language 'deut'; did you mean 'deu'"):
        af.tasks.translate(folder, "a", target="deut")
    with pytest.raises(ValueError, match="^target: which language"):
        af.tasks.translate(folder, "a")


def test_a_model_of_two_languages_needs_no_more(folders: Folders) -> None:
    folder = folders("bart")
    options: dict[str, Any] = {"num_beams": 3, "length_penalty": 0.5, "max_new_tokens": 8}
    wanted = [theirs(folder, text, **options) for text in TEXTS]
    assert (
        af.tasks.translate(folder, TEXTS, batch=2, **options) == wanted == af.tasks.summarize(folder, TEXTS, **options)
    )
    assert len(set(wanted)) > 2
    free = af.tasks.translate(folder, TEXTS[1])  # at most a little over twice the input
    size = len(transformers.AutoTokenizer.from_pretrained(folder)(TEXTS[1])["input_ids"])
    assert free == theirs(folder, TEXTS[1], max_new_tokens=2 * size + 20)


def test_long_texts(folders: Folders) -> None:
    folder = folders("bart")
    long = "The quick brown fox jumps over the lazy dog. " * 20
    for task in (af.tasks.summarize, af.tasks.translate):
        with pytest.raises(
            ValueError, match="^the text has .* tokens, and this model takes at most 48; truncate cuts it$"
        ):
            task(folder, long)
        assert task(folder, ["a", long])[1]["error"].startswith("the text has")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cut = tokenizer(long, truncation=True, max_length=48, return_tensors="pt", return_token_type_ids=False)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    wanted = tokenizer.decode(model.generate(**cut, max_new_tokens=6)[0], skip_special_tokens=True).strip()
    assert af.tasks.summarize(folder, long, truncate=True, max_new_tokens=6) == wanted


def test_mistakes(folders: Folders, tmp_path: Path) -> None:
    folder = folders("m2m")
    with pytest.raises(ValueError, match="^no language 'eng'; did you mean 'en'"):
        af.tasks.translate(folder, "a", source="eng", target="de")
    found = af.tasks.translate(folder, ["a", {"text": "a", "target": "ger"}], target="de")
    assert isinstance(found[0], str) and found[1]["error"].startswith("no language 'ger'")
    with pytest.raises(ValueError, match="which one"):  # the same error for all inputs is an error of the call
        af.tasks.translate(folder, ["a", "b"])
    with pytest.raises(ValueError, match="^target: this model writes 100 languages; which one"):
        af.tasks.translate(folder, "a", source="de")
    with pytest.raises(ValueError, match="^target is int, not the code of a language$"):
        af.tasks.translate(folder, {"text": "a", "target": 3})
    with pytest.raises(
        ValueError, match="^from en to ro: this model does not take these languages; it knows en to de, "
    ):
        af.tasks.translate(folders("t5"), "a", source="en", target="ro")
    with pytest.raises(
        ValueError, match="^from [?] to de: this model does not take these languages: give no languages"
    ):
        af.tasks.translate(folders("bart"), "a", target="de")
    with pytest.raises(ValueError, match="length_penalty=2.0: does nothing without num_beams"):
        af.tasks.translate(folders("bart"), "a", length_penalty=2.0, num_beams=1)
    gpt2(tmp_path)
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=400, bos_token_id=0, eos_token_id=0)
    ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="^summarize needs an encoder-decoder"):
        af.tasks.summarize(tmp_path, "a")


def test_the_command(folders: Folders, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(folders("m2m"))
    wanted = af.tasks.translate(folder, TEXTS[:2], target="de", num_beams=2, max_new_tokens=6)
    (tmp_path / "in.txt").write_text("\n".join(TEXTS[:2]), encoding="utf-8")
    flags = ["--file", str(tmp_path / "in.txt"), "--target", "de", "--num-beams", "2", "--max-new-tokens", "6"]
    assert main(["run", "translate", folder, *flags]) == 0
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in wanted)
    assert main(["run", "translate", folder, *flags, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == wanted
    assert main(["run", "translate", folder, "a dog", "--target", "eng"]) == 2
    err = capsys.readouterr().err
    assert err == "anyformer: no language 'eng'; did you mean 'en'?\n"
