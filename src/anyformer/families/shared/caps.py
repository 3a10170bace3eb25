"""Published soft caps of attention scores and of the final logits (Gemma 2). null means no cap."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry, entry
from anyformer.parts import CappedHead, LMHead, Model, SoftCap


def final_cap(spec: Model) -> float | None:
    if not isinstance(spec.head, LMHead):
        raise Absent
    return spec.head.bound if isinstance(spec.head, CappedHead) else None


def set_final_cap(spec: Any, bound: float | None, c: Config) -> Any:
    if not isinstance(spec.head, CappedHead):
        return spec
    head = LMHead(vocab_size=spec.head.vocab_size) if bound is None else spec.head.replace(bound=bound)
    return spec.replace(head=head)


def caps(scores: str, attention: int, final: int) -> dict[str, Entry]:
    """Return the entries; `scores` is the address of `Attention.scores`. The template has both caps. The published
    defaults are given as integers, because null stands for the default in a field whose default is a float."""
    return {
        "attn_logit_softcapping": entry(
            scores,
            default=attention,
            read=lambda bound, c: () if bound is None else (SoftCap(bound=bound),),
            write=lambda changes: changes[0].bound if changes else None,
        ),
        "final_logit_softcapping": Entry(final, final_cap, build=set_final_cap),
    }
