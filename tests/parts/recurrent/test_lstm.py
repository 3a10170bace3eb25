"""The LSTM and the GRU against torch's, and additive attention against its formula."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.kernels.capture import without_reading
from anyformer.parts.attention.bahdanau import AdditiveAttention
from anyformer.parts.mask import Causal
from anyformer.parts.recurrent.lstm import GRU, LSTM, Recurrent
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.parts.recurrent.s4 import S4
from anyformer.runtime.context import Memory
from small import close, compiled_equals_eager, context, made
from tiny import CONFIGS

D, T = 10, 7


def oracle(module: Any) -> Any:
    """torch.nn.LSTM or GRU with the same weights; the LSTM's second bias is 0."""
    theirs = {4: torch.nn.LSTM, 3: torch.nn.GRU}[module.num_gates](D, module.width, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(module.gates.weight)
        theirs.weight_hh_l0.copy_(module.recurrent.weight)
        theirs.bias_ih_l0.copy_(module.gates.bias)
        theirs.bias_hh_l0.zero_()
        if module.recurrent.bias is not None:
            theirs.bias_hh_l0.copy_(module.recurrent.bias)
    return theirs


KINDS = pytest.mark.parametrize("kind", [LSTM, GRU])


@pytest.mark.parametrize("width", [None, 6])
@KINDS
def test_what_is_read_is_torchs(kind: type[Recurrent], width: int | None) -> None:
    """With torch's kernel, and step by step."""
    module, x = made(kind(width=width), D), torch.randn(2, T, D)
    expected, last = oracle(module)(x)
    close(module(x, context(T)), expected if module.o is None else module.o(expected))
    y, state = module.steps(x, x.new_zeros(len(module.states), 2, module.width), PackedRows())
    close(y, expected)
    for mine, theirs in zip(state, last if kind is LSTM else [last], strict=True):
        close(mine, theirs[0])


def test_compiled() -> None:
    modules = [made(part, D) for part in (LSTM(), GRU(), S4(states=4))]
    compiled_equals_eager(lambda x: [module(x, context(3)) for module in modules], torch.randn(2, 3, D))


@KINDS
def test_weights_start_as_those_of_torch(kind: type[Recurrent]) -> None:
    """Uniform within 1 / sqrt(W), whatever the width of the stream."""
    spec = af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {"decoder.layers.attention.op": kind(width=25)})
    op = af.build(spec, seed=0).decoder.layers[0].attention.op
    for weight in (op.gates.weight, op.recurrent.weight):
        assert -0.2 <= float(weight.min()) < -0.19 and 0.19 < float(weight.max()) <= 0.2
        assert float(weight.std()) == pytest.approx(0.2 / 3**0.5, rel=0.05)


@KINDS
def test_a_padded_prompt_is_remembered_as_it_is(kind: type[Recurrent]) -> None:
    """Pads do not change the state: the next token gets the same result as after the text without pads."""
    spec = af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {"decoder.layers.attention.op": kind()})
    model, ids = af.build(spec).eval(), torch.randint(5, 50, (1, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    with torch.no_grad():
        padded = model(input_ids=ids[:, :5], attention_mask=mask[:, :5], use_cache=True).past_key_values
        right = torch.cat((ids[:, 2:5], ids[:, :2]), 1)
        behind = model(input_ids=right, attention_mask=mask[:, :5].flip(1), use_cache=True).past_key_values
        alone = model(input_ids=ids[:, 2:5], use_cache=True).past_key_values
        for name, tensor in alone.stores["decoder.layers.1.attention.op"].tensors.items():
            close(behind.stores["decoder.layers.1.attention.op"].tensors[name], tensor)
        found = model(input_ids=ids[:, 5:], attention_mask=mask, past_key_values=padded).logits
        close(found, model(input_ids=ids[:, 5:], past_key_values=alone).logits)


@pytest.mark.parametrize("reading", [nullcontext, without_reading])
@KINDS
def test_documents_and_pads(kind: type[Recurrent], reading: Any) -> None:
    """N4 and N7: a padded or packed text gives the same result as a text in its own row, with torch's kernel and,
    where values cannot be read, token by token."""
    module, a, b = made(kind(width=6), D), torch.randn(1, 3, D), torch.randn(1, 4, D)
    first, second = module(a, context(3)), module(b, context(4))
    rows = torch.cat((torch.cat((a, b), 1), torch.cat((b, a), 1)))
    with reading():
        packed = module(rows, context(7, documents=torch.tensor([[0] * 3 + [1] * 4, [0] * 4 + [1] * 3])))
    close(packed, torch.cat((torch.cat((first, second), 1), torch.cat((second, first), 1))))
    real = torch.tensor([[False] * 4 + [True] * 3])
    close(module(torch.cat((b, a), 1), context(7, is_token=real))[:, 4:], first)
    close(module(torch.cat((a, b), 1), context(7, is_token=real.flip(1)))[:, :3], first)


@KINDS
def test_documents_of_very_different_lengths(kind: type[Recurrent], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read token by token, because rows of their own would be nearly all padding."""
    module, x = made(kind(), D), torch.randn(1, 40, D)
    documents = torch.arange(40).clamp(min=20)[None]
    texts = [x[:, documents[0] == each] for each in documents.unique()]
    expected = torch.cat([module(text, context(text.shape[1])) for text in texts], 1)
    monkeypatch.setattr(module, "all_at_once", None)
    close(module(x, context(40, documents=documents)), expected)


def test_additive_attention() -> None:
    """w tanh(q + k), then softmax over visible tokens; the values are the states."""
    module, x = made(AdditiveAttention(width=6, mask=Causal()), D), torch.randn(2, T, D)
    expected = torch.zeros(2, T, D)
    for t in range(T):
        inner = torch.tanh(module.q(x[:, t])[:, None] + module.k(x[:, : t + 1]))
        weights = (inner @ module.score.weight[0]).softmax(-1)
        expected[:, t] = torch.einsum("bs,bsd->bd", weights, x[:, : t + 1])
    close(module(x, context(T)), module.o(expected))
    compiled_equals_eager(lambda x: module(x, context(T)), x)


def test_additive_attention_of_a_memory() -> None:
    module = made(AdditiveAttention(memory=True, memory_width=4), D)
    x, states = torch.randn(2, T, D), torch.randn(2, 5, 4)
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    scores = torch.tanh(module.q(x)[:, :, None] + module.k(states)[:, None]) @ module.score.weight[0]
    weights = scores.masked_fill(~real[:, None], float("-inf")).softmax(-1)
    close(module(x, context(T, memory=Memory(states, real))), module.o(weights @ states))
    with pytest.raises(ValueError, match=r"AdditiveAttention\(memory=True\).*no mask"):
        AdditiveAttention(memory=True, mask=Causal())
