"""By default, a cache is returned if the published class returns one."""

from __future__ import annotations

import torch
from catalogue import RUN, Case, cases, family, make_inputs, over, published, shared, spec_of

# a Reformer decoder has no cache if it sorts: see docs/design.md
WRITERS = [case for case in cases() if spec_of(case).left_to_right and case.library in RUN
           and case.model_type != "reformer"]  # fmt: skip


@over(WRITERS, family)
@torch.no_grad()
def test_a_memory_is_returned_where_the_published_class_returns_one(case: Case) -> None:
    name = spec_of(case).state_name
    for labels in (False, True):
        inputs = make_inputs(case, labels=labels)
        theirs, mine = published(case)[0](**inputs), shared(case)(**inputs)
        assert (mine.get(name) is None) == (theirs.get(name) is None), f"{labels=}"
