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
import statistics
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
    output = log.stdout + log.stderr
    assert "skipped 2 of 60 rows" in output and "truncated to objective.length" in output, output
    validation = next(line for line in output.splitlines() if "valid" in line and "gut" in line)
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


# -- jobs of people who fine-tune models -------------------------------------------------------------------------------


def test_rare_intents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 intents with 150 to 3 rows: oversampling raises the mean macro F1 (docs/results/training.md)."""
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    import intents

    found = intents.measure(tmp_path)
    without, oversampled = (statistics.mean(found[kind]) for kind in ("without", "oversampled"))
    assert oversampled > without, found


def queries(count: int, seed: int) -> list[tuple[str, str]]:
    """Schemas with a question, and the SQL that answers it. Tables, columns and values vary independently."""
    tables = {
        "users": ("name", "age", "city"),
        "orders": ("total", "status", "day"),
        "films": ("title", "year", "genre"),
    }
    draw, rows = random.Random(seed), []
    for _ in range(count):
        table = draw.choice([*tables])
        chosen, tested = draw.sample(tables[table], 2)
        value, schema = draw.randrange(10, 60), f"{table}({', '.join(tables[table])})"
        question, sql = draw.choice([
            (f"the {chosen} of {table} with {tested} {value}", f"{chosen} FROM {table} WHERE {tested} = {value}"),
            (f"how many {table} have {tested} above {value}", f"COUNT(*) FROM {table} WHERE {tested} > {value}"),
            (f"the {value} {table} with the largest {chosen}", f"* FROM {table} ORDER BY {chosen} LIMIT {value}"),
            (f"all {table} by {chosen}", f"* FROM {table} ORDER BY {chosen}"),
        ])  # fmt: skip
        rows.append((f"{schema}: {question}", f"SELECT {sql}"))
    return rows


def write_table(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


CHATML = """{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system
You are a helpful assistant<|im_end|>
{% endif %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}
{{- m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""  # as Qwen2's, with marks


def qwen(folder: Path) -> None:
    """Write a small Qwen2 with a byte-level vocabulary and Qwen2's special tokens and template, by transformers."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    letters, special = core.pre_tokenizer.alphabet(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=letters)
    core.train_from_iterator([text for row in queries(300, 0) for text in row], trainer)
    read = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", ""),
    )  # fmt: skip
    read.save_pretrained(folder)
    config = transformers.Qwen2Config(
        vocab_size=len(read), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    transformers.set_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)


def test_prompts_and_answers(shell: Shell, tmp_path: Path) -> None:
    """Tune a small Qwen2 with and without LoRA. The learnt tokens are those that transformers marks as the assistant's,
    and those that follow the prompt; the exported models answer as ours."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from anyformer.data import DataSplit

    qwen(tmp_path / "qwen")
    rows = queries(160, 0)
    write_table(tmp_path / "sql.csv", ("question", "sql"), rows)
    columns = ("--csv", "sql.csv", "--prompt", "question", "--answer", "sql", "--model", "qwen", "--device", "cpu")
    few = ("--set", "steps=40", "--set", "evaluate.every=20", "--set", "keep.every=20", "--set", "optimizer.lr=3e-3")
    shell("train", *columns, *few)
    shell("train", *columns, *few, "--lora", "--out", "runs/lora")

    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "qwen")  # its own splits, not Qwen2's
    wanted = {}
    for question, sql in rows:
        talk = [{"role": "user", "content": question}, {"role": "assistant", "content": sql}]
        ids = oracle.apply_chat_template(talk, return_dict=True)["input_ids"]
        prompt = oracle.apply_chat_template(talk[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
        end = ids.index(oracle.eos_token_id, len(prompt)) + 1
        labels = [-100] * len(prompt) + ids[len(prompt) : end] + [-100] * (len(ids) - end)
        marked = {"chat_template": CHATML, "return_assistant_tokens_mask": True}
        masked = oracle.apply_chat_template(talk, return_dict=True, **marked)
        assert masked["input_ids"] == ids and oracle.decode(ids[len(prompt) : end]) == f"{sql}<|im_end|>"
        assert labels == [i if own else -100 for i, own in zip(ids, masked["assistant_masks"], strict=True)]
        wanted[tuple(ids)] = labels
    (folder,) = (tmp_path / "runs" / "sql" / "data").glob("train-*")
    split = DataSplit(folder)
    assert len(split) == 144
    for i in range(len(split)):
        record = split.record(i)
        assert record["labels"].tolist() == wanted[tuple(record["input_ids"].tolist())]

    start = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "qwen")
    for run in ("runs/sql", "runs/lora"):
        logged = [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        valid = [line["valid/loss"] for line in logged if "valid/loss" in line]
        assert valid[-1] < valid[0] < 7, valid
        shell("convert", run, f"exported-{run[5:]}", "--format", "hf")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"exported-{run[5:]}")
        moved = {
            name for name, value in theirs.state_dict().items() if not torch.equal(value, start.state_dict()[name])
        }
        assert all(("_proj" in name) for name in moved) == (run == "runs/lora") and moved
        read, ours = af.processor(tmp_path / run), af.load(tmp_path / run)
        prompt = read.tokenizer.chat([{"role": "user", "content": rows[0][0]}])
        ids = {"input_ids": torch.tensor([prompt]), "max_new_tokens": 24, "do_sample": False}
        assert torch.equal(ours.generate(**ids), theirs.eval().generate(**ids)), "the exported model answers the same"
    assert "exact_match" in shell("eval", "runs/lora", "--report").stdout


def test_questions_to_sql(shell: Shell, tmp_path: Path) -> None:
    """From a schema and a question to SQL (docs/howto/csv.md, `--target`), from scratch: at least half of 100 unseen
    questions are answered exactly, with and without beams."""
    rows = sorted({*queries(1600, 0)})
    random.Random(0).shuffle(rows)
    header = ("question", "sql")
    write_table(tmp_path / "sql.csv", header, rows[100:])
    write_table(tmp_path / "unseen.csv", header, rows[:100])
    columns = ("--csv", "sql.csv", "--test", "unseen.csv", "--column", "question", "--target", "sql", "--device", "cpu")
    shell("train", *columns, "--set", "steps=400", "--set", "schedule.warmup=40", "--set", "evaluate.every=200")
    for beams in (1, 4):
        options = ("--split", "test", "--metrics", "exact_match", "--num-beams", beams, "--json", "--device", "cpu")
        scores = json.loads(shell("eval", "runs/sql", *options).stdout)
        assert scores["examples"] == 100 and scores["exact_match"] >= 50, scores
    (answer,) = shell("run", "translate", "runs/sql", rows[100][0], "--num-beams", 4).stdout.splitlines()
    assert answer.startswith("SELECT ")


def test_odd_images(shell: Shell, tmp_path: Path) -> None:
    """Every kind of image is read as a person sees it (docs/howto/vision.md); only broken files are skipped."""
    image, ops = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageOps")
    numpy = pytest.importorskip("numpy")
    for name, shade in (("dark", 40), ("light", 210)):
        (folder := tmp_path / "photos" / name).mkdir(parents=True)
        draw = numpy.random.default_rng(shade)
        for i in range(12):
            pixels = (shade + draw.integers(-30, 30, (20, 30, 3))).astype("uint8")
            image.fromarray(pixels).save(folder / f"{i}.png")
        plain = image.fromarray(pixels)
        for mode, file in (("L", "grey.png"), ("RGBA", "alpha.png"), ("P", "palette.png"), ("CMYK", "print.jpg"),
                           ("1", "bits.png"), ("LA", "greyalpha.png")):  # fmt: skip
            plain.convert(mode).save(folder / file)
        exif = image.Exif()
        exif[0x0112] = 6  # lies on its side
        plain.save(folder / "turned.jpg", exif=exif)
        plain.resize((1, 1)).save(folder / "one.png")
        plain.save(folder / "film.gif", save_all=True, append_images=[plain.rotate(90)] * 2)
        image.fromarray(pixels[..., 0].astype("uint16") * 257).save(folder / "deep.png")
        (folder / "half.jpg").write_bytes((folder / "turned.jpg").read_bytes()[:400])
        (folder / "empty.png").touch()
    done = shell("train", "--images", "photos", "--set", "steps=60", "--device", "cpu")
    skipped = next(line for line in done.stdout.splitlines() if line.startswith("skipped"))
    assert skipped.startswith("skipped 4 of 48 rows"), skipped
    assert "half.jpg" in skipped and "empty.png" in skipped
    splits = list(csv.DictReader((tmp_path / "runs" / "photos" / "splits.csv").open(encoding="utf-8")))
    assert sum(row["split"] == "skipped" for row in splits) == 4
    odd = [f"photos/{name}/{file}" for name in ("dark", "light") for file in ("grey.png", "alpha.png", "palette.png",
           "print.jpg", "turned.jpg", "one.png", "film.gif", "deep.png", "greyalpha.png")]  # fmt: skip
    answers = shell("run", "classify-image", "runs/photos", *odd, "--json").stdout.splitlines()
    best = {file: json.loads(answer)[0] for file, answer in zip(odd, answers, strict=True)}
    assert {file: best[file]["label"] for file in odd} == {file: file.split("/")[1] for file in odd}
    shell("convert", "runs/photos", "exported", "--format", "hf")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.pipeline("image-classification", str(tmp_path / "exported"), device="cpu")
    for file in odd[:5]:
        right = theirs(ops.exif_transpose(image.open(tmp_path / file)).convert("RGB"))[0]
        assert right["label"] == best[file]["label"] and right["score"] == pytest.approx(best[file]["score"], abs=2e-3)
