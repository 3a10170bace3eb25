"""Tests of waveform models in addition to the catalogue-wide suite: training, padding on the left, old checkpoints,
kernels."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from catalogue import close, every_case, folder, make_inputs, ours, published, shared
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.kernels.convolution import convolve, depthwise
from anyformer.models import DecoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.convolution.conformer import ConvolutionModule
from anyformer.parts.embedding.spec_augment import SpecAugment, spans
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal
from anyformer.parts.position.relative import InputRope, RelativeSinusoids
from anyformer.runtime.context import Context
from anyformer.specs.part import Site
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

CASES = {case.id: case for case in every_case() if case.model_type == "wav2vec2-conformer"}
QUIET = {
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0,
    "final_dropout": 0.0, "layerdrop": 0.0, "conformer_conv_dropout": 0.0, "apply_spec_augment": False,
}  # fmt: skip


@pytest.mark.parametrize("name", ["Wav2Vec2ConformerModel", "Wav2Vec2ConformerModel-odd"])
def test_training_equals_published(name: str) -> None:
    """Batch statistics, running statistics and gradients, with every drop probability at 0."""
    case = CASES[name]
    case = dataclasses.replace(case, config={**case.config, **QUIET}, name=f"{case.name}-quiet")
    theirs, mine = copy.deepcopy(published(case)[0]).train(), ours(case).train()
    inputs = make_inputs(case)
    expected, found = theirs(**{k: v.clone() for k, v in inputs.items()})[0], mine(**inputs)[0]
    close(found.detach(), expected.detach())
    for out in (expected, found):
        out.pow(2).mean().backward()
    close(mine.embedding.stem.convolutions[0].weight.grad, theirs.feature_extractor.conv_layers[0].conv.weight.grad)
    norms = mine.encoder.layers[1].convolution.op.norm, theirs.encoder.layers[1].conv_module.batch_norm
    for kind in ("running_mean", "running_var", "num_batches_tracked"):
        close(getattr(norms[0], kind), getattr(norms[1], kind), 1e-6)


def test_frames_to_hide_can_be_given() -> None:
    case = CASES["Wav2Vec2ConformerModel-odd"]
    theirs, mine, inputs = published(case)[0], shared(case), make_inputs(case)
    hidden = torch.rand(2, mine.spec.embedding.stem.frames(613), generator=torch.Generator().manual_seed(0)) < 0.4
    with torch.no_grad():
        expected = theirs(**inputs, mask_time_indices=hidden)[0]
        close(mine(**inputs, mask_time_indices=hidden)[0], expected)
        assert not torch.allclose(mine(**inputs)[0], expected, atol=1e-2)
    with pytest.raises(ValueError, match="mask_time_prob"):
        shared(CASES["Wav2Vec2ConformerForCTC-adapter"])(**inputs, mask_time_indices=hidden)


@pytest.mark.parametrize(
    ("lengths", "share", "span", "least"),
    [((40, 40), 0.3, 4, 0), ((40, 23), 0.3, 4, 2), ((30, 3), 0.5, 4, 2), ((50, 31), 0.9, 10, 0), ((12, 7), 1.0, 3, 5)],
)
def test_spans_are_distributed_as_published(lengths: tuple[int, int], share: float, span: int, least: int) -> None:
    import numpy
    from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import _compute_mask_indices

    L, n = max(lengths), 1500
    real = torch.arange(L) < torch.tensor(lengths)[:, None]
    torch.manual_seed(0)
    numpy.random.seed(0)
    mine = torch.stack([spans(real, share, span, least) for _ in range(n)])
    assert not (mine & ~real).any()
    mask = None if real.all() else real.long()
    drawn = [_compute_mask_indices((2, L), share, span, mask, least) for _ in range(n)]
    theirs = torch.from_numpy(numpy.stack(drawn)) & real
    noise = 4.5 * (0.5 / n) ** 0.5  # of the difference of two shares
    assert (mine.float().mean(0) - theirs.float().mean(0)).abs().max() < noise
    counts = [hidden.sum(-1).float() for hidden in (mine, theirs)]
    assert (counts[0].mean(0) - counts[1].mean(0)).abs().max() < 4.5 * span / n**0.5
    assert (counts[0].std(0) - counts[1].std(0)).abs().max() < 0.1 * span


def test_augmentation_hides_only_while_training() -> None:
    module = SpecAugment(time=0.5, time_span=3, channels=0.5, channel_span=2).build(Site(width=8))
    torch.nn.init.constant_(module.mask_embedding, 9.0)
    x = torch.ones(2, 12, 8)
    assert torch.equal(module.eval()(x, None, None), x)
    seen = module.train()(x, None, None)
    assert (seen == 9).any() and (seen == 0).any() and (seen == 1).any()
    with pytest.raises(ValueError, match="spans of 3 do not fit a length of 2"):
        module(x[:, :2], None, None)


@pytest.mark.parametrize("kind", ["relative", "rotary", "None"])
def test_left_padding_changes_nothing(kind: str) -> None:
    model = shared(CASES[f"Wav2Vec2ConformerForCTC-{kind}-local"])
    x = torch.randn(2, 613, generator=torch.Generator().manual_seed(0))
    widths = (32 * model.spec.embedding.stem.hop, 0)
    with torch.no_grad():
        expected = model(input_values=x).logits
        found = model(input_values=F.pad(x, widths), attention_mask=F.pad(torch.ones_like(x), widths)).logits
    close(found[:, -expected.shape[1] :], expected)


def test_masked_taps_do_not_see_pads() -> None:
    """One field turns on what the published module omits."""
    x = torch.randn(1, 20, 6)
    index = torch.arange(20)
    ctx = Context(index=index, positions=index[None], is_token=index[None] < 13)
    short = Context(index=index[:13], positions=index[None, :13])
    for masked in (True, False):
        module = ConvolutionModule(kernel=5, masked=masked).build(Site(width=6)).eval()
        same = torch.allclose(module(x, ctx)[:, :13], module(x[:, :13], short), atol=1e-6)
        assert same == masked


@pytest.mark.parametrize("position", [RelativeSinusoids(num_heads=2), InputRope()], ids=["relative", "rotary"])
def test_schemes_decode_step_by_step(position) -> None:
    """Both position schemes in a decoder: growing and static cache, a padded past."""
    attention = Sublayer(op=Attention(num_heads=2, mask=Causal(), position=position))
    spec = DecoderModel(
        width=8, embedding=TextEmbedding(tokens=Tokens(vocab_size=11)), head=LMHead(vocab_size=11),
        decoder=Stack(layers=Block(attention=attention), depth=2), init={"*": Normal(std=0.3)},
    )  # fmt: skip
    model = af.build(spec, seed=1).eval()
    ids = torch.randint(0, 11, (2, 9))
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
        for state in (model.new_state(), model.new_state(2, capacity=12)):
            steps = [model(input_ids=ids[:, a:b], past_key_values=state).logits for a, b in ((0, 4), (4, 5), (5, 9))]
            close(torch.cat(steps, dim=1), full)
        mask = torch.tensor([[1, 1, 1, 1, 0, 0]]).repeat(2, 1)  # padding after the prompt, then generation continues
        state = model.new_state()
        model(input_ids=F.pad(ids[:, :4], (0, 2)), attention_mask=mask, past_key_values=state)
        places = torch.tensor([[4, 5]])
        mask = F.pad(mask, (0, 2), value=1)
        step = model(input_ids=ids[:, 4:6], attention_mask=mask, position_ids=places, past_key_values=state)
        close(step.logits, full[:, 4:6])


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("channels", [1, 4])
def test_convolutions_equal_torch(kernel: int, stride: int, channels: int) -> None:
    x, weight, bias = torch.randn(2, 31, channels), torch.randn(6, channels, kernel), torch.randn(6)
    for b in (None, bias):
        close(convolve(x, weight, b, stride), F.conv1d(x.transpose(1, 2), weight, b, stride).transpose(1, 2), 1e-6)
    taps = torch.randn(channels, 1, kernel)
    expected = F.conv1d(F.pad(x.transpose(1, 2), (kernel - 1, 0)), taps, groups=channels).transpose(1, 2)
    close(depthwise(x, taps, padding=(kernel - 1, 0)), expected, 1e-6)


def test_old_weight_norm_names_load(tmp_path) -> None:
    case = CASES["Wav2Vec2ConformerForCTC"]
    tensors = load_file(folder(case) / "model.safetensors")
    for number, old in ((0, "weight_g"), (1, "weight_v")):
        new = f"parametrizations.weight.original{number}"
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    assert any(name.endswith("conv.weight_g") for name in tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder(case) / "config.json").read_text())
    for name, tensor in af.load(tmp_path).state_dict().items():
        assert torch.equal(tensor, shared(case).state_dict()[name]), name


def test_frequencies_are_never_rounded() -> None:
    case = CASES["Wav2Vec2ConformerModel-odd"]
    exact = published(case)[0].encoder.embed_positions.inv_freq
    for model in (ours(case, dtype="bfloat16"), ours(case).to(torch.bfloat16)):
        assert torch.equal(model.encoder.layers[1].attention.op.position.frequency.value, exact)
