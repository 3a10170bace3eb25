"""Several inputs in one sequence: a picture and a sound become vectors between the words, and one decoder reads all.

A small model in Reka's layout has an image encoder, an audio encoder and a decoder, with random weights. Write
<image> and <sound> where they belong in the text [Ormazabal et al. 2024].
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer import families
from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.words import split

WIDTH, PATCHES, FRAMES = 32, 4, 3  # of the decoder; vectors of one picture of 16 x 16; vectors of one sound
MAP = "decoder.layers.1.attention.op.weights"
IMAGE, SOUND = 1, 2  # ids of the tokens whose vectors are replaced


def example(text: str = "<image> what makes this noise <sound> ?", *, seed: int = 0) -> Shown:
    """Read `text` with random pictures and sounds; then change the picture, and see which results change."""
    words = split(text, 20)
    if words.count("<image>") > 1 or words.count("<sound>") > 1:
        raise ValueError("write <image> and <sound> at most once each")
    model: Any = af.build(description(), seed=seed).eval()
    vocabulary = list(dict.fromkeys(words))
    tokens = []  # (kind, name, id)
    for word in words:
        kind, number, token = {"<image>": ("image", PATCHES, IMAGE), "<sound>": ("sound", FRAMES, SOUND)}.get(
            word, ("text", 1, 5 + vocabulary.index(word)))  # fmt: skip
        tokens += [(kind, word if kind == "text" else f"{kind} {i + 1}", token) for i in range(number)]
    ids = torch.tensor([[token for _, _, token in tokens]])
    draws = torch.Generator().manual_seed(seed)
    picture, other = torch.randn(2, 1, 3, 16, 16, generator=draws)
    inputs: dict[str, Any] = {"input_ids": ids}
    if "<image>" in words:
        inputs["pixel_values"] = picture
    if "<sound>" in words:
        inputs["input_features"] = torch.randn(1, 5, 2 * FRAMES, generator=draws)
    changed = {**inputs, **({"pixel_values": other} if "<image>" in words else {})}
    with torch.no_grad():
        run, second = (af.trace(model, keep=("decoder.input", MAP), **each) for each in (inputs, changed))
        weights = run[MAP][0].mean(0)  # (T, T), mean of the heads
    vectors, moved = run["decoder.input"][0], (second.output.logits - run.output.logits)[0].abs().amax(-1)
    kinds = [kind for kind, _, _ in tokens]
    rows = [[i, name, kind, token, float(vectors[i].norm()), float(moved[i])]
            for i, (kind, name, token) in enumerate(tokens)]  # fmt: skip
    share = [[kind, kinds.count(kind), float(weights[-1][[k == kind for k in kinds]].sum()), parameters(model, kind)]
             for kind in dict.fromkeys(kinds)]  # fmt: skip

    def draw() -> Any:
        figure, axes = new(2, 1, 11, 4.4)
        names = [name for _, name, _ in tokens]
        colors = {"text": "tab:blue", "image": "tab:orange", "sound": "tab:green"}
        for kind in dict.fromkeys(kinds):
            own = [i for i, each in enumerate(kinds) if each == kind]
            axes[0, 0].barh(own, [rows[i][5] for i in own], color=colors[kind], label=kind)
        axes[0, 0].set_yticks(range(len(names)), names, fontsize=8)
        axes[0, 0].invert_yaxis()
        axes[0, 0].set_title("change of the scores if the picture changes", fontsize=9)
        axes[0, 0].legend(fontsize=8)
        axes[0, 1].imshow(weights.numpy(), vmin=0)
        axes[0, 1].set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes[0, 1].set_yticks(range(len(names)), names, fontsize=7)
        axes[0, 1].set_title("attention of the last layer, mean of the heads", fontsize=9)
        return figure

    numbers = ", ".join(f"{kinds.count(kind)} of {kind}" for kind in dict.fromkeys(kinds))
    return Shown(
        f"A text of {amount(len(words), 'word')}, marks included, becomes one sequence of "
        f"{amount(len(tokens), 'vector')} of width {WIDTH} ({numbers}); if the picture changes, the scores of "
        f"{amount(int((moved > 1e-6).sum()), 'position')} change.",
        [
            Table("the sequence", ("position", "token", "kind", "id", "length of the vector",
                                   "change of the scores if the picture changes"), rows),
            Table("by kind", ("kind", "vectors", "attention of the last token", "parameters of its encoder"), share),
        ],
        draw,
    )  # fmt: skip


def parameters(model: Any, kind: str) -> int:
    tower = {"image": "image", "sound": "audio"}.get(kind)
    return sum(each.numel() for each in (getattr(model, tower) if tower else model.embedding).parameters())


def description() -> Any:
    text = {"vocab_size": 40, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
    image = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
             "image_size": 16, "patch_size": 8}  # fmt: skip
    sound = {"d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
             "num_mel_bins": 5, "max_source_positions": FRAMES}  # fmt: skip
    config = {"text_config": text, "vision_config": image, "audio_config": sound, "image_token_index": IMAGE,
              "audio_token_index": SOUND}  # fmt: skip
    return families.find("reka").read(config)
