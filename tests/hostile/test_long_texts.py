"""Long texts, encoded in pieces: the same ids as for the whole text, and memory does not grow with the file."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import vocabularies
from anyformer.data.text_files import TextFiles
from anyformer.data.vocabulary import TrainedBPE, texts_of
from anyformer.inputs import long
from anyformer.inputs.tokenizer import Tokenizer

KINDS = {
    "gpt2": vocabularies.gpt2, "bert": vocabularies.bert, "llama": vocabularies.llama, "t5": vocabularies.t5,
    "m2m": vocabularies.m2m, "whole": vocabularies.whole, "xlm-roberta": vocabularies.xlm_roberta,
    "camembert": vocabularies.camembert,
    "prefix": lambda folder: vocabularies.gpt2(folder, add_prefix_space=True),
    "roberta": lambda folder: vocabularies.gpt2(folder, tokenizer_class="RobertaTokenizer"),
    "qwen": lambda folder: vocabularies.gpt2(folder, tokenizer_class="Qwen2Tokenizer"),
    "legacy": lambda folder: vocabularies.llama(folder, legacy=True),
}  # fmt: skip
PARTS = [" ", "  ", "\n", "\n\n", "\t", "the", "fox", "don't", "<s>", "</s>", "<|endoftext|>", "[MASK]", "<mask>", "é",
         "e\u0301", "素早", "1234", "🦊", ".", "transforming"]  # fmt: skip


def texts(seed: int) -> dict[str, str]:
    draw = random.Random(seed)
    return {
        "ordinary": vocabularies.WORDS * 20,
        "without spaces": "".join(vocabularies.WORDS.split()) * 20,
        "any": "".join(draw.choice(PARTS) for _ in range(3000)),
        "letters": "".join(draw.choice("ab c\né素🦊.'") for _ in range(6000)),
        "a space first": "  two " * 1500,
        "spaces": " " * 6000,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_have_the_ids_of_the_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(KINDS[kind](tmp_path / kind))
    for name, text in texts(seed=len(kind)).items():
        whole = tokenizer.encode(text)
        with monkeypatch.context() as small:
            small.setattr(long, "PIECE", 2**11)
            small.setattr(long, "AHEAD", 2**9)
            assert sum(1 for _ in tokenizer.pieces(text)) > 4, "one piece proves nothing"
            assert tokenizer.encode(text) == whole, f"{kind}, {name}"
            lazy = long.LongText(lambda text=text: iter([text[:777], text[777:]]))
            assert [i for part in tokenizer.pieces(lazy) for i in part] == whole, f"{kind}, {name}, read lazily"


def test_a_vocabulary_learnt_from_parts_is_that_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(vocabularies.WORDS * 30, encoding="utf-8")
    source = TextFiles(path=str(tmp_path / "text.txt"))
    whole = TrainedBPE(size=300).make(texts_of(source, ("text",)), tmp_path / "whole")
    monkeypatch.setattr(long, "PIECE", 500)
    assert sum(1 for _ in texts_of(source, ("text",))) > 10
    assert TrainedBPE(size=300).make(texts_of(source, ("text",)), tmp_path / "parts").vocab == whole.vocab


MEASURED = """
import json, resource, sys, tempfile
from pathlib import Path
import tokenizers
from tokenizers import models, pre_tokenizers
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.causal import NextToken
from anyformer.data.prepare import Data, prepare
from anyformer.data.text_files import TextFiles

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

text = Path(sys.argv[1]).read_text(encoding="utf-8")
words = {word: i for i, word in enumerate(dict.fromkeys(["?", *text.split()]))}
core = tokenizers.Tokenizer(models.WordLevel(words, unk_token="?"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = Tokenizer(core)
with tempfile.TemporaryDirectory() as folder:
    file, size = Path(folder, "long.txt"), 0
    with file.open("w", encoding="utf-8") as out:
        while size < int(sys.argv[2]) * 10**6:
            size += out.write(text)
    before = peak()
    made = prepare(Data(train=TextFiles(path=str(file))), NextToken(), tokenizer, Path(folder, "records")).train
    beyond = peak() - before
    words = size // len(text) * len(text.split())
    unknown = sum(int((record["input_ids"] == 0).sum()) for record in made)
    print(json.dumps({"beyond": beyond, "tokens": made.tokens - unknown, "words": words, "records": len(made)}))
"""


def measured(text: str, megabytes: int, folder: Path) -> dict[str, float]:
    """Prepare a file of this many megabytes for training in a new process, and return its measurements."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", MEASURED, str(folder / "text.txt"), str(megabytes)]
    output = subprocess.run(command, check=True, text=True, capture_output=True, env={**os.environ}).stdout
    return json.loads(output)


@pytest.mark.parametrize("shape", [pytest.param("lines", marks=pytest.mark.slow), "one line"])
def test_memory_stays_with_the_piece(shape: str, tmp_path: Path) -> None:
    text = (vocabularies.WORDS + "\n") * 40
    found = measured(text if shape == "lines" else text.replace("\n", " "), 4, tmp_path)
    assert found["tokens"] == found["words"] and found["records"] == 1
    assert found["beyond"] < 120, "4 MB of text, tokenised at once, need about 1,000 MB"


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["lines", "one line"])
def test_200_megabytes_in_less_than_500(shape: str, tmp_path: Path, shared_data: Path) -> None:
    text = gzip.decompress((shared_data / "tiny_shakespeare" / "input.txt.gz").read_bytes()).decode()
    found = measured(text if shape == "lines" else text.replace("\n", " "), 200, tmp_path)
    print(f"200 MB, {shape}: {found['beyond']:.0f} MB beyond what was there, {found['tokens']:,} tokens")
    assert found["tokens"] == found["words"] and found["records"] == 1
    assert found["beyond"] < 500
