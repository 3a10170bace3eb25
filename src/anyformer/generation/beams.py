"""Beam search and diverse beam search, with the same results as transformers for every form of early stopping.

B texts, N beams, K candidates per step, P prompt tokens, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.generation.search_state import DecodingLoop, Move, Search

WORST = -1e9


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Select beams: x (B, N, ...) and index (B, M) -> (B, M, ...)."""
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand(*index.shape, *x.shape[2:]))


class Beams:
    """N running beams of each of B texts, and the N best finished texts."""

    def __init__(self, job: Search, prompt: Tensor) -> None:
        s, (self.B, self.N, self.P) = job.settings, prompt.shape
        self.job, self.s, device = job, s, prompt.device
        self.K = max(2, 1 + len(s.eos)) * self.N  # enough for N running beams even if the best ones have just ended
        self.fill = s.pad or (s.eos[0] if s.eos else 0)  # pad id 0 counts as missing, as in transformers
        self.running, self.finished = prompt, prompt.clone()  # (B, N, T)
        self.running_scores = torch.full((self.B, self.N), WORST, device=device)
        self.running_scores[:, 0] = 0  # the N copies of a prompt are equal at first: use only one
        self.finished_scores = torch.full((self.B, self.N), WORST, device=device)
        self.is_finished = torch.zeros(self.B, self.N, dtype=torch.bool, device=device)
        self.lengths = torch.full((self.B, self.N), self.P, device=device)
        self.can_improve = torch.ones(self.B, 1, dtype=torch.bool, device=device)
        # (B, N, T - P) beam index (in the whole batch) that each token came from; -1 after the end
        self.paths = self.finished_paths = torch.empty(self.B, self.N, 0, dtype=torch.long, device=device)
        self.over = False

    def advance(self, log_probs: Tensor, offset: Tensor) -> Tensor:
        """Append one token per beam, given log_probs (B, N, V); return the beam (B, N) that each new beam continues.
        `offset` (B, 1) is the index of each text's first beam in the whole batch."""
        s, V, T = self.s, log_probs.shape[2], self.running.shape[2]
        total = (log_probs + self.running_scores[..., None]).flatten(1)
        K = min(self.K, total.shape[1])
        if s.do_sample:
            chosen = self.job.rng.several(total, self.job.places.view(self.B, -1)[:, 0] + T - self.P, K)
            best = total.gather(1, chosen)
        else:
            best, chosen = total.topk(K)
        beam, token = chosen // V, chosen % V
        texts = torch.cat((pick(self.running, beam), token[..., None]), dim=2)
        paths = torch.cat((pick(self.paths, beam), (beam + offset)[..., None]), dim=2)
        stopped = self.job.ended.is_stopped(texts.flatten(0, 1)).view(self.B, K)
        done = torch.ones_like(stopped) if self.job.max_length <= T + 1 else stopped
        # running beams: those without an end token (even if max_length is reached)
        open_scores = best + done * WORST
        order = (best + stopped * WORST).topk(self.N).indices
        self.running, self.running_scores, self.paths = pick(texts, order), pick(open_scores, order), pick(paths, order)
        # finished beams: only the best N candidates of a step may finish
        just = done.clone()
        just[:, self.N :] = False
        closed = best / (T + 1 - self.P) ** s.length_penalty
        closed = closed + (self.is_finished.all(-1, keepdim=True) & (s.early_stopping is True)) * WORST
        closed = closed + ~self.can_improve * WORST + ~just * WORST
        merged = torch.cat((self.finished_scores, closed), 1)
        keep = merged.topk(self.N).indices
        self.finished = pick(torch.cat((F.pad(self.finished, (0, 1), value=self.fill), texts), 1), keep)
        self.finished_paths = pick(torch.cat((F.pad(self.finished_paths, (0, 1), value=-1), paths), 1), keep)
        self.finished_scores = pick(merged, keep)
        self.is_finished = pick(torch.cat((self.is_finished, just), 1), keep)
        self.lengths = pick(torch.cat((self.lengths, torch.full_like(done, T + 1, dtype=torch.long)), 1), keep)
        # could a running text still beat the worst finished one?
        length = T + 1 - self.P
        hoped = self.job.max_length - self.P if s.early_stopping == "never" and s.length_penalty > 0 else length
        hope = self.running_scores[:, :1] / hoped**s.length_penalty
        worst = torch.where(self.is_finished, self.finished_scores.amin(1, keepdim=True), WORST)
        self.can_improve = self.can_improve & (hope > worst).any(-1, keepdim=True)
        full = bool(self.is_finished.all()) and s.early_stopping is True
        self.over = full or not bool(self.can_improve.any()) or bool(done.all())
        return pick(beam, order)


def search(job: Search) -> DecodingLoop:
    """Find the best `num_return_sequences` texts of each row, best first."""
    s, N, G = job.settings, job.settings.num_beams, job.settings.num_beam_groups
    B, P, device = job.ids.shape[0] // N, job.prompt_length, job.ids.device
    groups = [Beams(job, prompt) for prompt in job.ids.view(B, N, P).split(N // G, dim=1)]
    offset = torch.arange(B, device=device)[:, None] * N
    scores, kept, logits = job.scores, [], []
    while True:
        ids = torch.cat([group.running for group in groups], dim=1).flatten(0, 1)
        log_probs = job.process(ids, scores.log_softmax(-1))
        if job.detailed:
            kept.append(log_probs)
            logits.append(scores)
        from_beam, taken = [], torch.zeros(B, 1, log_probs.shape[1], device=device)
        for g, (group, part) in enumerate(zip(groups, log_probs.view(B, N, -1).split(N // G, dim=1), strict=True)):
            if g:  # penalize tokens that earlier groups chose in this step
                part = part - s.diversity_penalty * taken
            from_beam.append(group.advance(part, offset + g * (N // G)) + g * (N // G))
            if g < G - 1:
                last = group.running[:, :, -1]
                taken = taken.scatter_add(2, last[:, None], torch.ones_like(last, dtype=taken.dtype)[:, None])
        if all(group.over for group in groups):
            break
        tokens = torch.cat([group.running[:, :, -1] for group in groups], dim=1).flatten()
        scores = yield Move(tokens, (torch.cat(from_beam, dim=1) + offset).flatten())
    return results(job, groups, kept, logits)


def results(job: Search, groups: list[Beams], kept: list[Tensor], logits: list[Tensor]) -> dict[str, Any]:
    s, R = job.settings, job.settings.num_return_sequences
    best, order = torch.cat([group.finished_scores for group in groups], 1).topk(R)
    ids, paths, lengths = (
        pick(torch.cat(x, 1), order).flatten(0, 1)
        for x in zip(*((group.finished, group.finished_paths, group.lengths) for group in groups), strict=True)
    )
    T, P = int(lengths.max()), job.prompt_length
    ids, paths = ids[:, :T], paths[:, : T - P]
    out: dict[str, Any] = {"sequences": job.with_prompt(ids)}
    if job.detailed:
        stopped = [job.ended.is_stopped(row[None, :n]) for row, n in zip(ids, lengths.tolist(), strict=True)]
        reasons = ["stop" if stop else "length" for stop in stopped]
        steps = torch.arange(T - P, device=ids.device)
        chosen = torch.stack(logits[: T - P]).log_softmax(-1)[steps, paths.clamp(min=0), ids[:, P:]]
        out |= {
            "sequences_scores": best.flatten(),
            "scores": tuple(kept) if s.output_scores is not False else None,
            "logits": tuple(logits) if s.output_logits else None,
            "beam_indices": paths,
            "log_probs": chosen.masked_fill(paths < 0, 0.0),
            "finish_reasons": reasons,
        }
    return out
