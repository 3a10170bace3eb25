"""The sources of the recipes' data, and how `fetch` creates the folders of `--data`.

A data set of the Hugging Face hub is read with `datasets` (the extra `data`) and converted to the files that recipes
read. A file from the web is stored unchanged. A published model is copied from the hub's cache. Other data are
generated without a network, by functions of other packages (`specs/extensions.py`).
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data import HFDataset, Stored
from anyformer.data.web import WebFile
from anyformer.objectives.distill import Distill
from anyformer.recipes import recipe
from anyformer.specs.codec import to_json
from anyformer.specs.extensions import MISSING, tables
from anyformer.specs.part import walk
from anyformer.train.run import Pretrained
from anyformer.weights import hub
from anyformer.weights.manifest import atomic_folder

Progress = Callable[[int, int], object]  # called with the numbers of finished and of all items
Rows = Iterable[Mapping[str, Any]]
PARQUET = "refs/convert/parquet"  # the hub's Parquet copy of data sets that are published as code


@dataclasses.dataclass(frozen=True)
class Origin:
    """The source of one folder: what it contains, where it is published and how its files are converted, or the
    function (folder, seed, progress) that generates it."""

    about: str
    page: str = ""  # a data set or a model of the hub, or a URL
    files: Mapping[str, tuple[HFDataset, Callable[[Rows], bytes]] | WebFile] = dataclasses.field(default_factory=dict)
    model: bool = False
    generate: Callable[[Path, int, Progress], None] | None = None

    @property
    def available(self) -> bool:
        """Whether `fetch` can create it."""
        return bool(self.files) or self.model or self.generate is not None


# -- conversion of rows to files ---------------------------------------------------------------------------------------


def table(*columns: str, names: tuple[str, ...] = (), mark: str = "\t") -> Callable[[Rows], bytes]:
    """Return a function that writes rows, values separated by `mark`. Column "" is empty; `names` is the header."""

    def write(rows: Rows) -> bytes:
        out = io.StringIO()
        if mark == "\t":  # without quotes, as published
            values = [[str(row[column]) if column else "" for column in columns] for row in rows]
            lines = [[*names], *values] if names else values
            out.writelines("\t".join(" ".join(value.split()) for value in line) + "\n" for line in lines)
        else:
            csv.writer(out, lineterminator="\n").writerows([row[column] for column in columns] for row in rows)
        return out.getvalue().encode()

    return write


def lines(column: str) -> Callable[[Rows], bytes]:
    return lambda rows: "".join(f"{' '.join(row[column].split())}\n" for row in rows).encode()


NAMES = ("corporation", "creative-work", "group", "location", "person", "product")
WNUT_LABELS = ("O", *(f"{side}-{name}" for name in NAMES for side in "BI"))


def words(rows: Rows) -> bytes:
    """Write one word and its tag per line, with an empty line between sentences."""
    texts = (zip(row["tokens"], row["ner_tags"], strict=True) for row in rows)
    return "\n".join("".join(f"{word}\t{WNUT_LABELS[tag]}\n" for word, tag in text) for text in texts).encode()


def questions(rows: Rows) -> bytes:
    kept = ({"context": r["context"], "question": r["question"], "answer": r["answers"]["text"][0]} for r in rows)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept).encode()


def paragraphs(rows: Rows) -> bytes:
    """Write the format of SQuAD's files."""
    contexts = []
    for row in rows:
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        question = {"id": row["id"], "question": row["question"], "answers": answers}
        contexts.append({"context": row["context"], "qas": [question]})
    return json.dumps({"data": [{"paragraphs": contexts}]}, ensure_ascii=False).encode()


def idx(column: str) -> Callable[[Rows], bytes]:
    """Return a function that writes a column in MNIST's IDX format."""

    def write(rows: Rows) -> bytes:
        values = np.stack([np.asarray(row[column], dtype=np.uint8) for row in rows])
        header = bytes((0, 0, 8, values.ndim)) + np.asarray(values.shape, ">u4").tobytes()
        return header + values.tobytes()

    return write


# -- the folders -------------------------------------------------------------------------------------------------------


def glue(config: str, split: str) -> HFDataset:
    return HFDataset(name="nyu-mll/glue", config=config, split=split)


def stsb(split: str) -> tuple[HFDataset, Callable[[Rows], bytes]]:
    return HFDataset(name="mteb/stsbenchmark-sts", split=split), table("sentence1", "sentence2", "score", mark=",")


def wnut(split: str) -> tuple[HFDataset, Callable[[Rows], bytes]]:
    return HFDataset(name="leondz/wnut_17", revision=PARQUET, split=split), words


def flickr(split: str, language: str) -> tuple[HFDataset, Callable[[Rows], bytes]]:
    return HFDataset(name="bentrevett/multi30k", split=split), lines(language)


def scitldr(split: str, sha256: str) -> WebFile:
    """Return a file of SciTLDR-A (abstracts only). On the hub it is published as code, which `datasets` cannot run."""
    commit = "5ccad9c00a60ad75c9e04abf7f27d0f53f983b20"
    home = f"https://raw.githubusercontent.com/allenai/scitldr/{commit}/SciTLDR-Data/SciTLDR-A"
    return WebFile(f"{home}/{split}.jsonl", sha256)


JUDGED = table("", "label", "", "sentence")
SAME = table(
    "label", "idx", "idx", "sentence1", "sentence2", names=("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
)
FOLLOWS = table("sentence1", "sentence2", "label", "idx", names=("sentence1", "sentence2", "label", "idx"))
ANSWERED = table("idx", "question", "sentence", "label", names=("index", "question", "sentence", "label"))

ORIGINS: dict[str, Origin] = {
    "all-MiniLM-L6-v2": Origin("a small encoder for sentences", "sentence-transformers/all-MiniLM-L6-v2", model=True),
    "tiny_shakespeare": Origin("1.1 MB of plays", "karpathy/tiny_shakespeare", {
        "input.txt.gz": (HFDataset(name="karpathy/tiny_shakespeare", revision=PARQUET, split="train+validation+test"),
                         lambda rows: "".join(row["text"] for row in rows).encode()),
    }),
    "glue_sst2": Origin("67,349 phrases from film reviews", "nyu-mll/glue", {
        "train.tsv.gz": (glue("sst2", "train"), table("label", "sentence", names=("label", "sentence"))),
        "dev.tsv.gz": (glue("sst2", "validation"), table("label", "sentence", names=("label", "content"))),
        # GLUE does not publish the labels of its test set
        "test.tsv.gz": (HFDataset(name="SetFit/sst2", split="test"),
                        table("label", "text", names=("label", "content"))),
    }),
    "glue_cola": Origin("8,551 sentences from linguistics texts", "nyu-mll/glue", {
        "train.tsv.gz": (glue("cola", "train"), JUDGED),
        "in_domain_dev.tsv.gz": (glue("cola", "validation[:527]"), JUDGED),
        "out_of_domain_dev.tsv.gz": (glue("cola", "validation[527:]"), JUDGED),
    }),
    "glue_mrpc": Origin("5,801 pairs of news sentences", "nyu-mll/glue", {
        "train.tsv.gz": (glue("mrpc", "train+validation"), SAME), "test.tsv.gz": (glue("mrpc", "test"), SAME),
    }),
    "glue_rte": Origin("2,767 pairs of a text and a hypothesis", "nyu-mll/glue", {
        "train.tsv.gz": (glue("rte", "train"), FOLLOWS), "dev.tsv.gz": (glue("rte", "validation"), FOLLOWS),
        "test.tsv.gz": (glue("rte", "test"), FOLLOWS),
    }),
    "QNLI": Origin("110,206 questions and sentences", "nyu-mll/glue", {
        "train.tsv.gz": (glue("qnli", "train"), ANSWERED), "dev.tsv.gz": (glue("qnli", "validation"), ANSWERED),
    }),
    "stsb": Origin("8,628 pairs of sentences with a score", "mteb/stsbenchmark-sts", {
        f"stsb-en-{ours}.csv.gz": stsb(split)
        for ours, split in (("train", "train"), ("dev", "validation"), ("test", "test"))
    }),
    "ner_wnut17": Origin("5,690 short messages with names", "leondz/wnut_17", {
        "wnut17train.conll.gz": wnut("train"), "emerging.dev.conll.gz": wnut("validation"),
        "emerging.test.annotated.gz": wnut("test"),
    }),
    "multi30k": Origin("31,014 captions in English and German", "bentrevett/multi30k", {
        f"{ours}.{language}.gz": flickr(split, language) for language in ("en", "de")
        for ours, split in (("train", "train"), ("val", "validation"), ("test_2016_flickr", "test"))
    }),
    "qa_squad11_part": Origin("4,285 questions on paragraphs", "rajpurkar/squad", {
        "squad11_train_part.jsonl.gz": (HFDataset(name="rajpurkar/squad", split="train[:4285]"), questions),
    }),
    "qa_xquad": Origin("1,190 questions on paragraphs", "google/xquad", {
        "xquad.en.json.gz": (HFDataset(name="google/xquad", config="xquad.en", split="validation"), paragraphs),
    }),
    "fashion_mnist": Origin("70,000 images of garments", "zalando-datasets/fashion_mnist", {
        f"{ours}-{kind}-ubyte.gz": (HFDataset(name="zalando-datasets/fashion_mnist", split=theirs), idx(column))
        for ours, theirs in (("train", "train"), ("t10k", "test"))
        for kind, column in (("images-idx3", "image"), ("labels-idx1", "label"))
    }),
    "summ_scitldr": Origin("3,229 abstracts with one-sentence summaries", "https://github.com/allenai/scitldr", {
        f"{split}.jsonl.gz": scitldr(split, sha256) for split, sha256 in (
            ("train", "b222771d387be585cfdf5ae957b36757138415a352e0a3e3b23f73f87c3b1119"),
            ("dev", "3191fa98ccc09521332b7a1cd63b1930be4e8df125a235ccd31e40329709525e"),
            ("test", "fb42dd6cd4f4a1928ae8a01a189456fbfe994a07e938bd49f68653933f6503c9"))
    }),
    "speech_fsdd": Origin("3,000 recordings of the Free Spoken Digit Dataset in fsdd.npz, with the arrays that"
                          " `anyformer parts Recordings` names, label, speaker and index"),
    "mt_tico19": Origin("2,692 sentences in ten languages; join TICO-19's translation memories (data/TM/*.tmx) into"
                        " tico19.tsv.gz, with the columns id, en, fr, es, pt, ru, zh, hi, id, ar and sw",
                        "https://github.com/tico-19/tico-19.github.io"),
    "ud_english_ewt": Origin("16,622 sentences with dependency trees; compress the released conllu files with gzip",
                             "https://github.com/UniversalDependencies/UD_English-EWT"),
    "image_text_emoji": Origin("1,903 images of emoji with their names; you have to render them with an emoji font"),
}  # fmt: skip


def folders_of(name: str, data: str = "DATA") -> list[str]:
    """Return the folders of `--data` that a recipe reads, including models."""
    return [*dict.fromkeys(re.findall(rf'"{re.escape(data)}/([^/"]+)', to_json(recipe(name, data))))]


def models_of(name: str, data: str = "DATA") -> list[str]:
    """Return the published models that a recipe starts from or learns from. They are read from the hub's cache."""
    named = (
        part.teacher if isinstance(part, Distill) else part.path
        for _, part in walk(recipe(name, data))
        if isinstance(part, (Pretrained, Stored, Distill))
    )
    return [*dict.fromkeys(model for model in named if not model.startswith((f"{data}/", "runs/")))]


def runs_of(name: str) -> list[str]:
    """Return the recipes whose runs a recipe reads; they have to be trained first."""
    return [*dict.fromkeys(re.findall(r'"(?:\./)?runs/([^/"]+)"', to_json(recipe(name))))]


def origins() -> dict[str, Origin]:
    """Return the origin of every folder, including those that other packages generate."""
    return {**tables("data"), **ORIGINS}


def origin_of(folder: str) -> Origin:
    unknown = "data of your own" if tables("data") else f"generated data: {MISSING}"
    return origins().get(folder, Origin(unknown))


def fetch(
    folder: str, home: Path, offline: bool = False, seed: int = 0, progress: Progress = lambda done, total: None
) -> Path:
    """Create a folder of data in `home`, completely or not at all. `seed` is for generated data."""
    origin, target = origin_of(folder), home / folder
    if not origin.available:
        published = f" (published at {origin.page})" if origin.page else ""
        raise ValueError(f"{target} cannot be fetched: {origin.about}{published}")
    if origin.model:
        source = hub.resolve(origin.page, offline=offline)
        with atomic_folder(target) as target_folder:
            for path in (path for path in source.iterdir() if path.is_file()):
                shutil.copyfile(path, target_folder / path.name)
        return target
    with atomic_folder(target) as target_folder:
        if origin.generate is not None:
            origin.generate(target_folder, seed, progress)
            (target_folder / "SOURCE.md").write_text(f"{origin.about} (by anyformer, seed {seed})\n")
            return target
        for name, file in origin.files.items():
            content = read(file, offline)
            (target_folder / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
        page = origin.page if "://" in origin.page else f"https://huggingface.co/datasets/{origin.page}"
        (target_folder / "SOURCE.md").write_text(f"{origin.about}: {page}\n")
    return target


def read(file: tuple[HFDataset, Callable[[Rows], bytes]] | WebFile, offline: bool) -> bytes:
    if not isinstance(file, WebFile):
        dataset, write = file
        return write(row.example for row in dataset.raw() if row.example is not None)
    if offline or hub.asked_offline():
        raise FileNotFoundError(f"{file.url} is not in a cache; fetch it without offline")
    return file.read()
