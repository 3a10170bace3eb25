"""Every format is read back as written, and unreadable rows are reported with file and line."""

import gzip
import json
import sys
import wave
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from anyformer.data import (
    CSV,
    IDX,
    TSV,
    Arrays,
    Beside,
    Bytes,
    Columns,
    Data,
    First,
    Held,
    HFDataset,
    ImageFolder,
    JSONLines,
    ParallelText,
    Parquet,
    PythonDocs,
    SoundFolder,
    SQuAD,
    Stored,
    TextFiles,
    TrainedBPE,
    TrainedUnigram,
    TrainedWordPiece,
    Worded,
    open_table,
    texts_of,
)  # fmt: skip
from anyformer.data.encode import encode_row
from anyformer.data.source import detect_encoding
from anyformer.objectives.classify import Classify
from anyformer.objectives.vocabulary_info import VocabularyInfo
from anyformer.specs.codec import decode, encode, override


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def good(source, *wanted):
    return [row.example for row in source.rows(wanted) if row.example is not None]


def bad(source, *wanted):
    return [(row.place, row.problem) for row in source.rows(wanted) if row.example is None]


def texts(source):
    return [example["text"] for example in good(source, "text")]


# -- text


def test_text_by_file_paragraph_and_line(tmp_path):
    path = write(tmp_path / "a.txt", "one\r\ntwo\r\n\r\nthree\r\n\n\n")
    assert texts(TextFiles(path=path)) == ["one\ntwo\n\nthree\n\n\n"]
    assert texts(TextFiles(path=path, unit="paragraph")) == ["one\ntwo", "three"]
    assert texts(TextFiles(path=path, unit="line")) == ["one", "two", "three"]
    places = [row.place for row in TextFiles(path=path, unit="paragraph").raw()]
    assert places == [f"{path}:1", f"{path}:4"]


def test_a_share_of_a_text_is_cut_at_a_line_and_nothing_is_lost(tmp_path):
    whole = "".join(f"line {i}\n" for i in range(100))
    path = write(tmp_path / "a.txt", whole)
    (first,), (rest,) = (texts(TextFiles(path=path, **part)) for part in ({"stop": 0.9}, {"start": 0.9}))
    assert first + rest == whole and first.endswith("\n") and 0.88 < len(first) / len(whole) < 0.92
    lines = [texts(TextFiles(path=path, unit="line", **part)) for part in ({"stop": 0.9}, {"start": 0.9})]
    assert (len(lines[0]), len(lines[1])) == (90, 10) and lines[1][0] == "line 90"


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_share_of_one_long_line_is_cut_at_a_word(tmp_path, end):
    path = write(tmp_path / "a.txt", whole := "word " * 200 + "last" + end)
    (first,), (rest,) = (texts(TextFiles(path=path, **part)) for part in ({"stop": 0.9}, {"start": 0.9}))
    assert first + rest == whole and rest.startswith("word ") and 0.88 < len(first) / len(whole) < 0.92


def test_the_encoding_of_each_text_is_detected(tmp_path):
    for name, encoding in (("a", "cp1252"), ("b", "utf-16"), ("c", "utf-8-sig")):
        write(tmp_path / f"{name}.txt", "été\nfini".encode(encoding))
    assert texts(TextFiles(path=str(tmp_path), encoding=None)) == ["été\nfini"] * 3
    assert texts(TextFiles(path=str(tmp_path), encoding=None, unit="line")) == ["été", "fini"] * 3
    assert texts(TextFiles(path=str(tmp_path), encoding="cp1252"))[0] == "été\nfini"


def test_folders_patterns_and_compression(tmp_path):
    write(tmp_path / "d" / "b.txt", "b")
    write(tmp_path / "d" / "sub" / "c.md", "c")
    write(tmp_path / "d" / "z.bin", "no text")
    (tmp_path / "d" / "a.txt.gz").write_bytes(gzip.compress(b"a"))
    assert texts(TextFiles(path=str(tmp_path / "d"))) == ["a", "b", "c"]
    assert texts(TextFiles(path=str(tmp_path / "d" / "*.txt"))) == ["b"]
    assert texts(TextFiles(path=(str(tmp_path / "d" / "b.txt"), str(tmp_path / "d" / "a.txt.gz")))) == ["b", "a"]


def test_bytes_that_are_not_text_are_reported_by_line(tmp_path):
    path = write(tmp_path / "a.txt", b"one\ntwo \xff\nthree\n")
    assert bad(TextFiles(path=path, unit="line"), "text") == [(f"{path}:2", "not UTF-8")]
    assert texts(TextFiles(path=path, unit="line")) == ["one", "three"]
    assert bad(TextFiles(path=path), "text") == [(f"{path}:2", "not UTF-8")]


def test_a_missing_file_is_one_line_with_the_nearest(tmp_path):
    write(tmp_path / "train.txt", "x")
    with pytest.raises(ValueError, match="train.text: no such file or folder; did you mean 'train.txt'"):
        texts(TextFiles(path=str(tmp_path / "train.text")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no file ends in .txt"):
        texts(TextFiles(path=str(tmp_path / "empty")))
    cut = gzip.compress(b"line\n" * 1000)[:30]
    with pytest.raises(ValueError, match="cannot be read"):
        texts(TextFiles(path=write(tmp_path / "cut.txt.gz", cut), unit="line"))


def test_lines_that_belong_together(tmp_path):
    english, german = write(tmp_path / "a.en", "one\ntwo\n\nfour"), write(tmp_path / "a.de", "eins\nzwei\n\nvier")
    source = ParallelText(paths={"source": english, "target": german})
    found = [tuple(example.values()) for example in good(source, "source", "target")]
    assert found == [("one", "eins"), ("two", "zwei"), ("four", "vier")]
    assert bad(source, "source", "target") == [(f"{tmp_path}/a.en:3", "an empty line")]
    write(tmp_path / "a.de", "eins\nzwei\n")
    with pytest.raises(ValueError, match=r"a\.de: ends before line 3; "):
        list(source.raw())


def test_columns_of_words(tmp_path):
    path = write(tmp_path / "a.conll", "# head\nEU\tB-ORG\nrejects\tO\n\n\nPeter B-PER\nx\n\nend O\n")
    source = Columns(path=path, comment="#")
    found = [(example["words"], example["tags"]) for example in good(source)]
    assert found == [(["EU", "rejects"], ["B-ORG", "O"]), (["Peter", "x"], ["B-PER", "x"]), (["end"], ["O"])]
    write(tmp_path / "b.conll", "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n\n-DOCSTART- -X- -X- O\n\nend NN I-NP O\n")
    assert [example["words"] for example in good(Columns(path=str(tmp_path / "b.conll")))] == [["EU"], ["end"]]
    assert bad(Columns(path=path, comment="#", fields={"words": 0, "tags": 1})) == [
        (f"{path}:6", "line 7 has 1 column")
    ]


def test_columns_whose_words_are_numbered(tmp_path):
    lines = "# text = don't\n1-2\tdon't\t_\n1\tdo\tAUX\n2\tn't\tPART\n2.1\tgo\tVERB\n\n1\t#\tSYM\n"
    path, fields = write(tmp_path / "a.conllu", lines), {"words": 1, "tags": 2}
    source = Columns(path=path, fields=fields, comment="# ", numbered=True)
    assert [(row["words"], row["tags"]) for row in good(source)] == [(["do", "n't"], ["AUX", "PART"]), (["#"], ["SYM"])]


def test_python_itself():
    rows = list(First(source=PythonDocs(), count=30).raw())
    assert len(rows) == 30 and all("pydoc_data.topics" in row.place and row.example["text"] for row in rows)
    files = {file.name for file in PythonDocs().files()}
    assert {"argparse.py", "typing.py"} <= files and "test_argparse.py" not in files
    assert len(PythonDocs().digest()) == 64 and PythonDocs(library=False).digest() != PythonDocs().digest()


# -- tables


def test_json_lines(tmp_path):
    content = b'{"text": "a", "n": {"x": 1}}\n\nnot json\n[1]\n{"text": "b"}\n\xff\n{"other": 1}'
    path = write(tmp_path / "a.jsonl", content)
    assert texts(JSONLines(path=path)) == ["a", "b"]
    assert [place.rsplit(":")[-1] for place, _ in bad(JSONLines(path=path), "text")] == ["3", "4", "6", "7"]
    assert bad(JSONLines(path=path), "text")[-1][1] == "no column 'text'"


def test_renamed_and_nested_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps({"translation": {"en": "dog", "de": "Hund"}, "id": 3}))
    columns = {"source": "translation.en", "target": "translation.de"}
    (example,) = good(JSONLines(path=path, columns=columns), "source", "target")
    assert (example["source"], example["target"], example["id"]) == ("dog", "Hund", 3)


def test_a_wrong_column_is_an_error_at_once(tmp_path):
    path = write(tmp_path / "a.csv", "sentence,label\nx,1\n")
    with pytest.raises(ValueError, match=r"a\.csv:2: no column 'sentense'; did you mean 'sentence'"):
        good(CSV(path=path, columns={"text": "sentense"}), "text")
    with pytest.raises(ValueError, match="no column 'text'; .*columns"):
        good(CSV(path=path), "text")
    with pytest.raises(ValueError, match="set columns on its source"):
        Held(source=CSV(path=path), columns={"text": "sentence"})


def test_comma_separated(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"a, ""b""\nc",1\nplain,0\nthree,cells,here\n\nlast,1\n')
    assert good(CSV(path=path)) == [
        {"text": 'a, "b"\nc', "label": "1"}, {"text": "plain", "label": "0"}, {"text": "last", "label": "1"}
    ]  # fmt: skip
    assert bad(CSV(path=path)) == [(f"{path}:5", "3 values for 2 columns")]  # the first row has two lines


@pytest.mark.parametrize("line", ['"b,1', '"b" c,1'])
def test_a_quote_that_does_not_match_costs_one_row(tmp_path, line):
    """An unmatched quotation mark does not cost the rows up to the next mark or to the end of the file."""
    more = 'c,1\n\n"d\nd",0\n'
    path = write(tmp_path / "a.csv", f"text,label\na,1\n{line}\n{more}{line}\n{more}")
    rows = list(CSV(path=path).rows(()))
    assert [row.example["text"] for row in rows if row.example] == ["a", "c", "d\nd", "c", "d\nd"]
    assert [place for place, _ in bad(CSV(path=path))] == [f"{path}:3", f"{path}:8"]
    assert all("unmatched quotation mark (" in problem for _, problem in bad(CSV(path=path)))
    assert rows[-1].place == f"{path}:11"


def test_tabs_keep_quotes_and_names_may_be_given(tmp_path):
    path = write(tmp_path / "a.tsv", b'\xef\xbb\xbf1\t"so\r\n0\tit \xff\n1\tis"\n')
    source = TSV(path=path, names=("label", "text"))
    assert good(source, "text") == [{"label": "1", "text": '"so'}, {"label": "1", "text": 'is"'}]
    assert bad(source, "text") == [(f"{path}:2", "not UTF-8")]


TABLE = "text;kind\n\u201ecaf\u00e9, cr\u00e8me\u201c;\u00e9\n50 \u20ac;b\n"


@pytest.mark.parametrize("written, known", [
    ("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("utf-16", "utf-16"), ("utf-16-le", "utf-16-le"), ("utf-32", "utf-32"),
    ("cp1252", "cp1252"),
])  # fmt: skip
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_the_encoding_of_a_table_is_detected(tmp_path, written, known, ending):
    rows = [{"text": "\u201ecaf\u00e9, cr\u00e8me\u201c", "kind": "\u00e9"}, {"text": "50 \u20ac", "kind": "b"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    content = (TABLE if ending == "csv" else lines).encode(written)
    source = open_table(write(tmp_path / f"a.{ending}", content))
    assert source.encoding == known and good(source) == rows and not bad(source)


def test_a_damaged_row_does_not_change_the_encoding_of_the_others(tmp_path):
    path = write(tmp_path / "a.csv", "text,kind\ncaf\u00e9 \u00e0 la,a\n".encode() + b"bro\xffken,b\nfine,b\n")
    source = open_table(path)
    assert source.encoding == "utf-8" and [row["kind"] for row in good(source)] == ["a", "b"]
    assert bad(source) == [(f"{path}:3", "not UTF-8")]
    assert bad(CSV(path=path, encoding="ascii"))[0] == (f"{path}:2", "not ascii")
    with pytest.raises(ValueError, match="a.csv: not a text file"):
        detect_encoding(Path(write(tmp_path / "a.csv", b"PK\3\4\0\0\0\0 a spreadsheet" * 9)))
    with pytest.raises(ValueError, match="no encoding 'utf-9'; did you mean 'utf-8'"):
        CSV(path=path, encoding="utf-9")


@pytest.mark.parametrize("content, delimiter", [
    ("text,kind\na;b,1\n", ","), ("text;kind\na, b, c;1\nd;2\n", ";"), ("text\tkind\na, b\t1\n", "\t"),
    ("text|kind\na;b|1\n", "|"), ("text\na, b\nc; d; e\n", ","), ('id;"text; or";kind\n1;"a, b; c";d\n2;x\n', ";"),
    ("a,b;kind\n1,2;3\n", ";"), ("", ","),
], ids=repr)  # fmt: skip
def test_the_delimiter_of_a_table_is_detected(tmp_path, content, delimiter):
    wanted = ("kind",) if "kind" in content else ()
    assert open_table(write(tmp_path / "a.csv", content), wanted).delimiter == delimiter
    assert open_table(str(tmp_path / "a.csv"), delimiter="#").delimiter == "#"


def test_empty_cells_of_spreadsheets(tmp_path):
    source = open_table(write(tmp_path / "a.csv", "text, kind,,\r\na,b,,\r\nc,d,,,,\r\ne,f,,,,x\r\ng\r\n"))
    assert [(row["text"], row["kind"]) for row in good(source)] == [("a", "b"), ("c", "d")]
    assert [problem for _, problem in bad(source)] == ["6 values for 4 columns", "1 value for 4 columns"]


def test_a_row_without_a_value_in_a_required_column_is_skipped(tmp_path):
    rows = [{"review": "a"}, {"review": "b", "mood": ""}, {"review": "c", "mood": None}, {"review": "d", "mood": []},
            {"review": "e", "mood": ["x", "y"]}, {"review": " ", "mood": "x"}, {"review": "f", "mood": float("nan")},
            {"review": "[]", "mood": 0}]  # fmt: skip
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    source = JSONLines(path=path, columns={"text": "review", "label": "mood"}, required=("text", "label"))
    assert [(row["text"], row["label"]) for row in good(source)] == [("[]", 0)]
    empty = "column 'mood' is empty"
    assert [problem for _, problem in bad(source)] == [
        "no column 'mood'", empty, empty, empty, "column 'mood' contains a list, not one value",
        "column 'review' is empty", empty,
    ]  # fmt: skip


def test_errors_name_the_column_of_the_data(tmp_path):
    tokenizer = Bytes().make((), tmp_path / "bytes")
    path = write(tmp_path / "a.jsonl", '{"review": "a", "mood": "meh"}\n{"review": 3, "mood": "2"}\n')
    rows = list(JSONLines(path=path, columns={"text": "review", "label": "mood"}).rows(("text", "label")))
    found = [encode_row(row, Classify(labels=("1", "2")), tokenizer).problem for row in rows]
    assert found == ["column 'mood': label 'meh' is not known; valid: 1, 2", "column 'review' holds int, not text"]
    assert encode_row(rows[0], Classify(), tokenizer).problem == "column 'mood': 'meh' is not a number"


@pytest.mark.parametrize("value, number", [(1, 0), ("1", 0), (" 3 ", 2), (3, 2), ("1.0", 0)])
def test_a_label_is_known_by_its_name_before_its_number(tmp_path, value, number):
    tokenizer, objective = Bytes().make((), tmp_path), Classify(labels=("1", "2", "3"))
    assert objective.encode({"text": "a", "label": value}, tokenizer)["label"] == number
    with pytest.raises(ValueError, match="label 0 is not known; valid: 1, 2, 3"):  # not the index of "1"
        objective.encode({"text": "a", "label": 0}, tokenizer)


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"text": [f"t{i}" for i in range(5000)], "tags": [[i] for i in range(5000)]})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = list(Parquet(path=str(tmp_path)).rows(("text",)))
    assert len(rows) == 5000 and rows[4999].example == {"text": "t4999", "tags": [4999]}
    assert rows[4999].place.endswith("a.parquet:5000")
    with pytest.raises(ValueError, match=r"b\.parquet, after row 0"):
        list(Parquet(path=write(tmp_path / "b.parquet", b"PAR1 no")).raw())


def test_hugging_face_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict
    parts = {name: made({"text": [f"{name} {i}" for i in range(3)]}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    assert texts(HFDataset(name=str(tmp_path / "set"), split="test")) == ["test 0", "test 1", "test 2"]
    assert len({HFDataset(name=str(tmp_path / "set"), split=s).digest() for s in ("train", "test")}) == 2
    with pytest.raises(ValueError, match="no split 'tset'; did you mean 'test'"):
        texts(HFDataset(name=str(tmp_path / "set"), split="tset"))


def test_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(12).reshape(3, 2, 2), y=np.array([1, 0, 1]), z=np.zeros(7))
    source = Arrays(path=str(tmp_path / "a.npz"), fields={"image": "x", "label": "y"})
    rows = good(source, "image", "label")
    assert rows[1]["image"].tolist() == [[4, 5], [6, 7]] and rows[1]["label"] == 0 and len(rows) == 3
    with pytest.raises(ValueError, match="unequal length"):
        good(Arrays(path=str(tmp_path / "a.npz")))


def test_squad(tmp_path):
    question = {"id": "q", "question": "who?", "answers": [{"text": "he", "answer_start": 4}]}
    content = {"data": [{"paragraphs": [{"context": "was he", "qas": [question, {"id": "r"}]}]}]}
    source = SQuAD(path=write(tmp_path / "a.json", json.dumps(content)))
    (example,) = good(source, "question", "context", "answers")
    assert example["answers"] == {"text": ["he"], "answer_start": [4]} and example["context"] == "was he"
    assert bad(source)[0][1] == "question 2 has no 'question'"


# -- images and sound


def test_images_by_folder(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "1.png")
    write(tmp_path / "dog" / "2.png", b"\x89PNG broken")
    rows = good(ImageFolder(path=str(tmp_path)), "image", "label")
    assert [row["label"] for row in rows] == ["cat", "dog"] and np.array_equal(rows[0]["image"], pixels)
    assert bad(ImageFolder(path=str(tmp_path)))[0][0] == f"{tmp_path}/dog/2.png"
    small = good(ImageFolder(path=str(tmp_path), size=(2, 3), channels=1), "image")
    assert small[0]["image"].shape == (2, 3, 1)


def test_images_are_read_as_at_inference(tmp_path):
    """Upright, and with the highest 8 of 16 bits: a grey ramp has the same pixels in every kind of file."""
    Image = pytest.importorskip("PIL.Image")
    ramp = np.add.outer(np.arange(8) * 9, np.arange(12) * 15).astype(np.uint8)
    plain, folder, exif = Image.fromarray(ramp), tmp_path / "a", Image.Exif()
    folder.mkdir()
    exif[0x0112] = 6
    plain.save(folder / "1.png")
    Image.fromarray(ramp.astype(np.uint16) * 257).save(folder / "2.png")
    plain.save(folder / "3.png", exif=exif)
    plain.save(folder / "4.gif", save_all=True, append_images=[plain.rotate(90)])
    read = [row["image"][..., 0] for row in good(ImageFolder(path=str(tmp_path)), "image")]
    assert [image.tolist() for image in read] == [
        ramp.tolist(),
        ramp.tolist(),
        np.rot90(ramp, -1).tolist(),
        ramp.tolist(),
    ]
    write(folder / "5.png", b"")
    assert bad(ImageFolder(path=str(tmp_path)))[0] == (f"{folder}/5.png", "the file is empty")


def test_sound_by_folder(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    samples = (np.sin(np.arange(800) / 5) * 20000).astype("<i2")
    (tmp_path / "one").mkdir()
    with wave.open(str(tmp_path / "one" / "a.wav"), "wb") as stream:
        stream.setnchannels(1), stream.setsampwidth(2), stream.setframerate(8000)
        stream.writeframes(samples.tobytes())
    soundfile.write(tmp_path / "one" / "b.flac", np.stack([samples, samples], 1), 16000)
    write(tmp_path / "one" / "c.wav", b"RIFF")
    a, b = good(SoundFolder(path=str(tmp_path)), "audio", "label")
    assert (a["rate"], b["rate"], a["label"]) == (8000, 16000, "one")
    assert np.allclose(a["audio"], samples / 32768) and np.allclose(b["audio"], a["audio"])
    places = dict(bad(SoundFolder(path=str(tmp_path), rate=8000)))
    assert places[f"{tmp_path}/one/b.flac"] == "16000 samples per second, not 8000" and len(places) == 2


# -- parts of a source, vocabularies, descriptions


def parts_of(held: Held) -> tuple[list[str], list[str]]:
    """Return the training texts and the held-out texts."""
    return texts(held.replace(out=False)), texts(held.replace(out=True))


def test_held_out_and_the_rest_are_everything_once(tmp_path):
    """One random row of every ten consecutive rows is held out, and none of the last three rows."""
    source = TextFiles(path=write(tmp_path / "a.txt", "".join(f"{i}\n" for i in range(103))), unit="line")
    rest, held = parts_of(Held(source=source, one_in=10))
    assert [int(text) // 10 for text in held] == list(range(10))
    assert sorted(rest + held, key=int) == [str(i) for i in range(103)]
    assert len({int(text) % 10 for text in held}) > 3  # a different row in every ten
    assert parts_of(Held(source=source, one_in=10)) == (rest, held)
    assert parts_of(Held(source=source, one_in=10, seed=1))[1] != held


def test_every_row_is_as_likely_to_be_held_out(tmp_path):
    source = TextFiles(path=write(tmp_path / "a.txt", "".join(f"{i}\n" for i in range(5))), unit="line")
    drawn = [parts_of(Held(source=source, one_in=5, seed=seed))[1] for seed in range(400)]
    counts = [sum(held == [str(i)] for held in drawn) for i in range(5)]
    assert sum(counts) == 400 and all(50 < count < 115 for count in counts)  # 80 each; 4 standard deviations


@pytest.mark.parametrize("columns", [{}, {"label": "mood"}], ids=["plain", "renamed"])
def test_every_class_is_held_out_in_its_proportion(tmp_path, columns):
    """Labels alternate, so every tenth row would have the same label. The only row of a class is in training."""
    name = columns.get("label", "label")
    rows = [f"{i},{'ab'[i % 2]}" for i in range(100)] + [f"{i},rare" for i in range(100, 103)] + ["103,once"]
    path = write(tmp_path / "a.csv", f"text,{name}\n" + "\n".join(rows) + "\n")
    held = Held(source=CSV(path=path, columns=columns), one_in=10, stratify="label", out=True)
    counts = [Counter(row["label"] for row in good(held.replace(out=out), "text", "label")) for out in (False, True)]
    assert counts == [{"a": 45, "b": 45, "rare": 2, "once": 1}, {"a": 5, "b": 5, "rare": 1}]
    wanted = [row["text"] for row in good(held, "text", "label")]
    assert texts(held) == wanted  # independent of the requested columns
    with pytest.raises(ValueError, match="no column 'moood' to stratify by; did you mean"):
        texts(Held(source=CSV(path=write(tmp_path / "b.csv", "text,mood\na,b\n")), stratify="moood"))


def test_a_row_that_cannot_be_read_is_reported_once_and_moves_no_other(tmp_path):
    path = write(tmp_path / "a.jsonl", "".join(f'{{"text": "{i}"}}\n' if i != 3 else "{\n" for i in range(40)))
    parts = [list(Held(source=JSONLines(path=path), one_in=10, out=out).rows(("text",))) for out in (False, True)]
    assert [sum(row.example is None for row in part) for part in parts] == [1, 0]
    assert len(parts[1]) == 4 and len(parts[0]) == 36


def test_both_parts_are_split_the_same_way():
    held = Held(source=CSV(path="a.csv"), one_in=10, stratify="label")
    Data(train=held, valid=held.replace(out=True))
    for other in ({"seed": 1}, {"one_in": 5}, {"stratify": None}):
        with pytest.raises(ValueError, match="data.train and data.valid split the same source differently"):
            Data(train=held, valid=held.replace(out=True, **other))


def test_a_split_with_its_own_file_is_read_completely(tmp_path):
    """If `--set data.valid.source.path=...` gives validation its own file, no training row is held out."""
    train, valid = (write(tmp_path / name, "text,label\n" + "a,x\nb,y\n" * 100) for name in ("train.csv", "valid.csv"))
    held = Held(source=CSV(path=train), one_in=10, stratify="label")
    data = Data(train=held, valid=held.replace(out=True))

    def sizes(data: Data) -> dict[str, int]:
        return {name: len(list(source.rows(("text",)))) for name, source in data.splits.items()}

    assert sizes(data) == {"train": 180, "valid": 20}
    apart = override(data, {"valid.source.path": valid})
    assert sizes(apart) == {"train": 200, "valid": 200}
    assert sizes(apart.replace(test=data.valid)) == {"train": 180, "valid": 200, "test": 20}  # train and test share one
    assert sizes(override(data, {"valid.source.encoding": "latin-1"})) == sizes(data)  # the same file, read differently
    assert sizes(Data(train=First(source=CSV(path=train), count=9), valid=held.replace(out=True)))["valid"] == 20
    for unit, count in (("line", 181), ("paragraph", 1)):
        text = TextFiles(path=train, unit=unit)
        parts = Data(train=text.replace(stop=0.9), valid=text.replace(start=0.9))
        assert sizes(parts)["train"] == count
        apart = override(parts, {"valid.path": valid})
        assert apart.splits == {"train": text, "valid": TextFiles(path=valid, unit=unit)}


def test_descriptions_survive_json():
    data = Data(
        train=Held(source=CSV(path=("a.csv", "b.csv"), columns={"text": "sentence"})),
        valid=ParallelText(paths={"source": "a", "target": "b"}), test=First(source=PythonDocs(), count=3),
    )  # fmt: skip
    assert decode(json.loads(json.dumps(encode(data)))) == data and hash(data) == hash(decode(encode(data)))


@pytest.mark.parametrize("vocabulary", [Bytes(), TrainedBPE(size=300)], ids=["bytes", "bpe"])
def test_a_made_vocabulary_reads_back_what_it_writes(tmp_path, vocabulary):
    tokenizer = vocabulary.make(["the cat and the hat", "\u00fcber \U0001f642"], tmp_path)
    text = "the \u00fc cat \x00\n\t\U0001f642 2"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1)
    assert tokenizer.encode("a<|endoftext|>")[-1] == 0
    again = Stored(path=str(tmp_path)).make((), tmp_path / "unused")
    assert again.encode(text) == tokenizer.encode(text) and len(again) == len(tokenizer)
    if isinstance(vocabulary, TrainedBPE):
        assert 258 < len(tokenizer) <= 300 and len(tokenizer.encode("the")) < 3
        other = vocabulary.make(["the cat and the hat", "\u00fcber \U0001f642"], tmp_path / "other")
        assert other.vocab == tokenizer.vocab
    else:
        assert len(tokenizer) == 258 and len(tokenizer.encode("the \u00fc")) == 6


SENTENCES = ["the cat and the hat sat there", "a cat that sat on the other hat", "The Caf\u00e9 on the hill"] * 4


@pytest.mark.parametrize(
    "vocabulary", [TrainedWordPiece(size=90), TrainedUnigram(size=60)], ids=["wordpiece", "unigram"]
)
def test_pieces_are_read_as_other_software_reads_them(tmp_path, vocabulary):
    """A trained tokenizer is saved, decodes its own ids, and `tokenizers` and transformers give the same ids."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    tokenizer = vocabulary.make(iter(SENTENCES), tmp_path)
    special = [*vocabulary.special.values()]
    assert [tokenizer.token(i) for i in range(len(special))] == special
    assert len(special) < len(tokenizer) <= vocabulary.size
    assert len(tokenizer.encode("the cat")) < 8, "six letters and two special tokens, or more"
    for text in ("the hat sat", "that other cat"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    core = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (*SENTENCES[:3], "hatchet", "\u732b sat", "", "Cafe\u0301 [MASK] </s>"):
        ids = tokenizer.encode(text)
        assert ids == theirs(text)["input_ids"] == core.encode(text).ids, text
    assert theirs("a cat", "the hat")["input_ids"] == tokenizer.encode("a cat", "the hat")
    assert tokenizer.encode("\u732b")[-2] == tokenizer.unk_token_id == theirs.unk_token_id


def test_wordpieces_are_berts(tmp_path):
    tokenizer = TrainedWordPiece(size=120).make(iter(SENTENCES), tmp_path / "one")
    words = [tokenizer.token(i) for i in tokenizer.encode("Caf\u00e9 Thecat", "sat")]
    assert words == ["[CLS]", "cafe", "the", "##c", "##at", "[SEP]", "sat", "[SEP]"]
    again = TrainedWordPiece(size=120).make(SENTENCES, tmp_path / "two")
    assert again.vocab == tokenizer.vocab, "one data set has one vocabulary"
    cased = TrainedWordPiece(size=120, lowercase=False).make(SENTENCES, tmp_path / "cased")
    assert cased.encode("The") != cased.encode("the") and tokenizer.encode("The") == tokenizer.encode("the")
    few = TrainedWordPiece(size=120, alphabet=5).make(SENTENCES, tmp_path / "few")
    assert few.encode("v")[1] == few.unk_token_id and few.encode("t")[1] != few.unk_token_id
    small = TrainedWordPiece(size=10).make(SENTENCES, tmp_path / "small")
    assert len(small) == 10, "letters that do not fit are left out, the rarest first"
    with pytest.raises(ValueError, match="'unk_token' is missing"):
        TrainedUnigram(special={"pad_token": "<pad>", "eos_token": "</s>"})
    with pytest.raises(ValueError, match="TrainedWordPiece.size is 5; "):
        TrainedWordPiece(size=5)


def test_a_vocabulary_may_put_tokens_around_texts(tmp_path):
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = Bytes(special=special, begin="cls_token", end="sep_token").make((), tmp_path)
    ids = tokenizer.encode("a", "b")
    assert [tokenizer.token(i) for i in ids] == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
    with pytest.raises(ValueError, match="special: .*'eos'; did you mean 'eos_token'"):
        Bytes(special={"eos": "x"})
    with pytest.raises(ValueError, match="'bos_token' is not in special"):
        Bytes(begin="bos_token")


@pytest.mark.parametrize("vocabulary", [Bytes(sentinels=3), TrainedBPE(size=300, sentinels=3)], ids=["bytes", "bpe"])
def test_sentinels_come_after_the_special_tokens(tmp_path, vocabulary):
    tokenizer = vocabulary.make(["the cat and the hat"], tmp_path)
    assert (
        VocabularyInfo.from_tokenizer(tokenizer).sentinels == (2, 3, 4) and tokenizer.encode("a<extra_id_1>b")[1] == 3
    )
    with pytest.raises(ValueError, match="256 bytes and the special tokens must fit"):
        TrainedBPE(size=300, sentinels=60)


def test_texts_of_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a": "x", "b": ["y", "z"], "c": 1}\nbroken\n{"a": "u", "b": [], "c": 2}')
    assert list(texts_of(JSONLines(path=path), ("a", "b", "c"))) == ["x", "y z", "u", ""]


def test_without_the_extras_one_line_names_them(tmp_path, monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet", "datasets", "PIL", "PIL.Image", "soundfile"):
        monkeypatch.setitem(sys.modules, name, None)  # cannot be imported
    a, b, c = (write(tmp_path / name, b"x") for name in ("a.parquet", "a.png", "a.flac"))
    for source in (Parquet(path=a), HFDataset(name="x"), ImageFolder(path=b), SoundFolder(path=c)):
        with pytest.raises(ValueError, match=r"needs \w+: pip install 'anyformer\[(data|audio)\]'$"):
            list(source.raw())


# -- real files


def test_real_files_have_as_many_rows_as_their_sources_say(shared_data):
    def count(source, *wanted):
        rows = list(source.rows(wanted))
        return sum(row.example is not None for row in rows), sum(row.example is None for row in rows)

    sst2 = TSV(path=str(shared_data / "glue_sst2" / "dev.tsv.gz"))
    assert count(sst2) == (872, 0)
    pair = {name: str(shared_data / "multi30k" / f"train.{name}.gz") for name in ("en", "de")}
    assert count(ParallelText(paths=pair, columns={"source": "en"}), "source", "de") == (29000, 0)
    assert count(Columns(path=str(shared_data / "ner_wnut17" / "wnut17train.conll.gz")), "words", "tags")[0] == 3394
    squad = JSONLines(path=str(shared_data / "qa_squad11_part" / "squad11_train_part.jsonl.gz"))
    assert count(squad, "context", "question") == (4285, 0)
    assert count(SQuAD(path=str(shared_data / "qa_xquad" / "xquad.en.json.gz")), "answers") == (1190, 0)
    images = Arrays(path=str(shared_data / "fashion_mnist_part"), fields={"image": "x_test", "label": "y_test"})
    assert count(images, "image", "label") == (2000, 0)


def test_idx_files_side_by_side_and_the_first_of_a_drawn_order(tmp_path):
    pixels, labels = np.arange(120, dtype=np.uint8).reshape(20, 2, 3), np.arange(20, dtype=np.uint8)
    for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        header = bytes((0, 0, 8, array.ndim)) + np.asarray(array.shape, ">u4").tobytes()
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    image, label = tmp_path / "images-idx3-ubyte.gz", tmp_path / "labels-idx1-ubyte.gz"
    source = Beside(sources=(IDX(path=str(image), name="image"), IDX(path=str(label), name="label")))

    def seen(source):
        found = [row.example for row in source.rows(("image", "label"))]
        assert all((each["image"] == pixels[each["label"]]).all() for each in found)
        return [int(each["label"]) for each in found]

    assert seen(source) == list(range(20)) and seen(First(source=source, count=3)) == [0, 1, 2]
    few, more = (seen(First(source=source, count=count, seed=1)) for count in (4, 12))
    assert more[:4] == few != [0, 1, 2, 3] and len(set(more)) == 12
    assert seen(First(source=source, count=4, seed=2)) != few
    assert sorted(seen(First(source=source, count=99, seed=1))) == list(range(20))
    for damaged in (b"", b"\0\0\x08", b"\0\0\x09\x01\0\0\0\x02ab", b"\0\0\x08\x01\0\0\0\x03ab"):
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(ValueError, match="bad: not an IDX file"):
            list(IDX(path=str(tmp_path / "bad"), name="x").raw())
    (tmp_path / "cut.gz").write_bytes(image.read_bytes()[:40])
    with pytest.raises(ValueError, match="cut.gz"):
        list(IDX(path=str(tmp_path / "cut.gz"), name="x").raw())


# -- texts made from columns


def test_texts_made_from_other_columns(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [{"name": "cat", "words": ["pet", "fur", "paw"]}, {"name": "dog", "words": []}, {"name": "", "words": []}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    worded = Worded(source=JSONLines(path=str(file)), forms=("{name}", "a {name}: {words:2}", "{words}"))
    rows = list(worded.rows(("text",)))
    assert [row.example and row.example["text"] for row in rows] == [
        ["cat", "a cat: pet, fur", "pet, fur, paw"], ["dog"], None,
    ]  # fmt: skip
    assert rows[2].problem == "every form names an empty column"
    for forms in ((), ("cat",), ("{name:x}",), ("{name",)):
        with pytest.raises(ValueError, match="Worded.forms: .*each form needs a column"):
            Worded(source=JSONLines(path=str(file)), forms=forms)
    with pytest.raises(ValueError, match="no column 'nome'; did you mean 'name'"):
        list(Worded(source=JSONLines(path=str(file)), forms=("{nome}",)).rows(("text",)))
