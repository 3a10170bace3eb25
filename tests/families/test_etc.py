"""ETC's four pieces of attention and the labels of its pairs, written out; no class is published."""

from __future__ import annotations

import pytest
import torch
from catalogue import holds
from unpublished import SMALL, description, sentences

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.parts.position.global_local import GlobalLocalVectors
from small import close

GLOBALS, RADIUS, REACH, T = 3, 2, 4, 14
OP = "encoder.layers.1.attention.op"


@torch.no_grad()
@pytest.mark.parametrize("linked", [True, False])
def test_four_pieces(linked: bool) -> None:
    """Compute the attention weights of a layer from its queries and keys, pair by pair."""
    made, given = af.build(description("etc"), seed=0).eval(), sentences()
    kinds = given["token_type_ids"]
    if not linked:
        del given["token_type_ids"]
    run = af.trace(made, keep=[f"{OP}.q", f"{OP}.k", f"{OP}.weights"], **given)
    q, k = (run[f"{OP}.{name}"].unflatten(-1, (2, 6)).transpose(1, 2) for name in "qk")
    position = made.get_submodule(f"{OP}.position")
    scores = torch.full((2, 2, T, T), -torch.inf)
    for b in range(2):
        for i in range(T):
            for j in range(T):
                of_global, to_global = i < GLOBALS, j < GLOBALS
                if not of_global and not to_global and abs(i - j) > RADIUS:
                    continue
                label = max(-REACH, min(REACH, j - i)) + REACH
                if of_global != to_global:
                    label = 2 * REACH + 1 + int(linked and bool(kinds[b, i] == kinds[b, j]))
                vector = (position.of_global if of_global else position.of_long).weight[label]
                scores[b, :, i, j] = (q[b, :, i] * (k[b, :, j] + vector)).sum(-1) * 6**-0.5
    close(run[f"{OP}.weights"], scores.softmax(-1), 1e-5)


def test_pads_and_packed_documents_change_nothing() -> None:
    made, given = af.build(description("etc"), seed=0).eval(), sentences()
    holds(invariants.check_padding, made, given)
    with torch.no_grad():
        packed = {name: tensor.flatten()[None] for name, tensor in given.items()}  # a document has its global tokens
        documents = torch.arange(2).repeat_interleave(T)[None]
        close(made(**packed, document_ids=documents).logits.view(2, T, -1), made(**given).logits, 1e-5)


def test_the_named_sizes_and_their_fields() -> None:
    family, spec = families.find("etc"), description("etc")
    for name, value in {**SMALL["etc"], "local_radius": 5, "num_global_tokens": 4}.items():
        assert family.fields[name].recover(description("etc", **{name: value})) == value
    table = 2 * (2 * REACH + 3) * 6
    plain = af.override(spec, {"encoder.layers.attention.op.position": None})
    assert af.count(spec).parameters - af.count(plain).parameters == 2 * table
    assert 4e6 < af.count(af.spec("etc-tiny")).parameters < 5e6
    position = af.spec("etc-base").encoder.layers.steps["attention"].op.position
    assert position == GlobalLocalVectors(first=230, reach=12)
    with pytest.raises(ValueError, match="etc checkpoints.*anyformer"):
        family.rules(spec)
