"""BEHAVIOUR.md, Numerics, and cached decoding (G1) on the state interface, for every class of every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import (
    TOKEN_LABELS,
    Case,
    af_walk,
    belonging,
    cases,
    close,
    coarse_graph,
    family,
    is_causal,
    is_encoder_decoder,
    is_text,
    make_inputs,
    mask_for,
    one_each,
    ours,
    over,
    over_catalogue,
    results,
    shallow,
    shape,
    shared,
    spec_of,
    structure,
)  # fmt: skip
from torch import Tensor

import anyformer as af
from anyformer.parts.attention.lsh import LSHAttention
from anyformer.parts.head.classify import MultipleChoiceHead
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.mask import Window
from anyformer.transforms.recompute import recompute
from small import filled_with_nan

KERNELS = ("eager", "sdpa")
PADS = 32


@torch.no_grad()
def run(model: Any, inputs: dict[str, Any], kernel: str = "auto", **more: Any) -> dict[str, tuple[Tensor, bool]]:
    model.kernel = kernel
    try:
        return results(model.spec, model(**belonging(model.spec, inputs), **more))
    finally:
        model.kernel = "auto"


def side(spec: Any) -> str:
    """Return the prefix of the inputs that a causal model generates."""
    return "decoder_" if is_encoder_decoder(spec) else ""


def masked(inputs: dict[str, Any], spec: Any) -> dict[str, Any]:
    """Return the same inputs with explicit attention masks of ones."""
    out = dict(inputs)
    if (mask := mask_for(spec, inputs)) is not None:
        out["attention_mask"] = mask
    if is_encoder_decoder(spec):
        out["decoder_attention_mask"] = torch.ones_like(inputs["decoder_input_ids"])
    return out


def pad(inputs: dict[str, Any], where: str, names: tuple[str, ...], token: int = 0) -> dict[str, Any]:
    """Pad the named inputs by `PADS` on one side, and return the mask."""
    widths = (PADS, 0) if where == "left" else (0, PADS)

    def longer(name: str, value: Tensor) -> Tensor:
        return F.pad(value, (0, 0, *widths) if name in STEPS else widths, value=0 if "mask" in name else token)

    return {**inputs, **{name: longer(name, inputs[name]) for name in names if name in inputs}}


STEPS = ("states", "actions", "rewards", "returns_to_go", "input_features", "inputs_embeds")  # (batch, steps, numbers)
TOKEN_INPUTS = ("input_ids", "attention_mask", "global_attention_mask", *TOKEN_LABELS)


@over_catalogue("N1", structure)
def test_n1_causality(case: Case) -> None:
    spec, model = spec_of(case), shared(case)
    if not is_causal(spec):
        return not_causal(case)
    inputs = make_inputs(case, batch=1)
    name, at = f"{side(spec)}input_ids" if is_text(spec) or side(spec) else spec.embedding.inputs[0], 9
    other = inputs[name].clone()
    other[:, at] = other[:, at] + 1 if other.is_floating_point() else torch.where(other[:, at] == 6, 7, 6)
    for kernel in KERNELS:
        before, after = run(model, inputs, kernel), run(model, {**inputs, name: other}, kernel)
        for key, (value, per_token) in before.items():
            if per_token:
                place = at * (value.shape[1] // other.shape[1])  # a time step may be several tokens
                close(after[key][0][:, :place], value[:, :place], 1e-6)
                assert not torch.allclose(after[key][0][:, place:], value[:, place:]), "the change must show somewhere"


def not_causal(case: Case) -> None:
    """Encoders are bidirectional: the last token reaches the first output, unless the case declares otherwise."""
    spec = spec_of(case)
    if not is_text(spec):
        return
    inputs, model = make_inputs(case, batch=1), shared(case)
    other = inputs["input_ids"].clone()
    other[..., -1] = torch.where(other[..., -1] == 6, 7, 6)
    before, after = run(model, inputs), run(model, {**inputs, "input_ids": other})
    both = any(not torch.allclose(value[:, :1], after[key][0][:, :1]) for key, (value, _) in before.items())
    read = spec.towers[0] if spec.towers else spec
    assert both == (read.encoder.sees != "past")


@over_catalogue("N2", structure)
def test_n2_kernels_agree(case: Case) -> None:
    kernels_agree(case, torch.float32)


@over_catalogue("N2", structure)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_n2_kernels_agree_in_half_precision(case: Case, dtype: torch.dtype) -> None:
    kernels_agree(case, dtype)


def kernels_agree(case: Case, dtype: torch.dtype) -> None:
    spec, model = spec_of(case), ours(case, dtype=dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in make_inputs(case).items()}
    batches = [inputs]
    if "attention_mask" in spec.embedding.inputs and is_text(spec):
        batches += [pad(masked(inputs, spec), where, TOKEN_INPUTS) for where in ("left", "right")]
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    routed = any(getattr(part, "routes", False) or isinstance(part, LSHAttention) for _, part in af_walk(spec))
    for batch in batches:
        eager, sdpa = run(model, batch, "eager"), run(model, batch, "sdpa")
        for key, (value, per_token) in eager.items():
            assert value.dtype == dtype and value.isfinite().all()
            found, value = sdpa[key][0].float(), value.float()
            if routed and dtype != torch.float32:
                # rounding can send a token near a tie to another expert or bucket: most values must agree
                bad = (found - value).abs() > tolerance * max(1.0, float(value.abs().max()))
                assert not per_token or bad.float().mean() <= 0.25, f"{bad.float().mean():.0%} of the values differ"
            else:
                close(found, value, tolerance)


@over_catalogue("N3", structure)
def test_n3_a_batch_is_its_rows(case: Case) -> None:
    spec, model = spec_of(case), shared(case)
    inputs = make_inputs(case, batch=3)
    whole = run(model, inputs)
    for row in range(3):
        alone = run(model, {k: v[row : row + 1] for k, v in inputs.items()})
        for key, (value, _) in alone.items():
            close(whole[key][0][row : row + 1], value)
            if isinstance(spec.head, LMHead) and key == "logits":
                assert torch.equal(whole[key][0][row].argmax(-1), value[0].argmax(-1))


@over_catalogue("N4", structure)
@pytest.mark.parametrize("where", ["left", "right"])
def test_n4_padding_changes_nothing(case: Case, where: str) -> None:
    spec, model = spec_of(case), shared(case)
    if "attention_mask" not in spec.embedding.inputs:
        pytest.skip("this model takes no padding")
    lives = "time steps" in spec.embedding.gives
    if not is_text(spec) and not lives and where == "left" and spec.embedding.hides:
        pytest.skip("recordings are padded at their end")
    inputs = masked(make_inputs(case), spec)
    names = TOKEN_INPUTS if is_text(spec) else (spec.embedding.inputs[0], "attention_mask")
    names = spec.embedding.inputs if lives else names
    pool = None if spec.head is None else spec.head.pool
    token = 0 if pool is None else pool.take.padding_token or 0
    cases_ = [pad(inputs, where, names, token)] if spec.embedding.hides else []  # or all of it is read
    if is_encoder_decoder(spec):
        cases_.append(pad(inputs, where, ("decoder_input_ids", "decoder_attention_mask")))
    if not cases_:
        pytest.skip("this model takes no padding")
    plain = run(model, inputs)
    for batch in cases_:
        for kernel in KERNELS:
            padded = run(model, batch, kernel)
            for key, (value, per_token) in plain.items():
                found = padded[key][0]
                if per_token and found.shape[1] != value.shape[1]:
                    T = value.shape[1]
                    found = found[:, -T:] if where == "left" else found[:, :T]
                close(found, value)


@over_catalogue("N5", structure)
def test_n5_a_row_that_sees_nothing_is_finite(case: Case) -> None:
    spec = spec_of(case)
    if "attention_mask" not in spec.embedding.inputs:
        pytest.skip("this model takes no padding")
    model = ours(case)
    inputs = masked(make_inputs(case, labels=True), spec)
    inputs["attention_mask"][0] = 0
    for kernel in KERNELS:
        model.kernel = kernel
        model.zero_grad()
        out = model(**inputs)
        # without a frame no alignment is possible, and CTC's loss is infinite, as published
        total = out[0].float().pow(2).mean() if out.loss is None or isinstance(spec.head, CTCHead) else out.loss
        assert total.isfinite()
        total.backward()
        assert all(v.isfinite().all() for v in out.values() if isinstance(v, Tensor) and v.dim() > 0)
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@over_catalogue("N6", shape)
def test_n6_nan_names_its_address(case: Case) -> None:
    model = ours(case, dtype=torch.float16)
    inputs = {k: v.half() if v.is_floating_point() else v for k, v in make_inputs(case).items()}
    addresses = [n for n, p in model.named_parameters() if ".1." in n and p.dim() == 2] or [
        n for n, p in model.named_parameters() if p.dim() > 1 and "layers" in n
    ]
    address = addresses[0]
    with torch.no_grad():
        model.get_parameter(address).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=address.rpartition(".")[0].replace(".", r"\.")):
        model(**inputs)
    # overflow, not a bad weight: the address of the module is found by a second run
    with torch.no_grad():
        model.get_parameter(address).fill_(6e4)
        try:
            out = model(**inputs)
        except FloatingPointError as error:
            assert any(place in str(error) for place in ("layers", "head", "stages", "condition"))
        else:  # a norm may have brought the overflow back into range
            assert not any(bool(v.isnan().any()) for v in out.values() if isinstance(v, Tensor))


@over_catalogue("N7", structure)
def test_n7_packed_documents_equal_separate_ones(case: Case) -> None:
    spec = spec_of(case)
    if "document_ids" not in spec.embedding.inputs or isinstance(spec.head, MultipleChoiceHead):
        pytest.skip("nothing to pack here")
    lengths = (5, 9, 3)
    inputs = make_inputs(case, batch=1, length=sum(lengths), labels=False)
    token_names = [n for n in (*TOKEN_INPUTS, "decoder_input_ids") if n in inputs]
    inputs = {n: inputs[n] for n in token_names} | {n: v for n, v in inputs.items() if n not in token_names}
    cuts = torch.tensor([0, 5, 14, 17])
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    if is_encoder_decoder(spec):
        inputs["decoder_input_ids"] = inputs["input_ids"].clone() % spec.decoder_embedding.tokens.vocab_size
    pieces = [{n: v[:, cuts[i] : cuts[i + 1]] if n in token_names else v for n, v in inputs.items()} for i in range(3)]
    packed = {**inputs, "document_ids": documents}
    if is_encoder_decoder(spec):
        packed["decoder_document_ids"] = documents
    labelled = isinstance(spec.head, LMHead)
    if labelled:
        name = "decoder_input_ids" if is_encoder_decoder(spec) else "input_ids"
        packed["labels"] = packed[name] % spec.head.vocab_size
        for i, piece in enumerate(pieces):
            piece["labels"] = packed["labels"][:, cuts[i] : cuts[i + 1]]
    model = ours(case)
    for kernel in KERNELS:
        model.kernel = kernel
        together = model(**packed)
        alone = [model(**belonging(spec, piece)) for piece in pieces]
        for key, (value, per_token) in results(spec, together).items():
            if per_token:
                close(value, torch.cat([results(spec, out)[key][0] for out in alone], dim=1))
        if labelled:
            shift = int(spec.head.shift)
            weights = [n - shift for n in lengths]
            mean = sum(w * out.loss for w, out in zip(weights, alone, strict=True)) / sum(weights)
            close(together.loss, mean)
            learned = [p for p in model.parameters() if p.requires_grad]
            grads = [torch.autograd.grad(loss, learned, allow_unused=True) for loss in (together.loss, mean)]
            for a, b in zip(*grads, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    close(a, b)


def train_step(model: Any, inputs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    out = model(**inputs)
    loss = out.loss if out.mc_loss is None else out.loss + out.mc_loss  # two heads: the trainer adds their losses
    if loss is None:
        loss = sum(value.float().pow(2).mean() for value, _ in results(model.spec, out).values())
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@over_catalogue("N8", structure)
def test_n8_seeds_recomputation_and_gradients(case: Case) -> None:
    spec, inputs = spec_of(case), make_inputs(case, labels=True)
    with filled_with_nan():
        first = af.build(spec, seed=3)
    again, other = af.build(spec, seed=3), af.build(spec, seed=4)
    drawn, same, others = first.state_dict(), again.state_dict(), other.state_dict()
    for name, tensor in drawn.items():
        assert torch.equal(tensor, same[name]), name
        assert tensor.isfinite().all(), name
    assert any(not torch.equal(tensor, others[name]) for name, tensor in drawn.items())
    runs = []
    for model in (first.train(), again.train()):
        torch.manual_seed(5)
        runs.append(train_step(model, inputs))
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(runs[0][1][n], runs[1][1][n]) for n in runs[0][1])
    model = ours(case)  # random everywhere, so that no gradient vanishes because of a zero weight
    _, grads = train_step(model, inputs)
    silent = {n for n, p in model.named_parameters() if p.requires_grad} - grads.keys()
    # a code is chosen by a maximum, which has a gradient only in training
    idle = ("mask_token", "mask_embedding", "quantizer.choose")
    for name, tower in getattr(spec, "input_towers", {}).items():  # nor anything after the hidden states that are read
        depth = tower.model.encoder.depth
        last = max(layer % (depth + 1) for layer in tower.layers)
        idle += (f"{name}.model.head", *(f"{name}.model.encoder.layers.{i}." for i in range(last, depth)))
    unused = {n for n, p in model.named_parameters() if any(name in n for name in idle)}
    assert silent <= unused, f"no gradient: {silent - unused}"
    _, recomputed = train_step(recompute(ours(case)), inputs)
    for name, grad in grads.items():
        close(recomputed[name], grad, 1e-6)


@over_catalogue("G1", structure)
def test_g1_cached_decoding_equals_no_cache(case: Case) -> None:
    spec, model = spec_of(case), shared(case)
    if not is_causal(spec):
        pytest.skip("this model does not decode")
    inputs = make_inputs(case, batch=2)
    names = spec.embedding.inputs if "time steps" in spec.embedding.gives else (f"{side(spec)}input_ids",)
    new = {name: inputs.pop(name) for name in names if name in inputs}
    rest = {k: v for k, v in inputs.items() if k not in TOKEN_LABELS}
    T = new[names[0]].shape[1]
    full = run(model, {**rest, **new}, use_cache=False)
    for state in (model.new_state(), model.new_state(2, capacity=3 * T + 3)):
        for start, end in [(0, 4), *((t, t + 1) for t in range(4, T - 3)), (T - 3, T)]:  # prompt, steps, a chunk
            step = run(model, {**rest, **{n: v[:, start:end] for n, v in new.items()}}, past_key_values=state)
            for key, (value, per_token) in full.items():
                if per_token:
                    each = value.shape[1] // T  # tokens of a time step
                    close(step[key][0], value[:, start * each : end * each])


@over_catalogue("G1", structure)
@pytest.mark.parametrize("where", ["left", "right"])
def test_g1_decoding_goes_on_after_padding(case: Case, where: str) -> None:
    """N4 for caches: a padded prompt gives the same cache as the prompt without padding."""
    spec, model = spec_of(case), shared(case)
    if not is_causal(spec) or not isinstance(spec.head, LMHead):
        pytest.skip("this model does not write")
    if where == "right" and any(isinstance(part, Window) for _, part in af_walk(spec)):
        pytest.skip("a window counts places, pads among them, as published: behind 32 pads it sees no text")
    inputs = {k: v for k, v in make_inputs(case, batch=2).items() if k not in TOKEN_LABELS}
    name, mask_name = f"{side(spec)}input_ids", f"{side(spec)}attention_mask"
    ids = inputs.pop(name)
    prompt, new = ids[:, :6], ids[:, 6:9]
    plain = run(model, {**inputs, name: ids[:, :9]}, use_cache=False)["logits"][0][:, 6:]
    mask = torch.ones_like(prompt)
    padded = pad({name: prompt, mask_name: mask}, where, (name, mask_name))
    state = model.new_state()
    run(model, {**inputs, **padded}, past_key_values=state)
    row = padded[mask_name]
    first = getattr(spec, spec.target).numbering.first
    for t in range(3):
        row = torch.cat((row, torch.ones(2, 1, dtype=row.dtype)), dim=1)
        place = {f"{side(spec)}position_ids": torch.tensor([[first + 6 + t]])}
        step = {**inputs, name: new[:, t : t + 1], mask_name: row, **place}
        close(run(model, step, past_key_values=state)["logits"][0][:, 0], plain[:, t])


# A forward pass, for every kind of graph. G5 (test_generation.py) compiles the cached step every day;
# here it runs in `make test-all`, and so do every family, all layers, and inductor for all.
COMPILED = [case for case in cases() if "N9" not in case.skip]


def writes(spec: Any) -> bool:
    return is_causal(spec) and isinstance(spec.head, LMHead)


@over_catalogue("N9", coarse_graph)
def test_n9_compiled_equals_eager(case: Case) -> None:
    compiled_equals_eager(case, shallow(case), "aot_eager")


ONE_PER_KIND = {"ViTForImageClassification", "MambaForCausalLM"}  # for decoders, G5 has one (test_generation.py)


@pytest.mark.timeout(1200)  # a cold compiler on a busy machine
@pytest.mark.compiler
@over([c for c in cases() if c.id in ONE_PER_KIND], group="inductor")
def test_n9_inductor_for_one_of_each_kind(case: Case) -> None:
    compiled_equals_eager(case, shallow(case), "inductor")


@pytest.mark.slow
@over([case for case in COMPILED if writes(spec_of(case))])
def test_n9_compiled_steps_equal_eager(case: Case) -> None:
    compiled_steps_equal_eager(case, shallow(case), "aot_eager")


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@over(one_each(COMPILED, family))
def test_n9_every_layer(case: Case, backend: str) -> None:
    compiled_equals_eager(case, shared(case), backend)
    if writes(spec_of(case)):
        compiled_steps_equal_eager(case, shared(case), backend)


def compiled_equals_eager(case: Case, model: Any, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    options = {"use_cache": False} if is_causal(model.spec) else {}
    for seed in (0, 1):
        inputs = masked(make_inputs(case, seed=seed), model.spec)
        with torch.no_grad():
            mine = results(model.spec, compiled(**inputs, **options))
        for key, (value, _) in run(model, inputs, **options).items():
            close(mine[key][0], value)


def compiled_steps_equal_eager(case: Case, model: Any, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    inputs = {k: v for k, v in make_inputs(case).items() if k not in TOKEN_LABELS}
    name = f"{side(model.spec)}input_ids"
    ids = inputs.pop(name)
    states = [model.new_state(2, capacity=12) for _ in range(2)]
    for state in states:
        run(model, {**inputs, name: ids[:, :5]}, past_key_values=state)
    for t in (5, 6):
        with torch.no_grad():
            step = compiled(**inputs, **{name: ids[:, t : t + 1]}, past_key_values=states[0])
        expected = run(model, {**inputs, name: ids[:, t : t + 1]}, past_key_values=states[1])
        close(step.logits, expected["logits"][0])


def test_declared_exceptions_have_reasons() -> None:
    lines = {f"N{i}" for i in range(1, 10)} | {f"L{i}" for i in range(1, 8)} | {"G1", "I2"}
    for case in cases():
        for line, reason in case.skip.items():
            assert line in lines and len(reason) > 20, f"{case.id}: {line} needs a published reason"
