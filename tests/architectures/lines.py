"""Checks of the behaviour of every description that builds, named after the lines of BEHAVIOUR.md."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import is_causal, is_encoder_decoder, make_labels, make_token_labels, randomise
from torch import Tensor

import anyformer as af
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT, TOLERANCE
from anyformer.evaluate.model_outputs import DoesNotApply, in_double, is_episode, loss_of, main_input, outputs
from anyformer.models import position_limit
from anyformer.parts.base import extra_inputs as declared_extras
from anyformer.parts.grid.pooled_attention import Skip
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.parts.head.contrastive import ContrastHead
from anyformer.parts.head.image import PixelHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pooling import LastOccurrence
from anyformer.parts.head.question_span import QuestionHead
from anyformer.parts.head.speech import FrameHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.norm import RowNorm
from anyformer.specs.part import walk
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stages import Stages
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
    elif is_episode(spec):
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


def mixes(spec: Any) -> bool:
    """Whether a token sees other tokens."""
    return spec.pair or (spec.decoder if is_causal(spec) else spec.encoder).sees != "itself"


def shortens(spec: Any) -> bool:
    """Whether the model has fewer output vectors than input tokens."""
    return any(isinstance(part, (Stages, Funnel, Skip, Perceiver)) for _, part in walk(spec))


def learns(model: Any) -> bool:
    """Whether the model has trainable parameters."""
    return any(parameter.requires_grad for parameter in model.parameters())


# -- the lines --------------------------------------------------------------------------------------------------------


def holds(
    invariant: Callable[..., float], model: Any, inputs: Any, tolerance: float = TOLERANCE, **options: Any
) -> None:
    """Raise AssertionError if an invariant applies and fails. Rounding errors do not count: outputs that differ in fp32
    are compared again in double precision, with the same tolerance."""
    try:
        failure = invariants.failure(invariant, model, inputs, tolerance, **options)
        if failure and failure.startswith("off by"):
            failure = invariants.failure(invariant, in_double(model), inputs, tolerance, **options)
    except DoesNotApply:
        return
    assert failure is None, failure


def n1_nothing_of_the_future(model: Any) -> None:
    """N1 and P1: later inputs do not change earlier outputs."""
    if model.spec.writes:
        runs = (("auto", False), ("eager", False))
        holds(invariants.check_causality, model, inputs_of(model.spec, batch=1), EXACT, runs=runs)


def n3_a_batch_is_its_rows(model: Any) -> None:
    holds(invariants.check_rows, model, inputs_of(model.spec))


def n4_pads_change_nothing(model: Any) -> None:
    if model.spec.embedding.hides:
        holds(invariants.check_padding, model, inputs_of(model.spec), kernels=("auto",))
        holds(invariants.check_padded_prompts, model, inputs_of(model.spec))


def n7_packed_documents_are_texts(model: Any) -> None:
    """Outputs of packed documents equal those of separate texts, or the model refuses packed rows."""
    inputs = inputs_of(model.spec, batch=1)
    if "input_ids" in inputs and not {"tree_parents", "graph_edges"} & inputs.keys() and not shortens(model.spec):
        holds(invariants.check_packing, model, inputs, kernels=("auto",))


def n8_seeds_recomputation_and_gradients(model: Any) -> None:
    # used only if inputs are masked, or if the decoder's languages are passed
    idle = ("mask_token", "mask_embedding", "decoder_embedding.languages.weight")
    inputs = inputs_of(model.spec, labels=True)
    holds(invariants.check_gradients, model, inputs, EXACT, learns=lambda name: not name.endswith(idle))


def g1_cached_decoding_is_no_cache(model: Any) -> None:
    holds(invariants.check_cached_decoding, model, inputs_of(model.spec))


def g2_three_and_one_are_four(model: Any) -> None:
    spec, name = model.spec, main_input(model.spec)
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
    holds(invariants.check_saving, model, inputs_of(model.spec), folder=folder)


def counted_is_built(model: Any) -> None:
    holds(invariants.check_counting, model, {})


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
    "counting": counted_is_built,
}  # fmt: skip


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
    """Raise AssertionError if a check fails."""
    LINES[line](random_model(spec), *([folder] if line == "L5" else []))


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
        found = outputs(model, inputs_of(spec))
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
