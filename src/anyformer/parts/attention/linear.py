"""Attention in linear time: keys and values projected to a fixed number (Linformer), or softmax replaced by a product
of feature maps, whose sums over keys are carried along (linear attention, Performer).

B batch, T tokens, H heads, K head width, k projected keys, M features, C tokens per chunk, D width.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, attend
from anyformer.parts.base import PartModule
from anyformer.parts.init import Initializer, Normal
from anyformer.parts.mask import FULL, Causal, Full, Mask
from anyformer.parts.op import InHeads, Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow
from anyformer.runtime.taps import MIXER, TapNames, convert_listener
from anyformer.specs.field_types import QKVO, Chance, Count
from anyformer.specs.messages import quote
from anyformer.specs.part import LayerSharing, Part, Site

CHUNK = 128


class Projections(Op, abstract=True):
    """A mixer with query, key, value and output projections, named as in Attention."""

    num_heads: Count
    bias: QKVO = "qkvo"  # projections that have a bias


class ProjectionsModule(InHeads):
    tapped: ClassVar[TapNames] = MIXER

    def __init__(self, part: Projections, site: Site) -> None:
        super().__init__(site, part.num_heads)
        D = site.width
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=name in part.bias) for name in "qkvo")

    def projections(self, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
        """Return queries, keys and values (B, T, H K)."""
        projected = self.q(x), self.k(x), self.v(x)
        return tuple(ctx.tap(self.address, name, t) for name, t in zip("qkv", projected, strict=True))


# -- keys and values projected along the length ------------------------------------------------------------------------


class LinformerAttention(Projections, sees="all", called=("Linformer", "low-rank attention")):
    """softmax(Q (E K)^T) F V with learned E and F (k, length) [Wang et al. 2020]. `sharing`: E and F are
    separate per head ("none") or per layer ("headwise"), or E = F per layer ("key_value") or for all ("layerwise").
    A shorter text uses the first columns. If E and F are identity matrices, this is plain attention."""

    length: Count  # maximum length of a text
    projected: Count  # k, number of projected keys
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"  # which E and F are the same
    dropout: Chance = 0.0  # on the attention weights
    packs: ClassVar[bool] = False

    @property
    def layer_sharing(self) -> LayerSharing | None:
        return LayerSharing("sharing='key_value'", ("layer_drop",)) if self.sharing == "layerwise" else None

    @property
    def causal_alternative(self) -> str:
        return f"LinearAttention(num_heads={self.num_heads}, mask=Causal())"


class LinformerModule(ProjectionsModule, of=LinformerAttention):
    def __init__(self, part: LinformerAttention, site: Site) -> None:
        super().__init__(part, site)
        self.part = part
        self.step = re.sub(r".*\blayers\.\d+\.", "projection of ", site.address)  # the same key in all layers
        shape = (part.num_heads,) * (part.sharing == "none") + (part.projected, part.length)
        if part.sharing in ("none", "headwise"):
            self.project_k, self.project_v = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        holds = part.sharing == "key_value" or (part.sharing == "layerwise" and site.layer == 0)
        self.project = nn.Parameter(torch.empty(shape)) if holds else None

    def length_projections(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return E and F."""
        if self.part.sharing in ("none", "headwise"):
            return self.project_k, self.project_v
        if self.part.sharing == "layerwise":
            first = ctx.shared.setdefault("projection", self.project)
            shared = ctx.shared.setdefault(self.step, first if self.project is None else self.project)
            if shared is None:
                raise ValueError(f"{self.address}: sharing='layerwise' needs a LinformerAttention in the first layer")
            return shared, shared
        assert self.project is not None
        return self.project, self.project

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None:
            raise ValueError(f"{self.address}: keys are mixed over the whole text, so it cannot decode step by step")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: documents cannot be packed, because keys are mixed over a row")
        if x.shape[1] > self.part.length:
            raise ValueError(f"{self.address} reads texts of at most {self.part.length} tokens, got {x.shape[1]}")
        by_key, by_value = self.length_projections(ctx)
        rows = PackedRows.from_context(ctx)  # pads last, so that a text begins in the first column
        q, k, v = self.projections(x, ctx)
        k, v = (self.mix(t, weight, rows) for t, weight in ((k, by_key), (v, by_value)))
        out = attend(self.heads(q), k, v, EVERYTHING, self.attention_plan(ctx, self.part.dropout))
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def mix(self, x: Tensor, weight: Tensor, rows: PackedRows) -> Tensor:
        """(B, T, H K) -> (B, H, k, K); pads count as 0."""
        x, weight = rows.pack(x), weight[..., : x.shape[1]]
        x = x if rows.real is None else x * rows.real.to(x.dtype)
        return torch.matmul(weight, self.heads(x)) if weight.dim() == 3 else self.heads(torch.matmul(weight, x))


# -- feature maps instead of softmax -----------------------------------------------------------------------------------


class Features(Part, abstract=True):
    """Maps queries and keys to features whose products replace exp(q k). The module returns features (B, H, T, M) and a
    power (B, H, T, 1) whose exponential multiplies them; None: the power is 0."""

    def width(self, head_width: int) -> int:
        raise NotImplementedError


class EluFeatures(Features, sees="itself", called=("ELU kernel",)):
    """elu(x) + 1 [Katharopoulos et al. 2020]"""

    def width(self, head_width: int) -> int:
        return head_width


class EluFeaturesModule(PartModule, of=EluFeatures):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return F.elu(x) + 1, None


class SoftmaxFeatures(Features, sees="itself", called=("FAVOR", "random features")):
    """exp(w x - |x|^2 / 2) for `count` random vectors w. The mean of their products over many w is exp(q k), the kernel
    of softmax [Choromanski et al. 2021]. The w are orthogonal to each other, drawn with the weights and saved."""

    count: Count = 256

    def width(self, head_width: int) -> int:
        return self.count


class OrthogonalRows(Initializer):
    """Rows with the lengths of normal random vectors; each block of `width` rows is orthogonal."""

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        count, width = tensor.shape

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=tensor.device)

        def block() -> Tensor:
            q, r = torch.linalg.qr(draw(width, width))
            return (q * r.diagonal().sign()).T  # these signs make every direction equally likely

        blocks = torch.cat([block() for _ in range(-(-count // width))])
        tensor.copy_(blocks[:count] * draw(count, width).norm(dim=1, keepdim=True))


class SoftmaxFeaturesModule(PartModule, of=SoftmaxFeatures):
    starts: ClassVar[dict[str, Any]] = {"weight": OrthogonalRows()}
    exact: ClassVar[tuple[str, ...]] = ("weight",)  # fp32, whatever the model's dtype
    weight: Tensor

    def __init__(self, part: SoftmaxFeatures, site: Site) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(part.count, site.width))
        self.scale = site.width**-0.25  # for queries and keys: together 1 / sqrt(K)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x * self.scale
        power = torch.matmul(x, self.weight.to(x.dtype).t()) - x.square().sum(-1, keepdim=True) / 2
        largest = power.detach().amax(-1, keepdim=True)
        return (power - largest).exp(), largest


class RandomFeatures(Features, sees="itself", called=("RFA features", "Fourier features")):
    """Features of x / |x| by `count` random vectors w with learned scales: sines and cosines of w x, whose products
    have the mean exp(q k) up to a factor ("gaussian"), or relu(w x) ("arccos") [Peng et al. 2021]. The w are drawn with
    the weights and saved; in the paper every training pass draws new ones."""

    count: Count = 64
    kernel: Literal["gaussian", "arccos"] = "gaussian"

    def width(self, head_width: int) -> int:
        return 2 * self.count if self.kernel == "gaussian" else self.count


class RandomFeaturesModule(PartModule, of=RandomFeatures):
    starts: ClassVar[dict[str, Any]] = {"weight": Normal(std=1.0), "scale": 1.0}
    exact: ClassVar[tuple[str, ...]] = ("weight",)
    weight: Tensor

    def __init__(self, part: RandomFeatures, site: Site) -> None:
        super().__init__()
        self.part = part
        self.register_buffer("weight", torch.empty(part.count, site.width))
        self.scale = nn.Parameter(torch.empty(site.width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        angle = torch.matmul(F.normalize(x, dim=-1), (self.weight.to(x.dtype) * self.scale.to(x.dtype)).t())
        features = F.relu(angle) if self.part.kernel == "arccos" else torch.cat((angle.sin(), angle.cos()), dim=-1)
        return features * self.part.count**-0.5, None


# -- sums over keys ----------------------------------------------------------------------------------------------------


class LinearAttention(
    Projections,
    sees="past",
    called=(
        "linear transformer",
        "Performer (features=SoftmaxFeatures)",
        "random feature attention (features=RandomFeatures, gate=True)",
        "RFA (features=RandomFeatures, gate=True)",
    ),
):
    """phi(q) sum phi(k) v / phi(q) sum phi(k), with sums over all tokens or over the tokens up to the query. The sums
    are carried from chunk to chunk and, while decoding, from step to step. With `gate` they decay: S = g S + (1 - g)
    phi(k) v, with one g between 0 and 1 per token and head [Peng et al. 2021]."""

    features: Features = EluFeatures()
    mask: Mask = FULL  # Full() or Causal()
    gate: bool = False  # the sums decay

    def check(self) -> None:
        super().check()
        if self.gate and not isinstance(self.mask, Causal):
            raise ValueError("LinearAttention.gate makes the past decay: set mask=Causal() too")
        if not isinstance(self.mask, (Full, Causal)):
            raise ValueError(f"LinearAttention.mask is {quote(self.mask)}; it must be Full() or Causal()")


class LinearAttentionModule(ProjectionsModule, of=LinearAttention):
    def __init__(self, part: LinearAttention, site: Site) -> None:
        super().__init__(part, site)
        self.part, self.causal, self.mask_key = part, isinstance(part.mask, Causal), f"these, {part.mask!r}"
        self.features = part.features.build(site.child("features", width=self.head_width))
        self.gate = nn.Linear(site.width, part.num_heads) if part.gate else None

    def state_spec(self) -> PerRow | None:
        if not self.causal:
            return None
        H, M = self.part.num_heads, self.part.features.width(self.head_width)
        shapes = {"sum": (H, M, self.head_width + 1), "power": (H, 1, 1)}
        return PerRow(shapes, dtypes=dict.fromkeys(shapes, torch.float32))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None and not self.causal:
            raise ValueError(f"{self.address}: set mask=Causal() to decode step by step, got mask=Full()")
        # fp32 up to the output, because the sums cover a whole text
        dtype = torch.promote_types(x.dtype, torch.float32)
        q, k, v = (self.heads(t).to(dtype) for t in self.projections(x, ctx))
        (q, _), (k, power) = self.features(q), self.features(k)  # a factor of a query cancels
        decay = None
        if self.gate is not None:
            gate_power, decay = gate_powers(self.gate(x).to(dtype), ctx.tokens)
            power = gate_power if power is None else power + gate_power
        v = F.pad(v, (0, 1), value=1.0)  # the last column sums the weights
        eager, listen = ctx.kernel == "eager" and ctx.state is None, ctx.watch(self.address)
        out = None if eager else self.sums(q, k, power, v, ctx, decay)
        if out is None or listen is not None:
            weights = self.weights(q, k, power, ctx)
            if listen is not None:
                weights = convert_listener(listen, lambda seen: seen.to(x.dtype), lambda used: used.to(dtype))(weights)
            changed = listen is not None and listen.changed
            out = torch.matmul(weights, v[..., :-1]) if out is None or changed else out
        return self.o(ctx.tap(self.address, "mixed", out.to(x.dtype).transpose(1, 2).flatten(2)))

    def weights(self, q: Tensor, k: Tensor, power: Tensor | None, ctx: Context) -> Tensor:
        """(B, H, T, T) the attention weights that correspond to the sums, for all pairs."""
        if ctx.state is not None and ctx.state.length:
            raise ValueError(f"{self.address}: weights of cached tokens cannot be traced, because only sums are cached")
        weights = torch.matmul(q, k.transpose(-1, -2))
        seen = ctx.visible(self.part.mask, self.mask_key, ctx.index).dense()
        if power is not None:
            power = torch.where(seen, power.transpose(2, 3), float("-inf"))
            weights = weights * (power - power.amax(-1, keepdim=True).clamp(min=EMPTY_POWER)).exp()
        weights = weights * seen
        return ratio(weights, weights.sum(-1, keepdim=True))

    def sums(self, q: Tensor, k: Tensor, power: Tensor | None, v: Tensor, ctx: Context, decay: Tensor | None) -> Tensor:
        """Return the mixed values (B, H, T, K), computed by sums over keys."""
        tokens, documents = ctx.tokens, ctx.documents
        if tokens is not None:
            k = k * tokens[:, None, :, None]
            power = None if power is None else power.masked_fill(~tokens[:, None, :, None], float("-inf"))
        if self.causal:
            store = ctx.store(self.address)
            past = None if store is None else tuple(store.tensors[n].expand(q.shape[0], -1, -1, -1) for n in STATES)
            out, _, last = causal_sums(q, k, power, v, documents, past)
            last = last if decay is None else (last[0], last[1] + decay)  # powers relative to the next token
            for name, tensor in zip(STATES, last, strict=True):
                if store is not None:
                    store.replace(name, tensor)
        elif documents is None:
            if power is not None:
                k = k * (power - power.amax(2, keepdim=True).clamp(min=EMPTY_POWER)).exp()
            out = torch.matmul(q, torch.matmul(k.transpose(-1, -2), v))
        else:  # sums within each document: up to each token, and after it
            before, c, _ = causal_sums(q, k, power, v, documents)
            backwards = None if power is None else power.flip(2)
            after, d, _ = causal_sums(q.flip(2), k.flip(2), backwards, v.flip(2), documents.flip(1), strict=True)
            after, d = after.flip(2), d.flip(2)
            top = torch.maximum(c, d)
            out = before * (c - top).exp() + after * (d - top).exp()
        return ratio(out[..., :-1], out[..., -1:])


STATES = ("sum", "power")
EMPTY_POWER = -1e30  # the power of an empty sum


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0 because no key is visible."""
    return torch.where(b != 0, a / torch.where(b != 0, b, 1), 0)


def gate_powers(logits: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits (B, T, H) of g -> powers (B, H, T, 1) whose exponentials weight the keys, and the power (B, H, 1, 1) whose
    exponential is the decay of this call. Key s counts (1 - g_s) g_(s+1) ... g_t at token t. The factors that depend on
    t cancel in the ratio, so the power is log(1 - g_s) - (log g_1 + ... + log g_s)."""
    log_gates = F.logsigmoid(logits)
    if tokens is not None:
        log_gates = log_gates * tokens[..., None]  # pads cause no decay
    total = log_gates.cumsum(1)
    power = F.logsigmoid(-logits) - total
    return power.transpose(1, 2)[..., None], total[:, -1, :, None, None]


def causal_sums(
    q: Tensor,
    k: Tensor,
    power: Tensor | None,
    v: Tensor,
    documents: Tensor | None = None,
    past: tuple[Tensor, ...] | None = None,
    strict: bool = False,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return sums (B, H, T, V) over the keys of each query's document up to the query (`strict`: before it), powers
    (B, H, T, 1) whose exponentials multiply them, and the last state. Within a chunk all pairs are computed."""
    (B, H, _, M), V = q.shape, v.shape[-1]
    total, c = (q.new_zeros(B, H, M, V), q.new_zeros(B, H, 1, 1)) if past is None else past
    c = torch.where(total[..., -1:].abs().sum(2, keepdim=True) > 0, c, EMPTY_POWER)  # while the sum is empty
    carry = None if documents is None else documents[:, :1]  # the past belongs to the first document
    outs, powers = [], []
    chunks = [q.split(CHUNK, 2), k.split(CHUNK, 2), v.split(CHUNK, 2)]
    chunks.append([None] * len(chunks[0]) if power is None else power.split(CHUNK, 2))
    chunks.append([None] * len(chunks[0]) if documents is None else documents.split(CHUNK, 1))
    for qs, ks, vs, ps, docs in zip(*chunks, strict=True):
        pairs, before = torch.matmul(qs, ks.transpose(-1, -2)).tril(-1 if strict else 0), torch.matmul(qs, total)
        top = c.expand(-1, -1, qs.shape[2], -1)
        if ps is not None:  # relative to the largest power up to each query, so that no later key matters
            top = torch.maximum(c, ps.cummax(2).values)
            last = top[:, :, -1:]
            pairs = pairs * (ps.transpose(2, 3) - top).clamp(max=0).exp()
            before, total = before * (c - top).exp(), total * (c - last).exp()
            ks, c = ks * (ps - last).exp(), last
        if docs is not None and carry is not None:
            pairs = pairs * (docs[:, :, None] == docs[:, None])[:, None]
            before = before * (docs == carry)[:, None, :, None]
            total, carry = total * (docs[:, -1:] == carry)[:, None, :, None], docs[:, -1:]
            ks = ks * (docs == carry)[:, None, :, None]
        outs.append(torch.matmul(pairs, vs) + before)
        powers.append(top)
        total = total + torch.matmul(ks.transpose(-1, -2), vs)
    return torch.cat(outs, dim=2), torch.cat(powers, dim=2), (total, c)
