"""Reformer: lengths that are not a multiple of the chunk length, hashing in double precision, gradients of reversible
layers, generation, seeds, and refusals."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from cases.reformer import CASES, SMALL
from catalogue import Case, close, folder, ours, published, shared
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer import families
from anyformer.parts.attention.local_chunks import ChunkAttention
from anyformer.parts.attention.lsh import LSHAttention
from anyformer.specs.part import walk

WRITER = {"is_decoder": True}
# chunks of 4 and 6: rows are padded to a multiple of 12
MIXED = {"lsh_attn_chunk_length": 4, "local_attn_chunk_length": 6, "attn_layers": ["lsh", "local", "lsh"]}
VARIANTS = {
    "reads": ("ReformerModel", MIXED),
    "reads-around": ("ReformerModel", {**MIXED, "local_num_chunks_before": 2, "local_num_chunks_after": 2}),
    "reads-rounds": ("ReformerModel", {**MIXED, "num_hashes": 4, "lsh_num_chunks_after": 2, "num_buckets": [2, 2, 4]}),
    "reads-far": ("ReformerModel", {**MIXED, "local_num_chunks_after": 5, "lsh_num_chunks_before": 7, "num_hashes": 2}),
    "reads-alone": ("ReformerModel", {**MIXED, "lsh_num_chunks_before": 0, "local_num_chunks_before": 0}),
    "reads-learned": ("ReformerModel", {**MIXED, "axial_pos_embds": False, "num_buckets": [8]}),
    "reads-behind": ("ReformerModel", {**MIXED, **WRITER, "local_num_chunks_after": 1, "lsh_num_chunks_after": 1}),
    "writes": ("ReformerModelWithLMHead", {**MIXED, **WRITER}),
    "writes-before": ("ReformerModelWithLMHead", {**MIXED, **WRITER, "local_num_chunks_before": 3}),
    "chosen": ("ReformerModel", {**MIXED, "num_buckets": None}),
    "factored": ("ReformerModel", {**MIXED, "num_buckets": None, "lsh_attn_chunk_length": 2}),
    "lsh": ("ReformerModel", {"attn_layers": ["lsh", "lsh"], "lsh_attn_chunk_length": 4}),
    "local": ("ReformerModel", {"attn_layers": ["local"]}),
}  # fmt: skip
EACH = {name: Case("reformer", kind, {**SMALL, **config}, name) for name, (kind, config) in VARIANTS.items()}
LENGTHS = (1, 3, 4, 5, 12, 13, 25, 48)


def theirs_of(case: Case) -> Any:
    """Return the published model. A model that chooses its buckets keeps its first choice, so it is made again."""
    model = published(case)[0]
    for module in model.modules():
        if hasattr(module, "num_buckets"):
            module.num_buckets = case.config["num_buckets"]
    return model


def ids_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, 99, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", EACH)
def test_every_length(name: str) -> None:
    """The published class pads rows, which its hidden states show: the first ones belong to the text."""
    case = EACH[name]
    for length in LENGTHS:
        ids = ids_of(2, length)
        with torch.no_grad():
            expected = theirs_of(case)(ids, output_hidden_states=True)
            found = shared(case)(input_ids=ids, output_hidden_states=True)
        close(found[0], expected[0])
        assert len(found.hidden_states) == len(expected.hidden_states) == len(case.config["attn_layers"]) + 1
        for a, b in zip(found.hidden_states, expected.hidden_states, strict=True):
            close(a, b[:, :length])


@pytest.mark.parametrize("name", EACH)
def test_pads_as_published(name: str) -> None:
    """Padding on the right affects chunk boundaries and the chunk before the first, as in the published class."""
    case, ids = EACH[name], ids_of(3, 31)
    mask = torch.ones_like(ids)
    mask[1, 20:], mask[2, 3:] = 0, 0
    with torch.no_grad():
        expected = theirs_of(case)(ids, attention_mask=mask)[0]
        found = shared(case)(input_ids=ids, attention_mask=mask)[0]
    close(found[mask.bool()], expected[mask.bool()])
    eager = ours(case)
    eager.kernel = "eager"
    with torch.no_grad():
        close(eager(input_ids=ids, attention_mask=mask)[0], found)


@pytest.mark.parametrize("config", [{"num_hashes": 3}, {"num_hashes": 4, "num_buckets": [4, 2]}])
def test_several_rounds_of_a_writer(config: dict[str, Any]) -> None:
    """Double precision: in fp32 the published class rounds a score of -1e5 if a token sees only itself, as the first
    does, and its weights add up to 0.998."""
    name = f"rounds-{config['num_hashes']}"
    case = Case("reformer", "ReformerModelWithLMHead", {**SMALL, **MIXED, **WRITER, **config}, name)
    theirs, mine, ids = published(case)[0].double(), ours(case).double(), ids_of(2, 29)
    for module in mine.modules():
        if hasattr(module, "by_seed"):
            (table,) = module.by_seed
            torch.manual_seed(case.config["hash_seed"])
            table.value = torch.randn(table.value.shape, dtype=torch.float64)  # different values than in fp32
    with torch.no_grad():
        close(mine(input_ids=ids).logits, theirs(ids).logits, 1e-9)


def test_gradients_of_the_published_backward_pass() -> None:
    """Both recompute the states of layers. The published class trains only on rows of the grid's length."""
    config = {**SMALL, **MIXED, **WRITER, "axial_pos_shape": [4, 12]}
    case = Case("reformer", "ReformerModelWithLMHead", config, "taught")
    ids = ids_of(2, 48)
    theirs, mine = published(case)[0].train(), ours(case).train()
    theirs(ids, labels=ids).loss.backward()
    mine(input_ids=ids, labels=ids).loss.backward()
    names = {name: stored for stored, name in pairs(case, mine)}
    expected = dict(theirs.named_parameters())
    compared = 0
    for name, parameter in mine.named_parameters():
        if parameter.requires_grad:
            gradient = expected[names[name]].grad
            close(parameter.grad, gradient.reshape(parameter.shape))
            compared += 1
    assert compared == len(expected) - 1  # except the bias that nothing reads


def pairs(case: Case, model: Any) -> list[tuple[str, str]]:
    """Return (published name, our name) of every tensor."""
    family = families.find("reformer")
    stored = [*load_file(folder(case) / "model.safetensors")]
    matched = family.match(model.spec, stored, [*model.state_dict()])
    return [(step.sources[0], step.targets[0]) for step in matched.steps]


def test_it_writes_by_reading_again() -> None:
    """Chunk boundaries depend on the whole text, so there is no cache: each token needs a full forward pass."""
    case, prompt = EACH["writes"], ids_of(2, 9)
    model = shared(case)
    assert not model.remembers and model.spec.decoder.sees == "past"
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.attention\.op .*use_cache=False"):
        model.new_state()
    asked = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = theirs_of(case).generate(prompt, use_cache=False, **asked)
    assert torch.equal(af.generate(model, input_ids=prompt, **asked), expected)
    text = prompt
    for _ in range(12):
        with torch.no_grad():
            text = torch.cat((text, model(input_ids=text).logits[:, -1:].argmax(-1)), 1)
    assert torch.equal(text, expected)


def test_chunks_alone_write_with_a_memory() -> None:
    """Like the published class: the cache has the keys and values of all tokens, and a step sees the tokens of
    its chunks."""
    case, prompt = next(case for case in CASES if case.name == "local"), ids_of(2, 13)
    model = shared(case)
    assert model.remembers
    asked = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    assert torch.equal(af.generate(model, input_ids=prompt, **asked), published(case)[0].generate(prompt, **asked))


def test_seeds_of_the_hash() -> None:
    """A seed is used; without one, each training pass draws its own, and inference is deterministic."""
    config = {**SMALL, **MIXED, "architectures": ["ReformerModel"]}
    family, ids = families.find("reformer"), ids_of(2, 48)

    def two_runs(seed: int | None, train: bool = False) -> Any:
        model = af.build(family.read({**config, "hash_seed": seed})).train(train)
        with torch.no_grad():
            return [model(input_ids=ids)[0] for _ in range(2)]

    three, four, none, taught = two_runs(3), two_runs(4), two_runs(None), two_runs(None, train=True)
    assert torch.equal(*three) and torch.equal(*none) and torch.equal(*two_runs(3, train=True))
    assert not torch.allclose(three[0], four[0]) and not torch.allclose(*taught)
    rounds = {f"encoder.layers.{i}.attention.op.rounds": 9 for i in (0, 2)}  # the shape for num_hashes=9
    case = EACH["reads"]
    more = af.build(af.override(shared(case).spec, rounds)).eval()
    more.load_state_dict(shared(case).state_dict())
    with torch.no_grad():
        close(more(input_ids=ids)[0], theirs_of(case)(ids, num_hashes=9)[0])


def test_fewer_states_are_kept_in_training() -> None:
    """Nothing per layer: three times as many layers keep the same memory, measured by autograd."""

    def kept(layers: int) -> int:
        config = {**SMALL, **WRITER, "attn_layers": ["local", "lsh"] * layers}
        config["architectures"] = ["ReformerModelWithLMHead"]
        model, sizes = af.build(families.find("reformer").read(config)).train(), {}
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if (at := tensor.untyped_storage().data_ptr()) not in own:
                sizes[at] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            out = model(input_ids=ids_of(2, 64), use_cache=False)
        assert out.logits.requires_grad
        return sum(sizes.values())

    assert kept(3) == kept(1)


def test_files_of_2020(tmp_path) -> None:
    """They contain the values of masks, too."""
    case = EACH["writes"]
    shutil.copytree(folder(case), tmp_path / "old")
    tensors = load_file(tmp_path / "old" / "model.safetensors")
    place = "reformer.encoder.layers.0.attention.self_attention"
    tensors[f"{place}.self_mask_value_float16"] = torch.tensor(-1e3)
    tensors[f"{place}.mask_value_float32"] = torch.tensor(-1e9)
    save_file(tensors, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        assert torch.equal(af.load(tmp_path / "old")(ids_of(1, 9)).logits, shared(case)(ids_of(1, 9)).logits)


def test_kinds_of_layers() -> None:
    spec = families.find("reformer").read({**SMALL, **MIXED, "architectures": ["ReformerModel"]})
    kinds = [type(spec.encoder.layer(i).steps["attention"].op) for i in range(3)]
    assert kinds == [LSHAttention, ChunkAttention, LSHAttention] and spec.encoder.out_width(spec.width) == 64
    assert spec.encoder.layers["lsh"].steps["attention"].op.multiple == 12


def test_inputs_that_are_refused() -> None:
    model, ids = shared(EACH["writes"]), ids_of(1, 129)
    with pytest.raises(ValueError, match="position 128 .*128"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.attention\.op: documents cannot be packed"):
        model(input_ids=ids[:, :20], document_ids=torch.zeros(1, 20, dtype=torch.long))
    with pytest.raises(TypeError, match="num_hashes"):
        model(input_ids=ids[:, :20], num_hashes=2)


def test_rows_fit_the_chunks_of_layers_that_are_left_out() -> None:
    """The published class counts the chunks of every layer in attn_layers, even those it does not build."""
    sizes = {"attn_layers": ["local", "lsh"], "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 16}
    config = {"architectures": ["ReformerForMaskedLM"], "is_decoder": False, **sizes}
    whole, one = (families.find("reformer").read({**config, "num_hidden_layers": depth}) for depth in (2, 1))
    for spec in (whole, one):
        assert {part.multiple for _, part in walk(spec) if isinstance(part, ChunkAttention)} == {16}
    assert one.encoder.depth == 1
