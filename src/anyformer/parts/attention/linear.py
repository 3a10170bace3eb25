"""Attention in linear time: keys and values projected to a few (Linformer), and softmax replaced by a product of
feature maps, whose sums over keys are carried along (linear attention, Performer).

B batch, T tokens, H heads, K head width, k projected keys, M features, C tokens of a chunk, D width.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, attend
from anyformer.parts.init import Initializer, Normal
from anyformer.parts.op import InHeads, Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.mask import FULL, Causal, Full, Mask
from anyformer.runtime.state import PerRow
from anyformer.runtime.taps import MIXER, TapNames, convert_listener
from anyformer.specs.checks import at_least, chance
from anyformer.specs.messages import quote
from anyformer.specs.part import LayerSharing, Part, Site

CHUNK = 128


class Projections(Op):
    """Queries, keys, values and output, named as those of Attention."""

    num_heads: int
    bias: str = "qkvo"  # which of them have one

    def check(self) -> None:
        at_least(self, 1, "num_heads")
        if set(self.bias) - set("qkvo"):
            raise ValueError(f"{type(self).__name__}.bias names projections among 'qkvo', got {quote(self.bias)}")


class ProjectionsModule(InHeads):
    tapped: ClassVar[TapNames] = MIXER

    def __init__(self, part: Projections, site: Site) -> None:
        super().__init__(site, part.num_heads)
        D = site.width
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=name in part.bias) for name in "qkvo")

    def projections(self, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
        """(B, T, H K) queries, keys and values."""
        found = self.q(x), self.k(x), self.v(x)
        return tuple(ctx.tap(self.address, name, t) for name, t in zip("qkv", found, strict=True))


# -- keys and values projected along the length ------------------------------------------------------------------------


class LinformerAttention(Projections, sees="all", called=("Linformer", "low-rank attention")):
    """softmax(Q (E K)^T) F V with E and F (k, length) [Wang et al. 2020]. `sharing`: each head has its own ("none"),
    the heads of a layer share one E and one F, keys and values one for both, or all layers one, held by the first. A
    shorter text uses the first columns; with E = F = 1 of its length this is plain attention."""

    length: int  # of the longest text
    projected: int  # k
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"
    dropout: float = 0.0  # on the attention weights
    packs: ClassVar[bool] = False

    def check(self) -> None:
        super().check()
        at_least(self, 1, "length", "projected")
        chance(self, "dropout")

    @property
    def layer_sharing(self) -> LayerSharing | None:
        return LayerSharing("sharing='key_value'", ("layer_drop",)) if self.sharing == "layerwise" else None

    @property
    def causal_alternative(self) -> str:
        return f"LinearAttention(num_heads={self.num_heads}, mask=Causal())"

    def build(self, site: Site) -> nn.Module:
        return LinformerModule(self, site)


class LinformerModule(ProjectionsModule):
    def __init__(self, part: LinformerAttention, site: Site) -> None:
        super().__init__(part, site)
        self.part = part
        self.step = re.sub(r".*\blayers\.\d+\.", "projection of ", site.address)  # its like in the first layer
        shape = (part.num_heads,) * (part.sharing == "none") + (part.projected, part.length)
        if part.sharing in ("none", "headwise"):
            self.project_k, self.project_v = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        first = part.sharing == "key_value" or (part.sharing == "layerwise" and site.layer == 0)
        self.project = nn.Parameter(torch.empty(shape)) if first else None

    def length_projections(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """E and F."""
        if self.part.sharing in ("none", "headwise"):
            return self.project_k, self.project_v
        if self.part.sharing == "layerwise":
            first = ctx.shared.setdefault("projection", self.project)
            shared = ctx.shared.setdefault(self.step, first if self.project is None else self.project)
            if shared is None:
                raise ValueError(f"{self.address}: a projection for all layers is held by the first, which has none")
            return shared, shared
        assert self.project is not None
        return self.project, self.project

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None:
            raise ValueError(f"{self.address}: keys are mixed over the whole text: it cannot be decoded step by step")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: keys are mixed over a row, which holds one text: nothing can be packed")
        if x.shape[1] > self.part.length:
            raise ValueError(f"{self.address} reads texts of at most {self.part.length} tokens, got {x.shape[1]}")
        by_key, by_value = self.length_projections(ctx)
        rows = PackedRows.from_context(ctx)  # pads go last, so that a text begins in the first column
        q, k, v = self.projections(x, ctx)
        k, v = (self.mix(t, weight, rows) for t, weight in ((k, by_key), (v, by_value)))
        out = attend(  # by weights (B, H, T, k)
            self.heads(q),
            k,
            v,
            EVERYTHING,
            scale=self.head_width**-0.5,
            kernel=ctx.kernel,
            on_weights=ctx.weights(self.address),
            dropout=self.part.dropout if self.training else 0.0,
        )
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def mix(self, x: Tensor, weight: Tensor, rows: PackedRows) -> Tensor:
        """(B, T, H K) -> (B, H, k, K); pads add nothing."""
        x, weight = rows.pack(x), weight[..., : x.shape[1]]
        x = x if rows.real is None else x * rows.real.to(x.dtype)
        return torch.matmul(weight, self.heads(x)) if weight.dim() == 3 else self.heads(torch.matmul(weight, x))


# -- features in place of softmax --------------------------------------------------------------------------------------


class Features(Part):
    """A map from queries and keys to positive features; the module gives features (B, H, T, M) and a power (B, H, T, 1)
    by whose exponential they are to be multiplied, or None where that is 1."""

    def width(self, head_width: int) -> int:
        raise NotImplementedError


class EluFeatures(Features, sees="itself", called=("ELU kernel",)):
    """elu(x) + 1 [Katharopoulos et al. 2020]"""

    def width(self, head_width: int) -> int:
        return head_width

    def build(self, site: Site) -> nn.Module:
        return EluFeaturesModule()


class EluFeaturesModule(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return F.elu(x) + 1, None


class SoftmaxFeatures(Features, sees="itself", called=("FAVOR", "random features")):
    """exp(w x - |x|^2 / 2) for `count` random w, whose mean over many w is exp(q k): the kernel of softmax [Choromanski
    et al. 2021]. They are drawn with the weights, orthogonal to each other, and saved with them."""

    count: int = 256

    def check(self) -> None:
        at_least(self, 1, "count")

    def width(self, head_width: int) -> int:
        return self.count

    def build(self, site: Site) -> nn.Module:
        return SoftmaxFeaturesModule(self.count, site.width)


class OrthogonalRows(Initializer):
    """Rows as long as those of independent normal numbers, orthogonal to each other as far as there is room."""

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        count, width = tensor.shape

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=tensor.device)

        def block() -> Tensor:
            q, r = torch.linalg.qr(draw(width, width))
            return (q * r.diagonal().sign()).T  # with these signs every direction is as likely as any

        blocks = torch.cat([block() for _ in range(-(-count // width))])
        tensor.copy_(blocks[:count] * draw(count, width).norm(dim=1, keepdim=True))


class SoftmaxFeaturesModule(nn.Module):
    starts: ClassVar[dict[str, Any]] = {"weight": OrthogonalRows()}
    exact: ClassVar[tuple[str, ...]] = ("weight",)  # fp32 whatever the model is
    weight: Tensor

    def __init__(self, count: int, head_width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(count, head_width))
        self.scale = head_width**-0.25  # of queries and of keys: 1 / sqrt(K) together

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x * self.scale
        power = torch.matmul(x, self.weight.to(x.dtype).t()) - x.square().sum(-1, keepdim=True) / 2
        largest = power.detach().amax(-1, keepdim=True)
        return (power - largest).exp(), largest


class RandomFeatures(Features, sees="itself", called=("RFA features", "Fourier features")):
    """Of x / |x|, for `count` random w with learned scales: the sines and cosines of w x, whose products have the mean
    exp(q k) but for a factor ("gaussian"), or what of w x is above 0 ("arccos") [Peng et al. 2021]. The w are drawn
    with the weights and saved with them; in the paper each pass of training draws others."""

    count: int = 64
    kernel: Literal["gaussian", "arccos"] = "gaussian"

    def check(self) -> None:
        at_least(self, 1, "count")

    def width(self, head_width: int) -> int:
        return 2 * self.count if self.kernel == "gaussian" else self.count

    def build(self, site: Site) -> nn.Module:
        return RandomFeaturesModule(self, site.width)


class RandomFeaturesModule(nn.Module):
    starts: ClassVar[dict[str, Any]] = {"weight": Normal(std=1.0), "scale": 1.0}
    exact: ClassVar[tuple[str, ...]] = ("weight",)
    weight: Tensor

    def __init__(self, part: RandomFeatures, head_width: int) -> None:
        super().__init__()
        self.part = part
        self.register_buffer("weight", torch.empty(part.count, head_width))
        self.scale = nn.Parameter(torch.empty(head_width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        turned = torch.matmul(F.normalize(x, dim=-1), (self.weight.to(x.dtype) * self.scale.to(x.dtype)).t())
        found = F.relu(turned) if self.part.kernel == "arccos" else torch.cat((turned.sin(), turned.cos()), dim=-1)
        return found * self.part.count**-0.5, None


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
    """phi(q) sum phi(k) v / phi(q) sum phi(k): over all tokens, or over those up to the query, by sums that are carried
    from chunk to chunk and, while decoding, from step to step. With `gate` the sums forget: S = g S + (1 - g) phi(k) v,
    where each token has a g between 0 and 1 for each head [Peng et al. 2021]."""

    features: Features = EluFeatures()
    mask: Mask = FULL  # or Causal
    gate: bool = False

    def check(self) -> None:
        super().check()
        if self.gate and not isinstance(self.mask, Causal):
            raise ValueError("LinearAttention.gate forgets what came before a token: set mask=Causal()")
        if not isinstance(self.mask, (Full, Causal)):
            raise ValueError(f"LinearAttention.mask is Full or Causal: sums leave no key out, got {quote(self.mask)}")

    def build(self, site: Site) -> nn.Module:
        return LinearAttentionModule(self, site)


class LinearAttentionModule(ProjectionsModule):
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
            raise ValueError(f"{self.address} looks ahead: it cannot be decoded step by step")
        # from here to the output in fp32, whatever the model is: sums over a whole text
        wide = torch.promote_types(x.dtype, torch.float32)
        q, k, v = (self.heads(t).to(wide) for t in self.projections(x, ctx))
        (q, _), (k, power) = self.features(q), self.features(k)  # what multiplies a query falls out
        forgotten = None
        if self.gate is not None:
            own, forgotten = gate_powers(self.gate(x).to(wide), ctx.tokens)
            power = own if power is None else power + own
        v = F.pad(v, (0, 1), value=1.0)  # the last column sums up the weights
        eager, listen = ctx.kernel == "eager" and ctx.state is None, ctx.watch(self.address)
        out = None if eager else self.sums(q, k, power, v, ctx, forgotten)
        if out is None or listen is not None:
            weights = self.weights(q, k, power, ctx)
            if listen is not None:
                weights = convert_listener(listen, lambda seen: seen.to(x.dtype), lambda used: used.to(wide))(weights)
            changed = listen is not None and listen.changed
            out = torch.matmul(weights, v[..., :-1]) if out is None or changed else out
        return self.o(ctx.tap(self.address, "mixed", out.to(x.dtype).transpose(1, 2).flatten(2)))

    def weights(self, q: Tensor, k: Tensor, power: Tensor | None, ctx: Context) -> Tensor:
        """(B, H, T, T) what the sums amount to, all pairs at once."""
        if ctx.state is not None and ctx.state.length:
            raise ValueError(f"{self.address} keeps sums of the past, not its tokens: their weights cannot be shown")
        weights = torch.matmul(q, k.transpose(-1, -2))
        seen = ctx.visible(self.part.mask, self.mask_key, ctx.index).dense()
        if power is not None:
            power = torch.where(seen, power.transpose(2, 3), float("-inf"))
            weights = weights * (power - power.amax(-1, keepdim=True).clamp(min=LEAST)).exp()
        weights = weights * seen
        return ratio(weights, weights.sum(-1, keepdim=True))

    def sums(
        self, q: Tensor, k: Tensor, power: Tensor | None, v: Tensor, ctx: Context, forgotten: Tensor | None
    ) -> Tensor:
        """(B, H, T, K)"""
        tokens, documents = ctx.tokens, ctx.documents
        if tokens is not None:
            k = k * tokens[:, None, :, None]
            power = None if power is None else power.masked_fill(~tokens[:, None, :, None], float("-inf"))
        if self.causal:
            store = ctx.store(self.address)
            past = None if store is None else tuple(store.tensors[n].expand(q.shape[0], -1, -1, -1) for n in NAMES)
            out, _, last = causal_sums(q, k, power, v, documents, past)
            last = last if forgotten is None else (last[0], last[1] + forgotten)  # powers are those of the next token
            for name, tensor in zip(NAMES, last, strict=True):
                if store is not None:
                    store.replace(name, tensor)
        elif documents is None:
            if power is not None:
                k = k * (power - power.amax(2, keepdim=True).clamp(min=LEAST)).exp()
            out = torch.matmul(q, torch.matmul(k.transpose(-1, -2), v))
        else:  # of its own document a token sees what comes before it, and after it
            there, c, _ = causal_sums(q, k, power, v, documents)
            backwards = None if power is None else power.flip(2)
            here, d, _ = causal_sums(q.flip(2), k.flip(2), backwards, v.flip(2), documents.flip(1), strict=True)
            here, d = here.flip(2), d.flip(2)
            top = torch.maximum(c, d)
            out = there * (c - top).exp() + here * (d - top).exp()
        return ratio(out[..., :-1], out[..., -1:])


NAMES = ("sum", "power")
LEAST = -1e30  # the power of a sum over nothing


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where nothing was seen."""
    return torch.where(b != 0, a / torch.where(b != 0, b, 1), 0)


def gate_powers(logits: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits (B, T, H) of g -> powers (B, H, T, 1) by whose exponentials keys count, and one (B, H, 1, 1) by whose
    exponential a call multiplies what came before it. A key counts (1 - g_s) g_(s+1) ... g_t at the token t; what
    depends on t falls out of the ratio, so that log(1 - g_s) - (log g_1 + ... + log g_s) is left."""
    keeps = F.logsigmoid(logits)
    if tokens is not None:
        keeps = keeps * tokens[..., None]  # nothing is forgotten at a pad
    total = keeps.cumsum(1)
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
    """Sums (B, H, T, V) over the keys up to each query (before it: `strict`) of its document, powers (B, H, T, 1) by
    whose exponentials they are to be multiplied, and what to go on from. In a chunk all pairs, before it one sum."""
    (B, H, _, M), V = q.shape, v.shape[-1]
    total, c = (q.new_zeros(B, H, M, V), q.new_zeros(B, H, 1, 1)) if past is None else past
    c = torch.where(total[..., -1:].abs().sum(2, keepdim=True) > 0, c, LEAST)  # of a sum that is still empty
    carry = None if documents is None else documents[:, :1]  # the past goes on in the first document
    outs, powers = [], []
    each = [q.split(CHUNK, 2), k.split(CHUNK, 2), v.split(CHUNK, 2)]
    each.append([None] * len(each[0]) if power is None else power.split(CHUNK, 2))
    each.append([None] * len(each[0]) if documents is None else documents.split(CHUNK, 1))
    for qs, ks, vs, ps, own in zip(*each, strict=True):
        pairs, before = torch.matmul(qs, ks.transpose(-1, -2)).tril(-1 if strict else 0), torch.matmul(qs, total)
        top = c.expand(-1, -1, qs.shape[2], -1)
        if ps is not None:  # relative to the largest power up to each query, so that no later key matters
            top = torch.maximum(c, ps.cummax(2).values)
            last = top[:, :, -1:]
            pairs = pairs * (ps.transpose(2, 3) - top).clamp(max=0).exp()
            before, total = before * (c - top).exp(), total * (c - last).exp()
            ks, c = ks * (ps - last).exp(), last
        if own is not None and carry is not None:
            pairs = pairs * (own[:, :, None] == own[:, None])[:, None]
            before = before * (own == carry)[:, None, :, None]
            total, carry = total * (own[:, -1:] == carry)[:, None, :, None], own[:, -1:]
            ks = ks * (own == carry)[:, None, :, None]
        outs.append(torch.matmul(pairs, vs) + before)
        powers.append(top)
        total = total + torch.matmul(ks.transpose(-1, -2), vs)
    return torch.cat(outs, dim=2), torch.cat(powers, dim=2), (total, c)
