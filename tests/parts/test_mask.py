"""Every predicate against a table written by hand, the algebra of masks, and the flags and tensors for kernels."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.parts.mask import (
    CAUSAL,
    FULL,
    All,
    Axial,
    BlockAndBefore,
    Causal,
    Dilated,
    Either,
    Fixed,
    Full,
    Global,
    GridBlocks,
    Mask,
    Not,
    Padding,
    RandomBlocks,
    SameBlock,
    SameDocument,
    Strided,
    Window,
)
from anyformer.runtime.visibility import see  # fmt: skip
from anyformer.specs.codec import decode, encode
from small import compiled_equals_eager, context

# rows are queries, columns keys; x where visible
TABLES: list[tuple[Mask, str]] = [
    (Full(), "xxxxxx xxxxxx xxxxxx xxxxxx xxxxxx xxxxxx"),
    (Causal(), "x..... xx.... xxx... xxxx.. xxxxx. xxxxxx"),
    (Window(size=2), "xxxxxx xxxxxx .xxxxx ..xxxx ...xxx ....xx"),
    (Window(size=2, ahead=True), "xx.... xxx... .xxx.. ..xxx. ...xxx ....xx"),
    (Causal() & Window(size=2), "x..... xx.... .xx... ..xx.. ...xx. ....xx"),
    (Dilated(step=3), "x..x.. .x..x. ..x..x x..x.. .x..x. ..x..x"),
    (Global(first=1), "xxxxxx x..... x..... x..... x..... x....."),
    (Global(first=2), "xxxxxx xxxxxx xx.... xx.... xx.... xx...."),
    (SameBlock(size=2), "xx.... xx.... ..xx.. ..xx.. ....xx ....xx"),
    (SameBlock(size=4), "xxxx.. xxxx.. xxxx.. xxxx.. ....xx ....xx"),
    (Causal() & Strided(stride=2), "x..... xx.... xxx... .xxx.. x.xxx. .x.xxx"),
    (Causal() & Strided(stride=3), "x..... xx.... xxx... xxxx.. .xxxx. ..xxxx"),
    (Causal() & Fixed(stride=3), "x..... xx.... xxx... ..xx.. ..xxx. ..xxxx"),
    (Causal() & Fixed(stride=3, summary=2), "x..... xx.... xxx... .xxx.. .xxxx. .xxxxx"),
    (BlockAndBefore(size=2, before=1), "xx.... xx.... .xxx.. .xxx.. ...xxx ...xxx"),
    (BlockAndBefore(size=4, before=0) & Causal(), "x..... xx.... xxx... xxxx.. ....x. ....xx"),
    (GridBlocks(columns=3, size=(1, 2), above=1, beside=0), "xx.... xx.... ..x... xx.xx. xx.xx. ..x..x"),
    (GridBlocks(columns=3, size=(2, 1), above=0, beside=1), "xx.xx. xxxxxx .xx.xx xx.xx. xxxxxx .xx.xx"),
    (Axial(columns=3), "xxxx.. xxx.x. xxx..x x..xxx .x.xxx ..xxxx"),
    (~Causal(), ".xxxxx ..xxxx ...xxx ....xx .....x ......"),
    (Window(size=1, ahead=True) | Global(first=1), "xxxxxx xx.... x.x... x..x.. x...x. x....x"),
]  # fmt: skip


def table(text: str) -> Tensor:
    return torch.tensor([[cell == "x" for cell in row] for row in text.split()])


def dense(mask: Mask, T: int = 6, **rows: Any) -> Tensor:
    places = torch.arange(T)
    return see(mask, places, places, **rows).dense()[0, 0]


@pytest.mark.parametrize(("mask", "text"), TABLES, ids=lambda value: repr(value)[:50])
def test_table(mask: Mask, text: str) -> None:
    assert torch.equal(dense(mask), table(text))


ATOMS = [
    Causal(), Window(size=3), Window(size=2, ahead=True), Global(first=2), Dilated(step=2), SameBlock(size=3), Full(),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(ATOMS, 2)), ids=repr)
def test_laws(a: Mask, b: Mask) -> None:
    A, B = dense(a), dense(b)
    assert torch.equal(dense(a & b), A & B) and torch.equal(dense(a | b), A | B)
    assert torch.equal(dense(~a), ~A) and torch.equal(dense(~~a), A)
    assert torch.equal(dense(~(a & b)), dense(~a | ~b)) and torch.equal(dense(~(a | b)), dense(~a & ~b))
    assert torch.equal(dense(a & b | a), A) and torch.equal(dense((a | b) & a), A)
    c = Axial(columns=2)
    assert torch.equal(dense(a & (b | c)), dense(a & b | a & c))
    assert a & (b & c) == (a & b) & c and a | (b | c) == (a | b) | c, "one flat list, whatever the brackets"
    assert (a & b & c).masks == (a, b, c)


def test_precedence_is_pythons() -> None:
    """`a & b | c`: and binds tighter, as DESIGN.md's `Causal() & Window(512) | Global(first=1)` means it."""
    mask = Causal() & Window(size=2) | Global(first=1)
    assert mask == Either(masks=(All(masks=(Causal(), Window(size=2))), Global(first=1)))


OTHERS = [Padding() & SameDocument(), RandomBlocks(size=2, per_row=1, num_blocks=3)]


@pytest.mark.parametrize("mask", [m for m, _ in TABLES] + OTHERS, ids=lambda m: repr(m)[:50])
def test_json_round_trip(mask: Mask) -> None:
    again = decode(json.loads(json.dumps(encode(mask))))
    assert again == mask and hash(again) == hash(mask) and repr(again) == repr(mask)


def test_random_blocks() -> None:
    part = RandomBlocks(size=4, per_row=3, num_blocks=16, seed=1)
    seen = dense(part, 64)
    blocks = seen.view(16, 4, 16, 4)
    assert torch.equal(blocks.all(3).all(1), blocks.any(3).any(1)), "whole blocks"
    assert torch.equal(seen, dense(part, 64)) and not torch.equal(seen, dense(part.replace(seed=2), 64))
    shares = [float(dense(part.replace(seed=s), 64).float().mean()) for s in range(40)]
    assert sum(shares) / 40 == pytest.approx(3 / 16, abs=0.03)
    assert torch.equal(dense(part, 32), seen[:32, :32]), "the pattern does not depend on the length"
    assert dense(part.replace(seed=2**40), 64).any(), "large seeds do no harm"
    kept = ["xx...xx.", "..xx....", "x.....xx", "...xxx..", "xxx....x", "....x...", ".x.....x", "....xxx."]
    rows = dense(RandomBlocks(size=1, per_row=3, num_blocks=8, seed=1), 8).tolist()
    assert ["".join(".x"[seen] for seen in row) for row in rows] == kept, "a saved model was trained with this pattern"


def test_padding_and_documents() -> None:
    real = torch.tensor([[True, True, True, False], [False, True, True, True]])
    numbers = torch.tensor([[0, 0, 1, 1], [5, 5, 5, 7]])
    places = torch.arange(4)
    both = see(Causal(), places, places, real, numbers, numbers).dense()
    assert both.shape == (2, 1, 4, 4)
    for b in range(2):
        for q in range(4):
            for k in range(4):
                expected = k <= q and bool(real[b, k]) and bool(numbers[b, q] == numbers[b, k])
                assert bool(both[b, 0, q, k]) == expected
    # as Parts of a mask they have the same effect, and none if the batch has no padding or documents
    assert torch.equal(see(Padding(), places, places, real).dense(), real[:, None, None].expand(2, 1, 4, 4))
    assert see(Padding() & SameDocument(), places, places).dense().all()


def test_documents_of_a_memory() -> None:
    queries, keys = torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, 1, 1]])
    seen = see(FULL, torch.arange(3), torch.arange(4), None, queries, keys).dense()[0, 0]
    assert torch.equal(seen, table("x... x... .xxx"))


@pytest.mark.parametrize("mask", [m for m, _ in TABLES], ids=lambda m: repr(m)[:50])
@pytest.mark.parametrize("where", ["start", "past", "window"])
def test_dense_is_the_predicate_at_every_place(mask: Mask, where: str) -> None:
    """Kernels that call the predicate per pair (flex) and kernels that take a dense mask see the same keys."""
    index = torch.arange(5) if where == "start" else torch.arange(4, 9)
    keys = torch.arange(5) if where == "start" else torch.arange(9) if where == "past" else torch.arange(2, 9)
    real = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)) > 0.3
    visible = see(mask, index, keys, real)
    whole = visible.dense()
    for b, t, s in itertools.product(range(2), range(5), range(len(keys))):
        one = visible.allows(torch.tensor(b), index[t], keys[s])
        assert one.shape == () and one.dtype == torch.bool and bool(one) == bool(whole[b, 0, t, s])


def test_flags() -> None:
    places, real = torch.arange(6), torch.ones(1, 6, dtype=torch.bool)

    def flags(mask: Mask, index: Tensor = places, **rows: Any) -> tuple[bool, bool]:
        visible = see(mask, index, places, **rows)
        return visible.everything, visible.causal

    assert flags(FULL) == (True, False) and flags(CAUSAL) == (False, True)
    assert flags(FULL, places[:3]) == (True, False) and flags(CAUSAL, places[3:]) == (False, False)
    assert flags(FULL, is_token=real) == (False, False) == flags(CAUSAL, is_token=real)
    numbers = torch.zeros(1, 6)
    assert flags(CAUSAL, documents=numbers, key_documents=numbers) == (False, False)
    assert flags(Causal() & Window(size=9)) == (False, False) == flags(~Causal())


@pytest.mark.parametrize("mask", [
    *(mask for mask, _ in TABLES), Causal() & Window(size=5), Window(size=5) & Window(size=7),
    Causal() & Dilated(step=2) & Window(size=9), (Causal() & Window(size=6)) & Full(), Window(size=5) | Causal(),
], ids=repr)  # fmt: skip
def test_within_a_length_is_the_same_mask(mask: Mask) -> None:
    for length in range(1, 10):
        places = torch.arange(length)
        for each in (mask, Causal() & mask):
            assert torch.equal(*(see(m, places, places).dense() for m in (each, each.within(length)))), length


def test_a_window_wider_than_the_row_needs_no_mask() -> None:
    mask = Causal() & Window(size=8)
    for length, causal in ((8, True), (9, False)):
        ctx = dataclasses.replace(context(length), row_length=length)
        assert ctx.visible(mask, "window", ctx.index).causal is causal
        assert not ctx.replace(index=3 * ctx.index).visible(mask, "spread", 3 * ctx.index).causal
    assert Window(size=8).within(8) is FULL and mask.within(9) is mask


def test_context_shares_one_mask_and_shortens_a_single_query() -> None:
    ctx = context(6)
    assert ctx.visible(CAUSAL, "causal", ctx.index) is ctx.visible(CAUSAL, "causal", ctx.index)
    assert ctx.visible(CAUSAL, "causal", ctx.index).causal
    last = context(1).replace(index=torch.tensor([5]))
    assert last.visible(CAUSAL, "causal", torch.arange(6)).everything, "the newest token sees all of its row"
    assert not last.visible(Causal() & Window(size=2), "window", torch.arange(6)).everything


def test_one_graph() -> None:
    masks = [mask for mask, _ in TABLES[1:]] + [RandomBlocks(size=2, per_row=1, num_blocks=3)]

    def run(real: Tensor) -> list[Tensor]:
        places = torch.arange(6)
        return [see(mask, places, places, real).dense().float() for mask in masks]

    compiled_equals_eager(run, torch.rand(2, 6) > 0.3)


@pytest.mark.parametrize(("make", "line"), [
    (lambda: Window(size=0), "Window.size is 0; it must be at least 1"),
    (lambda: Dilated(step=0), "Dilated.step is 0"),
    (lambda: Global(first=0), "Global.first is 0"),
    (lambda: SameBlock(size=-1), "SameBlock.size is -1"),
    (lambda: Strided(stride=0), "Strided.stride is 0"),
    (lambda: Fixed(stride=2, summary=3), "Fixed.summary is 3; a block has 2 tokens"),
    (lambda: Axial(columns=0), "Axial.columns is 0"), (lambda: BlockAndBefore(size=0, before=1), "BlockAndBefore.size"),
    (lambda: GridBlocks(columns=3, size=(1, 0), above=0, beside=0), "GridBlocks.size.1 is 0; it must be at least 1"),
    (lambda: RandomBlocks(size=0, per_row=1, num_blocks=3), "RandomBlocks.size is 0"),
    (lambda: All(masks=()), "All.masks is empty"),
    (lambda: Either(masks=()), "Either.masks is empty"),
    (lambda: Not(mask=3), "Not.mask: expected Mask, got 3"),
])  # fmt: skip
def test_nonsense(make: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        make()


@pytest.mark.parametrize("mask", [
    SameBlock(size=3), Global(first=2), Fixed(stride=3), Axial(columns=3),
    BlockAndBefore(size=3, before=1), GridBlocks(columns=3, size=(2, 1), above=1, beside=1),
    RandomBlocks(size=2, per_row=1, num_blocks=3), Strided(stride=2), Window(size=2, ahead=True),
    Dilated(step=2), ~SameBlock(size=2),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("where", ["left", "right", "packed"])
def test_places_are_counted_in_the_text(mask: Mask, where: str) -> None:
    """Padding before or after a text, or an earlier document, does not change what its tokens see."""
    alone = see(mask, torch.arange(7), torch.arange(7)).dense()[0, 0]
    row, text = torch.arange(11), slice(0, 7) if where == "right" else slice(4, 11)
    real = torch.zeros(1, 11, dtype=torch.bool)
    real[:, text] = True
    documents = real.long()
    given = {"documents": documents, "key_documents": documents} if where == "packed" else {"is_token": real}
    assert torch.equal(see(mask, row, row, **given).dense()[0, 0, text, text], alone)
