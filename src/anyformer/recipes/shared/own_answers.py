"""`anyformer train --prompt --answer`, and files of conversations: fine-tune a decoder to answer."""

from __future__ import annotations

import contextlib
from collections import Counter

from anyformer.data.conversations import Conversations
from anyformer.inputs import chat
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.models import position_limit
from anyformer.objectives.dialogue import Dialogue
from anyformer.recipes import dialogue
from anyformer.recipes.shared.held_out import Notify, divide_steps, held_out, name_of, skipped_reasons, usable
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Pretrained, Run, description_of, model_of
from anyformer.weights import hub

EPOCHS, EXAMPLES = 3, 16


def answers_run(talks: Conversations, path: str, model: str | None, tell: Notify = lambda line: None) -> Run:
    """Return a run that fine-tunes a decoder on prompts and answers; the loss is of the answers only. One row in ten is
    held out."""
    given = None if model is None else model_of(model)
    if not isinstance(given, Pretrained):
        raise ValueError(f"{path} contains conversations: give a checkpoint as --model; --target trains from scratch")
    described = description_of(given)
    if described.pair or not described.writes:
        raise ValueError(f"--model {model} is not a decoder; an encoder-decoder learns answers with --target")
    skipped = Counter[str]()
    count = sum(1 for _ in usable(talks, ("messages",), dict, skipped))
    if not count:
        raise ValueError(f"{path}: no row can be used; {skipped_reasons(skipped)}")
    tell(f"{path}: {count:,} conversations, format {talks.format}")
    if not has_template(given.path):
        tell(f"{model} has no chat template: prompts begin with 'User: ', answers with 'Assistant: '")
    length = min(position_limit(described) or dialogue.LENGTH, dialogue.LENGTH)
    run = Run(
        name=name_of(path),
        model=given,
        data=held_out(talks),
        objective=Dialogue(length=length),
        optimizer=AdamW(lr=2e-5, betas=(0.9, 0.999), weight_decay=0.0),
        schedule=Cosine(),
        batch=Batch(examples=EXAMPLES, micro=4),
        steps=min(max(EPOCHS * count // EXAMPLES, 30), 5000),
        evaluate=Evaluate(metrics=("perplexity",)),
    )
    return divide_steps(run)


def has_template(model: str) -> bool:
    """Whether a model has a chat template. True without a tokenizer, which is an error of its own."""
    with contextlib.suppress(FileNotFoundError):
        return bool(chat.templates(Tokenizer.load(hub.resolve(model))))
    return True
