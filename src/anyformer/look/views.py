"""What a page shows of one run: each view as plain data, computed when it is asked for.

T places of the text that is scored, S places that are looked at, H heads, V what the head scores.
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

SMALL = 40  # places a side of a small map
TOP = 8  # words shown at each place
UNITS = 12  # of feed-forward layers, likewise
HOLD = 200_000_000  # bytes of maps that are kept from the first run; others are computed again when one is asked for


class At(NamedTuple):
    """Which map: its mixer, and in which of its runs where a layer runs more than once."""

    address: str
    time: int


@dataclasses.dataclass(frozen=True)
class Scene:
    """A model, what it reads, and how that is shown: `words` names what the head scores, `places` what is read."""

    model: TransformerModule
    inputs: dict[str, Any]
    name: str = "model"
    words: Callable[[int], str] = str
    media: Data = dataclasses.field(default_factory=dict)  # a picture of what is read, and the grid of its places
    other: dict[str, Any] | None = None  # inputs of another text, to paste from
    target: str = "input_ids"  # the input that writing on makes longer
    reads: str = "text"  # or "image" or "sound"
    sound: Callable[[], Sound] | None = None  # with its words, where one is heard


class Inside:
    """One run, and everything that is asked about it."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.model = scene, scene.model
        self.mixers = attention_mixers(self.model)
        self.small: dict[At, Tensor] = {}  # in the order they were made
        self.held: dict[At, Tensor] = {}
        self.shapes: dict[At, tuple[int, ...]] = {}
        found = self.trace_maps(self.glance, keep=f"{body(self.model).last_stack.address}.input")
        self.run = dataclasses.replace(found, change={})
        scores = any("logits" in name for name in self.run.output)  # vectors of a body, or to compare, are no scores
        self.said = main_tensor(dict(self.run.output))[0] if scores else None
        self.other: Trace | None = None
        if scene.other is not None:
            with torch.no_grad():
                self.other = trace(self.model, **scene.other)

    @torch.no_grad()
    def trace_maps(self, see: Callable[[At, Tensor], None], keep: str | None = None) -> Trace:
        """A run in which every map (B, H, T, S) is handed over on its way."""
        times: collections.Counter[str] = collections.Counter()

        def change(weights: Tensor, address: str) -> Tensor:
            see(At(address.removesuffix(".weights"), times[address]), weights)
            times[address] += 1
            return weights

        seen = {f"{address}.weights": change for address in self.mixers}
        return trace(self.model, keep=() if keep is None else keep, change=seen, **self.scene.inputs)

    def glance(self, at: At, weights: Tensor) -> None:
        """Sees a map on its way and keeps it small: (H, n, n); as it is too, while there is room."""
        size = tuple(min(side, SMALL) for side in weights.shape[-2:])
        self.small[at] = quantize(F.adaptive_max_pool2d(weights[0].float(), size))
        self.shapes[at] = tuple(weights.shape)
        if weights.numel() + sum(each.numel() for each in self.held.values()) <= HOLD:
            self.held[at] = rows_of(weights)

    # -- what the page opens with -------------------------------------------------------------------------------------

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
            "whole": self.said is not None and self.said.dim() == 2,
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
        """What stands at each place: words, or the numbers of patches, frames or steps."""
        ids = self.token_ids(name, self.scene.inputs if inputs is None else inputs)
        if ids is not None:
            return [self.scene.words(i) for i in ids]
        return self.scene.media.get("places") or [str(i) for i in range(self.length)]

    def token_ids(self, name: str, inputs: Data) -> list[int] | None:
        """Of the first text, where an input is one."""
        ids = inputs.get(name)
        return ids[0].tolist() if isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point() else None

    def source(self) -> list[str] | None:
        """What the encoder of a pair read."""
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
        """At each place the likeliest [word, probability, number]; one list where a head speaks for the whole."""
        if self.said is None or self.said.dim() not in (2, 3):
            return []
        return self.best(self.said[:1] if self.said.dim() == 2 else self.said[0])

    def best(self, scores: Tensor) -> list[list[Any]]:
        """(T, V) -> for each row [word, probability, number] of the likeliest."""
        scores = scores.float()
        found = scores.topk(min(TOP, scores.shape[-1]))
        shares = (found.values - scores.logsumexp(-1, keepdim=True)).exp().tolist()
        rows = zip(shares, found.indices.tolist())
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
        """Whose places a module is about: of what the encoder of a pair read, or of the text that is scored."""
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
        """Bytes that are remembered after each token, where the model writes from left to right."""
        if not self.model.remembers or self.said is None:
            return []
        memory = len(self.source() or ())
        held = [declared for _, declared in declarations(self.model)]
        dtype = self.model.dtype
        return [sum(d.nbytes(1, tokens, dtype, memory) for d in held) for tokens in range(1, self.length + 1)]

    # -- attention ----------------------------------------------------------------------------------------------------

    def weights(self, index: int) -> Tensor:
        """(H, T, S) of one mixer, quantised; windows one below the other."""
        at = list(self.small)[index]
        if at not in self.held:
            name = f"{at.address}.weights"
            return rows_of(self.run.keeping(name).kept[name][at.time])
        return self.held[at]

    def every_map(self, visit: Callable[[At, Tensor], None]) -> None:
        """Hands every map (H, T, S) over; those that are not held as they are computed once more, one by one."""
        if self.held.keys() == self.small.keys():
            for at, maps in self.held.items():
                visit(at, maps)
        else:
            self.trace_maps(lambda at, weights: visit(at, rows_of(weights)))

    # -- the residual stream ------------------------------------------------------------------------------------------

    def lens(self, positions: Sequence[int]) -> Data:
        if self.said is None:
            raise ValueError("this model has no scores, so its layers cannot be read")
        found = logit_lens(self.run)
        if found.states[0].shape[1] > max(positions, default=0):
            narrow = tuple(state[:, list(positions)] for state in found.states)
            found = found if self.said.dim() == 2 else dataclasses.replace(found, states=narrow)
        names, chances = (value[:, 0] for value in found.top(1))
        names, chances = (value.reshape(len(found), -1) for value in (names, chances))
        words = {int(i): self.word(int(i)) for i in names.unique()}
        return {
            "depths": list(found.addresses),
            "positions": list(positions),
            "tokens": names.tolist(),
            "words": words,
            "chances": round_digits(chances),
            "norms": round_digits(stream_norms(self.run)[:, 0]),
        }

    def contributions(self, positions: Sequence[int], token: int | None = None) -> Data:
        found = contributions(self.run, token, list(positions))
        return {
            "lines": [[line.name, line.address, line.head] for line in found.names],
            "values": round_digits(found.values),
            "positions": list(positions),
            "tokens": [[int(t), self.word(int(t))] for t in found.tokens],
            "scores": round_digits(found.scores),
        }

    def neurons(self, positions: Sequence[int], token: int | None = None) -> Data:
        """At each place the units that matter most: [sublayer, unit, activation, share]."""
        found = neurons(self.run, token, list(positions))
        best = ([list(each) for each in found.best(UNITS, place)] for place in range(len(positions)))
        lines = [[[*each[:2], *(float(f"{x:.4g}") for x in each[2:])] for each in place] for place in best]
        return {"positions": list(positions), "units": lines}

    # -- changing something -------------------------------------------------------------------------------------------

    def change(
        self,
        at: str,
        action: str,
        heads: Sequence[int] | None,
        positions: Sequence[int] | None,
        scale: float = 0.0,
        place: int = -1,
    ) -> Data:
        """The predictions at a place before and after."""
        if action == "paste" and self.other is None:
            raise ValueError("there is no other text to paste from: start with --other TEXT")
        if self.said is None or not self.predictions():
            raise ValueError("this model predicts nothing, so no difference can be shown")
        source = self.other if action == "paste" else None
        scale = {"zero": 0.0, "scale": scale}.get(action, 1.0)
        changed = patch(self.run, source, at=at, heads=heads, positions=positions, scale=scale)
        after = main_tensor(dict(changed.output))[0]
        assert after is not None
        old, new = ((s[0] if s.dim() == 2 else s[0, place]).float().softmax(-1) for s in (self.said, after))
        words = dict.fromkeys(number for shares in (old, new) for _, _, number in self.best(shares.log()[None])[0])
        rows = [[self.word(i), round(float(old[i]), 5), round(float(new[i]), 5)] for i in words]
        return {"rows": sorted(rows, key=lambda row: -abs(row[2] - row[1]))}

    def table(self, by: str, place: int = -1) -> Data:
        pasted = by == "position"
        if self.said is None:
            raise ValueError("this model has no scores, so no change can be measured")
        if pasted and self.other is None:
            raise ValueError("places are pasted from another text: start with --other TEXT")
        found = patch_table(self.run, self.other if pasted else None, by=by, position=place)  # type: ignore[arg-type]
        values = [[None if math.isnan(v) else round(v, 4) for v in line] for line in found.values.tolist()]
        return {
            "rows": list(found.rows),
            "columns": list(found.columns),
            "values": values,
            "by": by,
            "token": self.word(found.token),
            "before": round(found.before, 4),
        }

    def head_kinds(self) -> Data:
        """Scores of heads on random words twice over where the model takes them, else on this text."""
        try:
            run, how = repeated(self.model), "on random tokens, twice over"
        except ValueError:
            run, how = self.run, "on this text"
        kinds = head_scores(run).kinds
        return {
            "how": how,
            "kinds": {
                kind: {address: round_digits(scores) for address, scores in found.items()}
                for kind, found in kinds.items()
            },
        }

    def longer(self, position: int, number: int) -> Inside:
        """The same with this word after that place, and nothing behind it."""
        name = self.scene.target
        ids = self.scene.inputs[name]
        if not self.model.spec.writes or not isinstance(ids, Tensor):
            raise ValueError("this model does not write from left to right")
        limit = position_limit(self.model.spec)
        if limit is not None and position + 2 > limit:
            raise ValueError(f"this model takes at most {limit:,} tokens")
        if not 0 <= position < ids.shape[1]:
            raise ValueError(f"no position {position}")
        new = torch.cat((ids[:, : position + 1], ids.new_tensor([[number]])), 1)
        inputs = {**self.scene.inputs, name: new}
        mask = name.replace("input_ids", "attention_mask")
        if mask in inputs and inputs[mask].shape == ids.shape:
            inputs[mask] = torch.ones_like(new)
        inputs = {key: value for key, value in inputs.items() if key != "token_type_ids" or value.shape == new.shape}
        return Inside(dataclasses.replace(self.scene, inputs=inputs))


def quantize(weights: Tensor) -> Tensor:
    """Shares from 0 to 1 as bytes: 255 times the square root, so that small ones stay apart."""
    return (weights.float().clamp(0, 1).sqrt() * 255).round().to(torch.uint8).cpu()


def rows_of(weights: Tensor) -> Tensor:
    """(B, H, T, S) -> (H, B T, S) as bytes: windows one below the other."""
    return quantize(weights.transpose(0, 1).flatten(1, 2))


def pack(values: Tensor) -> str:
    import base64

    return base64.b64encode(values.contiguous().numpy().tobytes()).decode()


def round_digits(values: Tensor) -> Any:
    """Four digits, NaN as None."""

    def tidy(value: Any) -> Any:
        if isinstance(value, list):
            return [tidy(each) for each in value]
        return None if math.isnan(value) else float(f"{value:.4g}")

    return tidy(values.detach().float().cpu().tolist())


def attempt(view: Callable[[], Data]) -> Data:
    """A view, or the line that says why this model has none."""
    try:
        return view()
    except ValueError as error:
        return {"why": str(error)}


def strongest(values: Tensor, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(T, S) of each head -> the places (T, number) and bytes (T, number) of each row's largest."""
    for head in values:
        best = head.topk(min(number, head.shape[-1]), -1)
        yield best.indices.to(torch.int16 if head.shape[-1] < 2**15 else torch.int32), best.values
