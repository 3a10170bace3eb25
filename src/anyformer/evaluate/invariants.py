"""What holds for every model, as plain functions of a model and its inputs.

`af.check`, the catalogue suite (tests/families/test_numerics.py) and the random descriptions (tests/architectures) use
these functions. Each compares two ways to compute the same outputs and returns the largest difference. It raises
`Failed`, with one line, if something other than a number is wrong, and `DoesNotApply` if the model has no such ability.
`failure` turns all this into one line or None.

B batch, T tokens.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoint import load, save
from anyformer.counting import count
from anyformer.evaluate.model_outputs import (
    TOKEN_INPUTS,
    VECTORS,
    DoesNotApply,
    Failed,
    call,
    finite_outputs,
    gap,
    gradient_gap,
    inputs_along_time,
    is_episode,
    loss_and_gradients,
    loss_of,
    main_input,
    outputs,
    pad,
    padding_token,
    results,
    set_kernel,
)
from anyformer.models.construct import build
from anyformer.parts.head.classify import MultipleChoiceHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pooling import LastOccurrence
from anyformer.parts.init import computed_tensors
from anyformer.specs.codec import decode, encode
from anyformer.specs.part import walk
from anyformer.transforms.recompute import recompute

TOLERANCE = 1e-5  # largest difference, relative to the largest output if it is above 1
EXACT = 1e-6  # for causality and recomputation
PADS = 32
KERNELS = ("eager", "sdpa")
SIDES = ("left", "right")


def failure(
    invariant: Callable[..., float], model: Any, inputs: Mapping[str, Any], tolerance: float = TOLERANCE, **options: Any
) -> str | None:
    """Return what is wrong in one line, or None."""
    try:
        difference = invariant(model, inputs, **options)
    except Failed as error:
        return str(error)
    return None if difference <= tolerance else f"off by {difference:.1e}, at most {tolerance:.0e} is allowed"


def check_causality(
    model: Any,
    inputs: Mapping[str, Any],
    cuts: Sequence[int] | None = None,
    runs: Sequence[tuple[str, bool]] = (("eager", False), ("sdpa", False)),  # (kernel, whether in training mode)
    both_ways: bool = False,
    must_show: bool = False,
) -> float:
    """Change all tokens from a cut on: the outputs before it stay the same. With `both_ways`, a change of all tokens
    before a cut does not change the outputs after it either. With `must_show`, the changed tokens must have different
    outputs."""
    spec, worst = model.spec, 0.0
    main = main_input(spec)
    if not (main.endswith("ids") or main in VECTORS):
        raise DoesNotApply("the model reads no tokens")
    names = inputs_along_time(spec, inputs) if is_episode(spec) else [main]
    rows, T = inputs[main].shape[:2]
    cuts = [T // 2] if cuts is None else [*cuts]
    if len(cuts) > 1:  # first all cuts in one batch; if an output differs, maybe because of other rows, one by one
        inputs = {name: value.repeat(len(cuts), *[1] * (value.dim() - 1)) for name, value in inputs.items()}
    at = torch.tensor(cuts).repeat_interleave(rows)[:, None]  # (B, 1)
    is_later = torch.arange(T) >= at  # (B, T)
    for (kernel, training), later in itertools.product(runs, (True, False) if both_ways else (True,)):
        changed = dict(inputs)
        for name in names:
            where = (is_later == later).view(*is_later.shape, *[1] * (inputs[name].dim() - 2))
            changed[name] = torch.where(where, _other_values(inputs[name], name == main), inputs[name])
        with set_kernel(model, kernel, training):
            before, after = (outputs(model, given, kernel) for given in (inputs, changed))
        per_token = {key: value for key, (value, is_per_token) in before.items() if is_per_token}
        if not per_token:
            raise DoesNotApply("the model has no output per token")
        if any(value.shape[1] % T for value in per_token.values()):
            raise DoesNotApply("the model's outputs have another length than its input")
        for key, value in per_token.items():
            each = value.shape[1] // T  # a time step may be several tokens
            same = (is_later != later).repeat_interleave(each, dim=1)
            worst = max(worst, gap(after[key][0][same], value[same]))
            if must_show and torch.allclose(after[key][0][~same], value[~same]):
                raise Failed(f"{key} does not depend on the tokens from {cuts[0]} on")
    if worst > EXACT and len(cuts) > 1:
        alone = {name: value[:rows] for name, value in inputs.items()}
        return max(check_causality(model, alone, [cut], runs, both_ways, must_show) for cut in cuts)
    return worst


def _other_values(value: Tensor, tokens: bool) -> Tensor:
    """Return values that differ everywhere; labels and time steps become 0."""
    if value.is_floating_point():
        return -value
    return torch.where(value == 6, 7, 6) if tokens else value * 0


def check_padding(
    model: Any,
    inputs: Mapping[str, Any],
    sides: Collection[str] = SIDES,
    pads: int = PADS,
    kernels: Sequence[str] = KERNELS,
) -> float:
    """Padding on either side does not change the outputs of real tokens."""
    spec, batches = model.spec, []
    first, token = spec.embedding.inputs[0], padding_token(spec)
    if "attention_mask" not in spec.embedding.inputs or "an image" in spec.embedding.gives:
        raise DoesNotApply("the model takes no padding")
    if spec.embedding.hides:
        source = inputs[first]
        real = torch.ones(source.shape[:-1] if first in VECTORS else source.shape, dtype=torch.long)
        inputs = {"attention_mask": real, **inputs}
    names = spec.embedding.inputs if is_episode(spec) else (first, *TOKEN_INPUTS)
    if spec.pair:
        inputs = {**inputs, "decoder_attention_mask": torch.ones_like(inputs["decoder_input_ids"])}
    steps = pads // 3 if is_episode(spec) else pads
    for side in sides:
        left, right = (1, 0) if side == "left" else (0, 1)
        recording = "input_ids" not in spec.embedding.inputs and first != "inputs_embeds" and not is_episode(spec)
        if spec.embedding.hides and not (recording and side == "left"):  # recordings are padded at their end
            batches.append((side, pad(inputs, names, left * steps, right * steps, token)))
        if spec.pair:
            written = ("decoder_input_ids", "decoder_attention_mask")
            batches.append((side, pad(inputs, written, left * pads, right * pads, token)))
    if not batches:
        raise DoesNotApply("the model takes no padding" + " on the left" * (tuple(sides) == ("left",)))
    plain, worst = outputs(model, inputs), 0.0
    for (side, batch), kernel in itertools.product(batches, kernels):
        padded = outputs(model, batch, kernel)
        for key, (value, per_token) in plain.items():
            found, T = padded[key][0], value.shape[1]
            if per_token and found.shape[1] != T:
                found = found[:, -T:] if side == "left" else found[:, :T]
            worst = max(worst, gap(found, value))
    return worst


def check_packing(
    model: Any,
    inputs: Mapping[str, Any],
    kernels: Sequence[str] = KERNELS,
    gradients: bool = False,
    cuts: Sequence[int] | None = None,
) -> float:
    """Packed documents give the outputs and last hidden states of separate ones. With `gradients`, so do loss and
    gradients of a language model. A model that refuses packed documents, in one line, does not have this ability."""
    spec, worst = model.spec, 0.0
    if "document_ids" not in model.inputs or isinstance(spec.head, MultipleChoiceHead):
        raise DoesNotApply("the model takes no packed documents")
    main, read = main_input(spec), spec.embedding.inputs[0]
    inputs, T, S = dict(inputs), inputs[main].shape[1], inputs[read].shape[1]
    cuts = (0, 3 * T // 10, 8 * T // 10, T) if cuts is None else cuts
    spans, read_spans = ([*itertools.pairwise(cut * length // T for cut in cuts)] for length in (T, S))
    for token in [part.token for _, part in walk(spec.head) if isinstance(part, LastOccurrence)]:
        if not all(bool((inputs["input_ids"][:, a:b] == token).any(-1).all()) for a, b in read_spans):
            raise DoesNotApply(f"the head pools the vector of token {token}, which a document lacks")
    learns = gradients and isinstance(spec.head, LMHead)
    if learns:
        inputs["labels"] = inputs[main] % spec.head.vocab_size
    packed = {**inputs, "document_ids": _documents(read_spans, len(inputs[read]))}
    if spec.pair:
        packed["decoder_document_ids"] = _documents(spans, len(inputs[main]))
    cut_at = dict.fromkeys((read, *TOKEN_INPUTS), read_spans) | dict.fromkeys((main, "labels"), spans)
    pieces = [
        {n: v[:, slice(*cut_at[n][i])] if n in cut_at else v for n, v in inputs.items()} for i in range(len(spans))
    ]
    hidden = f"{'decoder_' if spec.pair else ''}hidden_states"
    for kernel in kernels:
        with set_kernel(model, kernel), torch.set_grad_enabled(learns):
            try:
                together = call(model, packed, output_hidden_states=True)
            except ValueError as error:
                if _refuses_documents(error):
                    raise DoesNotApply(f"packed documents are refused: {error}") from None
                raise
            if together.get(hidden) is None:
                raise DoesNotApply("the model has no output per token")
            alone = [call(model, piece, output_hidden_states=True) for piece in pieces]
            separate = [results(spec, out) for out in alone]
            for key, (value, per_token) in results(spec, together).items():
                if per_token and value.shape[1] == T:
                    worst = max(worst, gap(value, torch.cat([each[key][0] for each in separate], dim=1)))
            last = [getattr(out, hidden)[-1] for out in (together, *alone)]  # a head may have no output per token
            if last[0].shape[1] == T:
                worst = max(worst, gap(last[0], torch.cat(last[1:], dim=1)))
            if learns:
                counts = [b - a - int(spec.head.shift) for a, b in spans]
                mean = sum(n * out.loss for n, out in zip(counts, alone, strict=True)) / sum(counts)
                worst = max(worst, gap(together.loss, mean), gradient_gap(model, together.loss, mean))
    return worst


def _documents(spans: Sequence[tuple[int, int]], rows: int) -> Tensor:
    """Return the document of each token (B, T), for documents at these spans."""
    return torch.tensor([[i for i, (a, b) in enumerate(spans) for _ in range(a, b)]]).expand(rows, -1)


def _refuses_documents(error: ValueError) -> bool:
    return "\n" not in str(error) and ("document" in str(error) or "packed" in str(error))


def check_cached_decoding(model: Any, inputs: Mapping[str, Any], cuts: Sequence[int] | None = None) -> float:
    """A prompt, single tokens and a chunk with a cache give the outputs of one pass without a cache, with a growing
    and with a static state."""
    along, rest = _split_along_time(model, inputs)
    rows, T = next(iter(along.values())).shape[:2]
    singles = range(T // 3, min(T - T // 4, T // 3 + 12) + 1)
    cuts = (0, *singles, T) if cuts is None else cuts
    full, worst = outputs(model, inputs, use_cache=False), 0.0
    for state in (model.new_state(), model.new_state(rows, capacity=3 * T + 3)):  # an episode has 3 tokens per step
        for start, end in itertools.pairwise(cuts):
            part = {name: value[:, start:end] for name, value in along.items()}
            step = outputs(model, {**rest, **part}, past_key_values=state, use_cache=True)
            for key, (value, per_token) in full.items():
                if per_token:
                    each = value.shape[1] // T
                    worst = max(worst, gap(step[key][0], value[:, each * start : each * end]))
    return worst


def check_padded_prompts(
    model: Any, inputs: Mapping[str, Any], sides: Collection[str] = SIDES, pads: int = 0, published: bool = False
) -> float:
    """After padded prompts of 4, 6 and 5 tokens, the outputs of three more tokens are those of the whole texts. Three
    tokens at once, with their own mask; or, as published generation loops call a model, one at a time with the mask of
    the whole row and explicit positions."""
    along, rest = _split_along_time(model, inputs)
    side = "decoder_" if model.spec.pair else ""
    if is_episode(model.spec) or f"{side}attention_mask" not in model.inputs:
        raise DoesNotApply("the model takes no padded prompts")
    count = len(next(iter(along.values())))
    lengths = torch.tensor([[4], [6], [5]])[:count]
    rows, width = torch.arange(count)[:, None], int(lengths.max()) + pads
    full, worst = outputs(model, {**rest, **{n: v[:, :9] for n, v in along.items()}}, use_cache=False), 0.0
    first = getattr(model.spec, model.spec.target).numbering.first if published else 0
    for before in ((width - lengths) if where == "left" else 0 * lengths for where in sides):
        at, state = torch.arange(width) - before, model.new_state()
        is_token = (at >= 0) & (at < lengths)
        mask, chunks = is_token.long(), [(at, is_token)]
        new = lengths + torch.arange(3)
        chunks += [(each, torch.ones_like(each).bool()) for each in (new.split(1, dim=1) if published else [new])]
        for places, is_real in chunks:
            part = {n: v[rows, places.clamp(0, 8)] for n, v in along.items()}
            if places is not at:
                mask = torch.cat((mask, is_real.long()), dim=1) if published else is_real.long()
                part |= {f"{side}position_ids": first + places} if published else {}
            part[f"{side}attention_mask"] = mask
            step = outputs(model, {**rest, **part}, past_key_values=state, use_cache=True)
            for key, (value, per_token) in full.items():
                if per_token:
                    worst = max(worst, gap(step[key][0][is_real], value[rows, places.clamp(0, 8)][is_real]))
    return worst


def _split_along_time(model: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs with one value per token of the text, and the others. Raise if the model has no cache."""
    spec = model.spec
    if "decoder" not in dict(spec.items()) or isinstance(spec.head, MultipleChoiceHead):
        raise DoesNotApply("the model does not write")
    if not model.remembers:
        try:
            model.new_state()
        except ValueError:
            raise DoesNotApply(f"{model.stateless[0]} has no cache: the text is read again for each token") from None
        raise Failed("new_state gives a state to a model without a cache")
    names = inputs_along_time(spec, inputs)
    return {n: inputs[n] for n in names}, {n: v for n, v in inputs.items() if n not in names}


def check_rows(model: Any, inputs: Mapping[str, Any], greedy: bool = False) -> float:
    """A batch gives the outputs of its rows; with `greedy`, also the same most likely tokens."""
    whole, worst = outputs(model, inputs), 0.0
    for row in range(len(next(iter(inputs.values())))):
        for key, (value, _) in outputs(model, {n: v[row : row + 1] for n, v in inputs.items()}).items():
            worst = max(worst, gap(whole[key][0][row : row + 1], value))
            if greedy and key == "logits" and not torch.equal(whole[key][0][row].argmax(-1), value[0].argmax(-1)):
                raise Failed(f"row {row} has other most likely tokens in a batch")
    return worst


def check_kernels(model: Any, inputs: Mapping[str, Any], share: float = 0.0) -> float:
    """The eager kernel gives the outputs of SDPA, finite and in the model's dtype. Up to `share` of the values per
    token may differ: in half precision, rounding can send a token near a tie to a different expert or bucket."""
    eager, sdpa = (finite_outputs(model, inputs, kernel) for kernel in KERNELS)
    worst = 0.0
    for key, (value, per_token) in eager.items():
        found, value = sdpa[key][0].float(), value.float()
        if not share:
            worst = max(worst, gap(found, value))
        elif per_token:
            each = (found - value).abs().flatten() / max(1.0, float(value.abs().max()))
            worst = max(worst, float(each.sort().values[int((1 - share) * (len(each) - 1))]))
    return worst


def check_half_precision(model: Any, inputs: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16) -> float:
    """Outputs in half precision are finite. Return the difference from the model's own precision."""
    exact, halves = outputs(model, inputs), finite_outputs(copy.deepcopy(model).to(dtype), inputs)
    return max((gap(value.float(), exact[key][0].float()) for key, (value, _) in halves.items()), default=0.0)


def check_mixed_precision(model: Any, inputs: Mapping[str, Any]) -> float:
    """Under bf16 autocast, loss and gradients are finite, also of padded texts and packed documents if the model takes
    them. Return the difference from the loss without autocast."""
    layouts: dict[str, Tensor] = {}
    if main_input(model.spec) == "input_ids" and inputs["input_ids"].dim() == 2 and not model.spec.pair:
        late = torch.zeros_like(inputs["input_ids"])
        late[:, late.shape[1] // 2 :] = 1
        layouts = {"attention_mask": 1 - late, "document_ids": late}
    layouts = {name: value for name, value in layouts.items() if name in model.inputs}
    worst = 0.0
    for batch in (dict(inputs), *({**inputs, name: value} for name, value in layouts.items())):
        try:
            exact = loss_of(model, batch).detach()
        except ValueError as error:
            if _refuses_documents(error):
                continue
            raise
        with torch.autocast(exact.device.type, torch.bfloat16):
            loss, gradients = loss_and_gradients(model, batch)
        for name, value in (("the loss", loss), *gradients.items()):
            if not bool(value.isfinite().all()):
                raise Failed(f"{name} is not finite under autocast")
        worst = max(worst, gap(loss.float(), exact.float()))
    return worst


def check_gradients(
    model: Any,
    inputs: Mapping[str, Any],
    build: Callable[..., Any] = build,
    learns: Callable[[str], bool] = lambda name: True,
    nonzero: bool = False,
    as_given: bool = False,
) -> float:
    """One seed gives one model, one loss and one set of gradients; they are finite. Every parameter that `learns` has a
    gradient, in the model or in a freshly initialized one in training mode; with `as_given`, in the model itself.
    Return the difference of gradients of recomputed layers."""
    first, again = (build(model.spec, seed=3).train() for _ in range(2))
    same = again.state_dict()
    for name, tensor in first.state_dict().items():
        if not torch.equal(tensor, same[name]):
            raise Failed(f"{name} is initialized differently with the same seed")
        if not bool(tensor.isfinite().all()):
            raise Failed(f"{name} is not finite after initialization")
    names = [name for name, parameter in first.named_parameters() if parameter.requires_grad]
    if not names:
        return 0.0
    (loss, fresh), (loss_again, fresh_again) = (loss_and_gradients(each, inputs) for each in (first, again))
    if not torch.equal(loss, loss_again):
        raise Failed("the loss differs with the same seed")
    _, own = loss_and_gradients(model, inputs)
    trained = (own,) if as_given else (fresh, own)
    missing = [
        name for name in names if learns(name) and all(
            each.get(name) is None or (nonzero and not bool(each[name].any())) for each in trained
        )
    ]  # fmt: skip
    if missing:
        raise Failed(f"no gradient: {', '.join(missing[:3])}" + (f" and {len(missing) - 3} more" * (len(missing) > 3)))
    for name, gradient in own.items():
        if not bool(gradient.isfinite().all()):
            raise Failed(f"the gradient of {name} is not finite")
    for name, gradient in fresh.items():
        if not torch.equal(gradient, fresh_again[name]):
            raise Failed(f"the gradient of {name} differs with the same seed")
    worst = 0.0
    for each, stored in ((again, fresh), (copy.deepcopy(model), own)):
        _, recomputed = loss_and_gradients(recompute(each), inputs)
        if recomputed.keys() != stored.keys():
            raise Failed("other parameters have gradients if layers are recomputed in the backward pass")
        worst = max([worst, *(gap(recomputed[name], gradient) for name, gradient in stored.items())])
    return worst


def check_saving(model: Any, inputs: Mapping[str, Any], folder: Path | str) -> float:
    """Saving and loading keeps the description, the tensors and the outputs exactly."""
    spec = model.spec
    if decode(encode(spec)) != spec:
        raise Failed("the description changes in a round trip through JSON")
    save(model, folder)
    loaded = load(folder)
    if loaded.spec.replace(source=spec.source) != spec:  # saving adds the dtype to it
        raise Failed("the loaded description is different")
    read = loaded.state_dict()
    for name, tensor in model.state_dict().items():
        if not torch.equal(read[name], tensor):
            raise Failed(f"{name} changes when saved and loaded")
    theirs = outputs(loaded, inputs)
    for name, (value, _) in outputs(model, inputs).items():
        if not torch.equal(theirs[name][0], value):
            raise Failed(f"{name} is off by {gap(theirs[name][0], value):.1e} after loading: some state was not saved")
    return 0.0


def check_counting(model: Any, inputs: Mapping[str, Any] | None = None) -> float:
    """Counting, which allocates nothing, gives the number of parameters of the built model."""
    fixed = computed_tensors(model)
    built = sum(p.numel() for name, p in model.named_parameters() if name not in fixed)
    counted = count(model.spec).parameters
    if counted != built:
        raise Failed(f"{counted:,} parameters are counted and {built:,} are built")
    return 0.0
