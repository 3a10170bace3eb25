"""Checks of the behaviour of every description that builds, named after the lines of BEHAVIOUR.md."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import (
    TOKEN_LABELS,
    close,
    is_causal,
    is_encoder_decoder,
    make_labels,
    make_token_labels,
    randomise,
    results,
)
from torch import Tensor

import anyformer as af
from anyformer.models import position_limit
from anyformer.parts.base import extra_inputs as declared_extras
from anyformer.parts.grid.pooled_attention import Skip
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.parts.head.contrastive import ContrastHead
from anyformer.parts.head.image import PixelHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pooling import LastOccurrence, LastToken
from anyformer.parts.head.question_span import QuestionHead
from anyformer.parts.head.speech import FrameHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.norm import RowNorm
from anyformer.specs.codec import decode, encode
from anyformer.specs.part import walk
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stages import Stages
from anyformer.transforms.recompute import recompute
from architectures.generator import LENGTH, SAMPLES

PADS = 32
STEPS = 4  # steps of an episode, or (x, y) pairs of a function
SPECIAL, SPECIAL_INDEX = 3, 4  # token that represents a text or ends a question, and its index


def inputs_of(spec: Any, batch: int = 3, labels: bool = False) -> dict[str, Any]:
    """Random inputs of any description."""
    generator = torch.Generator().manual_seed(1)
    out: dict[str, Any] = {}
    name, shape = spec.embedding.inputs[0], (batch, LENGTH)
    if isinstance(spec.head, MultipleChoiceHead):
        shape = (batch, 3, LENGTH)
    if name == "input_ids":
        out[name] = ids(spec.embedding, shape, generator)
    elif name == "inputs_embeds":
        out[name] = torch.randn(*shape, spec.width, generator=generator)
    elif name == "pixel_values":
        out[name] = torch.randn(batch, *spec.embedding.row(LENGTH, spec.width)[name], generator=generator)
    elif name == "input_features":
        out[name] = torch.randn(batch, *spec.embedding.row(2 * LENGTH, spec.width)[name], generator=generator)
    elif "a condition" in spec.embedding.gives:
        rows = spec.embedding.row(LENGTH, spec.width)
        out = {each: torch.randint(0, 2, (batch,), generator=generator) for each in rows}
        out[name] = torch.randn(batch, *rows[name], generator=generator)
    elif lives(spec):
        rows = spec.embedding.row(STEPS, spec.width)
        out = {each: torch.randn(*shape[:-1], *row, generator=generator) for each, row in rows.items()}
        if "timesteps" in out:
            out["timesteps"] = torch.randint(0, spec.embedding.steps, out["timesteps"].shape, generator=generator)
    else:
        out[name] = torch.randn(batch, SAMPLES, generator=generator)
    out |= make_token_labels(spec, shape, generator)
    if "global_attention_mask" in spec.embedding.inputs:
        out["global_attention_mask"] = (torch.rand(shape, generator=generator) < 0.3).long()
        out["global_attention_mask"][..., 4] = 1
    if is_encoder_decoder(spec):
        out["decoder_input_ids"] = ids(spec.decoder_embedding, shape, generator)
    elif any(getattr(part, "memory", False) for _, part in walk(spec)):
        out["encoder_hidden_states"] = torch.randn(batch, 7, spec.width, generator=generator)
    if any(getattr(part, "tree", False) for _, part in walk(spec)):
        out["tree_parents"] = torch.tensor([-1, *(t // 2 for t in range(1, LENGTH))]).expand(shape).clone()
    if "graph_edges" in declared_extras(spec):  # a ring of three kinds of edges
        place = torch.arange(LENGTH)
        ring = ((place[:, None] - place).abs() % (LENGTH - 2) == 1) * (1 + (place[:, None] + place) % 3)
        out["graph_edges"] = ring.expand(*shape, -1).clone()
    if labels:
        out |= labels_of(spec, out, generator)
    return out


def labels_of(spec: Any, inputs: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Random labels with the shapes of the outputs."""
    with torch.no_grad():
        out = random_model(spec)(**inputs, **({"use_cache": False} if is_causal(spec) else {}))
    if isinstance(spec.head, PixelHead):  # a stride that does not fill the image has no loss, as published
        return make_labels(spec, 3, inputs, generator) if out[0].shape == inputs["pixel_values"].shape else {}
    first = next(v for v in out.values() if v.dim())  # a loss that needs no labels is a number
    logits = next((v for name, v in out.items() if name.endswith("logits")), first)
    if isinstance(spec.head, ContrastHead):  # if an adapter shortens the frames, none can be compared, as published
        labels = make_labels(spec, 3, inputs, generator)
        return labels if labels["mask_time_indices"].shape == out[0].shape[:2] else {}
    if isinstance(spec.head, FrameHead):
        return {"labels": torch.rand(logits.shape, generator=generator)}
    if isinstance(spec.head, ClassifyHead) and spec.head.num_labels == 1:
        return {"labels": torch.rand(len(logits), generator=generator)}  # regression
    tokens = torch.zeros(logits.shape[:2], dtype=torch.long)
    labels = make_labels(spec, len(logits), {**inputs, "input_ids": tokens, "decoder_input_ids": tokens}, generator)
    if isinstance(spec.head, LMHead) and tokens.shape[1] < 3:  # label all tokens; a single token has no next one
        labels = {name: value.clamp(min=0) for name, value in labels.items()} if tokens.shape[1] > 1 else {}
    if isinstance(spec.head, QuestionHead):  # the answer is after the question
        labels = {name: places.clamp(min=SPECIAL_INDEX + 1) for name, places in labels.items()}
    return labels


def ids(embedding: Any, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    found = torch.randint(5, embedding.tokens.vocab_size, shape, generator=generator)
    found[..., SPECIAL_INDEX] = SPECIAL
    return found


@functools.lru_cache(maxsize=1)
def fresh_model(spec: Any) -> Any:
    """An initialised model; no check may change its weights."""
    return af.build(spec, seed=3)


@functools.lru_cache(maxsize=1)
def random_model(spec: Any) -> Any:
    """A model with random weights, since weights of 0 or 1 could hide a mistake. All checks share it."""
    model = af.build(spec, seed=0).eval()
    randomise(model)
    return model


@torch.no_grad()
def run(model: Any, inputs: dict[str, Any], kernel: str = "auto", **more: Any) -> dict[str, tuple[Tensor, bool]]:
    model.kernel = kernel
    if model.dtype == torch.float64:
        inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    if is_causal(model.spec):
        more = {"use_cache": False} | more
    return results(model.spec, model(**inputs, **more))


def written(spec: Any) -> str:
    """The name of the input that generation extends."""
    return "decoder_input_ids" if is_encoder_decoder(spec) else spec.embedding.inputs[0]


def lives(spec: Any) -> bool:
    """Whether the model reads several inputs per step: an episode, or the points of a function."""
    return len(spec.embedding.row(1, 1)) > 1 and "a condition" not in spec.embedding.gives


def mixes(spec: Any) -> bool:
    """Whether a token sees other tokens."""
    return spec.pair or (spec.decoder if is_causal(spec) else spec.encoder).sees != "itself"


def shortens(spec: Any) -> bool:
    """Whether the model has fewer output vectors than input tokens."""
    return any(isinstance(part, (Stages, Funnel, Skip, Perceiver)) for _, part in walk(spec))


def learns(model: Any) -> bool:
    """Whether the model has trainable parameters."""
    return any(parameter.requires_grad for parameter in model.parameters())


def extra_inputs(spec: Any, inputs: dict[str, Any]) -> list[str]:
    """The names of inputs with one value per token, in addition to `written(spec)`."""
    if is_encoder_decoder(spec):
        return []
    along = (*TOKEN_LABELS, "global_attention_mask", *(spec.embedding.inputs[1:] if lives(spec) else ()))
    return [name for name in along if name in inputs]


# -- the lines --------------------------------------------------------------------------------------------------------


def n1_nothing_of_the_future(model: Any) -> None:
    """N1 and P1: later inputs do not change earlier outputs."""
    spec = model.spec
    if not spec.writes:
        return
    inputs, name = inputs_of(spec, batch=1), written(spec)
    tokens = inputs[name].shape[1]
    at, other = (
        tokens // 2,
        {each: inputs[each].clone() for each in (name, *(extra_inputs(spec, inputs) * lives(spec)))},
    )
    for each, value in other.items():
        later = value[:, at:]
        changed = -later if later.is_floating_point() else torch.where(later == 6, 7, 6) if each == name else later * 0
        value[:, at:] = changed
    for kernel in ("auto", "eager"):
        before, after = run(model, inputs, kernel), run(model, {**inputs, **other}, kernel)
        for key, (value, per_token) in before.items():
            if per_token:
                same = at * value.shape[1] // tokens
                close(after[key][0][:, :same], value[:, :same], 1e-6)


def n3_a_batch_is_its_rows(model: Any) -> None:
    inputs = inputs_of(model.spec)
    whole = run(model, inputs)
    for row in range(3):
        alone = run(model, {k: v[row : row + 1] for k, v in inputs.items()})
        for key, (value, _) in alone.items():
            close(whole[key][0][row : row + 1], value)


VECTORS = ("inputs_embeds", "states", "actions", "returns_to_go", "input_features", "points")  # (..., T, width)
TOKEN_INPUTS = ("input_ids", "attention_mask", *TOKEN_LABELS, "global_attention_mask", "tree_parents", "graph_edges")


def pad(inputs: dict[str, Any], where: str, names: tuple[str, ...], token: int = 0) -> dict[str, Any]:
    """Pad the named inputs (..., T) on one side, by `PADS` tokens."""
    pads = PADS // 3 if {"states", "points"} & {*names} else PADS
    widths = (pads, 0) if where == "left" else (0, pads)
    out = dict(inputs)
    for name in names:
        if name == "tree_parents" and name in out:
            moved = torch.where(out[name] < 0, out[name], out[name] + widths[0])
            out[name] = F.pad(moved, widths, value=-1)
        elif name == "graph_edges" and name in out:
            out[name] = F.pad(out[name], (*widths, *widths))
        elif name in VECTORS and name in out:
            out[name] = F.pad(out[name], (0, 0, *widths), value=0.5)
        elif name in out:
            out[name] = F.pad(out[name], widths, value=token if name in ("input_ids", "decoder_input_ids") else 0)
    return out


def n4_pads_change_nothing(model: Any) -> None:
    spec = model.spec
    image = "an image" in spec.embedding.gives  # images have no padding
    if "attention_mask" not in spec.embedding.inputs or image or not spec.embedding.hides:
        return
    inputs = inputs_of(spec)
    first = spec.embedding.inputs[0]
    length = inputs[first].shape[: -1 if first in VECTORS else None]
    inputs["attention_mask"] = torch.ones(length, dtype=torch.long)
    plain = run(model, inputs)
    token = padding_token(spec)
    for where in ("left", "right"):
        if first in ("input_values", "input_features") and where == "left":
            continue  # recordings are padded at their end
        names = spec.embedding.inputs if lives(spec) else (first, *TOKEN_INPUTS)
        batches = [pad(inputs, where, tuple(dict.fromkeys(names)), token)]
        if is_encoder_decoder(spec):
            inner = {**inputs, "decoder_attention_mask": torch.ones_like(inputs["decoder_input_ids"])}
            batches.append(pad(inner, where, ("decoder_input_ids", "decoder_attention_mask"), token))
        for batch in batches:
            padded = run(model, batch)
            for key, (value, per_token) in plain.items():
                found = padded[key][0]
                if per_token and found.shape[1] != value.shape[1]:
                    T = value.shape[1]
                    found = found[:, -T:] if where == "left" else found[:, :T]
                close(found, value)
    if model.remembers and not lives(spec) and not isinstance(spec.head, MultipleChoiceHead):
        padded_prompts_go_on(model)


def padded_prompts_go_on(model: Any) -> None:
    """The outputs of three tokens after padded prompts of 4, 7 and 6 tokens equal those in the whole texts."""
    inputs, name = inputs_of(model.spec), written(model.spec)
    along = {n: inputs.pop(n) for n in (name, *extra_inputs(model.spec, inputs))}
    full = run(model, {**inputs, **along})
    rows, lengths = torch.arange(3)[:, None], torch.tensor([[4], [7], [6]])
    for before in (0, 7 - lengths):  # pads
        places, state = torch.arange(7) - before + 0 * lengths, model.new_state()
        mask = (places >= 0) & (places < lengths)
        for at, real in ((places, mask), (lengths + torch.arange(3), torch.ones(3, 3, dtype=torch.bool))):
            part = {n: v[rows, at.clamp(min=0)] for n, v in along.items()}
            part["decoder_attention_mask" if is_encoder_decoder(model.spec) else "attention_mask"] = real.long()
            step = run(model, {**inputs, **part}, past_key_values=state, use_cache=True)
            for key, (value, per_token) in full.items():
                if per_token:
                    close(step[key][0][real], value[rows, at][real])


def n7_packed_documents_are_texts(model: Any) -> None:
    """Outputs of packed documents equal those of separate texts, or the model refuses packed rows."""
    spec = model.spec
    if "document_ids" not in model.inputs or isinstance(spec.head, MultipleChoiceHead) or shortens(spec):
        return
    inputs = {name: value[:1] for name, value in inputs_of(spec).items()}
    along = [name for name in (*TOKEN_INPUTS, "decoder_input_ids") if name in inputs and name != "tree_parents"]
    if spec.embedding.inputs[0] != "input_ids" or {"tree_parents", "graph_edges"} & inputs.keys():
        return
    cuts = (0, 5, LENGTH)
    documents = (torch.arange(LENGTH) >= cuts[1]).long()[None]
    packed = {**inputs, "document_ids": documents}
    if is_encoder_decoder(spec):
        packed["decoder_document_ids"] = documents
    try:
        together = run(model, packed)
    except ValueError as error:
        assert "document" in str(error) or "packed" in str(error), error
        assert "\n" not in str(error)
        return
    pieces = [{n: v[:, a:b] if n in along else v for n, v in inputs.items()} for a, b in itertools.pairwise(cuts)]
    alone = [run(model, piece) for piece in pieces]
    for key, (value, per_token) in together.items():
        if per_token and value.shape[1] == LENGTH:
            close(value, torch.cat([piece[key][0] for piece in alone], dim=1))


def padding_token(spec: Any) -> int:
    return next((part.padding_token or 0 for _, part in walk(spec.head) if isinstance(part, LastToken)), 0)


def loss_of(model: Any, inputs: dict[str, Any]) -> Tensor:
    """The loss of the labels; without a loss, the squared distance of the outputs from fixed random targets."""
    routed = {"output_router_logits": True} if "output_router_logits" in model.inputs else {}
    out = model(**inputs, **routed)
    loss = out.loss if out.mc_loss is None else out.loss + out.mc_loss
    if loss is not None:
        return loss
    found = [value for value, _ in results(model.spec, out).values() if value.requires_grad]
    targets = [torch.randn(v.shape, generator=torch.Generator().manual_seed(2)) for v in found]
    return sum(((v - t).square().mean() for v, t in zip(found, targets, strict=True)), torch.zeros(()))


def gradients(model: Any, inputs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    torch.manual_seed(5)
    loss = loss_of(model, inputs)
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def n8_seeds_recomputation_and_gradients(model: Any) -> None:
    spec, inputs = model.spec, inputs_of(model.spec, labels=True)
    first, again = copy.deepcopy(fresh_model(spec)).train(), af.build(spec, seed=3).train()
    same = again.state_dict()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, same[name]), f"{name} differs for one seed"
        assert tensor.isfinite().all(), f"{name} starts at infinity or NaN"
    if not learns(model):
        return
    (loss, grads), (loss_again, grads_again) = gradients(first, inputs), gradients(again, inputs)
    assert torch.equal(loss, loss_again) and all(torch.equal(grads[n], grads_again[n]) for n in grads)
    _, recomputed = gradients(recompute(again), inputs)
    assert grads.keys() == recomputed.keys()
    for name, grad in grads.items():
        close(recomputed[name], grad, 1e-6)
    _, learned = gradients(model, inputs)
    silent = {n for n, p in first.named_parameters() if p.requires_grad} - learned.keys() - grads.keys()
    silent = {n for n in silent if not n.endswith(("mask_token", "mask_embedding"))}  # used only if inputs are masked
    silent -= {"decoder_embedding.languages.weight"}  # the decoder's languages are not passed here
    assert not silent, f"no gradient: {sorted(silent)}"
    assert all(grad.isfinite().all() for grad in learned.values())


def g1_cached_decoding_is_no_cache(model: Any) -> None:
    spec = model.spec
    inputs, name = inputs_of(spec), written(spec)
    if not model.remembers:  # P4
        with pytest.raises(ValueError):
            model.new_state()
        return
    if isinstance(spec.head, MultipleChoiceHead):
        return
    along = {n: inputs.pop(n) for n in (name, *extra_inputs(spec, inputs))}
    full, tokens = run(model, {**inputs, **along}), along[name].shape[1]
    last = tokens - tokens // 4
    for state in (model.new_state(), model.new_state(3, capacity=LENGTH + 3)):
        for start, end in [(0, tokens // 3), *((t, t + 1) for t in range(tokens // 3, last)), (last, tokens)]:
            part = {n: v[:, start:end] for n, v in along.items()}
            step = run(model, {**inputs, **part}, past_key_values=state, use_cache=True)
            for key, (value, per_token) in full.items():
                if per_token:
                    each = value.shape[1] // tokens
                    close(step[key][0], value[:, each * start : each * end])


def g2_three_and_one_are_four(model: Any) -> None:
    spec, name = model.spec, written(model.spec)
    if not spec.writes or not isinstance(spec.head, LMHead) or not name.endswith("ids"):
        return
    inputs = inputs_of(spec)
    read = spec.embedding.row(LENGTH, spec.width)
    given = (*read, "decoder_input_ids", "encoder_hidden_states", "tree_parents", "graph_edges")
    inputs = {n: v[:, :5] if n == name else v for n, v in inputs.items() if n in given or "decoder_" + n == name}
    options = {"do_sample": False, "eos_token_id": []}
    if (position_limit(spec) or 8) < 8:
        with pytest.raises(ValueError, match="fit the model's"):
            af.generate(model, **inputs, **options, max_new_tokens=4)
        return
    four = af.generate(model, **inputs, **options, max_new_tokens=4)
    three = af.generate(model, **inputs, **options, max_new_tokens=3, return_dict=True)
    again = {**inputs, name: three.sequences}
    assert (three.past_key_values is not None) == model.remembers
    one = af.generate(model, **again, **options, max_new_tokens=1, past_key_values=three.past_key_values)
    assert torch.equal(one, four), f"{one.tolist()} is not {four.tolist()}"


def l5_saved_is_loaded(model: Any, folder: Path) -> None:
    spec, inputs = model.spec, inputs_of(model.spec)
    assert decode(encode(spec)) == spec
    af.save(model, folder)
    loaded = af.load(folder)
    assert loaded.spec.replace(source=spec.source) == spec  # saving adds the dtype to it
    read = loaded.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(read[name], tensor), f"{name} changed"
    ours, theirs = run(model, inputs), run(loaded, inputs)
    assert all(torch.equal(theirs[key][0], value) for key, (value, _) in ours.items())


def t5_learns(model: Any) -> None:
    """A few small steps on one batch lower its loss."""
    if not learns(model):
        return
    inputs, model = inputs_of(model.spec, labels=True), copy.deepcopy(fresh_model(model.spec)).eval()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    losses: list[float] = []
    while len(losses) < 10:
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        losses.append(float(loss.detach()))
        assert math.isfinite(losses[-1]), f"losses {losses}"
        if losses[-1] < losses[0]:
            return
        loss.backward()
        optimizer.step()
    raise AssertionError(f"the loss does not fall: {losses}")


LINES: dict[str, Callable[..., None]] = {
    "N1": n1_nothing_of_the_future, "N3": n3_a_batch_is_its_rows, "N4": n4_pads_change_nothing,
    "N7": n7_packed_documents_are_texts, "N8": n8_seeds_recomputation_and_gradients,
    "G1": g1_cached_decoding_is_no_cache, "G2": g2_three_and_one_are_four, "L5": l5_saved_is_loaded, "T5": t5_learns,
}  # fmt: skip
COMPARED = ("N1", "N3", "N4", "N7", "G1")  # checks that compare outputs of two calls


# -- declared exceptions ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Excused:
    """Checks that a Part fails for a published reason."""

    kind: str
    lines: tuple[str, ...]
    reason: str
    when: Callable[[Any, Any], bool] = lambda part, spec: True  # (part, description)


EXCUSED = (
    Excused("ConvolutionStem", ("N4",), "a group norm includes padding, as published",
            lambda part, _: part.norm == "group"),
    Excused("ConvolutionModule", ("N4",), "the Conformer's convolution reads padding, as first published",
            lambda part, _: not (part.masked or part.causal) and part.kernel > 1),
    Excused("ConvolutionModule", ("N4",), "a group norm includes padding, as first published",
            lambda part, _: not (part.masked or part.causal) and isinstance(part.norm, RowNorm)),
    Excused("NystromAttention", ("N3", "N4"), "landmarks are means over a whole row, and the published initial"
            " inverse is divided by a maximum over the batch", lambda part, _: part.landmarks < part.length),
    Excused("NystromAttention", ("N4",), "the published convolution over the values reads padding",
            lambda part, _: part.taps is not None and part.taps > 1),
    Excused("DynamicScaling", ("N1", "N3", "N4", "G1", "G2"), "the base grows with the length of the text, so the"
            " rotation of earlier tokens changes", lambda part, _: part.length < LENGTH + PADS),
    Excused("LongScaling", ("N1", "N3", "N4", "G1", "G2"), "a longer text has different factors, so the rotation"
            " of earlier tokens changes", lambda part, _: part.length < LENGTH + PADS),
    Excused("XVectorHead", ("N4",), "its convolutions read padding after the last frames, as published"),
    Excused("ConvolutionAdapter", ("N4",), "its convolutions read padding after the last frames, as published",
            lambda part, _: part.depth > 0 and part.kernel > 2),
    Excused("CompressedAttention", ("N8",), "fewer tokens than the kernel size give no keys and no gradient",
            lambda part, spec: part.kernel > 2 and shortens(spec)),
    Excused("TimeMix", ("N8",), "a single vector has no earlier one that could decay",
            lambda part, spec: shortens(spec)),
    Excused("VideoEmbedding", ("N8",), "training drops tokens, so there are fewer tokens than labels",
            lambda part, spec: part.token_drop > 0 and isinstance(spec.head, (LMHead, TagHead))),
    Excused("LastOccurrence", ("G1",), "it reads the vector of one token, which a part of a text may not contain"),
    Excused("BlockSparseAttention", ("N4",), "blocks include padding, as published"),
    Excused("Funnel", ("N4",), "the published pooling includes padding and drops the last token"),
    Excused("MultipleChoiceHead", ("T5",), "all choices have the same token, which sees no other token, so their scores"
            " are equal", lambda part, spec: isinstance(part.pool.take, LastOccurrence) and not mixes(spec)),
    Excused("Summary", ("N4",), "published: the last vector and the mean include padding",
            lambda part, _: part.take != "first"),
)  # fmt: skip


def excused(spec: Any, excuses: Sequence[Excused] = EXCUSED) -> dict[str, str]:
    """{line: reason} of the checks that a description may fail."""
    return {
        line: rule.reason for _, part in walk(spec) for rule in excuses
        if type(part).__name__ == rule.kind and rule.when(part, spec) for line in rule.lines
    }  # fmt: skip


def check(line: str, spec: Any, folder: Path) -> None:
    """Raise AssertionError if a check fails. Rounding errors do not count: outputs that differ in fp32 are compared
    again in double precision, with the same tolerance."""
    try:
        LINES[line](random_model(spec), *([folder] if line == "L5" else []))
    except AssertionError:
        if line not in COMPARED:
            raise
        LINES[line](copy.deepcopy(random_model(spec)).double())


@torch.no_grad()
def explodes(spec: Any) -> bool:
    """Whether the outputs are not finite because intermediate values exceed 1e10. This can happen without norms: a
    state space multiplies four such values, which exceeds the range of fp32."""
    model, largest = random_model(spec), [0.0]

    def listen(module: Any, args: Any, output: Any) -> None:
        for value in output if isinstance(output, tuple) else (output,):
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                largest.append(float(value.abs().nan_to_num(0.0, posinf=0.0).max()))

    handles = [module.register_forward_hook(listen) for module in model.modules()]
    try:
        found = run(model, inputs_of(spec))
    finally:
        for handle in handles:
            handle.remove()
    return max(largest) > 1e10 and not all(bool(value.isfinite().all()) for value, _ in found.values())


def broken(spec: Any, folder: Path, excuses: Sequence[Excused] = EXCUSED) -> str | None:
    """The first check that a description fails, with the error; None if it passes all."""
    excused_lines = excused(spec, excuses)
    for line in LINES:
        if line in excused_lines:
            continue
        try:
            check(line, spec, folder)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            return f"{line}: {type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
    return None
