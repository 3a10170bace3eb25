"""RWKV-4: a real checkpoint, and the published class's changes to its own weights."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

import pytest
import torch
from catalogue import Case, close, every_case, folder, make_inputs, ours, published
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af

(HALVED,) = (case for case in every_case() if case.id == "RwkvForCausalLM-halved")


def read_rwkv_cpp(path: Path) -> tuple[tuple[int, ...], dict[str, Tensor]]:
    """Read the file format of rwkv.cpp in fp32: a header of six numbers, then tensors, sizes innermost first."""
    data = path.read_bytes()
    magic, _, *sizes, kind = struct.unpack_from("<6I", data)
    assert magic == 0x67676D66 and kind == 0
    tensors, at = {}, 24
    while at < len(data):
        dims, letters, kind = struct.unpack_from("<3I", data, at)
        shape = struct.unpack_from(f"<{dims}I", data, at + 12)
        at += 12 + 4 * dims
        name, at = data[at : at + letters].decode(), at + letters
        values = torch.frombuffer(bytearray(data[at : at + 4 * prod(shape)]), dtype=torch.float32)
        tensors[name], at = values.view(shape[::-1]), at + 4 * prod(shape)
    return tuple(sizes), tensors


def published_name(name: str) -> str:
    """Return transformers' name of a rwkv.cpp tensor."""
    for theirs, ours_ in (
        ("blocks.0.ln0", "blocks.0.pre_ln"), (".att.", ".attention."), (".ffn.", ".feed_forward."),
        ("time_mix_k", "time_mix_key"), ("time_mix_v", "time_mix_value"), ("time_mix_r", "time_mix_receptance"),
        ("emb.", "embeddings."),
    ):  # fmt: skip
        name = name.replace(theirs, ours_)
    return name if name.startswith("head.") else f"rwkv.{name}"


def test_a_real_checkpoint(shared_data: Path, tmp_path: Path) -> None:
    """The logits that rwkv.cpp's authors store for this model after three bytes, in one pass and token by token."""
    source = shared_data / "weights" / "rwkv-tiny"
    if not source.is_dir():
        pytest.skip(f"needs {source}")
    (vocab, width, depth), tensors = read_rwkv_cpp(source / "tiny-rwkv-4v0-660K-FP32.bin")
    expected = torch.frombuffer(bytearray((source / "expected-logits-4v0-660K.bin").read_bytes()), dtype=torch.float32)
    inner = len(tensors["blocks.0.ffn.key.weight"])
    for name, tensor in tensors.items():
        if name.endswith("time_decay"):  # stored as the decay itself, -e^time_decay
            tensors[name] = (-tensor).log()
        elif "time_mix" in name:
            tensors[name] = tensor.view(1, 1, -1)
    save_file({published_name(name): tensor.contiguous() for name, tensor in tensors.items()},
              tmp_path / "model.safetensors")  # fmt: skip
    config = {"hidden_size": width, "num_hidden_layers": depth, "vocab_size": vocab, "intermediate_size": inner}
    spec = af.families.find("rwkv").read({**config, "rescale_every": 0})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv", **config}))
    model = af.load(tmp_path)
    assert model.spec.decoder.depth == spec.decoder.depth == 4
    ids, state = torch.tensor([list(b'"in')]), model.new_state()
    with torch.no_grad():
        close(model(input_ids=ids).logits[0, -1], expected)
        for token in ids[0]:
            out = model(input_ids=token.view(1, 1), state=state)
        close(out.logits[0, -1], expected)


def test_halving_is_for_evaluation_alone() -> None:
    """In training the stream is not halved; weights, which the published class divides in place, do not change."""
    inputs, model = make_inputs(HALVED), ours(HALVED)
    plain = {**HALVED.config, "rescale_every": 0}
    theirs = published(Case("rwkv", "RwkvForCausalLM", plain, "whole"))[0]
    theirs.load_state_dict(load_file(folder(HALVED) / "model.safetensors"))
    with torch.no_grad():
        whole = theirs(**inputs, output_hidden_states=True).hidden_states
        halved = model(**inputs, output_hidden_states=True).hidden_states
        trained = model.train()(**inputs, output_hidden_states=True).hidden_states
    for layer, (a, b, c) in enumerate(zip(whole[:-1], halved[:-1], trained[:-1], strict=True)):
        close(c, a)
        close(b, a / 2 ** ((layer + 1) // 2), 1e-2)  # except for the epsilon of norms that read half the value
    close(trained[-1], whole[-1])
    assert (halved[-1] - whole[-1]).abs().max() > 1e-5, "the epsilon shows"


def test_halved_weights_go_there_and_back(tmp_path: Path) -> None:
    """L5 for the case that declares an exception: against the file, not the published class after a run."""
    import transformers

    stored, inputs, model = load_file(folder(HALVED) / "model.safetensors"), make_inputs(HALVED), ours(HALVED)
    with torch.no_grad():
        expected = model(**inputs).logits
        af.save(model, tmp_path / "hf", format="hf")
        for name, tensor in load_file(tmp_path / "hf" / "model.safetensors").items():
            assert torch.equal(tensor, stored[name]), name
        opened = transformers.RwkvForCausalLM.from_pretrained(tmp_path / "hf").eval()
        close(opened(**inputs).logits, expected)
        close(opened(**inputs).logits, expected)


def test_published_initialisation() -> None:
    """Parameters with fixed initial values equal the published class's, and the others have its std."""
    import transformers

    config = {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 3, "attention_hidden_size": 40}
    theirs = transformers.RwkvForCausalLM(transformers.RwkvConfig(**config))
    model = af.build(af.families.find("rwkv").read(config)).requires_grad_(False)
    pairs = {"time.op.decay": "attention.time_decay", "time.op.bonus": "attention.time_first"}
    pairs |= {f"time.op.mix_{a}": f"attention.time_mix_{b}" for a, b in
              (("k", "key"), ("v", "value"), ("gate", "receptance"))}  # fmt: skip
    pairs |= {f"channel.op.mix_{a}": f"feed_forward.time_mix_{b}" for a, b in (("up", "key"), ("gate", "receptance"))}
    for i in range(3):
        for mine, other in pairs.items():
            a = model.get_parameter(f"decoder.layers.{i}.{mine}")
            close(a, theirs.get_parameter(f"rwkv.blocks.{i}.{other}").flatten())
    for mine, other in (("embedding.tokens", "rwkv.embeddings"), ("head.out", "head"),
                        ("decoder.layers.1.time.op.k", "rwkv.blocks.1.attention.key"),
                        ("decoder.layers.1.channel.op.down", "rwkv.blocks.1.feed_forward.value")):  # fmt: skip
        a, b = (m.get_parameter(f"{n}.weight").detach() for m, n in ((model, mine), (theirs, other)))
        close(torch.linalg.svdvals(a), torch.linalg.svdvals(b))
    half = af.build(model.spec, dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 and p.isfinite().all() for p in half.parameters())


def test_keys_of_any_size_stay_finite() -> None:
    """The running maximum: fp32 and fp16, forward and backward, with keys for which e^k overflows."""
    for dtype in (torch.float32, torch.float16):
        model = ours(HALVED, dtype=dtype)
        with torch.no_grad():
            for layer in model.decoder.layers:
                layer.time.op.k.weight.mul_(3000)
        out = model(**make_inputs(HALVED, labels=True))
        out.loss.backward()
        assert out.logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters())
