"""BEHAVIOUR.md, Numerics, and cached decoding (G1) on the state interface, for every class of every family."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import (
    TOKEN_LABELS,
    Case,
    af_walk,
    cases,
    close,
    coarse_graph,
    family,
    holds,
    is_causal,
    is_encoder_decoder,
    is_text,
    make_inputs,
    mask_for,
    one_each,
    ours,
    over,
    over_catalogue,
    shallow,
    shape,
    shared,
    spec_of,
    structure,
)  # fmt: skip
from torch import Tensor

import anyformer as af
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT, KERNELS, PADS, SIDES
from anyformer.evaluate.model_outputs import TOKEN_INPUTS, outputs, pad, results
from anyformer.parts.attention.lsh import LSHAttention
from anyformer.parts.head.classify import MultipleChoiceHead
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.mask import Window
from small import filled_with_nan


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


@over_catalogue("N1", structure)
def test_n1_causality(case: Case) -> None:
    if not is_causal(spec_of(case)):
        return not_causal(case)
    holds(invariants.check_causality, shared(case), make_inputs(case, batch=1), EXACT, must_show=True)


def not_causal(case: Case) -> None:
    """The last token reaches the first output, unless encoder and head see only the past."""
    spec = spec_of(case)
    if not is_text(spec):
        return
    inputs, model = make_inputs(case, batch=1), shared(case)
    other = inputs["input_ids"].clone()
    other[..., -1] = torch.where(other[..., -1] == 6, 7, 6)
    before, after = outputs(model, inputs), outputs(model, {**inputs, "input_ids": other})
    both = any(not torch.allclose(value[:, :1], after[key][0][:, :1]) for key, (value, _) in before.items())
    read = spec.towers[0] if spec.towers else spec
    head_sees_all = spec.head is not None and spec.head.sees == "all"  # the likely spans of a text
    assert both == (head_sees_all or read.encoder.sees != "past")


@over_catalogue("N2", structure)
def test_n2_kernels_agree(case: Case) -> None:
    kernels_agree(case, torch.float32)


@over_catalogue("N2", structure)
def test_n2_kernels_agree_in_bfloat16(case: Case) -> None:
    kernels_agree(case, torch.bfloat16)


@over_catalogue("N2", coarse_graph)  # bfloat16 shows Parts with outputs in another dtype
def test_n2_kernels_agree_in_float16(case: Case) -> None:
    kernels_agree(case, torch.float16)


@over_catalogue("N2", structure)
def test_n2_training_under_autocast(case: Case) -> None:
    """Loss and gradients are finite. The loss has the accuracy of bf16, which rounds to 3 digits."""
    holds(invariants.check_mixed_precision, ours(case), make_inputs(case), 0.1)


def kernels_agree(case: Case, dtype: torch.dtype) -> None:
    spec, model, inputs = spec_of(case), ours(case, dtype=dtype), make_inputs(case)
    batches = [inputs]
    if "attention_mask" in spec.embedding.inputs and is_text(spec):
        masks = masked(inputs, spec)
        batches += [pad(masks, TOKEN_INPUTS, *pads) for pads in ((PADS, 0), (0, PADS))]
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    routed = any(getattr(part, "routes", False) or isinstance(part, LSHAttention) for _, part in af_walk(spec))
    for batch in batches:
        share = 0.25 if routed and dtype != torch.float32 else 0.0
        holds(invariants.check_kernels, model, batch, tolerance, share=share)


@over_catalogue("N3", structure)
def test_n3_a_batch_is_its_rows(case: Case) -> None:
    greedy = isinstance(spec_of(case).head, LMHead)
    holds(invariants.check_rows, shared(case), make_inputs(case, batch=3), greedy=greedy)


@over_catalogue("N4", structure)
@pytest.mark.parametrize("where", SIDES)
def test_n4_padding_changes_nothing(case: Case, where: str) -> None:
    holds(invariants.check_padding, shared(case), make_inputs(case), sides=[where])


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
    spec, inputs = spec_of(case), make_inputs(case, batch=1)
    if is_encoder_decoder(spec):
        inputs["decoder_input_ids"] = inputs["input_ids"] % spec.decoder_embedding.tokens.vocab_size
    if "document_ids" not in spec.embedding.inputs or isinstance(spec.head, MultipleChoiceHead):
        pytest.skip("nothing to pack here")
    # a refusal is an error here
    failure = invariants.failure(invariants.check_packing, ours(case), inputs, gradients=True)
    assert failure is None, failure


@over_catalogue("N8", structure)
def test_n8_seeds_recomputation_and_gradients(case: Case) -> None:
    spec = spec_of(case)
    # a code is chosen by a maximum, which has a gradient only in training
    idle: tuple[str, ...] = ("mask_token", "mask_embedding", "quantizer.choose")
    for name, tower in getattr(spec, "input_towers", {}).items():  # nor anything after the hidden states that are read
        depth = tower.model.encoder.depth
        last = max(layer % (depth + 1) for layer in tower.layers)
        idle += (f"{name}.model.head", *(f"{name}.model.encoder.layers.{i}." for i in range(last, depth)))

    other, seen = af.build(spec, seed=4).state_dict(), []

    def build(spec: Any, seed: int) -> Any:
        with filled_with_nan():
            built = af.build(spec, seed=seed)
        seen.append(any(not torch.equal(tensor, other[name]) for name, tensor in built.state_dict().items()))
        return built

    holds(
        invariants.check_gradients, ours(case), make_inputs(case, labels=True), EXACT,
        build=build, learns=lambda name: not any(each in name for each in idle), as_given=True,
    )  # fmt: skip
    assert all(seen) and len(seen) > 1, "another seed gives the same weights"


@over_catalogue("", structure)
def test_counted_is_built(case: Case) -> None:
    holds(invariants.check_counting, shared(case), {})


@over_catalogue("", shape)
def test_l5_saved_is_loaded(case: Case, tmp_path: Path) -> None:
    """Our format; for Hugging Face's, and with every structure, see test_loading.py."""
    holds(invariants.check_saving, shared(case), make_inputs(case), folder=tmp_path)


@over_catalogue("G1", structure)
def test_g1_cached_decoding_equals_no_cache(case: Case) -> None:
    assert shared(case).remembers or not is_causal(spec_of(case))
    holds(invariants.check_cached_decoding, shared(case), make_inputs(case))


@over_catalogue("G1", structure)
@pytest.mark.parametrize("where", SIDES)
def test_g1_decoding_goes_on_after_padding(case: Case, where: str) -> None:
    """N4 for caches: a padded prompt gives the same cache as the prompt without padding."""
    spec = spec_of(case)
    if not is_causal(spec) or not isinstance(spec.head, LMHead):
        pytest.skip("this model does not write")
    if where == "right" and any(isinstance(part, Window) for _, part in af_walk(spec)):
        pytest.skip("a window counts places, pads among them, as published: behind 32 pads it sees no text")
    inputs = {n: v for n, v in make_inputs(case, batch=3).items() if n not in TOKEN_LABELS}
    holds(invariants.check_padded_prompts, shared(case), inputs, sides=[where], pads=PADS, published=True)


# A forward pass, for every kind of graph. G5 (test_generation.py) compiles the cached step every day;
# here it runs in `make test-all`, and so do every family, all layers, and inductor for all.
COMPILED = [case for case in cases() if "N9" not in case.skip]


def writes(spec: Any) -> bool:
    return is_causal(spec) and isinstance(spec.head, LMHead)


def only_forward(case: Case) -> frozenset[Any]:
    """Return the kinds of model and stack that no compiled step shows (G5 in test_generation.py)."""
    return coarse_graph(case) - SHOWN_BY_STEPS


WRITERS = [case for case in COMPILED if writes(spec_of(case))]
SHOWN_BY_STEPS = frozenset().union(*map(coarse_graph, WRITERS))


@over_catalogue("N9", only_forward)
def test_n9_compiled_equals_eager(case: Case) -> None:
    compiled_equals_eager(case, shallow(case), "aot_eager")


ONE_PER_KIND = {"ViTForImageClassification", "MambaForCausalLM"}  # for decoders, G5 has one (test_generation.py)


@pytest.mark.slow  # every day: the step of a decoder (G5), these graphs (above), and the scan's operator (opcheck)
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
        for key, (value, _) in outputs(model, inputs, **options).items():
            close(mine[key][0], value)


def compiled_steps_equal_eager(case: Case, model: Any, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    inputs = {k: v for k, v in make_inputs(case).items() if k not in TOKEN_LABELS}
    name = f"{side(model.spec)}input_ids"
    ids = inputs.pop(name)
    states = [model.new_state(2, capacity=12) for _ in range(2)]
    for state in states:
        outputs(model, {**inputs, name: ids[:, :5]}, past_key_values=state)
    for t in (5, 6):
        with torch.no_grad():
            step = compiled(**inputs, **{name: ids[:, t : t + 1]}, past_key_values=states[0])
        expected = outputs(model, {**inputs, name: ids[:, t : t + 1]}, past_key_values=states[1])
        close(step.logits, expected["logits"][0])


def test_declared_exceptions_have_reasons() -> None:
    behaviour = (Path(__file__).parents[1] / "BEHAVIOUR.md").read_text()
    lines = set(re.findall(r"^\| ([LNGI]\d) \|", behaviour, re.MULTILINE))
    for case in cases():
        for line, reason in case.skip.items():
            assert line in lines and len(reason) > 20, f"{case.id}: {line} needs a published reason"
