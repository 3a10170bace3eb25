"""Files of an earlier version (before modules, kinds and fields were renamed) still load, with the same content.

`saved/` was written once at f3b3d83: tiny descriptions of the catalogue's cases (*.spec.json), checkpoints of some of
them with their outputs (expected.json), and descriptions of runs (*.run.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import cases, make_inputs, spec_of

import anyformer as af
from anyformer.specs.codec import decode, encode, from_json, to_json
from anyformer.train.run import Run, read_run
from anyformer.weights.rules import same_names

SAVED = Path(__file__).with_name("saved")
CASES = {case.id: case for case in cases()}
FEED, NORM = {"kind": "MLP", "width": 8}, {"kind": "RMSNorm"}
TOKENS = {"kind": "Tokens", "vocab_size": 9}
PAIR = encode(spec_of(CASES["BartModel"]))
BLOCK = {"kind": "Block", "feed": {"kind": "Sublayer", "op": FEED}}
EXPECTED = json.loads((SAVED / "expected.json").read_text())
TOWER = {"kind": "Tower", "token": 9, "model": encode(spec_of(CASES["LlavaForConditionalGeneration"]).image.model)}


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.spec.json")), ids=lambda path: path.name)
def test_a_description_is_what_it_was(path: Path) -> None:
    spec = af.spec(path)
    assert spec == spec_of(CASES[path.name.removesuffix(".spec.json")])
    assert from_json(json.loads(to_json(spec))) == spec


@pytest.mark.parametrize(("old", "new"), [
    ({"kind": "Idle", "part": {"kind": "RMSNorm"}}, {"kind": "Unused", "part": {"kind": "RMSNorm"}}),
    ({"kind": "ConvPainter", "channels": 1}, {"kind": "ConvDecoder", "channels": 1}),
    ({"kind": "Attention", "num_heads": 2, "mean_at_pads": True}, {"kind": "DebertaAttention", "num_heads": 2}),
    ({"kind": "Attention", "num_heads": 2, "memory_by_layer": False}, {"kind": "Attention", "num_heads": 2}),
    ({"kind": "Attention", "num_heads": 2, "memory": True, "memory_width": 8, "memory_by_layer": True},
     {"kind": "TransparentAttention", "num_heads": 2, "memory": True, "memory_width": 8}),
    ({"kind": "Attention", "num_heads": 2, "softcap": 5.0, "talking": True, "scale_by_layer": True,
      "normalizer": "entmax"},
     {"kind": "Attention", "num_heads": 2, "scores": [
         {"kind": "ScaleByLayer"}, {"kind": "SoftCap", "bound": 5.0}, {"kind": "TalkingHeads"}],
      "normalizer": {"kind": "Entmax"}}),
    ({"kind": "BlockAttention", "num_heads": 2, "size": 3, "learned_scale": {"kind": "LearnedScale", "most": 9.0}},
     {"kind": "BlockAttention", "num_heads": 2, "scale": 1.0, "scores": [{"kind": "LearnedScale", "most": 9.0}],
      "size": 3}),
    *[({"kind": "Sublayer", "op": FEED, "out_norm": NORM, **old}, {"kind": kind, "op": FEED, "out_norm": NORM})
      for kind, old in (("Sublayer", {"of_block": False}), ("ZeroedPadding", {"zero_pads": True}),
                        ("BlockInputStep", {"zero_pads": True, "of_block": True}))],
    ({"kind": "Sublayer", "op": FEED, "pre_norm": NORM, "normed_skip": True},
     {"kind": "NormedShortcut", "op": FEED, "pre_norm": NORM}),
    ({"kind": "Stack", "layers": BLOCK, "depth": 2, "timed": True},
     {"kind": "TimedStack", "layers": BLOCK, "depth": 2}),
    ({"kind": "Stack", "layers": BLOCK, "depth": 2, "project": 4, "shows": "last"},
     {"kind": "Stack", "layers": BLOCK, "depth": 2, "neck": {"kind": "OutputProjection", "width": 4},
      "shows": "stream"}),
    ({"kind": "KLPainter"}, {"kind": "KLDecoder"}),
    ({**PAIR, "wrap": True}, {**PAIR, "kind": "LastTokenStartModel"}), ({**PAIR, "wrap": False}, PAIR),
    ({"kind": "PatchEmbedding", "image_size": [4, 4], "patch_size": [2, 2], "prefix": 2},
     {"kind": "PatchEmbedding", "image_size": [4, 4], "patch_size": [2, 2],
      "prefix": [{"kind": "PrefixTokens", "count": 2}]}),
    ({"kind": "PatchEmbedding", "image_size": [4, 4], "patch_size": [2, 2], "prefix": 1,
      "position": {"kind": "Learned", "length": 4, "offset": 1}},
     {"kind": "PatchEmbedding", "image_size": [4, 4], "patch_size": [2, 2], "prefix": [{"kind": "PrefixTokens"}],
      "position": {"kind": "Learned", "length": 4, "offset": 1}}),
    ({"kind": "VideoEmbedding", "image_size": [4, 4], "patch_size": [2, 2], "frames": 2, "prefix": 1,
      "position": {"kind": "Learned", "length": 8}},
     {"kind": "VideoEmbedding", "image_size": [4, 4], "patch_size": [2, 2],
      "prefix": [{"kind": "PrefixTokens", "position": False}], "position": {"kind": "Learned", "length": 8},
      "frames": 2}),
    ({"kind": "PatchEmbedding", "image_size": [4, 4], "patch_size": [2, 2], "prefix": 0},
     {"kind": "PatchEmbedding", "image_size": [4, 4], "patch_size": [2, 2]}),
    ({**TOWER, "activation": "relu", "bias": False},
     {**TOWER, "projector": {"kind": "MLPProjector", "activation": "relu", "bias": False}}),
    ({"kind": "LatentAttention", "num_heads": 2, "rank": 4, "head_width": 4, "turned_width": 2, "value_width": 4,
      "position": {"kind": "Rope"}},
     {"kind": "LatentAttention", "num_heads": 2, "rank": 4, "head_width": 4, "rotary_width": 2, "value_width": 4,
      "position": {"kind": "Rope"}}),
    ({"kind": "LMHead", "vocab_size": 9, "idle_bias": True}, {"kind": "LMHead", "vocab_size": 9, "unused_bias": True}),
    *[({"kind": "Tokens", "vocab_size": 9, old: True}, {"kind": "SpareTableTokens", "vocab_size": 9})
      for old in ("spare", "unused_table")],
    *[({"kind": "LMHead", "vocab_size": 9, **old}, {"kind": kind, "vocab_size": 9})
      for kind, old in (("OffsetLMHead", {"offset": True}), ("OwnVocabularyHead", {"foreign": True}),
                        ("OwnVocabularyOffsetHead", {"offset": True, "foreign": True}))],
    *[({"kind": "TextEmbedding", "tokens": TOKENS, **old}, {"kind": kind, "tokens": TOKENS, **new})
      for old, kind, new in (
          ({"token_segments": True}, "TextEmbedding", {"segments": {"kind": "TokenSegments"}}),
          ({"unseen": 1}, "HiddenTokenText", {"hidden_token": 1}),
          ({"zero_pads": True, "ignores_segments": True}, "ZeroedPaddingText",
           {"segments": {"kind": "IgnoredSegments"}}),
          ({"unseen": 1, "zero_pads": True}, "XLMText", {"hidden_token": 1}))],
    ({"kind": "LanguageText", "tokens": TOKENS, "languages": 3, "unseen": 1, "zero_pads": True},
     {"kind": "LanguageText", "tokens": TOKENS, "hidden_token": 1, "languages": 3}),
    ({"kind": "Pool", "norm": {"kind": "RMSNorm"}, "idle_norm": True},
     {"kind": "Pool", "norm": {"kind": "Unused", "part": {"kind": "RMSNorm"}}}),
    ({"kind": "Pool", "norm": {"kind": "RMSNorm"}, "take": "rest", "unused_norm": True},
     {"kind": "Pool", "take": {"kind": "MeanColumns", "skip": 1},
      "norm": {"kind": "Unused", "part": {"kind": "RMSNorm"}}}),
    *[({"kind": "Pool", "take": take}, {"kind": "Pool", "take": {"kind": kind}}) for take, kind in (
        ("last", "LastToken"), ("mean", "MeanTokens"), ("highest", "HighestId"), ("end", "LastColumn"),
        ("all", "MeanColumns"))],
    ({"kind": "Pool", "take": "first", "padding_token": None}, {"kind": "Pool"}),
    ({"kind": "Pool", "padding_token": 3, "dense": True}, {"kind": "Pool", "dense": True}), 
    ({"kind": "Pool", "take": "last", "padding_token": 0},
     {"kind": "Pool", "take": {"kind": "LastToken", "padding_token": 0}}),
    ({"kind": "Pool", "take": "token", "token": 2}, {"kind": "Pool", "take": {"kind": "LastOccurrence", "token": 2}}),
    ({"kind": "Pool", "take": "mark", "token": 2}, {"kind": "Pool", "take": {"kind": "FirstOccurrence", "token": 2}}),
    ({"kind": "Pool", "take": "seeds", "seeds": {"kind": "Seeds", "num_heads": 2}},
     {"kind": "Pool", "take": {"kind": "SeedPool", "seeds": {"kind": "Seeds", "num_heads": 2}}}),
    ({"kind": "GlobalTextEmbedding", "tokens": TOKENS, "idle_segments": True},
     {"kind": "GlobalTextEmbedding", "tokens": TOKENS, "segments": {"kind": "IgnoredSegments"}}),
])  # fmt: skip
def test_old_names_of_kinds_and_fields_are_read(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert encode(decode(old)) == new


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.run.json")), ids=lambda path: path.name)
def test_a_run_is_read(path: Path) -> None:
    run = read_run(path)
    assert isinstance(run, Run) and from_json(json.loads(to_json(run))) == run


def test_an_old_address_is_found() -> None:
    """OPT-350M's output projection was `decoder.project`."""
    stored, targets = ["decoder.project.weight", "embedding.project.weight"], ["decoder.neck.project.weight"]
    names = same_names(None, stored, [*targets, "embedding.project.weight"]).names
    assert names == {targets[0]: stored[0], stored[1]: stored[1]}


@pytest.mark.parametrize("name", EXPECTED)
@torch.no_grad()
def test_a_checkpoint_computes_what_it_did(name: str) -> None:
    out = af.load(SAVED / name)(**make_inputs(CASES[name]))
    first = next(value for value in out.values() if isinstance(value, torch.Tensor) and value.is_floating_point())
    assert first.flatten()[:6].tolist() == pytest.approx(EXPECTED[name], abs=2e-4)
