"""The views of one run on the page: each as plain data, computed on demand.

T positions of the text that is scored, S positions that are attended to, H heads, V classes of the head.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.look.attribution import contributions
from anyformer.look.maps import routing
from anyformer.look.neuron_attribution import neurons
from anyformer.look.patching import patch, patch_table
from anyformer.look.residual_stream import logit_lens, stream_norms
from anyformer.look.roles import attention_mixers, body, routers, short
from anyformer.look.scores import head_scores, repeated
from anyformer.look.sound import Sound
from anyformer.look.trace import Trace, main_tensor, trace
from anyformer.models import TransformerModule, position_limit
from anyformer.runtime.state import declarations

Data = dict[str, Any]

SMALL = 40  # cells per side of a small map
TOP = 8  # words shown at each position
UNITS = 12  # feed-forward units shown at each position
MAX_HELD = 200_000_000  # bytes of maps kept from the first run; other maps are computed again on demand


class At(NamedTuple):
    """Identifies a map: the address of its mixer, and the index of the pass if the layer runs several times."""

    address: str
    time: int


@dataclasses.dataclass(frozen=True)
class Scene:
    """A model, its inputs, and how to show them. `words` turns a class of the head into text."""

    model: TransformerModule
    inputs: dict[str, Any]
    name: str = "model"
    words: Callable[[int], str] = str
    media: Data = dataclasses.field(default_factory=dict)  # a picture of the input, its grid, and names of its patches
    other: dict[str, Any] | None = None  # inputs of another text, to paste from
    target: str = "input_ids"  # the input to which generated tokens are appended
    reads: str = "text"  # "text", "image" or "sound"
    sound: Callable[[], Sound] | None = None  # the spectrogram and the words, if the model reads sound


class Inside:
    """One run and all views of it."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.model = scene, scene.model
        self.mixers = attention_mixers(self.model)
        self.small: dict[At, Tensor] = {}  # in the order they were computed
        self.held: dict[At, Tensor] = {}
        self.shapes: dict[At, tuple[int, ...]] = {}
        traced = self.trace_maps(self.keep_map, keep=f"{body(self.model).last_stack.address}.input")
        self.run = dataclasses.replace(traced, change={})
        has_scores = any("logits" in name for name in self.run.output)  # hidden states and embeddings are not scores
        self.scores = main_tensor(dict(self.run.output))[0] if has_scores else None
        self.other: Trace | None = None
        if scene.other is not None:
            with torch.no_grad():
                self.other = trace(self.model, **scene.other)

    @torch.no_grad()
    def trace_maps(self, visit: Callable[[At, Tensor], None], keep: str | None = None) -> Trace:
        """Run the model and call `visit` with every map (B, H, T, S)."""
        times: collections.Counter[str] = collections.Counter()

        def change(weights: Tensor, address: str) -> Tensor:
            visit(At(address.removesuffix(".weights"), times[address]), weights)
            times[address] += 1
            return weights

        changes = {f"{address}.weights": change for address in self.mixers}
        return trace(self.model, keep=() if keep is None else keep, change=changes, **self.scene.inputs)

    def keep_map(self, at: At, weights: Tensor) -> None:
        """Keep a small version (H, n, n) of a map, and the map in full size if there is room."""
        size = tuple(min(side, SMALL) for side in weights.shape[-2:])
        self.small[at] = quantize(F.adaptive_max_pool2d(weights[0].float(), size))
        self.shapes[at] = tuple(weights.shape)
        if weights.numel() + sum(each.numel() for each in self.held.values()) <= MAX_HELD:
            self.held[at] = rows_of(weights)

    # -- data of the first page ---------------------------------------------------------------------------------------

    def opening(self) -> Data:
        scene = self.scene
        return {
            "name": scene.name,
            "tokens": self.labels(scene.target),
            "ids": self.token_ids(scene.target, scene.inputs),
            "source": self.source(),
            "media": scene.media,
            "predictions": self.predictions(),
            "maps": [self.map_data(at) for at in self.small],
            "whole": self.scores is not None and self.scores.dim() == 2,
            "state": self.state_sizes(),
            "experts": self.experts(),
            "other": None if scene.other is None else self.labels(scene.target, scene.other),
            "sublayers": self.sublayers(),
            "writes": bool(self.model.spec.writes),
            "layers": self.depth(),
        }

    def depth(self) -> Data:
        stack = body(self.model).last_stack
        return {"address": f"{stack.address}.layers", "number": stack.part.depth}

    def sublayers(self) -> list[str]:
        shown = self.model.shows
        return [address.removesuffix(".branch") for address in shown if address.endswith(".branch")]

    def labels(self, name: str, inputs: Data | None = None) -> list[str]:
        """Return a label for each position: a word, or the number of a patch, frame or step."""
        ids = self.token_ids(name, self.scene.inputs if inputs is None else inputs)
        if ids is not None:
            return [self.scene.words(i) for i in ids]
        return self.scene.media.get("places") or [str(i) for i in range(self.length)]

    def token_ids(self, name: str, inputs: Data) -> list[int] | None:
        """Return the token ids of the first row, or None if the input does not consist of token ids."""
        ids = inputs.get(name)
        return ids[0].tolist() if isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point() else None

    def source(self) -> list[str] | None:
        """Return labels for the encoder's positions, or None if the model is not an encoder-decoder."""
        if not self.model.spec.pair:
            return None
        name = self.model.spec.embedding.inputs[0]
        if name in self.scene.inputs and name == "input_ids":
            return self.labels(name)
        sizes = [size[-1] for at, size in self.shapes.items() if self.mixers[at.address] == "cross"]
        return self.scene.media.get("places") or [str(i) for i in range(sizes[0] if sizes else 0)]

    @property
    def length(self) -> int:
        return self.run.kept[f"{body(self.model).last_stack.address}.input"][0].shape[1]

    def predictions(self) -> list[list[Any]]:
        """Return the most likely [word, probability, class] at each position, or one list if the head pools."""
        if self.scores is None or self.scores.dim() not in (2, 3):
            return []
        return self.best(self.scores[:1] if self.scores.dim() == 2 else self.scores[0])

    def best(self, scores: Tensor) -> list[list[Any]]:
        """Return the most likely [word, probability, class] for each row of scores (T, V)."""
        scores = scores.float()
        top = scores.topk(min(TOP, scores.shape[-1]))
        shares = (top.values - scores.logsumexp(-1, keepdim=True)).exp().tolist()
        rows = zip(shares, top.indices.tolist())
        return [[[self.word(i), round(share, 5), i] for share, i in zip(*row)] for row in rows]

    def word(self, number: int) -> str:
        labels = self.model.spec.labels
        return labels[number] if labels and not self.model.spec.writes else self.scene.words(number)

    def map_data(self, at: At) -> Data:
        rows, heads, queries, keys = self.shapes[at]
        small = self.small[at]
        return {
            "address": short(at.address) + (f", run {at.time + 1}" if at.time else ""),
            "kind": self.mixers[at.address],
            "heads": heads,
            "queries": queries,
            "keys": keys,
            "windows": rows,
            "side": list(small.shape[1:]),
            "small": pack(small),
            "of": self.side(at.address),
        }

    def side(self, address: str) -> str:
        """Return "source" for modules in the encoder of an encoder-decoder, otherwise "tokens"."""
        return "source" if self.model.spec.pair and address.startswith("encoder") else "tokens"

    def experts(self) -> list[Data]:
        if not routers(self.model):
            return []
        shown = []
        for each in routing(self.run):
            shares = [[round(float(w), 4) for w in line] for line in each.weights.reshape(each.experts.shape)]
            shown.append(
                {
                    "address": short(each.address.removesuffix(".router")),
                    "of": self.side(each.address),
                    "number": each.num_experts,
                    "experts": each.experts.tolist(),
                    "weights": shares,
                }
            )
        return shown

    def state_sizes(self) -> list[int]:
        """Return the bytes of decoding state after each token, if the model generates from left to right."""
        if not self.model.remembers or self.scores is None:
            return []
        memory = len(self.source() or ())
        states = [declared for _, declared in declarations(self.model)]
        dtype = self.model.dtype
        return [sum(s.nbytes(1, tokens, dtype, memory) for s in states) for tokens in range(1, self.length + 1)]

    # -- attention ----------------------------------------------------------------------------------------------------

    def weights(self, index: int) -> Tensor:
        """Return the map (H, T, S) of one mixer as bytes, with windows below each other."""
        at = list(self.small)[index]
        if at not in self.held:
            name = f"{at.address}.weights"
            return rows_of(self.run.keeping(name).kept[name][at.time])
        return self.held[at]

    def every_map(self, visit: Callable[[At, Tensor], None]) -> None:
        """Call `visit` with every map (H, T, S). If not all maps were kept, run the model again."""
        if self.held.keys() == self.small.keys():
            for at, maps in self.held.items():
                visit(at, maps)
        else:
            self.trace_maps(lambda at, weights: visit(at, rows_of(weights)))

    # -- the residual stream ------------------------------------------------------------------------------------------

    def lens(self, positions: Sequence[int]) -> Data:
        if self.scores is None:
            raise ValueError("this model has no scores, so its layers cannot be read")
        lens = logit_lens(self.run)
        if lens.states[0].shape[1] > max(positions, default=0):
            narrow = tuple(state[:, list(positions)] for state in lens.states)
            lens = lens if self.scores.dim() == 2 else dataclasses.replace(lens, states=narrow)
        classes, chances = (value[:, 0] for value in lens.top(1))
        classes, chances = (value.reshape(len(lens), -1) for value in (classes, chances))
        words = {int(i): self.word(int(i)) for i in classes.unique()}
        return {
            "depths": list(lens.addresses),
            "positions": list(positions),
            "tokens": classes.tolist(),
            "words": words,
            "chances": round_digits(chances),
            "norms": round_digits(stream_norms(self.run)[:, 0]),
        }

    def contributions(self, positions: Sequence[int], token: int | None = None) -> Data:
        shares = contributions(self.run, token, list(positions))
        return {
            "lines": [[line.name, line.address, line.head] for line in shares.names],
            "values": round_digits(shares.values),
            "positions": list(positions),
            "tokens": [[int(t), self.word(int(t))] for t in shares.tokens],
            "scores": round_digits(shares.scores),
        }

    def neurons(self, positions: Sequence[int], token: int | None = None) -> Data:
        """Return [sublayer, unit, activation, share] of the units with the largest shares at each position."""
        units = neurons(self.run, token, list(positions))
        best = ([list(each) for each in units.best(UNITS, i)] for i in range(len(positions)))
        lines = [[[*each[:2], *(float(f"{x:.4g}") for x in each[2:])] for each in at_position] for at_position in best]
        return {"positions": list(positions), "units": lines}

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(
        self,
        at: str,
        action: str,
        heads: Sequence[int] | None,
        positions: Sequence[int] | None,
        scale: float = 0.0,
        place: int = -1,
    ) -> Data:
        """Return the predictions at position `place` before and after a change."""
        if action == "paste" and self.other is None:
            raise ValueError("no other text to paste from: start with --other TEXT")
        if self.scores is None or not self.predictions():
            raise ValueError("this model has no scores, so no difference can be shown")
        source = self.other if action == "paste" else None
        scale = {"zero": 0.0, "scale": scale}.get(action, 1.0)
        changed = patch(self.run, source, at=at, heads=heads, positions=positions, scale=scale)
        after = main_tensor(dict(changed.output))[0]
        assert after is not None
        old, new = ((s[0] if s.dim() == 2 else s[0, place]).float().softmax(-1) for s in (self.scores, after))
        words = dict.fromkeys(number for shares in (old, new) for _, _, number in self.best(shares.log()[None])[0])
        rows = [[self.word(i), round(float(old[i]), 5), round(float(new[i]), 5)] for i in words]
        return {"rows": sorted(rows, key=lambda row: -abs(row[2] - row[1]))}

    def table(self, by: str, place: int = -1) -> Data:
        pasted = by == "position"
        if self.scores is None:
            raise ValueError("this model has no scores, so no change can be measured")
        if pasted and self.other is None:
            raise ValueError("no other text to paste from: start with --other TEXT")
        patches = patch_table(self.run, self.other if pasted else None, by=by, position=place)  # type: ignore[arg-type]
        values = [[None if math.isnan(v) else round(v, 4) for v in line] for line in patches.values.tolist()]
        return {
            "rows": list(patches.rows),
            "columns": list(patches.columns),
            "values": values,
            "by": by,
            "token": self.word(patches.token),
            "before": round(patches.before, 4),
        }

    def head_kinds(self) -> Data:
        """Return the scores of heads on repeated random tokens if the model accepts them, otherwise on this text."""
        try:
            run, how = repeated(self.model), "on random tokens, repeated once"
        except ValueError:
            run, how = self.run, "on this text"
        kinds = head_scores(run).kinds
        return {
            "how": how,
            "kinds": {
                kind: {address: round_digits(scores) for address, scores in by_address.items()}
                for kind, by_address in kinds.items()
            },
        }

    def longer(self, position: int, number: int) -> Inside:
        """Return the views of the text up to `position`, followed by the token `number`."""
        name = self.scene.target
        ids = self.scene.inputs[name]
        if not self.model.spec.writes or not isinstance(ids, Tensor):
            raise ValueError("this model does not generate from left to right")
        limit = position_limit(self.model.spec)
        if limit is not None and position + 2 > limit:
            raise ValueError(f"this model takes at most {limit:,} tokens")
        if not 0 <= position < ids.shape[1]:
            raise ValueError(f"no position {position}; the text has {ids.shape[1]} tokens")
        new = torch.cat((ids[:, : position + 1], ids.new_tensor([[number]])), 1)
        inputs = {**self.scene.inputs, name: new}
        mask = name.replace("input_ids", "attention_mask")
        if mask in inputs and inputs[mask].shape == ids.shape:
            inputs[mask] = torch.ones_like(new)
        inputs = {key: value for key, value in inputs.items() if key != "token_type_ids" or value.shape == new.shape}
        return Inside(dataclasses.replace(self.scene, inputs=inputs))


def quantize(weights: Tensor) -> Tensor:
    """Convert shares from 0 to 1 to bytes: 255 times the square root, so that small shares differ too."""
    return (weights.float().clamp(0, 1).sqrt() * 255).round().to(torch.uint8).cpu()


def rows_of(weights: Tensor) -> Tensor:
    """(B, H, T, S) -> (H, B T, S) as bytes: windows below each other."""
    return quantize(weights.transpose(0, 1).flatten(1, 2))


def pack(values: Tensor) -> str:
    import base64

    return base64.b64encode(values.contiguous().numpy().tobytes()).decode()


def round_digits(values: Tensor) -> Any:
    """Return nested lists of numbers with four digits, and None for NaN."""

    def tidy(value: Any) -> Any:
        if isinstance(value, list):
            return [tidy(each) for each in value]
        return None if math.isnan(value) else float(f"{value:.4g}")

    return tidy(values.detach().float().cpu().tolist())


def attempt(view: Callable[[], Data]) -> Data:
    """Return a view, or {"why": ...} if this model does not have it."""
    try:
        return view()
    except ValueError as error:
        return {"why": str(error)}


def strongest(values: Tensor, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each head (T, S) the indices (T, number) and values (T, number) of each row's largest values."""
    for head in values:
        best = head.topk(min(number, head.shape[-1]), -1)
        yield best.indices.to(torch.int16 if head.shape[-1] < 2**15 else torch.int32), best.values
