"""`anyformer parts`, `af.parts`, and suggestions: a Part is found by its other names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import anyformer as af
from anyformer.cli import find_mentions, listing
from anyformer.cli import parts as verb
from anyformer.models import Model
from anyformer.objectives.objective import Objective
from anyformer.parts.condition import AdaptiveNorm
from anyformer.parts.norm import Norm
from anyformer.parts.op import Op
from anyformer.parts.position.bias import AttentionPosition
from anyformer.specs.part import Part, fits, kinds_for
from anyformer.specs.slots import about, slot_at
from anyformer.train.run import Run as TrainingRun
from anyformer.train.run import every_kind
from terminals import Run


@pytest.fixture
def foreign() -> Iterator[type[Part]]:
    class Wobble(Part, sees="past", called=("shaky mixer",)):
        """A mixer of somebody else."""

        size: int = 3  # how far

    yield Wobble
    del Part.kinds["Wobble"]


def test_every_kind_is_listed_once_with_what_it_is(run: Run, foreign: type[Part]) -> None:
    code, out, err = run("parts", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, err) == (0, "") and len(rows) == len(json.loads(out))
    assert rows.keys() == {name for name, kind in every_kind().items() if not kind.is_abstract}
    assert {"Attention", "Causal", "Stack", "DecoderModel", "AdamW", "NextToken", "Wobble"} <= rows.keys()
    assert {"Norm", "Op", "Head", "Files", "Projections"}.isdisjoint(rows)
    ours = {name: row for name, row in rows.items() if row["module"].startswith("anyformer.")}
    assert [name for name, row in ours.items() if row["about"][:1] in ("", "[", ":")] == []
    slots = set(rows["Wobble"]["fits"])  # slots for any mixer, not slots for MLP only
    assert {"Sublayer.op", "Windows.mixer"} <= slots < {*rows["MLP"]["fits"]} and "MoE.expert" not in slots
    assert rows["Wobble"]["fields"][0]["about"] == "how far"
    code, out, _ = run("parts")
    assert code == 0 and max(map(len, out.splitlines())) < 250
    assert [name for name in (*ours, "Wobble") if f"\n  {name} " not in out] == []  # other tests declare kinds too


ALL_KINDS = """
import json, os
from anyformer.objectives import objective
from anyformer.recipes import recipe
from anyformer.specs.codec import override
from anyformer.specs.part import kinds_for
run = recipe("shakespeare")
if os.fork() == 0:  # what is imported here is not imported below
    known = [*kinds_for(objective.Objective)]
    print(json.dumps([*known, repr(override(run, {"objective": {"kind": "SpanCorruption"}}).objective)]), flush=True)
    os._exit(0)
os.wait()
from anyformer.parts import Attention, Block, DecoderModel, GatedMLP, Run, Sublayer
try:
    Sublayer(op="LSTMM")  # of a kind that is not imported yet
except ValueError as error:
    message = str(error)
from anyformer.parts import *
names = sorted(name for name in globals() if name[0].isupper())
from anyformer.cli import listing
stubs = [listing.stub(), listing.known_names()]
print(json.dumps([message, names, listing.collect_kinds(), stubs, sorted(listing.our_kinds())]))
"""


def test_the_lists_of_parts_are_what_the_classes_say() -> None:
    """The table of `anyformer parts`, the names of `anyformer.parts`, and the objectives that --set knows. In a new
    process, because other tests import and declare Parts."""
    output = subprocess.run([sys.executable, "-c", ALL_KINDS], capture_output=True, text=True, check=True).stdout
    objectives, (message, names, table, stubs, kinds) = map(json.loads, output.splitlines())
    ours = [name for name, kind in kinds_for(Objective).items() if kind.__module__.startswith("anyformer.objectives.")]
    assert sorted(objectives) == sorted([*ours, "SpanCorruption()"])
    assert {"Auxiliary", "Distill", "MaskedImage", "NextToken"} <= {*objectives}
    assert message.endswith("did you mean 'LSTM'?")
    assert json.loads(listing.PARTS.read_text(encoding="utf-8")) == table, "python -m anyformer.cli.listing writes it"
    for file, stub in zip((listing.STUB, listing.NAMES), stubs, strict=True):
        assert file.read_text(encoding="utf-8") == stub, "python -m anyformer.cli.listing writes it"
    assert names == kinds and len(names) > 300


@pytest.fixture
def only_our_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kinds of the table, not those of other tests."""
    table = json.loads(listing.PARTS.read_text(encoding="utf-8"))
    ours = {each["name"] for each in (*table["kinds"], *table["abstract"])}
    for name in [name for name in Part.kinds if name not in ours]:
        monkeypatch.delitem(Part.kinds, name)


@pytest.mark.usefixtures("only_our_kinds")
@pytest.mark.parametrize("arguments", [(), ("--json",), ("rotary",), ("SWIGLU", "--json"), ("Norm",), ("nonsense",)])
def test_the_table_gives_what_the_classes_give(
    arguments: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a name that needs the classes."""
    asked = run("parts", *arguments)
    monkeypatch.setattr(verb, "only_ours", lambda: True)
    if arguments != ("nonsense",):
        monkeypatch.setattr(verb, "ask_kinds", None)
    assert run("parts", *arguments) == asked


def test_no_other_name_is_said_twice_where_both_fit() -> None:
    """In one slot, a name belongs to only one kind."""
    for slot in {kind.__mro__[-3] for kind in every_kind().values()} - {Part}:  # the kinds right below Part
        names = [name for kind in kinds_for(slot).values() for name in (kind.__name__, *kind.called)]
        assert len(names) == len({*names}), slot


@pytest.mark.parametrize("name, kind", [
    ("rotary", "Rope"), ("swiglu", "GatedMLP"), ("mamba", "SelectiveState"), ("mamba2", "DualState"),
    ("rmsnorm", "RMSNorm"), ("gqa", "Attention"), ("alibi", "Alibi"), ("moe", "MoE"), ("mla", "LatentAttention"),
    ("Longformer", "LocalAttention"), ("bpe", "TrainedBPE"), ("swish", "MLP"), ("multi-head attention", "Attention"),
    ("masked language modelling", "Masked"), ("next sentence prediction", "MaskedAndNext"), ("InfoNCE", "Contrast"),
    ("class token", "PrefixTokens"), ("low-rank adaptation", "LoRA"), ("return-to-go", "Act"),
    ("layer normalization", "LayerNorm"),
])  # fmt: skip
def test_parts_by_the_names_that_people_use(name: str, kind: str, run: Run) -> None:
    code, out, _ = run("parts", name)
    assert code == 0 and out.startswith(f"{kind}: ")


@pytest.mark.parametrize("term, where", [
    ("beam search", "anyformer generate --num-beams"), ("nucleus sampling", "anyformer generate --top-p"),
    ("speculative decoding", "anyformer generate --help"), ("KV cache", "anyformer generate --help"),
    ("label smoothing", "Translate.smoothing"), ("gradient checkpointing", "Run.recompute"),
    ("warm-up", "Cosine.warmup"), ("Noam schedule", "Noam"), ("in-context learning", "anyformer lab run neighbours"),
    ("ALBERT", "anyformer zoo albert"), ("Qwen", "anyformer zoo qwen2"),
    ("zero-shot", "anyformer run zero-shot-image"), ("MFU", "anyformer plan --utilisation"),
    ("induction heads", "anyformer lab run induction-heads"), ("fashion", "anyformer train fashion-mnist"),
    ("typical sampling", "af.generate(typical_p=...)"), ("d_model", "config.json: d_model"),
    ("int4", "anyformer/transforms/quantize.py"), ("continuous batching", "anyformer/generation/continuous_batch.py"),
    ("activation function", "anyformer/parts/activation.py"),
])  # fmt: skip
def test_a_term_that_is_no_part_is_found_where_it_is_mentioned(term: str, where: str, run: Run) -> None:
    code, out, err = run("parts", term)
    assert code == 0 and err.startswith(f"anyformer: no Part is called {term!r}; it is mentioned here:")
    assert where in [line.partition("  ")[0] for line in out.splitlines()[1:]]


@pytest.mark.parametrize("term, where", [
    ("generate-image", "run draw"), ("ASR", "run transcribe"), ("vqa", "run ask-image"), ("XLM", "zoo xlm"),
])  # fmt: skip
def test_what_has_the_name_itself_comes_first(term: str, where: str, run: Run) -> None:
    assert run("parts", term)[1].splitlines()[1].startswith(f"anyformer {where} ")


def test_a_part_and_the_families_of_its_name(run: Run) -> None:
    _, out, _ = run("parts", "Mamba")
    assert [line.partition(":")[0] for line in out.splitlines()[-2:]] == ["family mamba", "family mamba2"]
    json.loads(run("parts", "Mamba", "--json")[1])  # without them


def test_a_term_that_nothing_mentions_is_a_mistake(run: Run) -> None:
    code, out, err = run("parts", "chain of thoughtlessness")
    assert (code, out) == (2, "") and err.count("\n") == 1
    for term in ("paged attention", "DPO", "prompt tuning"):
        assert "did you mean" not in run("parts", term)[2], term
    assert "did you mean 'Rope'?" in run("parts", "Rotery")[2]
    assert not find_mentions.is_in("act", "a character") and find_mentions.is_in("warm-up", "warmup")


def test_one_kind_is_told_whole(run: Run) -> None:
    _, out, _ = run("parts", "Rope")
    fits_line = next(line for line in out.splitlines() if line.startswith("fits: "))
    assert {"Stack.position", "Attention.position"} <= set(fits_line.removeprefix("fits: ").split(", "))
    for text in ("Rotary positions", "rotary", "paper: Su et al. 2021", "fraction",
                 "1.0", "share of the head's channels that rotate", "RopeScaling | None"):  # fmt: skip
        assert text in out, text
    assert about(Part.kinds["SelectiveState"]).paper == "Gu and Dao 2023"  # of the whole file
    assert "(needed)" in run("parts", "MLP")[1]
    assert run("parts", "Norm")[1].count("\n") == len(kinds_for(Norm)) + 2  # an abstract kind lists its kinds


def test_slots_by_address_and_by_kind(run: Run) -> None:
    for path, wanted in {
        "decoder.layers.attention.op": Op, "decoder.layers.3.attention.op": Op, "encoder.layers.local.mlp.op": Op,
        "Sublayer.op": Op, "decoder.norm": Norm | AdaptiveNorm,
        "decoder.layers.attention.pre_norm": Norm | AdaptiveNorm,
        "decoder.layers.attention.op.position": AttentionPosition, "Attention.position": AttentionPosition,
        "encoder.stages.0.layers.attention.pre_norm": Norm | AdaptiveNorm,
    }.items():  # fmt: skip
        assert kinds_for(slot_at(path, (Model,))).keys() == kinds_for(wanted).keys(), path
        assert {row["name"] for row in json.loads(run("parts", "--slot", path, "--json")[1])} == kinds_for(
            wanted
        ).keys()
    assert "AdamW" in kinds_for(slot_at("optimizer", (TrainingRun,)))
    for wrong, message in {
        "decoder.lyers": "did you mean 'layers'?", "width": "takes no Part, but int", "decoder.norm.epz": "'eps'",
    }.items():  # fmt: skip
        code, out, err = run("parts", "--slot", wrong)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_parts_in_python() -> None:
    assert af.parts.GatedMLP(width=8) == Part.kinds["GatedMLP"](width=8)
    assert {"GatedMLP", "Causal", "DecoderModel", "Run", "NextToken"} <= {*dir(af.parts)}
    with pytest.raises(AttributeError, match="no Part is called 'SwiGLU'; did you mean 'GatedMLP' with activation"):
        _ = af.parts.SwiGLU
    assert "GatedMLP" in af.parts.__all__ and len({*af.parts.__all__}) == len(af.parts.__all__)
    with pytest.raises(AttributeError, match="no attribute 'norms'"):
        _ = af.parts.norms


SUGGESTED = {
    ("decoder.layers.attention.op.position", "Rotary"): "did you mean 'Rope'?",
    ("decoder.layers.feedforward.op", "SwiGLU"): "did you mean 'GatedMLP' with activation='silu'?",
    ("decoder.layers.feedforward.op", "swi_glu"): "did you mean 'GatedMLP' with activation='silu'?",
    ("decoder.norm", "RmsNorm"): "did you mean 'RMSNorm'?",
    ("decoder.norm", "LlamaRMSNorm"): "did you mean 'RMSNorm'?",
    ("decoder.layers.attention.op", "Mamba"): "did you mean 'SelectiveState'?",
    ("decoder.layers.attention.op", "Rotary"): "that is Rope, which does not fit here; valid: AdditiveAttention, ",
    ("decoder.norm", "nonsense"): "valid: AdaptiveNorm, BatchNorm, LaterLayerNorm, LayerNorm, RMSNorm, ScaleNorm",
}


@pytest.mark.parametrize("path, kind", SUGGESTED)
def test_suggestions_know_the_slot_and_the_other_names(path: str, kind: str) -> None:
    suggestion = SUGGESTED[path, kind]
    with pytest.raises(ValueError) as caught:
        af.override(af.spec("gpt2"), {path: {"kind": kind}})
    assert f"{path}: unknown kind {kind!r}; {suggestion}" in str(caught.value)


def test_suggestions_inside_of_what_is_given() -> None:
    block = {"kind": "Block", "a": {"kind": "Sublayer", "op": {"kind": "MLP", "width": 4}, "pre_norm": {"kind": "Rms"}}}
    with pytest.raises(ValueError, match=r"decoder\.layers\.a\.pre_norm: unknown kind 'Rms'; did you mean 'RMSNorm'"):
        af.override(af.spec("gpt2"), {"decoder.layers": block})


@pytest.mark.parametrize("value, message", [
    ("RMSNorm", 'RMSNorm is not of type Norm or AdaptiveNorm; write {"kind": "RMSNorm"}'),
    ("rms", "rms is not of type Norm or AdaptiveNorm; did you mean 'RMSNorm'?"),
    (af.parts.MLP(width=3), "MLP is not of type Norm or AdaptiveNorm; valid: AdaptiveNorm, "),
])  # fmt: skip
def test_what_is_no_part_for_a_slot(value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        af.override(af.spec("gpt2"), {"decoder.norm": value})
    assert message in str(caught.value)


def test_a_llama_like_gpt2_from_what_parts_shows(run: Run) -> None:
    """The output of `anyformer parts rotary` and `SwiGLU` is enough to write the changes."""
    found = {word: json.loads(run("parts", word, "--json")[1])[0] for word in ("rotary", "swiglu", "rms norm")}
    rope, gated, norm = (found[word]["name"] for word in found)
    assert "Attention.position" in found["rotary"]["fits"] and "Sublayer.op" in found["swiglu"]["fits"]
    changes = {
        "width": 16, "decoder.depth": 2, "decoder.layers.attention.op.num_heads": 2,
        "decoder.layers.attention.op.position": {"kind": rope}, "embedding.position": None,
        "decoder.layers.feedforward.op": {"kind": gated, "width": 32}, "decoder.norm": {"kind": norm},
    }  # fmt: skip
    model = af.build(af.override(af.spec("gpt2"), changes))
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 50257)


def test_parts_of_other_packages_fit_where_the_slot_is_open(foreign: type[Part]) -> None:
    assert fits(foreign, Op) and not fits(foreign, Norm)
    with pytest.raises(ValueError, match="did you mean 'Wobble'"):
        af.override(af.spec("gpt2"), {"decoder.layers.attention.op": {"kind": "shaky mixer"}})
