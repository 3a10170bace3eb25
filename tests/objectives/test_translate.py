"""Translation between many languages: language tokens mark the source, and the target begins with its language."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.objective import Predictor
from anyformer.objectives.translate import Translate
from vocabularies import m2m

pytest.importorskip("sentencepiece")

EXAMPLE = {"source": "The fox", "target": "Der Hund"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(m2m(tmp_path_factory.mktemp("m2m")))


def test_languages_are_marked(tokenizer: Tokenizer) -> None:
    record = Translate(source_language="fr", target_language="de").encode(EXAMPLE, tokenizer)
    assert record["input_ids"].tolist() == tokenizer.in_language("fr").encode("The fox")
    assert record["labels"].tolist() == tokenizer.in_language("de").encode("Der Hund")
    assert Translate(target_language="de").encode(EXAMPLE, tokenizer)["input_ids"][0] == tokenizer.language_id("en")
    with pytest.raises(ValueError, match="^target_language: .* 100 languages"):
        Translate().encode(EXAMPLE, tokenizer)
    with pytest.raises(ValueError, match="^no language 'ger'"):
        Translate(target_language="ger").encode(EXAMPLE, tokenizer)


def test_what_is_written_for_a_metric_is_in_the_language(tokenizer: Tokenizer) -> None:
    """The model learns one example in one language; it does not write it for another language."""
    sizes = {"d_model": 32, "vocab_size": len(tokenizer), "max_position_embeddings": 32, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 64, f"{side}_layerdrop": 0.0}
    model: Any = af.build(families.find("m2m_100").read(
        {**sizes, "attention_dropout": 0.0, "architectures": ["M2M100ForConditionalGeneration"]}), seed=0)  # fmt: skip
    pairs = [(Translate(target_language="de", smoothing=0.0), EXAMPLE),
             (Translate(target_language="fr", smoothing=0.0), {**EXAMPLE, "target": "the fox"})]  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = sum(
            objective.losses(model, objective.collate([objective.encode(example, tokenizer)], 1))["loss"]
            for objective, example in pairs
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
    job = Predictor(model.eval(), tokenizer, 1)
    for objective, example in pairs:
        answered = objective.predict(job, [example], [[objective.encode(example, tokenizer)]])
        assert answered.predicted == answered.wanted == [example["target"]]


def test_long_texts_are_cut_and_end_as_before(tokenizer: Tokenizer) -> None:
    """A list of source sentences is one text; the first of several targets is learnt."""
    example = {"source": ["The quick fox.", "It jumps over the dog."], "target": ["Der Hund springt", "Ein Hund"]}
    marked = Translate(target_language="de")
    whole = marked.encode(example, tokenizer)
    assert whole["input_ids"].tolist() == tokenizer.encode("The quick fox. It jumps over the dog.")
    assert whole["labels"].tolist() == tokenizer.in_language("de").encode("Der Hund springt")
    short = marked.replace(length=7, target_length=4).encode(example, tokenizer)
    for name, size in (("input_ids", 7), ("labels", 4)):
        assert short[name].tolist() == [*whole[name][: size - 1], tokenizer.eos_token_id] and len(whole[name]) > size
    for wrong, why in (
        ([], "must hold a list of texts"),
        (["a", 3], "must hold a list of texts"),
        (5, "holds int, not text"),
    ):
        with pytest.raises(ValueError, match=why):
            marked.encode({**example, "target": wrong}, tokenizer)
    with pytest.raises(ValueError, match="Translate.length is 1; it must be at least 2"):
        Translate(length=1)
