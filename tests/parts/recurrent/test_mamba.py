"""Recurrent mixers (selective states, RWKV) with padding, packed documents and decoding states."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import anyformer as af
import small
from anyformer import families
from anyformer.specs.addresses import value_at

close = functools.partial(small.close, tolerance=1e-5)

IDS = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(0))


def mamba(bias: bool):
    mixer = "decoder.layers.mixer.op"
    return "mamba-130m", {f"{mixer}.width": 24, f"{mixer}.rank": 3, f"{mixer}.bias": bias}


def mamba2():
    mixer = "decoder.layers.mixer.op"
    changes = {"num_heads": 6, "head_width": 4, "groups": 2, "states": 5, "step_low": 0.1}
    return "mamba2-130m", {f"{mixer}.{name}": value for name, value in changes.items()}


def rwkv(every: int):
    """RWKV, plain or with a stream that is halved every few layers."""
    changes: dict[str, object] = {"decoder.layers.time.op.width": 24, "decoder.layers.channel.op.width": 20}
    changes |= {f"decoder.layers.{step}.op.halve_every": every for step in ("time", "channel")}
    residual = {"kind": "Halved", "every": every} if every else {"kind": "Add"}
    return "rwkv-4-169m", {**changes, "decoder.layers.channel.residual": residual}


MODELS = {
    "plain": mamba(False), "biased": mamba(True), "mamba2": mamba2(), "rwkv": rwkv(0), "rwkv-halved": rwkv(1),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def model(request):
    name, changes = request.param
    changes |= {"width": 16, "decoder.depth": 2, "embedding.tokens.vocab_size": 50, "head.vocab_size": 50}
    model = af.build(af.override(af.spec(name), changes)).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


@torch.no_grad()
def logits(model, ids: Tensor, **inputs) -> Tensor:
    return model(input_ids=ids, **inputs).logits


MASKS = {"left": "000011111111", "right": "111111110000", "between": "110010111011", "both": "001111111100"}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("static", [False, True])
def test_pads_wherever_they_stand(model, mask: str, static: bool) -> None:
    """Results of real tokens and the final state are the same as for the text without pads."""
    real = torch.tensor([bit == "1" for bit in mask])
    is_token = torch.stack((real, torch.ones_like(real)))
    expected = logits(model, IDS[:1, real])
    state = model.new_state(2, capacity=20 if static else None)
    row = torch.cat((is_token, torch.ones(2, 8, dtype=torch.bool)), 1) if static else is_token
    out = logits(model, IDS, attention_mask=row.long(), past_key_values=state)
    close(out[:1, real], expected)
    close(out[1:], logits(model, IDS[1:]))
    plain = model.new_state()
    logits(model, IDS[:1, real], past_key_values=plain)
    for address, slot in plain.stores.items():
        for name, tensor in slot.tensors.items():
            close(state.stores[address].tensors[name][:1], tensor)
    more = torch.tensor([[7, 3, 9]])
    after = logits(model, more.expand(2, -1), past_key_values=state)
    close(after[:1], logits(model, torch.cat((IDS[:1, real], more), 1))[:, -3:])


def test_pads_in_later_calls(model) -> None:
    """A finished row keeps its state while the other continues."""
    state = model.new_state()
    logits(model, IDS[:, :4], past_key_values=state)
    before = {a: {n: t.clone() for n, t in s.tensors.items()} for a, s in state.stores.items()}
    logits(model, IDS[:, 4:5], attention_mask=torch.tensor([[0], [1]]), past_key_values=state)
    logits(model, IDS[:, 5:8], attention_mask=torch.tensor([[0, 0, 0], [1, 1, 1]]), past_key_values=state)
    for address, slot in state.stores.items():
        for name, tensor in slot.tensors.items():
            done, going = before[address][name]
            assert torch.equal(tensor[0], done) and not torch.equal(tensor[1], going)


def test_documents_with_pads_and_what_follows(model) -> None:
    """Two documents in a row, with pads between and after them; decoding continues the last document."""
    documents = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]] * 2)
    mask = torch.tensor([[1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0], [1] * 12])
    state = model.new_state()
    out = logits(model, IDS, document_ids=documents, attention_mask=mask, past_key_values=state)
    pieces = [(0, [0, 1, 2, 3]), (0, [5, 6]), (1, [0, 1, 2, 3, 4]), (1, [5, 6, 7, 8, 9, 10, 11])]
    for row, places in pieces:
        close(out[row, places], logits(model, IDS[row : row + 1, places])[0])
    after = logits(model, torch.tensor([[7], [7]]), past_key_values=state)
    for row, places in pieces[1::2]:
        alone = torch.cat((IDS[row : row + 1, places], torch.tensor([[7]])), 1)
        close(after[row], logits(model, alone)[0, -1:])


def test_a_state_is_copied_by_row(model) -> None:
    state = model.new_state()
    logits(model, IDS[:, :5], past_key_values=state)
    state.reorder(torch.tensor([1, 1, 0]))
    rows = IDS[[1, 1, 0]]
    close(logits(model, rows[:, 5:7], past_key_values=state), logits(model, rows[:, :7])[:, 5:])


def test_a_static_state_stays_where_it_is(model) -> None:
    state = model.new_state(2, capacity=9)
    places = [t.data_ptr() for slot in state.stores.values() for t in slot.tensors.values()]
    for t in range(3):
        logits(model, IDS[:, t : t + 1], past_key_values=state)
    assert places == [t.data_ptr() for slot in state.stores.values() for t in slot.tensors.values()]


def test_the_stream_stays_in_fp32(model) -> None:
    """In bf16, small branches vanish when added to a large stream; residual.float32 prevents it."""
    if model.spec.family == "rwkv":
        pytest.skip("Mamba's own")
    spec, found = model.spec, {}
    for wide in (False, True):
        half = af.build(af.override(spec, {"decoder.layers.mixer.residual.float32": wide})).eval()
        half.load_state_dict(model.state_dict())
        half = half.to(torch.bfloat16)
        out = half(input_ids=IDS, output_hidden_states=True)
        found[wide] = out.hidden_states[-2]
        assert out.logits.dtype == torch.bfloat16
        assert half.new_state().stores["decoder.layers.0.mixer.op"].tensors["state"].dtype == torch.float32
    assert found[True].dtype == torch.float32 and found[False].dtype == torch.bfloat16
    exact = model(input_ids=IDS, output_hidden_states=True).hidden_states[-2]
    assert (found[True] - exact).abs().mean() <= (found[False] - exact).abs().mean()


@pytest.mark.parametrize("family", ["mamba", "mamba2"])
def test_time_steps_start_above_their_floor(family: str) -> None:
    """Log-uniform between 0.001 and 0.1, clamped at the floor: a quarter is above 0.0316."""
    config = {"time_step_floor": 10**-1.5, "hidden_size": 512, "vocab_size": 9, "num_hidden_layers": 1, "state_size": 4}
    config |= {"head_dim": 4, "num_heads": 256, "n_groups": 1} if family == "mamba2" else {}
    spec = families.find(family).read({**config, "architectures": [f"{family.title()}ForCausalLM"]})
    step = torch.nn.functional.softplus(af.build(spec).requires_grad_(False).decoder.layers[0].mixer.op.step_bias)
    assert float(step.min()) == pytest.approx(10**-1.5, rel=1e-4) and 0.08 < float(step.max()) <= 0.1001
    assert abs(float((step > 10**-1.5 * 1.001).float().mean()) - 0.25) < 0.07


def test_published_initialisation() -> None:
    changes = {"decoder.depth": 3, "embedding.tokens.vocab_size": 50, "head.vocab_size": 50}
    spec = af.override(af.spec("mamba-130m"), changes)
    mixer = af.build(spec).requires_grad_(False).decoder.layers[1].mixer.op
    close(mixer.rate, torch.arange(1, 17).log().expand(1536, 16))
    step = torch.nn.functional.softplus(mixer.step_bias)
    assert 0.001 * 0.999 <= step.min() < 0.0012 and 0.08 < step.max() <= 0.1001
    assert abs(float(step.log().mean()) - torch.tensor([0.001, 0.1]).log().mean()) < 0.15
    assert mixer.skip.eq(1).all() and mixer.conv.bias.eq(0).all()
    bound = value_at(spec, "decoder.layers.mixer.op").rank ** -0.5
    assert 0.95 * bound < mixer.step.weight.abs().max() <= bound
    assert 0.95 < mixer.down.weight.abs().max() * 1536**0.5 <= 1
    assert 0.95 < mixer.conv.weight.abs().max() * 4**0.5 <= 1
