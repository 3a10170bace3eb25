"""Tag parts of speech on dependency trees (UD English EWT): a small Graphormer from scratch, without word order."""

from __future__ import annotations

from anyformer.data import Columns, Data
from anyformer.models import Model
from anyformer.objectives.tag_graph import NUM_EDGE_KINDS, TagGraph
from anyformer.parts import DegreeCentrality, ShortestPathBias
from anyformer.recipes.shared.encoder import small_bert, vocabulary
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Run

LABELS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
    "SYM", "VERB", "X",
)  # fmt: skip
HEADS = 4


def graphormer() -> Model:
    """Return a small BERT whose positions are degrees and paths in a graph instead of indices in a text."""
    path = ShortestPathBias(num_heads=HEADS, reach=8, edge_kinds=NUM_EDGE_KINDS)
    changes = {"embedding.position": DegreeCentrality(), "encoder.layers.attention.op.position": path}
    return override(small_bert("BertForTokenClassification", LABELS, num_attention_heads=HEADS), changes)


def run(data: str = "data") -> Run:
    def trees(part: str) -> Columns:
        columns = {"words": 1, "tags": 3, "heads": 6}
        path = f"{data}/ud_english_ewt/en_ewt-ud-{part}.conllu.gz"
        return Columns(path=path, fields=columns, comment="#", numbered=True)

    return Run(
        name="ewt-graphormer",
        model=graphormer(),
        vocabulary=vocabulary(),
        data=Data(train=trees("train"), valid=trees("dev"), test=trees("test")),
        objective=TagGraph(labels=LABELS),
        optimizer=AdamW(lr=3e-4, weight_decay=0.01),
        schedule=Linear(warmup=100),
        batch=Batch(examples=32),
        steps=2000,
        evaluate=Evaluate(every=400, metrics=("accuracy",), best="accuracy"),
        keep=Keep(every=400),
    )
