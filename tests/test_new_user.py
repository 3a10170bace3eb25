"""A new user's first hour with their data: no traceback, no silent loss, results next to inputs.

Every command runs in a separate process, in the same folder.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.objectives.metrics import ANSWERS

REPO = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Shell = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run `anyformer ...` in the user's folder and check that it prints no traceback and does not report a bug."""
    environment = {**os.environ, "PYTHONPATH": str(REPO / "src"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}

    def run(*words: object, code: int = 0) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "anyformer", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        output = done.stdout + done.stderr
        assert "Traceback" not in output and "a bug in anyformer" not in output, output
        assert done.returncode == code, f"{' '.join(command[2:])}: {output}"
        return done

    return run


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    who, does, what = ["The fox", "A crow", "My aunt", "The sea"], ["sees", "keeps", "sings to"], ["a lamp", "the moon"]
    return [f"{draw.choice(who)} {draw.choice(does)} {draw.choice(what)} at {draw.randrange(24)} o'clock."
            for _ in range(count)]  # fmt: skip


def test_three_texts(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(3):
        (tmp_path / "texts" / f"{number}.txt").write_text("\n".join(sentences(500, number)))
    (tmp_path / "texts" / "photo.jpg").write_bytes(b"\xff\xd8 not a text")
    log = shell("train", "--text", "texts", "--set", "steps=60")
    output = log.stdout + log.stderr
    assert "photo.jpg" in output, "skipped files are listed"
    assert "baseline" in output.lower() or "beats" in output.lower(), "the run is compared with baselines"
    assert shell("generate", "runs/texts", "The fox", "--max-new-tokens", 8).stdout.strip()
    assert "did you mean runs/texts?" in shell("generate", "runs/text", "The fox", code=2).stderr
    shell("eval", "runs/texts")
    read, model = af.processor(tmp_path / "runs" / "texts"), af.load(tmp_path / "runs" / "texts")
    written = model.generate(**read("The fox sees"), max_new_tokens=8)
    assert read.decode(written[0]).startswith("The fox sees")


def test_a_messy_table(shell: Shell, tmp_path: Path) -> None:
    """Semicolons, a Windows encoding, ragged rows, empty labels, alternating labels and a text that is too long."""
    good, bad = ["Sehr schön, wirklich", "Ein Genuß für alle"], ["Öde und lang", "Nie wieder, kläglich"]
    lines = ["Nummer;Text;Stimmung"]
    for number in range(60):
        text, label = (good if number % 2 else bad)[number // 2 % 2], "gut" if number % 2 else "übel"
        lines.append(f'{number};"{text} {number}";{label}')
    lines[7] = "6;zu wenig"
    lines[9] = '8;"ohne Stimmung";'
    lines[11] = f'10;"{"sehr " * 600}lang";übel'
    (tmp_path / "reviews.csv").write_bytes("\n".join(lines).encode("cp1252"))
    log = shell("train", "--csv", "reviews.csv", "--label", "Stimmung", "--column", "Text", "--set", "steps=80")
    said = log.stdout + log.stderr
    assert "skipped 2 of 60 rows" in said and "truncated to objective.length" in said, said
    validation = next(line for line in said.splitlines() if "valid" in line and "gut" in line)
    assert "übel" in validation.split("valid")[-1], "both classes are in the validation rows"
    shell("run", "classify", "runs/reviews", "--csv", "reviews.csv", "--column", "Text", "--out", "answers.csv", code=1)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "answers.csv").read_text(encoding="utf-8-sig"))))
    assert len(rows) == 60 and [row["error"] != "" for row in rows].count(True) == 1
    sure = [row for row in rows if row["Stimmung"] in ("gut", "übel") and not row["error"]]
    right = sum(row["label"] == row["Stimmung"] for row in sure)
    assert right >= 0.9 * len(sure), f"{right} of {len(sure)}"
    assert {row["Nummer"] for row in sure} <= set(map(str, range(60))), "the user's columns are kept"
    before = (tmp_path / "answers.csv").read_bytes()
    again = ("run", "classify", "runs/reviews", "--csv", "reviews.csv", "--column", "Text", "--out", "answers.csv")
    assert "--overwrite" in shell(*again, code=2).stderr
    assert (tmp_path / "answers.csv").read_bytes() == before
    (tmp_path / "lines.txt").write_text("Sehr schön\n\nÖde\n")
    answers = shell("run", "classify", "runs/reviews", "--file", "lines.txt", "--json", code=1).stdout.splitlines()
    assert len(answers) == 3 and "error" in json.loads(answers[1]) and "error" not in json.loads(answers[2])


def test_tagged_words(shell: Shell, tmp_path: Path) -> None:
    people, places = ["Ada", "Grace", "Rosalind", "Emmy"], ["Cambridge", "Zanzibar", "Ljubljana"]
    draw, lines = random.Random(0), []
    for _ in range(120):
        lines += [f"{draw.choice(people)} B-PER", "lives O", "in O", f"{draw.choice(places)} B-LOC", ". O", ""]
    (tmp_path / "names.conll").write_text("\n".join(lines))
    shell("train", "--tags", "names.conll", "--set", "steps=150")
    (answer,) = shell("run", "tag", "runs/names", "Rosalind lives in Ljubljana.", "--json").stdout.splitlines()
    words = {each["word"]: each["entity_group"] for each in json.loads(answer)}
    assert words == {"Rosalind": "PER", "Ljubljana": "LOC"}, "whole words, each with its label"


def test_questions_about_numbers(shell: Shell, tmp_path: Path, shared_data: Path) -> None:
    """A small reader from scratch finds dates and numbers in texts that it has not seen, better than any rule."""
    with gzip.open(shared_data / "qa_squad11_part" / "squad11_train_part.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    asks = re.compile(r"(when|in what year|what year|how many|how much|in which year)\b", re.IGNORECASE)
    rows = [row for row in rows if asks.match(row["question"])]
    lines = [json.dumps({name: row[name] for name in ("question", "context", "answer")}) for row in rows]
    (tmp_path / "numbers.jsonl").write_text("\n".join(lines))
    changes = ("steps=240", "evaluate.every=60", "objective.length=200", "objective.stride=40")
    settings = [word for change in (*changes, "objective.question_length=40") for word in ("--set", change)]
    log = shell("train", "--questions", "numbers.jsonl", *settings)
    assert f"{len(rows)} questions about" in log.stderr
    found = json.loads(shell("eval", "runs/numbers", "--json", "--save", "answers.jsonl").stdout)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    wanted, score = [row["wanted"] for row in answers], ANSWERS.functions["f1"]
    numbers = [re.findall(r"\d[\d,.]*", row["context"]) or [""] for row in answers]
    guesses = [[row[i] for row in numbers] for i in (0, -1)]  # the first and the last number of the text
    guesses += [[" ".join(row["context"].split()[:count]) for row in answers] for count in (2, 5, 10, 20)]
    baseline = max(score(guess, wanted) for guess in guesses)
    print(f"\n{len(rows)} questions, {len(answers)} held out: {found}; the best rule: f1 {baseline:.1f}")
    assert found["f1"] > baseline + 5 and found["exact_match"] > 10, (baseline, found)
    text = "It was built in 1921."
    (answer,) = shell("run", "answer", "runs/numbers", "When was it built?", text, "--json").stdout.splitlines()
    assert json.loads(answer)[0]["answer"] in text


def test_sentence_embeddings_and_search(shell: Shell, tmp_path: Path, shared_data: Path) -> None:
    """A small encoder from scratch learns to find the German translation of an English caption."""
    for split, count in (("train", 8000), ("val", None)):
        columns = []
        for language in ("en", "de"):
            with gzip.open(shared_data / "multi30k" / f"{split}.{language}.gz", "rt", encoding="utf-8") as file:
                columns.append(file.read().splitlines()[:count])
        with (tmp_path / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("english", "german"), *zip(*columns)])
    both = ("--column", "english", "--column", "german")
    train = ("train", "--csv", "train.csv", *both, "--similar", "--valid", "val.csv")
    shell(*train, "--set", "steps=1", "--set", "optimizer.lr=1e-9", "--out", "untrained")
    shell(*train, "--set", "steps=60", "--set", "evaluate.every=30")
    before, after = (json.loads(shell("eval", folder, "--json").stdout) for folder in ("untrained", "runs/train"))
    print(f"\nbefore: {before}\nafter: {after}")
    assert before["examples"] == 1014 and before["recall_at_10"] < 0.2 and after["recall_at_10"] > 0.4
    shell("index", "runs/train", "val.csv", "--column", "german")
    queries = [row["english"] for row in csv.DictReader((tmp_path / "val.csv").open(encoding="utf-8", newline=""))]
    (tmp_path / "queries.txt").write_text("\n".join(queries), encoding="utf-8")
    found = shell("search", "val.index", "--file", "queries.txt", "--top-k", "10", "--json").stdout.splitlines()
    hits = [number in [one["row"] for one in json.loads(line)] for number, line in enumerate(found, 2)]
    share = sum(hits) / len(hits)
    assert share == pytest.approx(after["recall_at_10"], abs=0.005)  # eval lists equal texts once


def test_images_with_a_broken_one(shell: Shell, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for colour in ("red", "blue"):
        (tmp_path / "photos" / colour).mkdir(parents=True)
        for number in range(20):
            tint = (200 + number, 20, 20) if colour == "red" else (20, 20, 200 + number)
            image.new("RGB", (24, 24), tint).save(tmp_path / "photos" / colour / f"{number}.png")
    (tmp_path / "photos" / "red" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    log = shell("train", "--images", "photos", "--set", "steps=40")
    assert "1 broken" in log.stdout + log.stderr
    answers = [json.loads(line) for line in shell("run", "classify-image", "runs/photos", "photos/red/0.png",
               "photos/red/broken.png", "photos/blue/3.png", "--json", code=1).stdout.splitlines()]  # fmt: skip
    assert len(answers) == 3 and "broken.png" in str(answers[1]["error"])
    assert [answers[0][0]["label"], answers[2][0]["label"]] == ["red", "blue"]
    shell("eval", "runs/photos")


def test_a_recording(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sys.path.insert(0, str(REPO / "tests" / "tasks"))
    from test_transcribe import speller

    (tmp_path / "speech").mkdir()
    speller(tmp_path / "speech")
    with wave.open(str(tmp_path / "talk.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(random.Random(0).randbytes(32000))
    (tmp_path / "half.wav").write_bytes((tmp_path / "talk.wav").read_bytes()[:30])
    command = ("run", "transcribe", "speech", "talk.wav", "half.wav", "--json")
    first, second = map(json.loads, shell(*command, code=1).stdout.splitlines())
    assert isinstance(first, str) and first, "the transcript"
    assert "half.wav: " in second["error"] and "too early" in second["error"]
    assert "half.wav: " in shell("run", "transcribe", "speech", "half.wav", code=2).stderr


def test_a_description_from_scratch(shell: Shell, tmp_path: Path) -> None:
    p = af.parts

    def layer(mixer: Any) -> Any:
        return p.Block(
            mixer=p.Sublayer(pre_norm=p.RMSNorm(), op=mixer),
            feedforward=p.Sublayer(pre_norm=p.RMSNorm(), op=p.GatedMLP(width=64)),
        )

    hybrid = p.DecoderModel(
        width=32, length=128, embedding=p.TextEmbedding(tokens=p.Tokens(vocab_size=400)),
        decoder=p.Stack(
            layers={"mamba": layer(p.SelectiveState(width=64)),
                    "attention": layer(p.Attention(num_heads=4, mask=p.Causal() & p.Window(16), position=p.Rope))},
            pattern=("mamba", "attention"), depth=4, norm=p.RMSNorm(),
        ),
        head=p.LMHead(vocab_size=400), init={"*": p.Normal(std=0.02)},
    )  # fmt: skip
    af.save(af.build(hybrid, seed=0), tmp_path / "hybrid")
    (tmp_path / "text.txt").write_text("\n".join(sentences(400, 0)))
    for name in ("hybrid", "hybrid/spec.json"):
        shell("train", "--text", "text.txt", "--model", name, "--out", "trained", "--set", "steps=20")
        assert shell("generate", "trained", "The fox", "--max-new-tokens", 4).stdout.strip()
        shutil.rmtree(tmp_path / "trained")
    with pytest.raises(ValueError, match="overwrite=True"):
        af.save(af.build(hybrid), tmp_path)  # a folder with other things in it
    assert (tmp_path / "text.txt").is_file()


def test_a_part_of_their_own(shell: Shell, tmp_path: Path) -> None:
    shutil.copy(REPO / "examples" / "moving_average.py", tmp_path / "moving_average.py")
    table = shell("check", "moving_average.py").stdout
    assert "causality" in table and "failed" not in table
    broken = (tmp_path / "moving_average.py").read_text().replace("rows.unpack(", "rows.unpack(x.nonsense + ")
    (tmp_path / "broken_average.py").write_text(broken)
    assert "broken_average.py" in shell("check", "broken_average.py", code=1).stdout
