"""BEHAVIOUR.md, Generation, for every class of every family that generates text. A family adds cases and no test
code."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import (
    TOKEN_LABELS,
    Case,
    cases,
    close,
    coarse_graph,
    decoding,
    is_causal,
    is_encoder_decoder,
    is_text,
    make_inputs,
    ours,
    over,
    published,
    shallow,
    shared,
    spec_of,
)
from torch import Tensor

import anyformer as af
from anyformer.generation import fast
from anyformer.models import Call
from anyformer.parts.head.language import LMHead
from anyformer.parts.position.numbering import WithoutToken
from anyformer.runtime.state import State

transformers = pytest.importorskip("transformers")


def writes(case: Case) -> bool:
    """A model whose outputs all depend on the length of the text declares this, with the reason, under G1 in its
    case."""
    spec = spec_of(case)
    return is_causal(spec) and isinstance(spec.head, LMHead) and "G1" not in case.skip


WRITERS = [case for case in cases() if writes(case)]
LENGTHS = (7, 3, 5)  # number of prompts per batch
NEW = 9
ONE_WRITER_PER_KIND = ("GPT2LMHeadModel", "T5ForConditionalGeneration", "MambaForCausalLM")
over_writers = over(WRITERS, decoding)
over_states = over(WRITERS, coarse_graph)


def in_ways(name: str, ways: dict[str, Any], everyday: str, writers: Any = over_writers) -> Any:
    """Parametrise a test over generating models and decoding methods. Methods do not depend on the family: `everyday`
    methods run for every model, the others for one model of each kind, and for all in `make test-all`."""
    found = []
    for row in writers.args[1]:
        for way, value in ways.items():
            later = way not in everyday.split() and row.id not in ONE_WRITER_PER_KIND
            marks = [*row.marks, pytest.mark.slow] if later else row.marks
            found.append(pytest.param(*row.values, value, marks=marks, id=f"{row.id}-{way}"))
    return pytest.mark.parametrize(("case", name), found)


def prompts(case: Case, rows: tuple[int, ...] = (0, 1, 2), side: str = "") -> dict[str, Any]:
    """Return prompts of unequal length: padded on the left for a decoder and on the right for an encoder by default."""
    spec = spec_of(case)
    inputs = {n: v[list(rows)] for n, v in make_inputs(case, batch=3, length=max(LENGTHS)).items()}
    inputs = {n: v for n, v in inputs.items() if n not in ("decoder_input_ids", *TOKEN_LABELS)}
    if not is_text(spec):
        return inputs
    longest = max(LENGTHS[row] for row in rows)
    ids, masks = [], []
    left = (side or ("right" if is_encoder_decoder(spec) else "left")) == "left"
    for n, row in enumerate(rows):
        gap = longest - LENGTHS[row]
        widths = (gap, 0) if left else (0, gap)
        ids.append(F.pad(inputs["input_ids"][n, : LENGTHS[row]], widths, value=0))
        masks.append(F.pad(torch.ones(LENGTHS[row], dtype=torch.long), widths))
    return {**inputs, "input_ids": torch.stack(ids), "attention_mask": torch.stack(masks)}


def read_before(case: Case, inputs: dict[str, Any]) -> int:
    """Return the number of columns of a result that are not new."""
    return 1 if is_encoder_decoder(spec_of(case)) else inputs["input_ids"].shape[1]


@functools.cache
def common(case: Case) -> dict[str, Any]:
    """Options of every call: an end-of-sequence token that some text reaches early, and others late or never."""
    spec, inputs = spec_of(case), prompts(case)
    start: dict[str, Any] = {"num_beams": 1, "decoder_start_token_id": 2} if is_encoder_decoder(spec) else {}
    embedding = getattr(spec, spec.target)
    # published: tokens that can be generated but not read, and padding without a position
    unwanted = [*range(embedding.tokens.vocab_size, spec.head.vocab_size)]
    unwanted += [embedding.numbering.token] if isinstance(embedding.numbering, WithoutToken) else []
    unwanted += [tower.token for tower in getattr(spec, "input_towers", {}).values()]
    if unwanted:
        start["suppress_tokens"] = unwanted
    free = af.generate(shared(case), **inputs, max_new_tokens=NEW, eos_token_id=[], pad_token_id=0, **start)
    new = free[:, read_before(case, inputs) :]
    return {"max_new_tokens": NEW, "eos_token_id": sorted({int(new[0, 3]), int(new[1, 6])}), "pad_token_id": 0, **start}


def write(case: Case, inputs: dict[str, Any], model: Any = None, **options: Any) -> Any:
    return af.generate(model or shared(case), **inputs, **{"use_cache": True, **common(case), **options})


@functools.cache
def silent_transformers() -> None:
    transformers.logging.set_verbosity_error()


def theirs(case: Case, inputs: dict[str, Any], **options: Any) -> Any:
    silent_transformers()
    use_cache = options["use_cache"] if "use_cache" in options else uses_cache(case)
    options = {"do_sample": False, **common(case), **options, "use_cache": use_cache}
    if first := getattr(getattr(spec_of(case).embedding, "numbering", None), "first", 0):
        # generate() counts from 0 even if the published forward pass does not (RoBERTa); rows here have no padding
        options["position_ids"] = torch.arange(inputs["input_ids"].shape[1])[None] + first
    with torch.no_grad():
        # only the search, without additions of a class (Whisper's windows)
        return transformers.GenerationMixin.generate(
            published(case)[0], **inputs, **options, return_dict_in_generate=True, output_scores=True,
            output_logits=True,
        )  # fmt: skip


@functools.cache
def uses_cache(case: Case) -> bool:
    """Some published classes fail with a cache (T5 with fewer decoder layers, Marian's decoder) and FSMT without: use
    the variant that agrees with its own forward pass."""
    model, inputs = published(case)[0], prompts(case, (1,))
    name = "decoder_input_ids" if is_encoder_decoder(spec_of(case)) else "input_ids"
    out = theirs(case, inputs, use_cache=False, min_new_tokens=NEW - 1)
    with torch.no_grad():
        rest = {n: v for n, v in inputs.items() if n != "attention_mask"}
        logits = model(**{**rest, name: out.sequences}, use_cache=False).logits[0, -len(out.logits) - 1 : -1]
    return not torch.allclose(torch.cat(out.logits), logits, atol=1e-4)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "constrained": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 5,
        "begin_suppress_tokens": [8],
    },
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "beams-early": {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 2},
    "beams-late": {"num_beams": 3, "length_penalty": 2.0, "early_stopping": "never", "num_return_sequences": 3},
    "beams-never": {"num_beams": 3, "length_penalty": -1.0, "early_stopping": "never", "repetition_penalty": 1.5},
    "beams-forced": {
        "num_beams": 2,
        "forced_eos_token_id": 7,
        "bad_words_ids": [[9], [10, 11]],
        "renormalize_logits": True,
    },
}


@in_ways("way", WAYS, "greedy beams-early")
def test_g4_a_padded_batch_equals_transformers_row_by_row(case: Case, way: dict[str, Any]) -> None:
    """Sequences, scores of sequences and of every token, and beam indices."""
    inputs = prompts(case)
    mine = write(case, inputs, **way, return_dict=True, output_logits=True)
    P, R, N = read_before(case, inputs), way.get("num_return_sequences", 1), way.get("num_beams", 1)
    for row in range(3):
        alone = prompts(case, (row,))
        other = theirs(case, alone, **way)
        new = other.sequences[:, read_before(case, alone) :]
        T = new.shape[1]
        rows, beams = slice(row * R, row * R + R), slice(row * N, row * N + N)
        assert torch.equal(mine.sequences[rows, P : P + T], new)
        assert (mine.sequences[rows, P + T :] == 0).all() or N > 1
        for a, b in zip((*mine.scores, *mine.logits), (*other.scores, *other.logits), strict=False):
            if a.shape == b.shape and N == 1:
                close(a[beams].nan_to_num(neginf=-1e4), b.nan_to_num(neginf=-1e4), 2e-5)
        if N > 1:
            close(mine.sequences_scores[rows], other.sequences_scores, 2e-5)
            theirs_, ours_ = other.beam_indices, mine.beam_indices[rows, :T]
            assert torch.equal(torch.where(ours_ < 0, ours_, ours_ - row * N), theirs_.long())


@over_writers
def test_g4_right_and_no_mask_given(case: Case) -> None:
    """The side of the padding, and whether a mask or only the pad token marks it, change nothing."""
    expected = write(case, prompts(case))[:, read_before(case, prompts(case)) :]
    for side in ("left", "right"):
        inputs = prompts(case, side=side)
        for given in (inputs, {n: v for n, v in inputs.items() if n != "attention_mask"}):
            out = write(case, given)
            assert torch.equal(out[:, read_before(case, inputs) :], expected)
            if not is_encoder_decoder(spec_of(case)):
                assert torch.equal(out[:, : inputs["input_ids"].shape[1]], inputs["input_ids"])


@in_ways("way", {name: WAYS[name] for name in ("greedy", "beams")}, "beams")
def test_g1_every_state_writes_the_same_text(case: Case, way: dict[str, Any]) -> None:
    inputs, model = prompts(case), shared(case)
    expected = write(case, inputs, **way, use_cache=False, return_dict=True)
    capacity = read_before(case, inputs) + NEW
    others = [{}, {"prefill_chunk_size": 2}, {"past_key_values": model.new_state(3, capacity=capacity)}]
    for options in others:
        out = write(case, inputs, **way, **options, return_dict=True)
        assert torch.equal(out.sequences, expected.sequences)
        close(out.log_probs, expected.log_probs, 2e-5)
        assert out.finish_reasons == expected.finish_reasons


GOING_ON = {
    f"{way}-{kind}": (way == "sampled", kind == "static")
    for way, kind in itertools.product(("greedy", "sampled"), ("growing", "static"))
}


@in_ways("how", GOING_ON, "greedy-growing sampled-static")
def test_g2_three_and_one_are_four(case: Case, how: tuple[bool, bool]) -> None:
    spec, inputs, model, (sampled, static) = spec_of(case), prompts(case), shared(case), how
    options = {"eos_token_id": [], "forced_eos_token_id": [], "do_sample": sampled, "seed": 3}
    state = model.new_state(3, capacity=20) if static else None
    four = write(case, inputs, **options, max_new_tokens=4)
    three = write(case, inputs, **options, max_new_tokens=3, past_key_values=state, return_dict=True)
    P = read_before(case, inputs)
    if is_encoder_decoder(spec):
        again = {**inputs, "decoder_input_ids": three.sequences}
    else:
        mask = F.pad(inputs["attention_mask"], (0, 3), value=1)
        again = {**inputs, "input_ids": three.sequences, "attention_mask": mask}
    assert int(three.past_key_values.length) == P + 2
    fork = three.past_key_values.fork()
    for given in (fork, three.past_key_values):  # reading with one copy does not affect the other
        one = write(case, again, **options, max_new_tokens=1, past_key_values=given)
        assert torch.equal(one, four)


@functools.cache
def draft(case: Case) -> Any:
    """A draft model that is often right and often wrong: the same weights with noise."""
    model, generator = ours(case), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std(correction=0) * 0.03)
    return model


class Counted:
    """Count the calls of a model."""

    def __init__(self, model: Any) -> None:
        self.calls = 0
        self.handle = model.register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.calls += 1


DRAFTS: dict[str, dict[str, Any]] = {
    "plain": {}, "constrained": WAYS["constrained"], "sampled": {"do_sample": True, "seed": 5, "temperature": 0.7},
    "no-cache": {"use_cache": False},
}  # fmt: skip


@in_ways("way", DRAFTS, "plain")
def test_g3_drafts_change_nothing(case: Case, way: dict[str, Any]) -> None:
    inputs, options = prompts(case), {**way, "max_new_tokens": 12}
    expected = write(case, inputs, **options, return_dict=True)
    for drafting in (
        {"assistant_model": draft(case), "num_assistant_tokens": 3},
        {"assistant_model": ours(case), "num_assistant_tokens": 4},
        {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
    ):
        counted = Counted(shared(case))
        out = write(case, inputs, **options, **drafting, return_dict=True)
        counted.handle.remove()
        assert torch.equal(out.sequences, expected.sequences)
        assert out.finish_reasons == expected.finish_reasons
        close(out.log_probs, expected.log_probs, 2e-5)
        if "prompt_lookup_num_tokens" not in drafting and drafting["assistant_model"] is not draft(case):
            assert counted.calls <= 1 + -(-12 // 5) * 2, "a draft that is always right saves calls"
        if out.past_key_values is not None:
            assert int(out.past_key_values.length) == out.sequences.shape[1] - 1


@over_states
def test_g3_drafts_are_partly_right(case: Case) -> None:
    """Checks the test above: some texts need fewer calls than tokens, and more than the minimum."""
    inputs, seen = prompts(case, (0,)), []
    for seed in range(40):
        counted = Counted(shared(case))
        options = {"do_sample": True, "seed": seed, "eos_token_id": [], "max_new_tokens": 20, "num_assistant_tokens": 4}
        write(case, inputs, **options, assistant_model=draft(case))
        counted.handle.remove()
        seen.append(counted.calls)
        if min(seen) < 20 and max(seen) > 5:
            return
    pytest.fail(f"calls for 20 tokens: {seen}")


@in_ways("way", {"one": {}, "copies": {"num_return_sequences": 2}, "beams": {"num_beams": 3}}, "one", over_states)
def test_g7_seeds_do_not_depend_on_the_batch(case: Case, way: dict[str, Any]) -> None:
    options = {**way, "do_sample": True, "seed": 11, "temperature": 1.3, "top_p": 0.9, "eos_token_id": []}
    inputs = prompts(case)
    together = write(case, inputs, **options)[:, read_before(case, inputs) :]
    R = way.get("num_return_sequences", 1)
    for rows in ((0,), (1,), (2,), (2, 0)):
        some = prompts(case, rows)
        out = write(case, some, **options)[:, read_before(case, some) :]
        expected = together.view(3, R, -1)[list(rows)].flatten(0, 1)
        assert torch.equal(out, expected)
    assert not torch.equal(write(case, inputs, **{**options, "seed": 12})[:, read_before(case, inputs) :], together)
    if R > 1:
        assert not torch.equal(together[0], together[1])


@over_writers
def test_embeddings_and_encoder_outputs(case: Case) -> None:
    """Passed instead of tokens, they lead to the same text."""
    spec, model, inputs = spec_of(case), shared(case), prompts(case)
    expected = write(case, inputs, num_beams=2)
    if is_encoder_decoder(spec):
        with torch.no_grad():
            memory, _ = model.encode(Call(inputs))
        rest = {n: v for n, v in inputs.items() if n != spec.embedding.inputs[0]}
        for given in (memory, (memory,)):
            assert torch.equal(write(case, {**rest, "encoder_outputs": given}, num_beams=2), expected)
    else:
        rest = {n: v for n, v in inputs.items() if n != "input_ids"}
        with torch.no_grad():
            embeds = model.embedding.tokens(inputs["input_ids"])
        for use_cache in (True, False):
            out = write(case, {**rest, "inputs_embeds": embeds}, num_beams=2, use_cache=use_cache)
            assert torch.equal(out, expected[:, read_before(case, inputs) :])


@torch.no_grad()
def contrastive(case: Case, inputs: dict[str, Any], alpha: float, k: int) -> Tensor:
    """The formula [Su et al. 2022] for one row, without a cache."""
    model, spec = shared(case), spec_of(case)
    pair = is_encoder_decoder(spec)
    ids = torch.tensor([[2]]) if pair else inputs["input_ids"]
    rest = {n: v for n, v in inputs.items() if n != "attention_mask" and (pair or n != "input_ids")}

    def run(tokens: Tensor) -> tuple[Tensor, Tensor]:
        name = "decoder_input_ids" if pair else "input_ids"
        out = model(**rest, **{name: tokens}, use_cache=False, output_hidden_states=True)
        return out.logits[0, -1], (out.decoder_hidden_states if pair else out.hidden_states)[-1][0]

    for _ in range(6):
        scores, _ = run(ids)
        scores[common(case).get("suppress_tokens", [])] = -torch.inf
        best, found = -float("inf"), None
        for p, token in zip(*scores.softmax(-1).topk(k), strict=True):
            longer = torch.cat((ids, token.view(1, 1)), dim=1)
            vectors = F.normalize(run(longer)[1], dim=-1)
            value = float((1 - alpha) * p - alpha * (vectors[-1] @ vectors[:-1].T).max())
            if value > best:
                best, found = value, longer
        ids = found
    return ids[:, 1 if pair else inputs["input_ids"].shape[1] :]


def compiled_equals_eager(case: Case, backend: str, monkeypatch: pytest.MonkeyPatch, ways: dict[str, Any]) -> None:
    monkeypatch.setattr(fast, "BACKEND", backend)
    whole = case.id in ONE_WRITER_PER_KIND and backend == "aot_eager"
    model = ours(case) if whole else shallow(case)
    options = {"return_dict": True, "output_logits": True, "eos_token_id": [], "forced_eos_token_id": []}
    for rows in ((0, 1, 2), (2, 0, 1)):  # other tokens and other padding, with the same shape
        inputs = prompts(case, rows)
        for way in ways.values():
            expected, found = (write(case, inputs, model, **way, compile=compile) for compile in (False, True))
            assert torch.equal(found, expected), way
        a, b = (write(case, inputs, model, **options, compile=compile) for compile in (False, True))
        assert torch.equal(a.sequences, b.sequences)
        close(torch.stack(b.logits), torch.stack(a.logits))
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        if rows[0] == 0:
            first = graphs
    assert graphs == first, "the second input was compiled again"
    if not is_encoder_decoder(spec_of(case)):
        mask = F.pad(inputs["attention_mask"], (0, NEW), value=1)
        longer = {**inputs, "input_ids": b.sequences, "attention_mask": mask}
        again, state = (
            write(case, longer, model, max_new_tokens=3, eos_token_id=[], past_key_values=past)
            for past in (None, b.past_key_values)
        )
        assert torch.equal(again, state), "the returned state continues"


@over_states
def test_g5_compiled_equals_eager(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, Any] = {"greedy": {}}
    if case.id in ONE_WRITER_PER_KIND:
        ways |= {"sampled": {"do_sample": True, "seed": 3}, "beams": {"num_beams": 3}}
    compiled_equals_eager(case, "aot_eager", monkeypatch, ways)


@pytest.mark.timeout(1200)  # a cold compiler on a busy machine
@pytest.mark.compiler
@over([c for c in WRITERS if c.id in ONE_WRITER_PER_KIND], lambda case: ("inductor",), group="inductor")
def test_g5_inductor_equals_eager(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_equals_eager(case, "inductor", monkeypatch, {"greedy": {}})


@in_ways("k", {"of four": 4}, everyday="")
def test_contrastive_search_is_its_formula(case: Case, k: int) -> None:
    inputs = prompts(case)
    options = {"penalty_alpha": 0.6, "top_k": k, "eos_token_id": [], "forced_eos_token_id": [], "max_new_tokens": 6}
    out = write(case, inputs, **options, prefill_chunk_size=2)[:, read_before(case, inputs) :]
    for row in range(3):
        alone = prompts(case, (row,))
        assert torch.equal(out[row : row + 1], contrastive(case, alone, 0.6, k))


@over_writers
def test_states_are_cut_and_joined(case: Case) -> None:
    """A cache that was cut to a prefix, or joined from caches of other lengths, continues as if read in one piece."""
    spec, model = spec_of(case), shared(case)
    name = "decoder_input_ids" if is_encoder_decoder(spec) else "input_ids"
    ids = make_inputs(case, batch=3, length=14)[name]
    rows = [prompts(case, (row,)) for row in range(3)]
    rest = [{n: v for n, v in row.items() if n not in ("attention_mask", name)} for row in rows]
    lengths = (4, 8, 6)
    states, expected = [], []
    with torch.no_grad():
        for row, length in enumerate(lengths):
            state = model.new_state()
            model(**rest[row], **{name: ids[row : row + 1, :length]}, past_key_values=state)
            expected.append(
                model(**rest[row], **{name: ids[row : row + 1, : length + 2]}, use_cache=False).logits[:, length:]
            )
            states.append(state)
            if state.can_truncate:
                longer = state.fork()
                model(**{name: ids[row : row + 1, length:]}, past_key_values=longer)
                longer.truncate(length)
                close(
                    model(**{name: ids[row : row + 1, length : length + 2]}, past_key_values=longer).logits,
                    expected[-1],
                )
            else:
                address = next(address for address, store in state.stores.items() if not store.can_truncate)
                with pytest.raises(ValueError, match=rf"^{re.escape(address)} .*truncated.*fork"):
                    state.fork().truncate(length - 1)
        joined = State.concatenate(states)
        new = torch.stack([ids[row, length : length + 2] for row, length in enumerate(lengths)])
        for t in range(2):
            close(model(**{name: new[:, t : t + 1]}, past_key_values=joined).logits, torch.cat(expected)[:, t : t + 1])
    assert all(int(state.length) == length for state, length in zip(states, lengths, strict=True)), (
        "the parts are as before"
    )
