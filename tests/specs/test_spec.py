"""Descriptions: strict, frozen, hashable, addressed by dotted paths, and unchanged by a JSON round trip."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer import families
from anyformer.models import DecoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal, Window
from anyformer.parts.norm import LayerNorm, Norm, RMSNorm
from anyformer.parts.position.rotary import Rope, YarnScaling
from anyformer.specs.addresses import value_at
from anyformer.specs.codec import FORMAT, decode, encode, from_json, override, to_json
from anyformer.specs.messages import nearest
from anyformer.specs.part import Part, Table, conform, freeze, kinds_for, thaw, tree, walk
from anyformer.stacks.block import Block, Parallel
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer


def model(**more: Any) -> DecoderModel:
    block = Block(
        attention=Sublayer(pre_norm=RMSNorm(), op=Attention(num_heads=4, mask=Causal(), position=Rope())),
        feedforward=Sublayer(pre_norm=RMSNorm(), op=GatedMLP(width=32)),
    )
    return DecoderModel(
        width=16, embedding=TextEmbedding(tokens=Tokens(vocab_size=50)), decoder=Stack(layers=block, depth=6),
        init={"*": Normal(std=0.02)}, **more,
    )  # fmt: skip


SPEC = model()


# -- strict -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "line"), [
    (lambda: MLP(width="4"), "MLP.width: expected int, got '4'"),
    (lambda: MLP(width=4.5), "MLP.width: expected int, got 4.5"),
    (lambda: MLP(width=True), "MLP.width: expected int, got True"),
    (lambda: MLP(width=None), "MLP.width: expected int, got None"),
    (lambda: MLP(width=4, bias=1), "MLP.bias: expected bool, got 1"),
    (lambda: MLP(width=4, dropout="0.1"), "MLP.dropout: expected float, got '0.1'"),
    (lambda: MLP(width=4, activation="rleu"), "MLP.activation: 'rleu' is not valid; did you mean 'relu'?"),
    (lambda: LayerNorm(eps=False), "LayerNorm.eps: expected float, got False"),
    (lambda: Sublayer(op=3), "Sublayer.op: expected Op, got 3"),
    (lambda: Sublayer(op=MLP(width=4), pre_norm=MLP(width=4)),
     "Sublayer.pre_norm: MLP is not of type Norm or AdaptiveNorm; valid: "),
    (lambda: Attention(num_heads=2, mask=RMSNorm()), "Attention.mask: RMSNorm is not of type Mask; valid: All, "),
    (lambda: MLP(width=4).replace(widht=3), "MLP has no field 'widht'; did you mean 'width'?"),
    (lambda: override(SPEC, {"decoder.dept": 3}),
     "no 'decoder.dept' in this DecoderModel: Stack has no 'dept'; did you mean 'depth'?"),
    (lambda: override(SPEC, {"decodr.depth": 3}), "DecoderModel has no 'decodr'; did you mean 'decoder'?"),
    (lambda: override(SPEC, {"decoder.layers.atention.op.num_heads": 3}), "did you mean 'attention'?"),
    (lambda: override(SPEC, {"decoder.layers.6.attention.dropout": 0.1}), "no layer 6; there are 6"),
    (lambda: override(SPEC, {"decoder.depth.deeper": 3}), "nothing named 'deeper' here; no name is valid here"),
    (lambda: override(SPEC, {"decoder.depth": "4"}), "decoder.depth: expected int, got '4'"),
    (lambda: override(SPEC, {"decoder.layers.attention.op": {"kind": "Atention"}}),
     "unknown kind 'Atention'; did you mean 'Attention'?"),
    (lambda: override(SPEC, {"": 4}), "DecoderModel has no ''"),
    (lambda: value_at(SPEC, "decoder.layers.attention.op.num_headz"), "did you mean 'num_heads'?"),
    (lambda: decode({"kind": "RMSNorn"}), "description: unknown kind 'RMSNorn'; did you mean 'RMSNorm'?"),
    (lambda: decode({"kind": "RMSNorm", "epz": 1e-5}), "RMSNorm: RMSNorm has no field 'epz'; did you mean 'eps'?"),
    (lambda: decode({"kind": "Sublayer", "op": {"kind": "MLP", "wdth": 4}}),
     "op: MLP has no field 'wdth'; did you mean 'width'?"),
    (lambda: decode({"kind": "MLP"}), "MLP: MLP needs width"),
    (lambda: decode({"kind": ["MLP"]}), "unknown kind ['MLP']"),
    (lambda: decode({"kind": {}}), "unknown kind {}"),
    (lambda: decode({"kind": None}), "unknown kind None"),
    (lambda: decode({"kind": "Block", "a.b": {"kind": "Sublayer", "op": {"kind": "MLP", "width": 3}}}),
     "'a.b' cannot be the name of a step"),
    (lambda: Block(forward=Sublayer(op=MLP(width=3))), "'forward' cannot be the name of a step"),
    (lambda: from_json({"kind": "MLP", "width": 4}), "not a description of format 1: 'anyformer' is None"),
    (lambda: from_json({"anyformer": 99, "kind": "MLP", "width": 4}), "'anyformer' is 99"),
    (lambda: from_json({"anyformer": FORMAT}), "it has no 'kind'"),
    (lambda: from_json([1]), "expected an object, got a list"),
])  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_nearest(make: Any, line: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert line in str(error.value) and "\n" not in str(error.value)


def test_what_conforms() -> None:
    assert MLP(width=4, dropout=0).dropout == 0.0 and type(MLP(width=4, dropout=0).dropout) is float
    assert MLP(width=1e3).width == 1000 and type(MLP(width=1e3).width) is int  # type: ignore[arg-type]
    assert conform([1, 2], tuple[int, ...], "here") == (1, 2)
    assert conform([1, "a"], tuple[int, str], "here") == (1, "a")
    with pytest.raises(ValueError, match="here"):
        conform([1, 2, 3], tuple[int, int], "here")
    assert type(conform(1, int | float, "here")) is int and type(conform(1.0, int | float, "here")) is float
    assert conform({"a": [1]}, Any, "here") == Table({"a": (1,)})


def test_a_new_width_names_what_did_not_follow() -> None:
    gpt2, op = af.spec("gpt2"), "decoder.layers.attention.op"
    kept = f"{op} (12 heads of 64), decoder.layers.feedforward.op.width (3072)"
    with pytest.warns(UserWarning) as caught:
        af.override(gpt2, {"width": 96})
    assert [str(warning.message) for warning in caught] == [
        f"width is now 96, but these sizes were not changed: {kept}"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        af.override(gpt2, {"width": 768})
        af.override(gpt2, {"width": 96, f"{op}.num_heads": 6, f"{op}.head_width": 16,
                           "decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 64}})  # fmt: skip
        af.override(gpt2, {"decoder.layers.feedforward.op.width": 64})


def test_fields_by_place_and_kinds_without_brackets() -> None:
    parts = af.parts
    assert parts.Window(16) == parts.Window(size=16) and parts.Causal() & parts.Window(512) | parts.Global(first=1)
    assert parts.Attention(num_heads=2, position=parts.Rope).position == parts.Rope()
    assert af.override(af.spec("gpt2"), {"decoder.norm": parts.RMSNorm}).decoder.norm == parts.RMSNorm()


@pytest.mark.parametrize(("make", "line"), [
    (lambda parts: parts.LayerNorm(1e-6), "LayerNorm takes its fields by name: LayerNorm(eps=1e-06, ...)"),
    (lambda parts: parts.Window(16, True), "Window takes its fields by name: Window(size=16, ...)"),
    (lambda parts: parts.Attention(num_heads=2, position=parts.Learned),
     "Attention.position: got the class Learned; write Learned(length=...)"),
    (lambda parts: parts.Sublayer(pre_norm=parts.Norm, op=parts.MLP(width=8)),
     "Sublayer.pre_norm: Norm is an abstract kind; valid: "),
])  # fmt: skip
def test_what_is_not_given_by_name(make: Any, line: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(af.parts)
    assert line in str(caught.value)


def test_nearest() -> None:
    assert nearest("widht", ["width", "depth"]) == "did you mean 'width'?"
    assert nearest("qwen2", ["swinv2", "bert"]) == "valid: bert, swinv2"  # three shared characters are not enough
    assert nearest("T5", ["bert", "t5"]) == nearest("t-5", ["bert", "t5"]) == "did you mean 't5'?"
    assert nearest("bert-base-uncased", ["xlnet-base-cased", "bert-base", "bert"]) == "did you mean 'bert-base'?"
    assert nearest("switch", ["swin", "switch_transformers"]) == "did you mean 'switch_transformers'?"
    assert nearest("zzz", map(str, range(42))).endswith(" and 2 more")
    assert nearest("zzz", ["b", "a"]) == "valid: a, b" and nearest("zzz", []) == "no name is valid here"


# -- frozen -----------------------------------------------------------------------------------------------------------


def test_frozen_means_frozen() -> None:
    for part, name in ((SPEC, "width"), (SPEC.decoder, "depth"), (SPEC.decoder.layers, "attention"), (RMSNorm(), "eps"),
                       (SPEC.decoder.layers, "steps"), (SPEC, "new")):  # fmt: skip
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            setattr(part, name, 3)
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            delattr(part, name)
    with pytest.raises(TypeError):
        SPEC.init["*"] = Normal(std=1.0)  # type: ignore[index]
    given = {"labels": ["a", "b"], "deep": {"x": [1]}}
    kept = model(source=given)
    given["labels"].append("c")
    given["deep"]["x"] = 3
    assert thaw(kept.source) == {"labels": ["a", "b"], "deep": {"x": [1]}}


def test_building_changes_nothing() -> None:
    before = to_json(SPEC)
    built = af.build(SPEC)
    assert built.spec is SPEC and to_json(SPEC) == before


def test_equal_hash_and_repr() -> None:
    again = model()
    assert again == SPEC and hash(again) == hash(SPEC) and again is not SPEC and repr(again) == repr(SPEC)
    other = override(SPEC, {"decoder.depth": 7})
    assert other != SPEC and len({SPEC, again, other}) == 2
    assert repr(LayerNorm()) == "LayerNorm()" and repr(LayerNorm(eps=1e-3)) == "LayerNorm(eps=0.001)"
    a, b = (Sublayer(op=MLP(width=w)) for w in (3, 4))
    assert Block(a=a, b=b) != Block(b=b, a=a), "the order of steps is part of a block"
    assert Block(a=a) != Parallel(a=a) and Block(a=a) != Block(b=a)
    assert RMSNorm() != LayerNorm() and Table({"a": 1}) != Table({"a": 2})
    assert eval(repr(SPEC.decoder.layers), {k.__name__: k for k in Part.kinds.values()}) == SPEC.decoder.layers


def test_freeze_and_thaw() -> None:
    data = {"a": [1, [2, {"b": None}]], "c": {}}
    assert thaw(freeze(data)) == data and hash(freeze(data)) == hash(freeze(data))


# -- addresses --------------------------------------------------------------------------------------------------------


def test_at_and_override() -> None:
    assert (
        value_at(SPEC, "decoder.layers.attention.op.num_heads")
        == 4
        == value_at(SPEC, "decoder.layers.5.attention.op.num_heads")
    )
    assert value_at(SPEC, "init.*").std == 0.02
    new = override(SPEC, {
        "decoder.depth": 2, "decoder.layers.attention.op.num_heads": 8, "decoder.norm": LayerNorm(),
        "decoder.layers.feedforward.op": {"kind": "MLP", "width": 7, "activation": "relu"},
        "decoder.layers.attention.op.position.scaling": {"kind": "YarnScaling", "factor": 2, "length": 9},
        "init": {"*.o.weight": {"kind": "Value", "value": 0}, "*": {"kind": "Normal", "std": 1}},
        "ties": [["a", "b"]],
    })  # fmt: skip
    assert value_at(new, "decoder.layers.feedforward.op") == MLP(width=7, activation="relu")
    assert value_at(new, "decoder.layers.attention.op.position.scaling") == YarnScaling(factor=2.0, length=9)
    assert new.decoder.norm == LayerNorm() and new.ties == (("a", "b"),) and value_at(new, "init.*") == Normal(std=1.0)
    assert value_at(new, "ties.0.1") == "b" and SPEC.decoder.depth == 6
    assert override(SPEC, {}) is SPEC
    assert override(SPEC, {"decoder.norm": None}) == SPEC


def test_the_address_is_the_name_of_the_module() -> None:
    built = af.build(SPEC, device="meta")
    for name in ("decoder.layers.3.attention.op.q", "decoder.layers.5.feedforward.pre_norm", "embedding.tokens"):
        assert built.get_submodule(name) is not None
        assert value_at(SPEC, name.removesuffix(".q")) is not None


def test_one_layer_alone() -> None:
    new = override(SPEC, {"decoder.layers.3.attention.op.mask": Causal() & Window(size=2)})
    masks = [new.decoder.layer(i).steps["attention"].op.mask for i in range(6)]
    assert masks == [Causal()] * 3 + [Causal() & Window(size=2)] + [Causal()] * 2
    assert value_at(new, "decoder.layers.3.attention.op.mask") == Causal() & Window(size=2)
    # the same layer again, a different one, and all layers
    new = override(new, {
        "decoder.layers.3.attention.dropout": 0.5, "decoder.layers.0.feedforward.op.width": 8,
        "decoder.layers.attention.op.dropout": 0.25,
    })  # fmt: skip
    assert [new.decoder.layer(i).steps["attention"].dropout for i in range(6)] == [0, 0, 0, 0.5, 0, 0]
    assert [new.decoder.layer(i).steps["feedforward"].op.width for i in range(6)] == [8, 32, 32, 32, 32, 32]
    assert all(new.decoder.layer(i).steps["attention"].op.dropout == 0.25 for i in range(6))
    assert set(new.decoder.pattern) == set(new.decoder.layers), "a kind without layers was kept"
    assert from_json(json.loads(to_json(new))) == new
    built = af.build(new)
    assert built.decoder.layers[0].feedforward.op.up.weight.shape == (8, 16)
    assert built.decoder.layers[1].feedforward.op.up.weight.shape == (32, 16)
    with pytest.raises(ValueError, match="no 'decoder.layers.attn.dropout'"):
        override(new, {"decoder.layers.attn.dropout": 0.1})


def test_a_kind_of_layer_by_name() -> None:
    block = SPEC.decoder.layers
    stack = Stack(layers={"local": block, "local_1": block}, depth=4, pattern=("local", "local_1"))
    spec = SPEC.replace(decoder=stack)
    new = override(spec, {"decoder.layers.local.attention.dropout": 0.5})
    assert [new.decoder.layer(i).steps["attention"].dropout for i in range(4)] == [0.5, 0, 0.5, 0]
    one = override(spec, {"decoder.layers.2.attention.dropout": 0.5})
    assert [one.decoder.layer(i).steps["attention"].dropout for i in range(4)] == [0, 0, 0.5, 0]
    other = override(spec, {"decoder.layers.0.attention.dropout": 0.1, "decoder.layers.1.attention.dropout": 0.2})
    assert [other.decoder.layer(i).steps["attention"].dropout for i in range(4)] == [0.1, 0.2, 0, 0]


def test_walk() -> None:
    found = dict(walk(SPEC))
    assert found[""] is SPEC and found["decoder.layers.attention.op.position"] == Rope()
    assert found["init.*"] == Normal(std=0.02)
    for path, part in found.items():
        assert isinstance(part, Part) and (not path or value_at(SPEC, path) == part)
    order = [path for path, _ in walk(SPEC)]
    assert order.index("embedding") < order.index("decoder") < order.index("init.*"), "in the order data flows"


def test_tree_shows_what_is_not_default() -> None:
    text = tree(SPEC)
    assert text.startswith("DecoderModel(width=16") and "attention: Sublayer(" in text.replace("layers.", "")
    assert "GatedMLP(width=32)" in text and "depth=6" in text and "scores" not in text and "dropout" not in text
    assert "num_heads=4" in text and text.count("\n") < 20
    assert "&lt;" not in text and model(note="<b>")._repr_html_().count("<b>") == 0


# -- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", sorted(families.catalogue()))
def test_json_round_trip_of_the_catalogue(model_type: str) -> None:
    names = list(families.catalogue()[model_type].sizes)
    for name in names:
        spec = af.spec(name)
        again = from_json(json.loads(to_json(spec)))
        assert again == spec and hash(again) == hash(spec) and to_json(again) == to_json(spec), name


def test_json_of_every_kind_that_needs_nothing() -> None:
    decode({"kind": "RMSNorm"})  # imports all parts
    tried = 0
    for kind in list(Part.kinds.values()):
        try:
            part = kind()
        except (TypeError, ValueError):
            continue
        tried += 1
        assert decode(json.loads(json.dumps(encode(part)))) == part
    assert tried > 20


def test_defaults_are_not_written() -> None:
    assert encode(RMSNorm()) == {"kind": "RMSNorm"}
    written = {"kind": "Attention", "num_heads": 2, "mask": {"kind": "Causal"}}
    assert encode(Attention(num_heads=2, mask=Causal())) == written


def test_data_may_use_our_words() -> None:
    """Labels of a published config can be called anything."""
    source = {"label2id": {"kind": 0, "items": 1}, "id2label": {"0": "kind"}, "x": {"kind": "MLP"}, "kind": "Table"}
    spec = model(source=source)
    again = from_json(json.loads(to_json(spec)))
    assert again == spec and thaw(again.source) == source


def test_numbers_survive() -> None:
    for value in (1e-5, 1e-12, 0.1 + 0.2, 1e30, -0.0):
        norm = Rope(base=abs(value) or 1.0)
        assert decode(json.loads(json.dumps(encode(norm)))).base == norm.base


DEEP = 100_000


def nested(kind: str) -> Any:
    data: Any = {"kind": "Causal"}
    for _ in range(DEEP):
        data = {"kind": "Not", "mask": data} if kind == "part" else [data] if kind == "list" else {"a": data}
    return data


@pytest.mark.parametrize("kind", ["part", "list", "table"])
def test_hostile_nesting_is_one_line(kind: str) -> None:
    data = {"anyformer": FORMAT, "kind": "Attention", "num_heads": 2, "mask": nested(kind)}
    if kind == "table":  # in a field that takes one
        data = {"anyformer": FORMAT, "kind": "DecoderModel", "source": nested(kind)}
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(data)
    while isinstance(data, (dict, list)):  # dismantled in a loop, because freeing it would recurse too
        data = data.pop("mask", data.pop("a", data.pop("source", None))) if isinstance(data, dict) else data.pop()


def test_hostile_files(tmp_path: Path) -> None:
    deep = '{"a":' * 50_000 + "1" + "}" * 50_000
    contents = {
        "deep": deep, "deep list": "[" * DEEP + "]" * DEEP, "cut": '{"anyformer": 1, "kind": "Deco', "list": "[]",
        "text": '"x"',
        "binary": "\udcff\udcfe", "no kind": '{"anyformer": 1}', "part": '{"anyformer": 1, "kind": "RMSNorm"}',
        "huge number": '{"anyformer": 1, "kind": "MLP", "width": 1e999}', "empty": "",
        "digits": '{"anyformer": 1, "kind": "MLP", "width": ' + "9" * 5000 + "}",
    }  # fmt: skip
    for name, content in contents.items():
        path = tmp_path / f"{name}.json"
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(ValueError) as error:
            af.spec(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value), name
    assert sys.getrecursionlimit() < 10_000


def test_two_kinds_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="two kinds of Part are called RMSNorm, in anyformer.parts.norm and in else"):
        type("RMSNorm", (Part,), {"__module__": "elsewhere", "__annotations__": {}})
    assert Part.kinds["RMSNorm"] is RMSNorm


def test_changes_that_are_only_valid_together_come_in_any_order() -> None:
    llama, op = af.spec("llama3.2-1b"), "decoder.layers.attention.op"
    sizes = {f"{op}.num_heads": 4, f"{op}.num_kv_heads": 2}
    there, back = (af.override(llama, dict(order)) for order in (sizes.items(), reversed(sizes.items())))
    assert there == back and value_at(there, f"{op}.num_heads") == 4
    with pytest.raises(ValueError, match="not a multiple"):
        af.override(llama, {f"{op}.num_heads": 4, f"{op}.num_kv_heads": 3})


def test_kinds_of_an_abstract_kind_are_not_abstract() -> None:
    """An abstract kind is only a base class: lists and the JSON schema do not contain it."""
    from anyformer.train.run import every_kind

    every = every_kind()
    for kind in every.values():
        below = [other for other in every.values() if other is not kind and issubclass(other, kind)]
        assert below or not kind.is_abstract, kind
    assert Norm.is_abstract and not LayerNorm.is_abstract and kinds_for(Norm).keys() >= {"LayerNorm"}
    assert "Norm" not in kinds_for(Norm)
