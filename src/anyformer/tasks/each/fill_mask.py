"""Fill the mask token with the most likely words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from torch import Tensor

from anyformer.objectives.batches import Record
from anyformer.objectives.heads import language_head
from anyformer.specs.messages import quote
from anyformer.tasks.options import Truncate
from anyformer.tasks.results import FilledMask, task
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, TaskRun, start_run


@task
def fill_mask(
    model: Source,
    inputs: Inputs,
    *,
    top_k: Annotated[int, "number of words, most likely first"] = 5,
    targets: Annotated[Sequence[str] | None, "choose only from this word; can be repeated"] = None,
    truncate: Truncate = None,
    **run_options: Unpack[RunOptions],
) -> list[FilledMask]:
    """Return [{"score", "token", "token_str", "sequence"}, ...], most likely first; for a text with several masks, one
    such list per mask. `targets` are the only words to choose from; each must be one token of the vocabulary.

    >>> fill_mask("a/model/folder", "Paris is the [MASK] of France.", top_k=1)  # doctest: +SKIP
    [{'score': 0.99, 'token': 3007, 'token_str': 'capital', 'sequence': 'paris is the capital of france.'}]
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    request = start_run("fill-mask", model, inputs, run_options)
    if language_head(request.model).part.shift:
        raise ValueError("fill-mask needs a bidirectional model; this one predicts the next token")
    if request.model.predicts_by_position:
        raise ValueError("this model has no masks; it predicts words by position (target_mapping)")
    mask = request.tokenizer.mask_token_id
    if mask is None:
        raise ValueError("the tokenizer has no mask token")
    allowed = None if targets is None else words(request, targets)

    def prepare(row: Row) -> Record:
        record = request.record(row["text"], truncate=truncate)
        if mask not in record["input_ids"]:
            raise ValueError(f"there is no {request.tokenizer.special['mask_token']} in the text")
        return record

    def result(output: Any, record: Record) -> list[Any]:
        logits = output.logits if output.logits is not None else output.prediction_logits  # (T, V)
        ids = record["input_ids"]
        positions = (ids == mask).nonzero()[0].tolist()
        each = [top_words(logits[i].float().softmax(-1).cpu(), ids, i, len(positions) == 1) for i in positions]
        return each[0] if len(each) == 1 else each

    def top_words(shares: Tensor, ids: np.ndarray, position: int, only_mask: bool) -> list[dict[str, Any]]:
        """Return the best words by the probabilities `shares` (V,) at `position`."""
        known = torch.arange(len(shares)) if allowed is None else allowed
        best = shares[known].topk(min(top_k, len(known)))
        rows = []
        for score, token in zip(best.values.tolist(), known[best.indices].tolist()):
            filled = [*ids[:position].tolist(), token, *ids[position + 1 :].tolist()]
            # show special tokens if the text has other masks
            text = request.tokenizer.decode(filled, skip_special_tokens=only_mask)
            word = request.tokenizer.decode([token])
            rows.append({"score": score, "token": token, "token_str": word, "sequence": text})
        return rows

    return request.answer(prepare, lambda run, records: run.map_outputs(records, result))


def words(request: TaskRun, targets: Sequence[str]) -> Tensor:
    """Return the token ids (K,) of `targets`; ValueError if a word is not one token."""
    if isinstance(targets, str) or not targets:
        raise ValueError("targets is a list of at least one word")
    vocabulary = request.tokenizer.vocab
    for word in targets:
        if word not in vocabulary:
            raise ValueError(f"target {quote(word)} is not one token of the vocabulary")
    return torch.tensor(sorted({vocabulary[word] for word in targets}))
