"""stories260K, a trained Llama of 260,000 parameters (karpathy/llama2.c's legacy format), as an anyformer model, and
its tokenizer: real weights small enough to measure what a change costs on real text."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyformer as af
from anyformer import families


def load(folder: Path) -> Any:
    """Return (model, encode); encode(text) returns token ids that start with the start token."""
    raw = (folder / "stories260K.bin").read_bytes()
    width, inner, depth, heads, kv_heads, vocab, length = struct.unpack("7i", raw[:28])
    numbers, at = np.frombuffer(raw, "<f4", offset=28), 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return torch.from_numpy(numbers[at - count : at].copy()).view(shape)

    K = width // heads
    tables = {"embedding.tokens.weight": take(vocab, width)}
    norm = take(depth, width)
    sizes = {"q": heads * K, "k": kv_heads * K, "v": kv_heads * K}
    q, k, v = (take(depth, size, width) for size in sizes.values())
    o = take(depth, width, heads * K)
    norm_2, gate = take(depth, width), take(depth, inner, width)
    down, up = take(depth, width, inner), take(depth, inner, width)
    tables["decoder.norm.weight"] = take(width)
    config = {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": depth, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": abs(vocab), "max_position_embeddings": length,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip

    def halves(w: torch.Tensor, count: int) -> torch.Tensor:
        """Reorder rotary pairs (0, 1), (2, 3), ... to (0, K/2), (1, K/2 + 1), ..."""
        return w.view(count, K // 2, 2, width).transpose(1, 2).reshape(w.shape)

    for i in range(depth):
        at_layer = f"decoder.layers.{i}"
        tables |= {
            f"{at_layer}.attention.pre_norm.weight": norm[i], f"{at_layer}.attention.op.v.weight": v[i],
            f"{at_layer}.attention.op.q.weight": halves(q[i], heads),
            f"{at_layer}.attention.op.k.weight": halves(k[i], kv_heads),
            f"{at_layer}.attention.op.o.weight": o[i], f"{at_layer}.feedforward.pre_norm.weight": norm_2[i],
            f"{at_layer}.feedforward.op.gate.weight": gate[i], f"{at_layer}.feedforward.op.up.weight": up[i],
            f"{at_layer}.feedforward.op.down.weight": down[i],
        }  # fmt: skip
    model = af.build(families.find("llama").read(config), seed=0)
    missing, unexpected = model.load_state_dict(tables, strict=False)
    assert not unexpected and set(missing) <= {"head.out.weight"}, (missing, unexpected)  # tied
    return model.eval(), tokenizer(folder / "tok512.bin", abs(vocab))


def tokenizer(path: Path, vocab_size: int) -> Any:
    """Return an encoder that merges the pair with the highest score first."""
    raw, at, pieces = path.read_bytes(), 4, []
    for _ in range(vocab_size):
        score, size = struct.unpack_from("<fi", raw, at)
        pieces.append((raw[at + 8 : at + 8 + size].decode("utf-8", "replace"), score))
        at += 8 + size
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}

    def word_ids(word: str) -> list[int]:
        tokens: list[int] = []
        for character in word:
            known = character in ids
            tokens += [ids[character]] if known else [byte + 3 for byte in character.encode()]
        while True:
            best = max(
                ((pieces[ids[p]][1], i) for i in range(len(tokens) - 1)
                 if (p := pieces[tokens[i]][0] + pieces[tokens[i + 1]][0]) in ids), default=None,
            )  # fmt: skip
            if best is None:
                return tokens
            i = best[1]
            tokens[i : i + 2] = [ids[pieces[tokens[i]][0] + pieces[tokens[i + 1]][0]]]

    def encode(text: str) -> list[int]:
        out = [1]
        for word in text.split():
            out += word_ids(" " + word)
        return out

    def decode(tokens: list[int]) -> str:
        return "".join(pieces[t][0] for t in tokens if t > 2)

    encode.decode = decode  # type: ignore[attr-defined]
    return encode


@torch.no_grad()
def perplexity(model: Any, tokens: list[int], length: int = 512) -> float:
    """Perplexity over chunks of `length` tokens."""
    total, count = 0.0, 0
    for start in range(0, len(tokens) - 1, length):
        piece = torch.tensor([tokens[start : start + length]])
        if piece.shape[1] > 1:
            n = piece.shape[1] - 1
            total += float(model(input_ids=piece, labels=piece).loss) * n
            count += n
    return float(np.exp(total / count))
