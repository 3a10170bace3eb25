"""BigBird's blocks: random blocks as drawn in training, lengths of every kind, and no memory quadratic in the
length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases.big_bird import CASES, SMALL, SPARSE
from catalogue import close, make_inputs, ours, published, randomise
from test_loading import compare
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.models import EncoderModel
from anyformer.objectives.classify import Classify
from anyformer.objectives.objective import Predictor
from anyformer.parts.attention.big_bird import BlockSparseAttention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.init import Normal
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import nothing_grows_with_the_square_of_the_length

BY_ID = {case.id: case for case in CASES}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}


def pair(config: dict[str, Any], name: str, folder: Any) -> tuple[Any, Any]:
    """Return a fresh published model and ours with its weights: one that has not read anything yet."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    theirs = getattr(transformers, name)(transformers.BigBirdConfig(**config)).eval()
    randomise(theirs)
    theirs.save_pretrained(folder)
    return theirs, af.load(folder)


def text(length: int, batch: int = 2, pads: int = 0, seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(5, 99, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[-1, length - pads :] = 0
    return {"input_ids": ids, "attention_mask": mask}


SIZES = [(1024, 64, 3, 4096), (1024, 32, 2, 1024), (1000, 64, 2, 2048)]
LONG = [pytest.param(*sizes, marks=pytest.mark.slow) for sizes in SIZES]


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    ("length", "block_size", "random", "longest"), [(61, 4, 2, 64), (200, 8, 3, 256), (131, 2, 1, 140), *LONG]
)
def test_random_blocks_are_the_published_ones(
    train: bool, length: int, block_size: int, random: int, longest: int, tmp_path
) -> None:
    config = {**SMALL, **DRY, "block_size": block_size, "num_random_blocks": random, "max_position_embeddings": longest}
    theirs, mine = pair({**config, "num_hidden_layers": 3}, "BigBirdModel", tmp_path)
    theirs.train(train), mine.train(train)
    inputs = text(length, pads=block_size + 3)
    expected = theirs(**inputs)
    for mine.kernel in ("auto", "eager"):
        found = mine(**inputs)
        close(found.last_hidden_state, expected.last_hidden_state)
        close(found.pooler_output, expected.pooler_output)
    (expected.last_hidden_state**2).mean().backward()
    mine.kernel = "auto"
    (mine(**inputs).last_hidden_state ** 2).mean().backward()
    mean = theirs.encoder.layer[1].attention.self.key.weight.grad
    close(mine.encoder.layers[1].attention.op.k.weight.grad, mean)


def test_old_plans_of_pretraining(tmp_path) -> None:
    """Texts of 3072 and 4096 tokens reach back into the first 1024 tokens."""
    config = {**SMALL, **DRY, "block_size": 64, "num_random_blocks": 3, "max_position_embeddings": 4096}
    small = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 2}
    theirs, mine = pair({**config, **small}, "BigBirdModel", tmp_path)
    theirs.train(), mine.train()
    with torch.no_grad():
        for length in (3072, 4096, 4000):
            inputs = text(length, batch=1)
            close(mine(**inputs).last_hidden_state, theirs(**inputs).last_hidden_state)


def test_drawing_leaves_the_random_state_alone() -> None:
    model = ours(BY_ID["BigBirdModel-sparse"]).train()
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    model(**text(40))
    assert np.random.rand() == expected


def test_a_short_text_switches_for_good(tmp_path) -> None:
    theirs, mine = pair({**SPARSE, "max_position_embeddings": 64}, "BigBirdForMaskedLM", tmp_path)
    with torch.no_grad():
        sparse = mine(**text(40)).logits
        for length in (40, 14, 40, 15):  # sparse, short, and full attention from then on
            compare(theirs(**text(length)), mine(**text(length)))
        assert not torch.allclose(mine(**text(40)).logits, sparse)
        assert torch.equal(af.load(tmp_path)(**text(40)).logits, sparse)


@torch.no_grad()
def test_predictions_do_not_depend_on_the_texts_before_them() -> None:
    model = ours(BY_ID["BigBirdForSequenceClassification-sparse"])
    records = [{"input_ids": text(length)["input_ids"][0].numpy(), "label": np.int64(0)} for length in (40, 14, 33, 9)]
    task, job = Classify(labels=tuple("abcde")), Predictor(model, None, 3, size=1)
    expected = job.logits(task, records)
    assert all(torch.equal(a, b) for a, b in zip(job.logits(task, records), expected, strict=True))
    model(**text(14))  # a call by published names switches the model, as published
    assert not torch.allclose(job.logits(task, records)[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("length", [15, 16, 17, 31])
def test_every_input_is_filled_up_as_published(length: int, tmp_path) -> None:
    theirs, mine = pair({**SPARSE, "block_size": 2}, "BigBirdForCausalLM", tmp_path)
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(2, length, 32, generator=generator)
    segments = torch.randint(0, 3, (2, length), generator=generator)
    places = torch.randint(0, 128, (2, length), generator=generator)
    labels = torch.randint(0, 99, (2, length), generator=generator)
    with torch.no_grad():
        for inputs in (
            {**text(length, pads=4), "token_type_ids": segments, "position_ids": places, "labels": labels},
            {"inputs_embeds": vectors}, {"inputs_embeds": vectors, "position_ids": places},
        ):  # fmt: skip
            more = {"output_hidden_states": True, "output_attentions": "attention_mask" not in inputs}
            compare(theirs(**inputs, **more), mine(**inputs, **more))


def test_left_padding_goes_on_counting_from_the_text() -> None:
    """Block boundaries shift, so outputs differ from those without padding; positions do not."""
    case = BY_ID["BigBirdModel-sparse"]
    model, inputs = ours(case), text(30)
    moved = {name: torch.cat((torch.zeros_like(v[:, :2]), v), dim=1) for name, v in inputs.items()}
    with torch.no_grad():
        plain = model(**inputs, output_hidden_states=True).hidden_states[0][:, :30]
        close(model(**moved, output_hidden_states=True).hidden_states[0][:, 2:32], plain)
        for mine in (model(**moved).last_hidden_state, model(**inputs).last_hidden_state):
            assert mine.isfinite().all()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_cost_grows_with_the_length(train: bool) -> None:
    config = {**SPARSE, "max_position_embeddings": 9000, "block_size": 8, "architectures": ["BigBirdModel"]}
    model = af.build(families.find("big_bird").read(config)).train(train)
    nothing_grows_with_the_square_of_the_length(lambda length: model(**text(length, pads=9))[0], (1016, 2040, 4088))


def test_packed_documents() -> None:
    """Short documents give the same result as without packing; a long one has its own blocks and cannot share a row."""
    case = BY_ID["BigBirdForMaskedLM-sparse"]
    model, ids = ours(case), text(30, batch=1)["input_ids"]
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor([12, 4, 14]))[None]
    with torch.no_grad():
        packed = model(input_ids=ids, document_ids=documents).logits
        alone = [ours(case)(input_ids=piece).logits for piece in ids.split([12, 4, 14], dim=1)]
        close(packed, torch.cat(alone, dim=1))
        with pytest.raises(ValueError, match="must contain a single document"):
            model(input_ids=ids, document_ids=documents.clamp(min=1))


def test_a_question_is_no_answer() -> None:
    for id in ("BigBirdForQuestionAnswering", "BigBirdForQuestionAnswering-sparse"):
        case = BY_ID[id]
        theirs, mine, inputs = published(case)[0], ours(case), make_inputs(case)
        inputs["input_ids"][0, 6], inputs["input_ids"][:, 0] = 66, 7
        inputs["input_ids"][1, 6:13] = 7  # a text without a separator has no question
        vectors = theirs.bert.embeddings.word_embeddings(inputs["input_ids"]).detach()
        types = inputs.pop("token_type_ids")
        with torch.no_grad():
            for more in (
                inputs, {**inputs, "token_type_ids": types}, {"inputs_embeds": vectors},
                {**inputs, "question_lengths": torch.tensor([[4], [9]])},
                {"inputs_embeds": vectors, "question_lengths": torch.tensor([[4], [9]])},
            ):  # fmt: skip
                expected, found = theirs(**more), mine(**more)
                compare(expected, found)
                free = expected.start_logits > -1e5
                close(found.start_logits[free], expected.start_logits[free])
                close(found.end_logits[free], expected.end_logits[free])
                assert bool(free[:, 0].all()) and bool(free.all()) == (len(more) == 1 and "inputs_embeds" in more)


def test_questions_of_packed_documents() -> None:
    model = ours(BY_ID["BigBirdForQuestionAnswering"])
    ids = text(20, batch=1)["input_ids"]
    ids[0, [3, 5, 11]] = 66  # of the first document twice, of the second once, of the third never
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor([8, 7, 5]))[None]
    with torch.no_grad():
        packed = model(input_ids=ids, document_ids=documents)
        alone = [model(input_ids=piece) for piece in ids.split([8, 7, 5], dim=1)]
    for name in ("start_logits", "end_logits"):
        expected = torch.cat([out[name] for out in alone], dim=1)
        assert torch.equal(packed[name] < -1e5, expected < -1e5) and int((expected < -1e5).sum()) == 3 + 3
        close(packed[name][expected > -1e5], expected[expected > -1e5])


def test_the_loss_of_tokens_alone() -> None:
    case = BY_ID["BigBirdForPreTraining"]
    labels = torch.randint(0, 99, (2, 17))
    with torch.no_grad():
        for more in ({"labels": labels}, {"next_sentence_label": torch.tensor([0, 1])}):
            inputs = {**make_inputs(case), **more}
            expected, found = published(case)[0](**inputs), ours(case)(**inputs)
            assert (expected.loss is None) == (found.loss is None) == ("labels" not in more)
            compare(expected, found)


def test_attention_of_blocks_in_any_stack() -> None:
    """If the embedding does not pad texts, the layer does."""
    op = BlockSparseAttention(num_heads=2, block_size=4, random_blocks=1, length=64)
    spec = EncoderModel(
        width=8, embedding=TextEmbedding(tokens=Tokens(vocab_size=99)), init={"*": Normal(std=0.5)},
        encoder=Stack(layers=Block(attention=Sublayer(op=op)), depth=2),
    )  # fmt: skip
    model, inputs = af.build(spec), text(37, pads=5)
    for train in (False, True):
        model.train(train)
        with torch.no_grad():
            found = {}
            for model.kernel in ("eager", "sdpa"):
                found[model.kernel] = model(**inputs).last_hidden_state
            close(found["eager"], found["sdpa"])


@pytest.mark.slow  # every day: a forward pass (N9), and a training step of another model (train/test_trainer.py)
def test_compiled_training_step() -> None:
    model = ours(BY_ID["BigBirdModel-sparse"]).train()
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.0
    model.embedding.part = model.embedding.part.replace(dropout=0.0)
    torch._dynamo.reset()
    inputs = text(41)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    found, expected = (run(**inputs).last_hidden_state for run in (compiled, model))
    close(found, expected)
    weights = list(model.encoder.parameters())
    for a, b in zip(*(torch.autograd.grad(out.square().sum(), weights) for out in (found, expected)), strict=True):
        close(a, b)


def test_a_decoder_reads_no_long_text_in_blocks() -> None:
    model = ours(BY_ID["BigBirdForCausalLM-decoder"])
    limit = (5 + 2 * 2) * 16
    spec = af.override(model.spec, {"embedding.position.length": 256})
    model = af.build(spec).eval()
    model(**text(limit))
    with pytest.raises(ValueError, match="original_full"):
        model(**text(limit + 1))
    state = model.new_state()  # input in chunks sees everything before it
    with torch.no_grad():
        for piece in text(limit + 10)["input_ids"].split(limit // 2 + 1, dim=1):
            out = model(input_ids=piece, past_key_values=state)
    assert out.logits.isfinite().all()


def test_dropout_is_where_the_published_classes_have_it() -> None:
    spec = ours(BY_ID["BigBirdForSequenceClassification-odd"]).spec
    assert spec.embedding.order.index("dropout") < spec.embedding.order.index("norm")
    model = af.build(spec, seed=0).train()
    with torch.no_grad():
        x, _ = model.embedding({"input_ids": torch.full((1, 500), 7), "position_ids": torch.zeros(1, 500).long()})
    # normed after the dropout: no value is exactly zero, and each vector has mean 0
    assert bool((x != 0).all()) and float(x.mean(-1).abs().max()) < 1e-4


def test_named() -> None:
    op = af.spec("bigbird-roberta-base").encoder.layers.steps["attention"].op
    assert (op.block_size, op.random_blocks, op.length) == (64, 3, 4096)
