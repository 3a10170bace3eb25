"""Every kind of file that the package reads: a tiny valid example, and the public function that opens it."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import catalogue
import numpy as np
import torch
from mutate import archive_damaged, bytes_damaged, json_damaged, safetensors_damaged

import anyformer as af
import vocabularies
from anyformer import cli, families
from anyformer.data.episodes import Episodes
from anyformer.data.prepare import Data, prepare
from anyformer.data.shards import DataSplit
from anyformer.data.table import CSV, JSONLines, Parquet
from anyformer.data.text_files import TextFiles
from anyformer.inputs.image import Images
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.causal import NextToken
from anyformer.objectives.decision import Act
from anyformer.specs.codec import to_json
from anyformer.train.resume import Checkpoints
from anyformer.transforms import lora
from anyformer.transforms.adapters import load_adapter, save_adapter
from anyformer.weights.io import write_checkpoint
from tiny import CONFIGS

TEXT = "The quick fox, isn't it? 素早い 🦊\nsays  hello. <s>"


@dataclasses.dataclass(frozen=True)
class Target:
    name: str
    file: str  # the file to damage
    make: Callable[[Path], Any]  # writes a valid folder
    open: Callable[[Path], Any]

    def damaged(self, good: Path, folder: Path, draw: random.Random) -> None:
        """Copy the valid folder and damage its file."""
        shutil.copytree(good, folder)
        path = folder / self.file
        raw = path.read_bytes()
        if path.suffix == ".safetensors":
            path.write_bytes(safetensors_damaged(raw, draw))
        elif path.suffix == ".npz":
            path.write_bytes(archive_damaged(raw, draw))
        elif path.suffix == ".json":
            path.write_bytes(json_damaged(json.loads(raw), draw).encode("utf-8", "surrogatepass"))
        else:
            path.write_bytes(bytes_damaged(raw, draw))


# -- models -----------------------------------------------------------------------------------------------------------


@functools.cache
def model_types() -> dict[str, dict[str, Any]]:
    """model_type -> a tiny config."""
    found: dict[str, dict[str, Any]] = {}
    for case in catalogue.every_case():
        found.setdefault(case.model_type, {**case.config, "architectures": [case.architecture]})
    return found


def model_of(model_type: str) -> Any:
    return af.build(families.find(model_type).read(model_types()[model_type]), seed=0)


def published(model_type: str) -> Callable[[Path], None]:
    return lambda folder: af.save(model_of(model_type), folder, format="hf")


def ours(model_type: str) -> Callable[[Path], None]:
    return lambda folder: af.save(model_of(model_type), folder)


def opened(folder: Path) -> None:
    """Count and load the model: each must work or be refused, independently."""
    try:
        af.count(af.spec(folder))
    finally:
        af.load(folder)


def in_a_pipeline(folder: Path) -> None:
    af.save(model_of("dit"), folder / "transformer", format="hf")
    (folder / "scheduler").mkdir()
    noise = {"_class_name": "DDIMScheduler", "clip_sample": False, "beta_schedule": "linear", "steps_offset": 1}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(noise))
    index = {"_class_name": "DiTPipeline", "id2label": {str(i): f"label {i}" for i in range(7)}}
    (folder / "model_index.json").write_text(json.dumps(index))


def in_shards(folder: Path) -> None:
    model = af.build(families.find("gpt2").read(CONFIGS["gpt2"]), seed=0)
    af.save(model, folder)
    (folder / "model.safetensors").unlink()
    write_checkpoint(folder, dict(model.state_dict()), shard_bytes=20_000)


def writer(folder: Path) -> None:
    af.save(af.build(families.find("gpt2").read(CONFIGS["gpt2"]), seed=0), folder, format="hf")
    (folder / "generation_config.json").write_text(json.dumps({
        "max_new_tokens": 4, "num_beams": 2, "length_penalty": 1.0, "early_stopping": False, "suppress_tokens": [1, 2],
        "bad_words_ids": [[3]], "eos_token_id": [7], "pad_token_id": 7, "bos_token_id": 0, "do_sample": False,
        "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.1, "no_repeat_ngram_size": 2,
        "forced_eos_token_id": 7, "sequence_bias": [[[5], -1.0]], "min_length": 0, "typical_p": 1.0, "max_length": 20,
        "exponential_decay_length_penalty": [2, 1.1], "num_return_sequences": 1, "renormalize_logits": False,
        "begin_suppress_tokens": [4], "diversity_penalty": 0.0, "num_beam_groups": 1, "output_scores": False,
    }))  # fmt: skip


def written(folder: Path) -> None:
    af.generate(af.load(folder), input_ids=torch.tensor([[3, 4, 5]]))


# -- texts ------------------------------------------------------------------------------------------------------------


def read(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    tokenizer.decode(tokenizer.encode(TEXT))
    tokenizer.batch([TEXT, "a"], max_length=8)


TEMPLATE = (
    "{% for message in messages %}{{ '<s>' + message['role'] + '\\n' + message['content'] | trim + '\\n' }}"
    "{% if loop.last %}{{ message['content'] * 2 }}{% endif %}{% endfor %}{% set x = 'ab' * 3 %}{{ x ~ x | upper }}"
)


def talker(folder: Path) -> None:
    vocabularies.whole(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def talked(folder: Path) -> None:
    Tokenizer.load(folder).chat([{"role": "user", "content": "The fox"}, {"role": "assistant", "content": "yes"}])


def special(folder: Path) -> None:
    vocabularies.bert(folder)
    (folder / "special_tokens_map.json").write_text(json.dumps({
        "cls_token": "[CLS]", "sep_token": {"content": "[SEP]", "lstrip": False}, "additional_special_tokens": ["<x>"],
    }))  # fmt: skip
    words = (folder / "vocab.txt").read_text(encoding="utf-8").count("\n")
    (folder / "added_tokens.json").write_text(json.dumps({"<y>": words}))


# -- pictures ---------------------------------------------------------------------------------------------------------


def album(folder: Path) -> None:
    """Write one image of each format, and the config of the image processor."""
    from PIL import Image

    folder.mkdir(parents=True)
    picture = Image.linear_gradient("L").resize((24, 20)).convert("RGB")
    for name in PICTURES:
        picture.save(folder / name)
    Images(size={"shortest_edge": 12}, do_center_crop=True, crop_size={"height": 9, "width": 11}).save(folder)


def seen(name: str) -> Callable[[Path], None]:
    return lambda folder: Images.load(folder)(folder / name) and None


PICTURES = ("a.png", "a.jpg", "a.gif", "a.webp", "a.bmp", "a.tiff")


# -- sound ------------------------------------------------------------------------------------------------------------


def sounds(folder: Path) -> None:
    """Write one recording of each format, and the configs for samples and for spectrograms."""
    import soundfile

    (folder / "mel").mkdir(parents=True)
    samples = np.sin(np.arange(1600) / 7) / 2
    for name, (format, subtype) in SOUNDS.items():
        soundfile.write(folder / name, samples, 8000, format=format, subtype=subtype)
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 8000, "feature_size": 1,
        "padding_value": 0.0, "return_attention_mask": True, "do_normalize": True, "padding_side": "right",
    }))  # fmt: skip
    (folder / "mel" / "processor_config.json").write_text(json.dumps({"feature_extractor": {
        "feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16000, "feature_size": 8, "n_fft": 40,
        "hop_length": 16, "chunk_length": 1, "padding_value": 0.0, "return_attention_mask": True, "dither": 0.0,
    }}))  # fmt: skip


def heard(name: str, inner: str = "") -> Callable[[Path], None]:
    return lambda folder: af.processor(folder / inner)(audio=str(folder / name)) and None


SOUNDS = {"a.wav": ("WAV", "PCM_16"), "float.wav": ("WAV", "FLOAT"), "a.flac": ("FLAC", "PCM_16"),
          "a.ogg": ("OGG", "VORBIS")}  # fmt: skip


# -- training ---------------------------------------------------------------------------------------------------------


def trained(folder: Path) -> None:
    """Write the folder of a training run with a checkpoint."""
    from train.runs import run_of, write_texts

    run = run_of(write_texts(folder / "texts"))
    (folder / "run.json").write_text(to_json(run))
    model = af.build(run.model, seed=0)
    tensors = {"optimizer": {"exp_avg/head": torch.zeros(3)}}
    Checkpoints(folder).save(3, model, {"score": 1.0, "tokens": 5}, **tensors)


def commanded(*arguments: str) -> None:
    """Run a command in this process; raise ValueError if it refuses the file (exit code 2)."""
    code = cli.main(list(arguments))
    if code:
        raise (ValueError if code == 2 else AssertionError)(f"`anyformer {' '.join(arguments)}` ended with {code}")


def asked(folder: Path) -> None:
    """Write a run.json as users do: a model by name, and changed values by address."""
    from train.runs import run_of, write_texts

    run = json.loads(to_json(run_of(write_texts(folder / "texts"))))
    changes = {"model.width": 32, "model.decoder.depth": 2, "steps": 5, "optimizer.lr": 1e-3, "batch.examples": 3}
    (folder / "run.json").write_text(json.dumps({**run, "model": "gpt2", "set": changes}))


def lived(folder: Path) -> None:
    folder.mkdir(parents=True)
    steps = {"obs": np.zeros((9, 3), np.float32), "actions": np.arange(9) % 2, "rewards": np.ones(9)}
    np.savez(folder / "plain.npz", **steps, episode_starts=np.arange(9) % 4 == 0)
    np.savez_compressed(folder / "dense.npz", **steps, episode_offsets=np.array([0, 4, 9]))


def acted(name: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        source = Episodes(path=str(folder / name))
        prepare(Data(train=source, unfit="skip"), Act(choices=2), byte_tokenizer(), folder / "records")

    return run


def resumed(folder: Path) -> None:
    Checkpoints(folder).newest()
    af.load(folder)


def adapted(folder: Path) -> None:
    model = af.build(families.find("gpt2").read(CONFIGS["gpt2"]), seed=0)
    save_adapter(lora.apply(model, lora.LoRA(rank=2)), folder)


def attached(folder: Path) -> None:
    load_adapter(af.build(families.find("gpt2").read(CONFIGS["gpt2"]), seed=0), folder)


def rows(folder: Path) -> None:
    texts = [TEXT, "a second text", "x" * 300] * 3
    (folder).mkdir(parents=True)
    (folder / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "a.csv").write_text("text,label\n" + "".join(f'"{text}",1\n' for text in texts), encoding="utf-8")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / "a.parquet")


def learnt_from(kind: Any, file: str, **options: Any) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        source = kind(path=str(folder / file), **options)
        prepare(Data(train=source, unfit="skip"), NextToken(), byte_tokenizer(), folder / "records")

    return run


@functools.cache
def byte_tokenizer() -> Tokenizer:
    from anyformer.data.vocabulary import Bytes

    return Bytes().make([], Path(tempfile.mkdtemp(prefix="anyformer-hostile-")))


def prepared(folder: Path) -> None:
    rows(folder)
    source = TextFiles(path=str(folder / "a.txt"), unit="paragraph")
    made = prepare(Data(train=source), NextToken(), byte_tokenizer(), folder / "records").train.folder
    made.rename(folder / "split")


def looked_at(folder: Path) -> None:
    list(DataSplit(folder / "split"))


CHECKPOINT = "checkpoints/step-00000003"


def targets() -> list[Target]:
    found = []
    for model_type in model_types():
        weights = f"{families.find(model_type).stem}.safetensors"
        found += [
            Target(f"config-{model_type}", "config.json", published(model_type), opened),
            Target(f"spec-{model_type}", "spec.json", ours(model_type), opened),
            Target(f"weights-{model_type}", weights, published(model_type), af.load),
        ]
    vocabulary = {
        "tokenizer.json": vocabularies.whole, "tokenizer_config.json": vocabularies.whole,
        "vocab.txt": vocabularies.bert,
        "vocab.json": vocabularies.gpt2, "merges.txt": vocabularies.gpt2, "tokenizer.model": vocabularies.llama,
        "spiece.model": vocabularies.t5, "special_tokens_map.json": special, "added_tokens.json": special,
        "sentencepiece.bpe.model": vocabularies.m2m,
    }  # fmt: skip
    found += [Target(f"text-{file}", file, make, read) for file, make in vocabulary.items()]
    found += [
        *[Target(f"picture-{name}", name, album, seen(name)) for name in PICTURES],
        Target("preprocessor_config", "preprocessor_config.json", album, seen("a.png")),
        *[Target(f"sound-{name}", name, sounds, heard(name)) for name in SOUNDS],
        Target("sound-preprocessor_config", "preprocessor_config.json", sounds, heard("a.wav")),
        Target("sound-processor_config", "mel/processor_config.json", sounds, heard("a.wav", "mel")),
        Target("pipeline", "model_index.json", in_a_pipeline, opened),
        Target("scheduler", "scheduler/scheduler_config.json", in_a_pipeline, opened),
        Target("index", "model.safetensors.index.json", in_shards, af.load),
        Target("generation_config", "generation_config.json", writer, written),
        Target("chat_template", "chat_template.jinja", talker, talked),
        Target("run", "run.json", trained, lambda folder: commanded("train", str(folder), "--show")),
        Target("run-set", "run.json", asked, lambda folder: commanded("train", str(folder), "--show")),
        Target("manifest", f"{CHECKPOINT}/manifest.json", trained, resumed),
        Target("state", f"{CHECKPOINT}/state.json", trained, resumed),
        Target("training", f"{CHECKPOINT}/training.safetensors", trained, resumed),
        Target("adapter", "adapter_config.json", adapted, attached),
        Target("adapter-weights", "adapter_model.safetensors", adapted, attached),
        Target("txt", "a.txt", rows, learnt_from(TextFiles, "a.txt", unit="paragraph")),
        Target("lines", "a.txt", rows, learnt_from(TextFiles, "a.txt", unit="line")),
        Target("jsonl", "a.jsonl", rows, learnt_from(JSONLines, "a.jsonl")),
        Target("csv", "a.csv", rows, learnt_from(CSV, "a.csv")),
        Target("parquet", "a.parquet", rows, learnt_from(Parquet, "a.parquet")),
        Target("records-index", "split/index.json", prepared, looked_at),
        Target("records", "split/00000.input_ids", prepared, looked_at),
        Target("records-sizes", "split/00000.input_ids.sizes", prepared, looked_at),
        *[Target(f"episodes-{name}", f"{name}.npz", lived, acted(f"{name}.npz")) for name in ("plain", "dense")],
        Target("count", "config.json", published("llama"), lambda folder: commanded("count", str(folder), "--json")),
        Target("plan", "spec.json", ours("gpt2"), lambda folder: commanded("plan", str(folder), "--json")),
    ]
    return found
