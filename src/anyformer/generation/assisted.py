"""Assisted decoding: a smaller model, or the text so far, proposes tokens that the model verifies in one call.

The text is the same as without assistance. The draft and the model sample with the same noise (`SeededRows`), and a
draft token is accepted only if the model would have drawn it. This keeps the model's distribution [Leviathan et al.
2023] and even its sample [Daliri et al. 2024].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.generation.search_state import Details, Search
from anyformer.generation.stepper import Stepper


def decode(job: Search) -> dict[str, Any]:
    """Generate with drafts. All rows advance together, by the number of tokens accepted in every unfinished row."""
    s, model, P = job.settings, job.stepper, job.prompt_length
    report = Details(job)
    drafter: Any = ModelDrafter(job) if job.draft is not None else LookupDrafter(job)
    processed = job.process(job.ids, job.scores)
    ids = report.add(job.ids, job.scores, processed, job.choose(processed, 0))
    while bool(report.going.any()):
        room = job.max_length - ids.shape[1] - 1  # the token after the last accepted one needs no draft
        most = min(s.prompt_lookup_num_tokens or s.num_assistant_tokens, room)
        draft = drafter.propose(ids, most) if most > 0 else ids[:, :0]
        before = None if model.can_rewind else model.fork()
        raw = model.read(torch.cat((ids[:, -1:], draft), dim=1), draft.shape[1] + 1)
        right = 0
        while True:
            processed = job.process(ids, raw[:, right])
            tokens = job.choose(processed, ids.shape[1] - P)
            ids = report.add(ids, raw[:, right], processed, tokens)
            if right == draft.shape[1] or not bool(report.going.any()):
                break
            if not bool((draft[:, right] == tokens)[report.going].all()):
                break
            right += 1
        extra = draft.shape[1] - right
        model = job.stepper = back(model, before, ids[:, :-1], extra)
        drafter.keep(ids)
    return report.fields(ids)


def back(stepper: Stepper, before: Stepper | None, ids: Tensor, extra: int) -> Stepper:
    """Return the stepper without its last `extra` tokens; `ids` are the tokens that it should have read. `before` is a
    copy made before the draft, used if the state cannot be rewound."""
    if extra == 0:
        return stepper
    if before is None:
        stepper.rewind(extra)
        return stepper
    missing = stepper.length - extra - before.length
    before.read(ids[:, ids.shape[1] - missing :], 1)
    return before


class ModelDrafter:
    """Drafts with a smaller model."""

    def __init__(self, job: Search) -> None:
        assert job.draft is not None
        self.job, self.stepper = job, job.draft
        self.before: Stepper | None = None

    def propose(self, ids: Tensor, count: int) -> Tensor:
        P, start = self.job.prompt_length, ids.shape[1]
        self.before = None if self.stepper.can_rewind else self.stepper.fork()
        raw = self.stepper.read(ids[:, self.stepper.length :], 1)[:, -1]
        for n in range(count):
            tokens = self.job.choose(self.job.process(ids, raw), ids.shape[1] - P)
            ids = torch.cat((ids, tokens[:, None]), dim=1)
            if n < count - 1:
                raw = self.stepper.step(tokens)
        return ids[:, start:]

    def keep(self, ids: Tensor) -> None:
        """Drop rejected tokens: afterwards, at most `ids[:, :-1]` has been read."""
        extra = self.stepper.length - (ids.shape[1] - 1)
        if extra > 0:
            self.stepper = back(self.stepper, self.before, ids[:, :-1], extra)


class LookupDrafter:
    """Prompt lookup [Saxena 2023]: finds an earlier copy of the last n-gram and proposes the tokens after it."""

    def __init__(self, job: Search) -> None:
        self.size = job.settings.max_matching_ngram_size
        self.vocab_size = job.scores.shape[1]
        self.source = job.source_ids

    def propose(self, ids: Tensor, count: int) -> Tensor:
        texts = ids if self.source is None else torch.cat((self.source, ids), dim=1)
        drafts = [self.find(row, count) for row in texts.tolist()]
        longest = max(map(len, drafts))
        # shorter drafts are filled up with the row's last token
        rows = [(row + ids[n, -1:].tolist() * longest)[:longest] for n, row in enumerate(drafts)]
        return torch.tensor(rows, dtype=ids.dtype, device=ids.device).view(len(rows), longest)

    def find(self, row: list[int], count: int) -> list[int]:
        for size in range(min(self.size, len(row) - 1), 0, -1):
            tail = row[-size:]
            for start in range(len(row) - size - 1, -1, -1):
                if row[start : start + size] == tail:
                    after = row[start + size : start + size + count]
                    return [token for token in after if token < self.vocab_size]
        return []

    def keep(self, ids: Tensor) -> None:
        pass
