"""The likelihood of texts after a context: the sum of the log-probabilities of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.generation import check_can_generate
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.kernels.loss import IGNORED
from anyformer.models import Call, TransformerModule
from anyformer.objectives.batches import Batch, pad_rows, pad_texts
from anyformer.objectives.examples import array
from anyformer.objectives.heads import language_head, model_inputs

MAX_LOGITS = 2**27  # most logits to compute at once (tokens x vocabulary)

Pair = tuple[Sequence[int], Sequence[int]]  # token ids of the context and of the continuation to score


class Likelihood(NamedTuple):
    log_probability: float  # sum over the tokens
    greedy: bool  # whether each token is the most likely one


def likelihoods(
    model: TransformerModule,
    pairs: Sequence[Pair],
    *,
    size: int = 32,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Likelihood]:
    """Return the likelihood of each continuation. An encoder-decoder reads the context and writes the continuation; a
    decoder reads both as one text.

    The longest pairs are computed first, so that lack of memory shows at once. If a decoder would read the same tokens
    for several pairs (choices of one token after the same context), it reads them once.
    """
    check_can_generate(model)
    for context, rest in pairs:
        if not len(context) or not len(rest):
            raise ValueError(f"a {'context' if len(rest) else 'continuation'} has no tokens")
    seq2seq = model.spec.pair
    reads: dict[tuple[Any, ...], list[int]] = {}  # tokens to read -> indices of pairs
    for i, (context, rest) in enumerate(pairs):
        reads.setdefault((tuple(context), tuple(rest)) if seq2seq else (*context, *rest[:-1]), []).append(i)
    order = sorted(reads.values(), key=lambda group: -sum(map(len, pairs[group[0]])))
    results: list[Any] = [None] * len(pairs)
    done = 0
    for start in range(0, len(order), size):
        chunk = order[start : start + size]
        x = last_hidden_states(model, pair_batch(model, [pairs[group[0]] for group in chunk], seq2seq))  # (B, T, D)
        states, indices_read = [], []
        for row, group in zip(x, chunk):
            context, rest = pairs[group[0]]
            end = len(rest) if seq2seq else len(context) + len(rest) - 1
            indices_read += group
            states += [row[end - len(pairs[i][1]) : end] for i in group]
        for i, one in zip(indices_read, score_tokens(model, states, [pairs[i][1] for i in indices_read]), strict=True):
            results[i] = one
        done += len(indices_read)
        progress(done, len(pairs))
    return results


def encode_pair(tokenizer: Tokenizer, context: str, rest: str, seq2seq: bool) -> tuple[list[int], list[int]]:
    """Encode two texts as a pair of token ids. Spaces between them belong to the second text. For a decoder (not
    `seq2seq`) both are encoded as one text, which is split after as many tokens as the first text has."""
    shorter = context.rstrip()
    if shorter:
        context, rest = shorter, context[len(shorter) :] + rest
    first = tokenizer.encode(context)
    if seq2seq:
        return first, tokenizer.encode(rest, add_special_tokens=False)
    return first, tokenizer.encode(context + rest)[len(first) :]


def pair_batch(model: TransformerModule, pairs: Sequence[Pair], seq2seq: bool) -> Batch:
    """Return the model's inputs, padded on the right, so that no scored token attends to padding."""
    if not seq2seq:
        batch = pad_texts([{"input_ids": array([*context, *rest[:-1]])} for context, rest in pairs], 0)
    else:
        pad = model.spec.padding_token or 0
        batch = pad_texts([{"input_ids": array(context)} for context, _ in pairs], pad)
        batch["labels"] = pad_rows([array(rest) for _, rest in pairs], IGNORED)
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


@torch.inference_mode()
def last_hidden_states(model: TransformerModule, batch: Batch) -> Tensor:
    """Return the hidden states (B, T, D) that the head reads."""
    call = Call(model_inputs(model, batch), kernel=model.kernel)
    x = model.hidden_states(call).x
    model.check_finite({"last_hidden_state": x}, call, resumed=False)
    return x


@torch.inference_mode()
def score_tokens(
    model: TransformerModule, states: Sequence[Tensor], wanted: Sequence[Sequence[int]]
) -> list[Likelihood]:
    """Return the likelihood of tokens from the hidden states (n, D) that predict them."""
    x = torch.cat(list(states))  # (N, D)
    tokens = torch.tensor([token for own in wanted for token in own], device=x.device)  # (N,)
    head = language_head(model)
    step = max(1, MAX_LOGITS // head.part.vocab_size)
    scores = [token_log_probs(head.scores(x[at : at + step]), tokens[at : at + step]) for at in range(0, len(x), step)]
    lengths = list(map(len, wanted))
    each, likeliest = (torch.cat(parts).cpu().split(lengths) for parts in zip(*scores, strict=True))
    return [Likelihood(float(one.sum()), bool(best.all())) for one, best in zip(each, likeliest, strict=True)]


def token_log_probs(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (N,) of tokens under logits (N, V), and whether each is the most likely token."""
    scores = scores.float()
    return scores.log_softmax(-1).gather(-1, tokens[:, None])[:, 0], scores.argmax(-1) == tokens
