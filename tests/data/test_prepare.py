"""Records are written once, read back unchanged, found by fingerprint, and never incomplete."""

import contextlib
import json
import multiprocessing
import os
import time

import numpy as np
import psutil
import pytest

from anyformer.data import Bytes, Data, DataSplit, JSONLines, Row, TextFiles, prepare, tokenizer_digest
from anyformer.data.encode import encode_rows
from anyformer.data.shards import Writer
from anyformer.objectives.objective import Objective


class PlainObjective(Objective):
    """Encodes the bytes of a text; `calls` lists what was encoded."""

    offset: int = 0
    calls = []

    def encode(self, example, tokenizer):
        self.calls.append(example)
        if "bad" in example["text"]:
            raise ValueError("it says bad")
        return {"input_ids": np.array(tokenizer.encode(example["text"]), np.int32) + self.offset}


class WindowsObjective(PlainObjective):
    def encode(self, example, tokenizer):
        ids = np.array(tokenizer.encode(example["text"]), np.int32)
        return [{"input_ids": ids[i : i + 4]} for i in range(0, len(ids), 4)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Bytes().make((), tmp_path_factory.mktemp("bytes"))


def lines(tmp_path, content, name="a.txt"):
    (tmp_path / name).write_text(content)
    return TextFiles(path=str(tmp_path / name), unit="line")


def decoded(split, tokenizer):
    return [tokenizer.decode(record["input_ids"]) for record in split]


def test_records_come_back_as_they_were(tmp_path):
    random = np.random.default_rng(0)
    records = [
        {"ids": random.integers(-3, 70000, n), "small": random.integers(0, 200, 2 * n).astype(np.int32),
         "x": random.normal(size=n).astype(np.float32), "flag": np.array(n % 2 == 0), "label": np.array(n - 5),
         "pixels": random.integers(0, 255, 3).astype(np.uint8)}
        for n in random.integers(0, 30, 100)
    ]  # fmt: skip
    with Writer(tmp_path / "a", shard_bytes=2000) as writer:
        for record in records:
            writer.add(record)
    split = DataSplit(tmp_path / "a")
    assert len(split) == 100 and len(split.counts) > 10
    drawn = random.permutation(np.arange(200) % 100)
    together = zip(drawn.tolist(), split.records(drawn), strict=True)
    for i, found in [*((i, split.record(i)) for i in range(100)), *together]:
        assert list(found) == list(records[i])
        for name, array in found.items():
            assert array.dtype == records[i][name].dtype and array.shape == records[i][name].shape
            assert np.array_equal(array, records[i][name])
    assert split.records(np.zeros(0, int)) == []
    assert split.fields["small"].parts[0].dtype == np.uint8  # the smallest dtype that fits
    assert split.sizes.tolist() == [max(3, 2 * len(record["ids"])) for record in records]


def test_prepared_once_and_again_only_where_something_changed(tmp_path, tokenizer):
    data = Data(train=lines(tmp_path, "one\ntwo\n"), valid=lines(tmp_path, "three\n", "b.txt"))
    PlainObjective.calls.clear()
    first = prepare(data, PlainObjective(), tokenizer, tmp_path / "p")
    assert decoded(first.train, tokenizer) == ["one", "two"] and decoded(first.valid, tokenizer) == ["three"]
    assert first.test is None and len(PlainObjective.calls) == 3
    again = prepare(data, PlainObjective(), tokenizer, tmp_path / "p")
    assert len(PlainObjective.calls) == 3 and again.digest == first.digest

    other = Bytes(special={"eos_token": "<e>"}).make((), tmp_path / "other")
    assert tokenizer_digest(other) != tokenizer_digest(tokenizer) == tokenizer_digest(tokenizer)
    assert prepare(data, PlainObjective(), other, tmp_path / "p").digest != first.digest
    assert prepare(data, PlainObjective(offset=1), tokenizer, tmp_path / "p").digest != first.digest
    lines(tmp_path, "one\ntwo.\n")
    changed = prepare(data, PlainObjective(), tokenizer, tmp_path / "p")
    assert decoded(changed.train, tokenizer) == ["one", "two."] and changed.digest != first.digest
    lines(tmp_path, "one\ntwo\n")
    PlainObjective.calls.clear()
    assert prepare(data, PlainObjective(), tokenizer, tmp_path / "p").digest == first.digest
    assert not PlainObjective.calls


def test_the_digest_is_that_of_the_records_wherever_they_came_from(tmp_path, tokenizer):
    (tmp_path / "moved").mkdir()
    splits = [
        prepare(Data(train=source), PlainObjective(), tokenizer, tmp_path / "p")
        for source in (lines(tmp_path, "one\ntwo\n"), lines(tmp_path / "moved", "one\ntwo\n", "other.txt"))
    ]
    assert splits[0].train.folder != splits[1].train.folder and splits[0].digest == splits[1].digest


def test_rows_that_cannot_be_used_are_named_and_counted_also_the_second_time(tmp_path, tokenizer):
    rows = ['{"text": "fine"}', "broken", '{"text": "bad one"}', '{"other": 1}', *['{"text": "bad"}'] * 30]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    for _ in range(2):
        data = Data(train=JSONLines(path=str(tmp_path / "a.jsonl")), unfit="skip")
        splits = prepare(data, PlainObjective(), tokenizer, tmp_path / "p")
        assert len(splits.train) == 1 and splits.train.bad == 33
        (report,) = splits.report()
        assert report.startswith("skipped 33 of 34 rows (train 33): ") and report.endswith("; and 30 more")
        assert "a.jsonl:2: not JSON" in report
        assert "a.jsonl:3: it says bad; " in report and "a.jsonl:4: no column 'text'; " in report


def test_nothing_to_learn_from_is_one_line(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="the train data has no usable example: it is empty$"):
        prepare(Data(train=lines(tmp_path, "\n\n")), PlainObjective(), tokenizer, tmp_path / "p")
    with pytest.raises(
        ValueError, match=r"the train data has no usable example: 2 rows .*the first problem: .*a\.txt:1: it says bad"
    ):
        prepare(Data(train=lines(tmp_path, "bad\nbad"), unfit="skip"), PlainObjective(), tokenizer, tmp_path / "p")
    with pytest.raises(ValueError, match="the valid data has no usable example"):
        data = Data(train=lines(tmp_path, "x", "b"), valid=lines(tmp_path, ""))
        prepare(data, PlainObjective(), tokenizer, tmp_path / "p")
    assert not [name for name in os.listdir(tmp_path / "p") if name.endswith(".tmp")]


def test_a_row_that_cannot_be_read_is_left_out_and_one_that_is_refused_stops(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\nbroken\n{"text": "bad"}\n')
    data = Data(train=JSONLines(path=str(tmp_path / "a.jsonl")))
    with pytest.raises(ValueError, match=r"a\.jsonl:3: it says bad; .*data\.unfit='skip'"):
        prepare(data, PlainObjective(), tokenizer, tmp_path / "p")
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\nbroken\n')
    assert prepare(data, PlainObjective(), tokenizer, tmp_path / "p").train.bad == 1


def test_a_record_that_is_too_long_stops_or_is_counted(tmp_path, tokenizer):
    source = lines(tmp_path, "short\nmuch too long\nok\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: 13 tokens; the limit is 8 \(batch\.length\)"):
        prepare(Data(train=source), PlainObjective(), tokenizer, tmp_path / "p", 8)
    skipped = prepare(Data(train=source, unfit="skip"), PlainObjective(), tokenizer, tmp_path / "p", 8)
    assert decoded(skipped.train, tokenizer) == ["short", "ok"] and skipped.train.bad == 1
    assert len(prepare(Data(train=source), PlainObjective(), tokenizer, tmp_path / "p", 13).train) == 3


def test_an_example_may_give_several_records(tmp_path, tokenizer):
    splits = prepare(Data(train=lines(tmp_path, "abcdefghij\nxy")), WindowsObjective(), tokenizer, tmp_path / "p", 4)
    assert decoded(splits.train, tokenizer) == ["abcd", "efgh", "ij", "xy"]


def test_an_example_that_gives_nothing_is_counted(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"text": "abcd"}\n{"text": ""}\n')
    data = Data(train=JSONLines(path=str(tmp_path / "a.jsonl")), unfit="skip")
    for objective in (PlainObjective(), WindowsObjective()):  # one empty record, and no records
        split = prepare(data, objective, tokenizer, tmp_path / "p").train
        assert len(split) == 1 and split.problems == [f"{tmp_path}/a.jsonl:2: the record is empty"]


def test_progress_is_told(tmp_path, tokenizer):
    reports = []
    data = Data(train=lines(tmp_path, "x\n" * 600))
    prepare(data, PlainObjective(), tokenizer, tmp_path / "p", None, lambda *what: reports.append(what))
    assert reports == [("train", 256), ("train", 512), ("train", 600)]


def test_a_failed_preparation_leaves_nothing_that_is_taken_for_whole(tmp_path, tokenizer, monkeypatch):
    data = Data(train=lines(tmp_path, "one\ntwo\n"))

    def full(self, *_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_flush", full)
        with pytest.raises(ValueError, match=r"prepared data cannot be written to .*No space left"):
            prepare(data, PlainObjective(), tokenizer, tmp_path / "p")
    assert not list((tmp_path / "p").glob("*train*"))
    assert len(prepare(data, PlainObjective(), tokenizer, tmp_path / "p").train) == 2


def test_killed_while_preparing(tmp_path, tokenizer, monkeypatch):
    """The files of a killed process are not used as complete records, and are deleted."""
    data = Data(train=lines(tmp_path, "one\ntwo\n"))

    def work():
        prepare(data, DeadlyObjective(), tokenizer, tmp_path / "p")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -9 and list((tmp_path / "p").glob(".train-*.tmp"))
    assert not list((tmp_path / "p").glob("train-*"))
    monkeypatch.setattr(DeadlyObjective, "encode", PlainObjective.encode)
    again = prepare(data, DeadlyObjective(), tokenizer, tmp_path / "p")
    assert len(again.train) == 2 and not list((tmp_path / "p").glob(".train-*.tmp"))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, tokenizer):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="prepared data cannot be written to"):
        prepare(Data(train=lines(tmp_path, "x")), PlainObjective(), tokenizer, tmp_path / "file" / "p")


def test_damage_is_noticed(tmp_path, tokenizer):
    split = prepare(Data(train=lines(tmp_path, "one\ntwo\n")), PlainObjective(), tokenizer, tmp_path / "p").train
    file = split.folder / "00000.input_ids"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged; delete it"):
        DataSplit(split.folder)
    file.unlink()
    with pytest.raises(ValueError, match="is damaged; delete it"):
        DataSplit(split.folder)


@pytest.mark.parametrize("alone", [0, 100])
def test_many_processes_give_the_same_in_the_same_order(tokenizer, alone):
    """Worker processes start at the first row, or after some rows were encoded in this process."""
    rows = [Row(f"f:{i}", {"text": f"{'bad' if i % 50 == 7 else 'x' * (i % 9 + 1)} {i}"}) for i in range(1000)]
    rows[5] = Row("f:5", None, "broken")
    expected = list(encode_rows(iter(rows), PlainObjective(), tokenizer, workers=1))
    PlainObjective.calls.clear()

    def slowly():
        for i, row in enumerate(rows):
            if alone and i == alone:
                time.sleep(0.4)
            yield row

    together = list(encode_rows(slowly(), PlainObjective(), tokenizer, workers=3, moment=0.4 if alone else 0.0))
    assert len(PlainObjective.calls) <= alone  # worker processes encoded the rest
    assert [row.place for row in together] == [row.place for row in rows]
    for a, b in zip(expected, together):
        assert a[2:] == b[2:] and len(a.records) == len(b.records)
        assert all(np.array_equal(x["input_ids"], y["input_ids"]) for x, y in zip(a.records, b.records))
    assert together[5].unread and together[7].problem == "it says bad"


class DeadlyObjective(PlainObjective):
    def encode(self, example, tokenizer):
        os.kill(os.getpid(), 9)


def test_a_killed_encoder_is_one_line_and_a_killed_parent_leaves_none(tokenizer):
    rows = [Row(f"f:{i}", {"text": "x"}) for i in range(100)]
    with pytest.raises(ValueError, match="was killed"):
        list(encode_rows(iter(rows), DeadlyObjective(), tokenizer, workers=2, moment=0.0))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def work():
        found = encode_rows(iter(rows * 100), TellingObjective(), tokenizer, workers=2, moment=0.0)
        queue.put(int(next(found).records[0]["input_ids"][0]))
        time.sleep(600)

    parent = context.Process(target=work)
    parent.start()
    child = queue.get()
    os.kill(parent.pid, 9)
    parent.join()
    deadline = time.monotonic() + 100
    while (alive := running(child)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert child != parent.pid and not alive


def running(process):
    """Whether a process exists and is not a zombie: the first process of a container may never collect orphans."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


class TellingObjective(PlainObjective):
    def encode(self, example, tokenizer):
        return {"input_ids": np.array([os.getpid()])}


class SlowObjective(Objective):
    log: str

    def encode(self, example, tokenizer):
        time.sleep(0.001)
        with open(self.log, "a") as log:
            log.write("x")
        return {"input_ids": np.array(tokenizer.encode(example["text"]))}


def test_processes_that_start_together_encode_once(tmp_path, tokenizer):
    """Of three processes one encodes, and all return the same records."""
    data = Data(train=lines(tmp_path, "".join(f"line {i}\n" for i in range(300))))
    context = multiprocessing.get_context("fork")
    queue, gate = context.SimpleQueue(), context.Barrier(3)

    def work():
        gate.wait(60)
        splits = prepare(data, SlowObjective(log=str(tmp_path / "log")), tokenizer, tmp_path / "p")
        queue.put((splits.digest, len(splits.train)))

    running = [context.Process(target=work) for _ in range(3)]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    found = {queue.get() for _ in running}
    assert len(found) == 1 and found.pop()[1] == 300
    assert (tmp_path / "log").read_text() == "x" * 300
    assert json.loads(next((tmp_path / "p").glob("train-*/index.json")).read_text())["shards"] == [300]
