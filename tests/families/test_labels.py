"""If the label fields of a config disagree, the result is the same as in the published config class."""

from __future__ import annotations

from typing import Any

import pytest

import anyformer as af
from anyformer import families

TINY = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 9, "hidden_size": 4,
    "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4,
}  # fmt: skip
MANY = {str(i): f"kind {i}" for i in (0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9)}  # in the order of strings
TABLES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "only a number": {"num_labels": 7},
    "only names": {"id2label": {"0": "no", "1": "yes", "2": "maybe"}},
    "they agree": {"num_labels": 3, "id2label": {"0": "no", "1": "yes", "2": "maybe"}},
    "the number is larger": {"num_labels": 50, "id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}},
    "the number is smaller": {"num_labels": 1, "id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}},
    "an old number": {"_num_labels": 7},
    "an old number next to names": {"_num_labels": 7, "id2label": {"0": "no", "1": "yes", "2": "maybe"}},
    "null": {"id2label": None, "label2id": None, "num_labels": 4},
    "only the other table": {"label2id": {"a": 0, "b": 1, "c": 2}},
    "tables that contradict": {"id2label": {"0": "no", "1": "yes"}, "label2id": {"yes": 0}},
    "more than ten": {"id2label": MANY, "label2id": {name: int(i) for i, name in MANY.items()}},
    "names that are numbers": {"id2label": {"0": 0, "1": 1, "2": 2}},
    "none at all": {"id2label": {}},
    "zero": {"num_labels": 0},
}


@pytest.mark.parametrize("model_type", ["bert", "bart"])
@pytest.mark.parametrize("fields", TABLES.values(), ids=TABLES)
def test_labels_are_those_of_the_published_class(fields: dict[str, Any], model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    family, kind = families.find(model_type), transformers.CONFIG_MAPPING[model_type]
    architecture = next(name for name in family.architectures if name.endswith("ForSequenceClassification"))
    sizes = TINY if model_type == "bert" else {"vocab_size": 9, "d_model": 16, "pad_token_id": 1}
    config = {**sizes, "model_type": model_type, "architectures": [architecture], **fields}
    theirs, spec = kind.from_dict(config), family.read(config)
    assert spec.head.num_labels == theirs.num_labels
    names = spec.source.get("id2label") or {str(i): f"LABEL_{i}" for i in range(spec.head.num_labels)}
    assert dict(names) == {str(i): theirs.id2label[i] for i in sorted(theirs.id2label)}
    assert list(names) == sorted(names, key=int)
    again = kind.from_dict(family.write(spec))
    assert (again.id2label, again.label2id) == (theirs.id2label, theirs.label2id)


@pytest.mark.parametrize(
    "fields",
    [{"id2label": ["a", "b"]}, {"id2label": {"a": 0}}, {"num_labels": None}, {"num_labels": 2.5}, {"num_labels": "3"},
     {"num_labels": -1}, {"id2label": 7}],
    ids=str,
)  # fmt: skip
def test_an_invalid_table_of_labels_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"bert config: (id2label|num_labels)"):
        families.find("bert").read({**TINY, **fields})


def test_the_class_of_a_config() -> None:
    """The first of several classes is used; an old spelling of a class is accepted; other names are refused."""
    bert, t5, llama = (families.find(name) for name in ("bert", "t5", "llama"))
    several = ["BertForMaskedLM", "BertForPreTraining"]
    assert bert.read({**TINY, "architectures": several}).architecture == "BertForMaskedLM"
    for missing in ([], None):
        assert bert.read({**TINY, "architectures": missing}).architecture == bert.architectures[0]
    assert bert.read({**TINY, "architectures": "BertModel"}).architecture == "BertModel"
    assert t5.read({"architectures": ["T5WithLMHeadModel"]}).architecture == "T5ForConditionalGeneration"
    assert llama.read({"architectures": ["LLaMAForCausalLM"]}).architecture == "LlamaForCausalLM"
    with pytest.raises(ValueError, match="did you mean 'BertForSequenceClassification'"):
        bert.read({**TINY, "architectures": ["BertForSentenceClassification"]})


def test_values_of_a_wrong_type_are_refused() -> None:
    bert = families.find("bert")
    for name, value in {
        "hidden_size": "64", "layer_norm_eps": float("inf"), "hidden_dropout_prob": {"__float__": "NaN"},
        "tie_word_embeddings": "false", "is_decoder": 1, "vocab_size": True, "num_hidden_layers": {"a": 1},
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"bert config: {name}=.* is not"):
            bert.read({**TINY, name: value})


def test_null_is_the_default_of_a_number_and_false() -> None:
    bert = families.find("bert")
    null = bert.read({**TINY, "hidden_dropout_prob": None, "initializer_range": None, "is_decoder": None})
    assert null.replace(source={}) == bert.read(TINY).replace(source={})
    assert bert.write(null)["hidden_dropout_prob"] is None
    assert bert.read({**TINY, "pad_token_id": None}).embedding.tokens.padding_index is None  # here it is intended


def test_an_alias_overrides_the_name_of_a_field() -> None:
    transformers = pytest.importorskip("transformers")
    for config in ({"n_embd": 48, "hidden_size": 96}, {"hidden_size": 96, "n_embd": 48}):
        assert transformers.GPT2Config(**config).n_embd == 96
        assert families.find("gpt2").read(config).width == 96


@pytest.mark.parametrize("name", ["deit-tiny", "resnet-18", "vit-b32", "swin-tiny"])
def test_a_description_of_many_classes_has_a_published_config(name: str) -> None:
    spec = af.spec(name)
    config = families.find(spec.family).write(spec)
    assert len(config["id2label"]) == 1000 and config["label2id"]["LABEL_999"] == 999
    assert families.find(spec.family).read(config).head == spec.head
