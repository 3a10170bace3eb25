"""The Conformer: torchaudio's layers against recorded outputs (`reference/`) and, if installed, against torchaudio; the
paper's sizes against a count by hand; and padding, which changes nothing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import Case, close, every_case, folder, ours, over, recorded, shared
from safetensors.torch import load_file
from unpublished import description

import anyformer as af
from anyformer.parts.convolution.conformer import ConvolutionModule
from anyformer.parts.norm import RowNorm
from anyformer.runtime.context import Context
from anyformer.specs.part import Site

CASES = [case for case in every_case() if case.library == "torchaudio"]


def small(**more: Any) -> Any:
    return af.build(description("conformer", **more), seed=0).eval()


def mask_of(lengths: torch.Tensor) -> torch.Tensor:
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()


def test_weights_start_as_those_of_torch() -> None:
    """Assert a uniform distribution within 1 / sqrt(inputs)."""
    weight = small().encoder.layers[0].attention.op.q.weight.detach()
    assert 0.9 * 16**-0.5 < float(weight.abs().max()) <= 16**-0.5
    assert float(weight.std()) == pytest.approx((16 * 3) ** -0.5, rel=0.1)


@pytest.mark.parametrize("shape", [None, (2, 12), (2, 0, 12), (2, 9, 11)])
def test_frames_are_asked_for_by_their_shape(shape: tuple[int, ...] | None) -> None:
    given = {} if shape is None else {"input_features": torch.zeros(shape)}
    with pytest.raises(
        ValueError, match=rf"^input_features must be \(batch, frames, 12 channels\), got {re.escape(str(shape))}$"
    ):
        small()(**given)


# -- torchaudio


@over(CASES)
def test_l1_outputs_equal_published(case: Case) -> None:
    expected = recorded(case)
    mask = mask_of(expected["lengths"])
    with torch.no_grad():
        found = shared(case)(inputs_embeds=expected["input"], attention_mask=mask).last_hidden_state
    close(found, expected["output"])


@over(CASES)
def test_l5_round_trips(case: Case, tmp_path: Path) -> None:
    af.save(shared(case), tmp_path / "ours")
    af.save(af.load(tmp_path / "ours"), tmp_path / "hf", format="hf")
    before, after = (load_file(place / "model.safetensors") for place in (folder(case), tmp_path / "hf"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert af.load(tmp_path / "hf").spec.replace(source={}) == shared(case).spec.replace(source={})


@over(CASES)
def test_against_the_library_itself(case: Case) -> None:
    """Another input than the recorded one: forward, backward, and training with batch statistics."""
    if importlib.util.find_spec("torchaudio") is None:
        pytest.skip("torchaudio is not installed")
    from reference import make_conformer  # type: ignore[import-not-found]

    theirs, mine = make_conformer.build({**case.config, "dropout": 0.0}), ours(case)
    theirs.load_state_dict(load_file(folder(case) / "model.safetensors"))
    x = torch.randn(4, 30, case.config["input_dim"], requires_grad=True)
    lengths = torch.tensor([30, 1, 17, 29])
    for training in (False, not case.config.get("dropout")):
        expected = theirs.train(training)(x, lengths)[0]
        found = mine.train(training)(inputs_embeds=x, attention_mask=mask_of(lengths)).last_hidden_state
        close(found, expected)
        (wanted,), (gradient,) = (torch.autograd.grad(each.square().sum(), x) for each in (expected, found))
        close(gradient, wanted)


# -- the paper


TABLE = {  # [Gulati et al. 2020, table 1]: million parameters, layers, width, width of the decoder's LSTM
    "s": (10.3, 16, 144, 320), "m": (30.7, 16, 256, 640), "l": (118.8, 17, 512, 640),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_counts_of_the_paper(name: str) -> None:
    """Count the encoder and the CTC head by hand. The paper also counts a one-layer LSTM, its table of 1,024 pieces and
    a joint network, and gives only the LSTM's width: its count is between the encoder with the LSTM, and the encoder
    with all three at the LSTM's width."""
    million, layers, d, lstm = TABLE[name]
    halves = 2 * (2 * d + 4 * d * d + 4 * d + 4 * d * d + d)
    attention = 2 * d + 4 * (d * d + d) + d * d + 2 * d  # q, k, v, o; relative positions; u and v
    convolution = 2 * d + 2 * d * d + 2 * d + 32 * d + d + 2 * d + d * d + d
    stem = 9 * d + d + 9 * d * d + d + 20 * d * d + d  # 80 channels become 20
    encoder = layers * (halves + attention + convolution + 2 * d) + stem
    parts = af.count(af.spec(f"conformer-{name}")).parts
    assert sum(count for address, count in parts.items() if not address.startswith("head.")) == encoder
    assert sum(parts.values()) == encoder + 1025 * (d + 1)
    cell = 4 * lstm * (2 * lstm + 1)
    joint = lstm * (d + lstm) + 1024 * lstm
    assert encoder + cell <= (million + 0.05) * 1e6 and (million - 0.05) * 1e6 <= encoder + cell + 1024 * lstm + joint
    looks, inner = 4 * (d * d + d) + 2 * d, 2 * d + 8 * d * d + 5 * d  # each with its norm
    decoder = 6 * (2 * looks + inner) + 2 * d
    assert af.count(af.spec(f"conformer-transformer-{name}")).parameters == encoder + decoder + 1025 * d


@pytest.mark.parametrize("taps", [1, 4, 5, 32])
def test_taps_of_the_paper(taps: int) -> None:
    """An even kernel size, padded like TensorFlow: one zero more after the frames than before."""
    module: Any = ConvolutionModule(kernel=taps).build(Site(width=6)).eval()
    x, index = torch.randn(2, 20, 6), torch.arange(20)
    gated = F.glu(module.gate(x), dim=-1)
    around = F.pad(gated, (0, 0, (taps - 1) // 2, taps - 1 - (taps - 1) // 2))
    wanted = sum(around[:, i : i + 20] * module.taps.weight[:, 0, i] for i in range(taps))
    wanted = module.out(F.silu(wanted / (1 + 1e-5) ** 0.5))
    close(module(x, Context(index=index, positions=index[None])), wanted)


@pytest.mark.parametrize("decoder_layers", [0, 2])
def test_pads_change_nothing(decoder_layers: int) -> None:
    model = small(decoder_layers=decoder_layers)
    rows = [torch.randn(n, 12) for n in (61, 37, 5)]
    written = {"decoder_input_ids": torch.tensor([[1, 4, 5]])} if decoder_layers else {}
    x = torch.full((3, 93, 12), 9.0)  # the content of padding has no effect
    for i, row in enumerate(rows):
        x[i, : len(row)] = row
    mask = mask_of(torch.tensor([len(row) for row in rows]))
    mask = F.pad(mask, (0, 93 - mask.shape[1]))
    with torch.no_grad():
        texts = {name: ids.repeat(3, 1) for name, ids in written.items()}
        together = model(input_features=x, attention_mask=mask, **texts).logits
        for i, row in enumerate(rows):
            alone = model(input_features=row[None], **written).logits[0]
            close(together[i, : len(alone)], alone)


def test_two_whole_convolutions_stand_before_the_layers() -> None:
    model, x = small(), torch.randn(2, 30, 12)
    stem = model.embedding
    seen = F.conv2d(x[:, None], stem.first.weight, stem.first.bias, 2, 1).relu()
    seen = F.conv2d(seen, stem.whole[0].weight, stem.whole[0].bias, 2, 1).relu()  # (B, C, 8, 3)
    assert seen.shape == (2, 6, 8, 3)
    close(stem({"input_features": x})[0], stem.project(seen.transpose(1, 2).flatten(2)))


def test_a_row_is_normed_without_its_pads() -> None:
    module, x = RowNorm().build(Site(width=6)), torch.randn(2, 9, 6) * 3 + 1
    torch.nn.init.normal_(module.weight), torch.nn.init.normal_(module.bias)
    lengths = torch.tensor([9, 5])
    found = module(x, mask_of(lengths).bool())
    for i, n in enumerate(lengths.tolist()):
        close(found[i, :n], F.group_norm(x[i : i + 1, :n].mT, 1, module.weight, module.bias).mT[0])
    assert module(x, torch.zeros(2, 9, dtype=torch.bool)).isfinite().all()


# -- a decoder writes


def test_what_is_written() -> None:
    """Beam search and greedy search, with recordings of several lengths, with and without a cache."""
    model = small(decoder_layers=2, vocab_size=40)
    x, mask = torch.randn(2, 44, 12), mask_of(torch.tensor([44, 21]))
    options: dict[str, Any] = {"max_new_tokens": 7, "eos_token_id": 1, "pad_token_id": 0}
    for beams in (1, 3):
        both = af.generate(model, input_features=x, attention_mask=mask, num_beams=beams, **options)
        alone = af.generate(model, input_features=x[1:, :21], num_beams=beams, **options)
        assert both[1, : alone.shape[1]].tolist() == alone[0].tolist()
        plain = af.generate(model, input_features=x, attention_mask=mask, num_beams=beams, use_cache=False, **options)
        assert both.tolist() == plain.tolist()
