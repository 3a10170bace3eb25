"""L7: published config.json files with all their oddities."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer import families
from anyformer.counting import count
from anyformer.families.base.fields import UnknownFieldWarning, tag_floats

transformers = pytest.importorskip("transformers")

# one per line: the model, the source of its config (a file; memory; made up in the same manner), the parameters that
# transformers counts, and the config
PUBLISHED = [json.loads(line) for line in Path(__file__).with_name("published.jsonl").read_text().splitlines()]
# values that transformers supports and we do not -> pattern in the error message
REFUSED = {
    "TheBloke/Llama-2-7B-GPTQ": "quantization_config",
    "deepseek-ai/DeepSeek-V3-Base in fp8": "quantization_config",
    "TheBloke/Nous-Hermes-13B-GPTQ": "quantization_config",
    "a gpt-oss-20b in fp8": "quantization_config",
    "Qwen/Qwen3-30B-A3B-FP8": "quantization_config",
    "OpenAssistant/oasst-rm-2.1-pythia-1.4b, a class of its own": "'GPTNeoXRewardModel'",
    "a BERT for punctuation, a class of its own": "'PunctuationPredictionModel'",
    "a BERT for patents, a class of its own": "'BertForSeq'",
}


def over_published(chosen: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("row", [pytest.param(row, id=row["model"]) for row in chosen])


def theirs(config: dict[str, Any], folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return transformers.CONFIG_MAPPING[config["model_type"]].from_json_file(folder / "config.json")


def read(config: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFieldWarning)
        return families.find(config["model_type"]).read(config)


@pytest.mark.slow
@over_published([row for row in PUBLISHED if row["model"] not in REFUSED])
def test_the_count_is_that_of_transformers(row: dict[str, Any], tmp_path) -> None:
    with torch.device("meta"):
        model = getattr(transformers, read(row["config"]).architecture)(theirs(row["config"], tmp_path))
    assert row["parameters"] == sum(parameter.numel() for parameter in model.parameters())


@over_published([row for row in PUBLISHED if row["model"] not in REFUSED])
def test_a_published_config_opens_with_its_count_and_every_field_survives(row: dict[str, Any], tmp_path) -> None:
    config, spec = row["config"], read(row["config"])
    counted, family = count(spec), families.find(config["model_type"])
    assert counted.parameters + counted.fixed == row["parameters"]
    written = family.write(spec)
    before, after = theirs(config, tmp_path).to_dict(), theirs(written, tmp_path).to_dict()
    assert "quantization_config" not in written  # exports have plain weights
    for name in config.keys() - {"architectures", "quantization_config"}:
        same = written.get(family.aliases.get(name, name), "nothing") == tag_floats(config[name])
        assert same or name in before, f"{name} is lost"  # unless the published class changes it,
        assert before.get(name) == after.get(name), name  # and ours in the same way


@over_published([row for row in PUBLISHED if row["model"] in REFUSED])
def test_a_value_that_transformers_alone_honours_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=REFUSED[row["model"]]) as error:
        read(row["config"])
    assert "valid: " in str(error.value) or "did you mean " in str(error.value)


def test_there_are_enough_of_them() -> None:
    assert len(PUBLISHED) >= 80 and set(REFUSED) <= {row["model"] for row in PUBLISHED}
    types = {row["config"]["model_type"] for row in PUBLISHED}
    wanted = [family for family in families.catalogue().values() if family.library == "transformers"]
    assert {family.name for family in wanted if family.architectures} <= types
    total, refused = len(PUBLISHED), len(REFUSED)
    page = (Path(__file__).parents[2] / "docs/results/edges.md").read_text()
    assert f"**{total - refused}** of {total}; {refused} refused" in page
    assert f"{total} `config.json` files of the {len(types)} model types" in page


GONE = [
    ("opt", {"activation_dropout": 0.1}), ("bloom", {"n_inner": 7}), ("bart", {"normalize_before": True}),
    ("distilbert", {"is_decoder": True}), ("electra", {"position_embedding_type": "relative_key"}),
    ("longformer", {"attention_mode": "tvm"}), ("longformer", {"ignore_attention_mask": True}),
    ("longformer", {"is_decoder": True}), ("nystromformer", {"is_decoder": True}),
    ("roberta", {"position_embedding_type": "relative_key"}), ("marian", {"normalize_embedding": True}),
    ("marian", {"static_position_embeddings": False}), ("linformer", {"projectd": 4}), ("dmca", {"strides": 2}),
    ("limoe", {"expert": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "config"), GONE, ids=str)
def test_a_field_that_the_class_does_not_know_changes_nothing_and_is_named(
    model_type: str, config: dict[str, Any]
) -> None:
    family = families.find(model_type)
    with pytest.warns(UnknownFieldWarning, match=next(iter(config))):
        spec = family.read(config)
    assert spec.replace(source={}) == family.read({}).replace(source={}) and spec.source.keys() >= config.keys()
