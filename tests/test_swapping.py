"""Swap any Part for any other: the description is refused with one line, or the model works as documented.

B batch, T tokens, D width.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import TOLERANCE
from anyformer.models import DecoderModel, EncoderModel, Model
from anyformer.models.model import parts_seeing_ahead
from anyformer.objectives.causal import NextToken
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import MeanTokens, Pooling
from anyformer.parts.init import Initializer, Normal
from anyformer.parts.mask import Causal, Mask, Window
from anyformer.runtime.context import Context
from anyformer.runtime.visibility import Rows
from anyformer.specs.part import Part, Site, walk
from anyformer.stacks.funnel import Funnel
from small import close
from swaps import GROUND, MASKS, NOT_FOR_TEXT, OPS, OURS, SLOTS, SWAPS, T, V, part_of, plain, stirred, swapped, text
from tiny import CONFIGS


@functools.cache
def model_with(slot: str, kind: str) -> Any:
    """Return a causal model with this kind of Part in this slot; raise ValueError if its description is refused."""
    return stirred(swapped(slot, kind)).eval()


def future_seen(model: Any, cuts: Sequence[int] = range(1, T)) -> bool:
    """Whether later tokens change the output of earlier ones, in training or evaluation."""
    runs = (("auto", True), ("eager", False))
    return invariants.check_causality(model, {"input_ids": text()}, cuts, runs) > TOLERANCE


# -- P1: nothing of the future -----------------------------------------------------------------------------------------


def test_every_kind_says_what_a_token_sees() -> None:
    """Every kind that runs in a stack declares what a token sees. Heads, initialisers and models do not need to."""
    for name, kind in OURS.items():
        runs = any({"build", "make", "allows"} & vars(base).keys() for base in kind.__mro__ if base is not Part)
        asked = not issubclass(kind, (Head, Model, Initializer, Pooling)) and name not in UNASKED
        if runs and asked and not kind.is_abstract:
            assert kind.declared_sees is not None, f"{name} does not declare what a token sees"
            known = NOT_FOR_TEXT.union(*SLOTS.values())
            assert name in known, f"{name}: no test swaps it in"


# kinds that need extra inputs
OWN_INPUTS = {"TreeDepth", "DegreeCentrality", "ShortestPathBias", "Windows", "SameDocument", "Padding"}
UNASKED = {"Pool", "PredictionPool", "Summary", "Seeds"}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_answer_for_themselves(kind: str) -> None:
    mask, places = part_of("decoder.layers.attention.op.mask", kind), torch.arange(T)
    assert isinstance(mask, Mask)
    seen = mask.allows(torch.zeros(1, 1, dtype=torch.long), places[:, None], places[None], Rows())
    assert mask.causal == (not bool(seen.expand(T, T).triu(1).any()))


def test_masks_put_together() -> None:
    window, causal = Window(size=16), Causal()
    assert (causal & window).causal and (window & causal).causal and not window.causal and not (causal | window).causal
    assert ((causal & window) | causal).causal and not (~causal).causal and not (~(causal & window)).causal
    assert repr(causal & (window | ~causal)) == "Causal() & (Window(size=16) | Not(mask=Causal()))"


@pytest.mark.parametrize(("slot", "kind"), SWAPS)
def test_what_is_swapped_in_sees_no_future_or_is_refused(slot: str, kind: str) -> None:
    """Every kind in every slot it fits is either accepted and causal, or refused in one line with its address."""
    try:
        causal = model_with(slot, kind)
    except ValueError as error:
        line = str(error)
        assert line.startswith(slot) and "\n" not in line and "lets a token see the future; " in line
        assert line.endswith(" does not")
        if any(
            set(getattr(part, "requires", ())) - set(plain().embedding.gives) for _, part in walk(part_of(slot, kind))
        ):
            return  # it needs inputs that text does not have
        spec = bidirectional(slot, kind)  # the refusal was right: here, tokens do see the future
        if kind not in OWN_INPUTS:
            model = stirred(spec)
            assert future_seen(model, [T // 2]) or future_seen(model), f"{kind} was refused, but is causal"
    else:
        assert not future_seen(causal), f"{kind} at {slot} sees the future"


@pytest.mark.parametrize(("slot", "kind"), SWAPS)
def test_what_is_swapped_in_keeps_packed_documents_apart_or_refuses_them(slot: str, kind: str) -> None:
    """N7 for a causal model, or for a bidirectional model if the kind is not causal."""
    try:
        model = model_with(slot, kind)
    except ValueError:
        try:
            model = stirred(bidirectional(slot, kind)).eval()
        except ValueError:
            return  # it does not fit a text model
    try:
        assert invariants.check_packing(model, {"input_ids": text()[:1]}) <= TOLERANCE
    except invariants.DoesNotApply as error:
        assert "\n" not in str(error)
    except ValueError as error:
        assert re.search("packed|document|tree_parents|graph_edges", str(error)) and "\n" not in str(error)


def bidirectional(slot: str, kind: str) -> EncoderModel:
    """An encoder with a Part that a causal model would refuse."""
    headless = {path: value for path, value in GROUND.get(slot, {}).items() if not path.startswith("head")}
    where = slot if not slot.startswith("head") else "decoder.norm"
    return encoder_of(af.override(plain(head=None), {**headless, where: part_of(slot, kind)}))


def encoder_of(spec: DecoderModel) -> EncoderModel:
    """The same parts in an encoder."""
    return EncoderModel(**{("encoder" if name == "decoder" else name): value for name, value in spec.items()})


@pytest.mark.parametrize("slot, kind", [
    ("decoder.layers.attention.op.mask", "Window"), ("decoder.layers.attention.op.mask", "Either"),
    ("decoder.layers.attention.op", "LocalAttention"), ("decoder.layers.attention.op", "LinformerAttention"),
    ("decoder.layers.attention.op", "ConvolutionModule"), ("decoder.norm", "BatchNorm"),
    *[("decoder.layers.attention.op", f"{kind}Attention")
      for kind in ("Induced", "Luna", "LSH", "Routing", "Sinkhorn")],
    ("embedding.position", "TreeDepth"),
])  # fmt: skip
def test_the_line_names_one_that_can(slot: str, kind: str) -> None:
    """The Part that a refusal proposes is accepted at the address that it names."""
    with pytest.raises(ValueError) as refused:
        swapped(slot, kind)
    address, _, rest = str(refused.value).partition(": ")
    proposed = eval(rest.split("; ", 1)[1].removesuffix(" does not"), dict(Part.kinds))
    path = address.removeprefix(slot).removeprefix(".")
    part = af.override(part_of(slot, kind), {path: proposed}) if path else proposed
    assert not future_seen(stirred(af.override(plain(), {slot: part})))


def test_the_line() -> None:
    gpt2, mask = af.spec("gpt2"), "decoder.layers.attention.op.mask"
    line = f"{mask}: Window lets a token see the future; Causal() & Window(size=16) does not"
    for change in ({mask: {"kind": "Window", "size": 16}}, {mask: Window(size=16), "decoder.depth": 2}):
        with pytest.raises(ValueError) as error:
            af.override(gpt2, change)
        assert str(error.value) == line
    one = "decoder.layers.3.attention.op"
    with pytest.raises(ValueError, match="decoder.layers.layer_3.attention.op: LocalAttention .*future"):
        af.override(gpt2, {one: {"kind": "LocalAttention", "num_heads": 12, "window": 4}})


def test_the_decoder_of_a_pair_writes_and_its_encoder_does_not() -> None:
    spec = families.find("t5").read(CONFIGS["t5"])
    full = {"kind": "Full"}
    with pytest.raises(ValueError, match=r"^decoder.layers.attention.op.mask: Full .*future.* Causal\(\)"):
        af.override(spec, {"decoder.layers.attention.op.mask": full})
    af.override(spec, {"encoder.layers.attention.op.mask": {"kind": "Window", "size": 3}})
    with pytest.raises(ValueError, match="^decoder_embedding.position: Convolutional .*future"):
        af.override(spec, {"decoder_embedding.position": {"kind": "Convolutional", "groups": 1}})


def test_a_decoder_that_does_not_write_may_look_ahead() -> None:
    """A classifier with a decoder may be bidirectional, but then it has no cache: later tokens change earlier ones."""
    head = ClassifyHead(num_labels=3, pool=Pool(take=MeanTokens()))
    spec = af.override(plain(head=head), {"decoder.layers.attention.op.mask": {"kind": "Full"}})
    model = stirred(spec).eval()
    assert not model.remembers and model(input_ids=text()).past_key_values is None
    with pytest.raises(ValueError, match="^decoder.layers.0.attention.op does not support caching"):
        model(input_ids=text(), use_cache=True)
    with pytest.raises(ValueError, match="decoder.layers.attention.op.mask: Full .*future"):
        spec.replace(head=LMHead(vocab_size=V))


def test_bert_with_the_head_of_a_writer() -> None:
    """The published class can be loaded as a bidirectional model, but not trained to predict the next token."""
    bert = {**CONFIGS["bert"], "architectures": ["BertLMHeadModel"]}
    spec = families.find("bert").read(bert)
    with pytest.raises(ValueError, match=r"^encoder.layers.attention.op.mask: Full .*future"):
        NextToken().module(af.build(spec))
    NextToken().module(af.build(families.find("bert").read({**bert, "is_decoder": True})))


class Shift(Part):
    """An op of a user: each token becomes the previous one."""

    def build(self, site: Site) -> nn.Module:
        return ShiftModule()


class DeclaredShift(Shift, sees="past"):
    """The same op, which declares what a token sees."""


class Mean(MLP):
    """An op of a user that mixes tokens, although its base class does not."""

    def build(self, site: Site) -> nn.Module:
        return ShiftModule()


class ShiftModule(nn.Module):
    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


def test_an_outsider_that_says_nothing_is_refused() -> None:
    for part in (Shift(), Mean(width=3)):
        kind = type(part).__name__
        line = rf'^decoder.layers.attention.op: {kind} does not declare .* class {kind}\(\.\.\., sees="past"\)'
        with pytest.raises(ValueError, match=line):
            af.override(plain(), {"decoder.layers.attention.op": part})
    assert not future_seen(stirred(af.override(plain(), {"decoder.layers.attention.op": DeclaredShift()})))
    af.build(af.override(encoder_of(plain(head=None)), {"encoder.layers.attention.op": Shift()}))


def test_published_families_see_no_future() -> None:
    """No part of a named causal description sees the future."""
    writers = 0
    for name, _ in families.names():
        spec = af.spec(name)
        if spec.writes:
            writers += 1
            assert not [*parts_seeing_ahead(getattr(spec, spec.left_to_right[-1]))], name
    assert writers > 20


# -- P2: a Part brings its own initialisation --------------------------------------------------------------------------

ATTENTION_AT = {"gpt2": "decoder.layers.attention.op", "llama": "decoder.layers.attention.op",
                "t5": "decoder.layers.attention.op", "bert": "encoder.layers.attention.op"}  # fmt: skip


@pytest.mark.parametrize("family", ATTENTION_AT)
@pytest.mark.parametrize("kind", ["SelectiveState", "DualState", "TimeMix", "ChannelMix", "MoE"])
def test_what_a_part_starts_with_is_its_own(kind: str, family: str) -> None:
    """Parameters that a mixer initialises do not depend on the family; the family's patterns initialise the rest."""
    spec = families.find(family).read(CONFIGS[family])
    changes: dict[str, Any] = {ATTENTION_AT[family]: {"kind": kind, **OPS[kind]}}
    if kind == "MoE":
        changes[f"{ATTENTION_AT[family]}.router"] = {"kind": "NoisyTopK", "top_k": 2}
    if family == "t5":  # no attention layer remains that could share the bias
        changes["decoder.position"] = None
    spec = af.override(spec, changes)
    model, elsewhere = af.build(spec), dict(af.build(spec.replace(init={"*": Normal(std=9.0)})).named_parameters())
    count = 0
    for address, parameter in model.named_parameters():
        if ".attention.op." in address and any(
            address.removeprefix(f"{path}.") in getattr(module, "starts", {})
            for path, module in model.named_modules() if path and address.startswith(f"{path}.")
        ):  # fmt: skip
            count += 1
            assert torch.equal(parameter, elsewhere[address]), f"{address} is initialised by {family}"
    assert count >= 2


def test_mamba_in_a_gpt_forgets_at_its_own_pace() -> None:
    spec = families.find("gpt2").read(CONFIGS["gpt2"])
    model = af.build(af.override(spec, {"decoder.layers.attention.op": {"kind": "SelectiveState", "width": 48}}))
    mixer = model.decoder.layers[1].attention.op
    assert torch.equal(mixer.rate[3], torch.arange(1, 17).log()) and bool((mixer.skip == 1).all())
    steps = torch.nn.functional.softplus(mixer.step_bias.detach())
    assert float(steps.min()) >= 1e-3 and float(steps.max()) <= 0.1 and float(steps.std()) > 0.01
    assert 0.2 < float(mixer.conv.weight.detach().abs().max()) <= 0.5  # kernel size 4
    assert abs(float(mixer.up.weight.std()) - 0.02) < 0.002  # initialised by GPT-2's pattern


def test_norms_and_residuals_start_as_they_say() -> None:
    """T5's pattern for norms does not apply to other kinds of norms."""
    spec = families.find("t5").read({**CONFIGS["t5"], "initializer_factor": 0.5})
    layers = "decoder.layers.attention"
    spec = af.override(spec, {f"{layers}.pre_norm": {"kind": "ScaleNorm"}, f"{layers}.residual": {"kind": "ReZero"}})
    step = af.build(spec).decoder.layers[0].attention
    assert float(step.pre_norm.weight) == pytest.approx(24**0.5) and float(step.residual.weight) == 0.0


# -- P3: sizes that must agree -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
def test_one_vocabulary(family: str) -> None:
    """The head and the embedding have the same vocabulary, tied or not; both are changed together, in any order."""
    spec = families.find(family).read(CONFIGS[family])
    tables = {path: 20 for path in ("embedding.tokens.vocab_size", "head.vocab_size")}
    if family == "t5":
        tables = {"decoder_embedding.tokens.vocab_size": 20, **tables}
    reads = "decoder_embedding" if family == "t5" else "embedding"
    with pytest.raises(ValueError) as refused:
        af.override(spec, {"head.vocab_size": 20})
    assert re.search(rf"^head.vocab_size.* 20\b.*\b{reads}.tokens.vocab_size.* 50\b", str(refused.value))
    for changes in (tables, dict(reversed(tables.items()))):
        model = af.build(af.override(spec, changes))
        ids = {"input_ids": torch.tensor([[3, 4]])}
        ids |= {"decoder_input_ids": torch.tensor([[0]])} if family == "t5" else {}
        assert model(**ids).logits.shape[-1] == 20
    model.resize_token_embeddings(30)
    assert model(**ids).logits.shape[-1] == 30


def test_what_is_tied_is_there_and_of_one_shape() -> None:
    t5 = families.find("t5").read(CONFIGS["t5"])
    line = r"decoder_embedding.tokens.weight is \(50, 24\), embedding.tokens.weight is \(9, 24\)"
    with pytest.raises(ValueError, match=line):
        af.build(af.override(t5, {"embedding.tokens.vocab_size": 9}), device="meta")
    with pytest.raises(ValueError, match=r"ties: .*head.weight and embedding.tokens.weight"):
        af.build(plain(ties=(("head.weight", "embedding.tokens.weight"),)))


def test_heads_of_a_shared_bias() -> None:
    t5 = families.find("t5").read(CONFIGS["t5"])
    with pytest.raises(ValueError, match="encoder: position has 3 heads.*layers.attention.op.* 6"):
        af.override(t5, {"encoder.layers.attention.op.num_heads": 6})
    changes = {"encoder.layers.attention.op.num_heads": 6, "encoder.position.num_heads": 6}
    assert af.override(t5, changes) == af.override(t5, dict(reversed(changes.items())))


# -- P4: state or no cache ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slot", "kind"), SWAPS)
def test_written_with_and_without_a_memory_it_is_the_same_text(slot: str, kind: str) -> None:
    """For every causal model, `generate` writes the same text with and without a cache."""
    try:
        model = model_with(slot, kind)
    except ValueError:
        return  # tested above
    ids = text()[:, :5]
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict": True, "output_scores": True}
    usual, again = (af.generate(model, ids, **options, **more) for more in ({}, {"use_cache": False}))
    assert usual.sequences.tolist() == again.sequences.tolist()
    close(torch.stack(usual.scores), torch.stack(again.scores), 1e-4)


def test_an_outsider_without_a_state_is_read_again() -> None:
    spec = af.override(plain(), {"decoder.layers.attention.op": DeclaredShift()})
    model, ids = stirred(spec).eval(), text()[:, :6]
    assert not model.remembers and model.stateless[0] == "decoder.layers.0.attention.op"
    written = af.generate(model, ids, max_new_tokens=8, do_sample=False)
    for _ in range(8):
        ids = torch.cat((ids, model(input_ids=ids).logits[:, -1:].argmax(-1)), dim=1)
    assert written.tolist() == ids.tolist()
    for ask in ({"use_cache": True}, {"past_key_values": af.build(plain()).new_state()}):
        with pytest.raises(
            ValueError, match=r"decoder.layers.0.attention.op does not support caching.*use_cache=False"
        ):
            model(input_ids=ids, **ask)
    with pytest.raises(ValueError, match=r"decoder.layers.0.attention.op .*caching"):
        model.new_state()
    with pytest.raises(ValueError, match=r"decoder.layers.0.attention.op .*caching"):
        af.generate(model, ids, past_key_values=af.build(plain()).new_state())


def test_what_mixes_nothing_needs_no_state() -> None:
    assert af.build(plain()).remembers
    spec = af.override(plain(), {"decoder.layers.attention.op": {"kind": "MLP", "width": 8}})
    assert af.build(spec).remembers
    assert not af.build(af.override(plain(), {"decoder.order": (0, 1, 0)})).remembers


def test_stacks_that_shorten_cannot_write() -> None:
    stack = plain().decoder
    assert Funnel(stages=(stack, stack)).sees == "all"


# -- mistakes that are refused early ----------------------------------------------------------------------------------


def query(layer: int, name: str = "q") -> str:
    return f"decoder.layers.{layer}.attention.op.{name}.weight"


@pytest.mark.parametrize("ties", [
    (("head.out.weight", "head.out.weight"),),
    ((query(0), query(1)), (query(1), query(0))),
    ((query(0), query(1)), (query(1), query(2))),
    (("decoder.layers.0", "decoder.layers.0"),),
], ids=["itself", "circle", "chain", "module"])  # fmt: skip
def test_a_tie_to_what_is_tied_is_refused(ties: tuple[tuple[str, str], ...]) -> None:
    """Otherwise no address would own the storage, and it would not be saved."""
    with pytest.raises(ValueError, match=rf"ties.*{re.escape(ties[0][1])}.*tied"):
        af.override(plain(), {"decoder.depth": 3, "ties": ties})


@pytest.mark.parametrize(
    "ties", [((query(1), query(0)), (query(2), query(1))), ((query(0), query(0, "k")),), ((query(0), query(1, "k")),)]
)
def test_ties_in_some_layers_are_counted_and_saved(ties: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    spec = af.override(plain(), {"decoder.depth": 3, "ties": ties})
    model = af.build(spec, seed=0)
    assert af.count(spec).parameters == sum(parameter.numel() for parameter in model.parameters())
    af.save(model, tmp_path / "model")
    assert torch.equal(af.load(tmp_path / "model")(input_ids=text()).logits, model(input_ids=text()).logits)


@pytest.mark.parametrize("changes, fault", [
    ({"decoder.layers.attention.op.scale": -1.0}, "decoder.layers.attention.op.scale.* -1.0.* above 0"),
    ({"init": {"*": {"kind": "Normal", "std": -1.0}}}, "std.* -1.0.* at least 0"),
    ({"length": 0}, "length.* 0.* at least 1"),
], ids=["scale", "init", "length"])  # fmt: skip
def test_values_that_nothing_could_be_computed_with(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        af.override(plain(), changes)


@pytest.mark.parametrize("op", [None, {"kind": "SelectiveState", "width": 32}], ids=["attention", "recurrence"])
@pytest.mark.parametrize("capacity", [None, 12])
def test_a_state_of_other_texts_is_refused(op: dict[str, Any] | None, capacity: int | None) -> None:
    model = af.build(af.override(plain(), {} if op is None else {"decoder.layers.attention.op": op}), seed=0).eval()
    for rows, later in ((2, 1), (1, 2)):
        state = model.new_state(rows, capacity=capacity)
        with torch.no_grad():
            model(input_ids=text()[:rows, :4], past_key_values=state)
            with pytest.raises(ValueError, match=f"past_key_values has {rows} rows.*inputs have {later}"):
                model(input_ids=text()[:later, 4:5], past_key_values=state)


def test_inputs_without_rows_and_places_before_the_first() -> None:
    model = af.build(af.override(plain(), {"embedding.position": {"kind": "Learned", "length": 32}}), seed=0)
    with pytest.raises(ValueError, match="input_ids has no rows"):
        model(input_ids=text()[:0])
    with pytest.raises(ValueError, match="position -1 .*learned"):
        model(input_ids=text(), position_ids=torch.arange(text().shape[1])[None] - 1)


def test_causal_convolutions_see_no_pads() -> None:
    part = af.parts.ConvolutionModule(kernel=3, norm=af.parts.LayerNorm(), causal=True)
    assert af.check(part)["padding"].result == "passed"


def test_a_trace_says_where_nothing_ran() -> None:
    """An LSTM reads the weights of its gates without calling their module."""
    model = af.build(af.override(plain(), {"decoder.layers.attention.op": {"kind": "LSTM"}}), seed=0).eval()
    gates = "decoder.layers.0.attention.op.gates"
    with pytest.warns(UserWarning, match=f"{gates}: not reached in this run"):
        assert gates not in af.trace(model, keep=[gates], input_ids=text())
    position = {"kind": "Summed", "parts": [{"kind": "Learned", "length": 32}]}
    model = af.build(af.override(plain(), {"embedding.position": position}), seed=0).eval()
    with pytest.raises(ValueError, match="no address matches 'embedding.position'"):  # it has no forward pass
        af.trace(model, keep=["embedding.position"], input_ids=text())
    assert af.trace(model, keep=["embedding.position.parts.0"], input_ids=text())


def test_allowed_tokens_are_tokens() -> None:
    model = af.build(plain(), seed=0).eval()
    with pytest.raises(ValueError, match=r"prefix_allowed_tokens_fn returned \[999\]"):
        af.generate(model, input_ids=text(), max_new_tokens=2, prefix_allowed_tokens_fn=lambda row, ids: [999])
