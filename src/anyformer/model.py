"""Model shapes: one stack (encoder or decoder) and encoder-decoder, from embedding to named outputs.

A shape is a Part like any other; its module takes the keyword inputs and gives the output fields of the published class
it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.block import Stack, Stages
from anyformer.context import Context, Memory
from anyformer.funnel import Funnel
from anyformer.kernels.attention import KERNELS
from anyformer.kernels.recording import recording
from anyformer.parts.embed import GIVERS, Embedding
from anyformer.parts.given import check_given, check_shape, hides_nothing
from anyformer.parts.head import ClassifyHead, Head, HeadModule, LMHead, Outputs, VocabularyOutput
from anyformer.parts.init import Initializer
from anyformer.parts.moe import MoE
from anyformer.spec import Part, Site, Table, looking_ahead, nearest, override, parts_in, walk
from anyformer.state import State
from anyformer.taps import OUTPUTS, Shown, Taps, declared


class Output(Mapping):
    """Named results, by attribute or key, in order; `out[0]` is the first. Fields that are None are left out."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            if value is not None:
                self.__dict__[name] = value

    def __getitem__(self, key: str | int | slice) -> Any:
        return self.__dict__[key] if isinstance(key, str) else tuple(self.__dict__.values())[key]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None  # as published classes do: a field that was not asked for is None

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __repr__(self) -> str:
        shown = {k: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for k, v in self.items()}
        return f"Output({', '.join(f'{k}: {v}' for k, v in shown.items())})"


class Model(Part):
    """What every model description has. `family`, `architecture` and `source` say where it came from and let it go back
    there: `source` keeps the published config's fields that do not change the mathematics (token ids, labels, ...)."""

    width: int
    length: int | None = None  # the longest text it was made for, where no position table sets the limit
    head: Head | None = None
    state_name: str = "past_key_values"  # what the published class calls the decoding state
    init: Mapping[str, Initializer] = Table()
    ties: tuple[tuple[str, str], ...] = ()  # (parameter, the one whose storage it shares), by address
    family: str = ""
    architecture: str = ""
    source: Mapping[str, Any] = Table()
    note: str = ""

    # the fields that a text goes through from left to right where the head scores its tokens
    left_to_right: ClassVar[tuple[str, ...]] = ()

    @property
    def writes(self) -> bool:
        """Whether this model scores next tokens, so that none may see a later one."""
        heads = (part for _, part in walk(self.head))
        return bool(self.left_to_right) and any(isinstance(part, (LMHead, VocabularyOutput)) for part in heads)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's or tagger's labels, by their numbers; none where its config has none but
        numbers ("LABEL_0")."""
        stored = self.source.get("id2label") or {}
        names = tuple(str(stored[number]) for number in sorted(stored, key=int))
        return () if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names

    def labelled(self, labels: Sequence[str]) -> Self:
        """The same model under these names of its labels."""
        others = {name: value for name, value in self.source.items() if name not in ("num_labels", "_num_labels")}
        numbers = {label: i for i, label in enumerate(labels)}
        table = {"id2label": {str(i): label for label, i in numbers.items()}, "label2id": numbers}
        return self.replace(source=Table({**others, **table}))

    def check(self) -> None:
        if self.width < 1:
            raise ValueError(f"{type(self).__name__}.width is {self.width}")
        layers = sum(part.depth for _, part in walk(self) if isinstance(part, Stack))
        if layers > 10_000:  # a hostile file must not keep a machine busy for hours
            raise ValueError(f"{layers:,} layers; at most 10,000 can be built")
        experts = max((part.num_experts for _, part in walk(self) if isinstance(part, MoE)), default=0)
        if layers * experts > 1_000_000:
            raise ValueError(f"{experts:,} experts in each of {layers:,} layers; at most 1,000,000 can be built")
        self.check_vocabulary()
        self.check_needs()
        if self.writes:
            self.check_writing(*self.left_to_right)

    def check_vocabulary(self) -> None:
        """A head over the vocabulary scores the tokens that the embedding before it reads."""
        name = self.left_to_right[0] if self.left_to_right else "embedding"
        tokens = getattr(getattr(self, name), "tokens", None)
        for path, part in walk(self.head, "head"):
            if tokens is not None and isinstance(part, (LMHead, VocabularyOutput)):
                if part.vocab_size != tokens.vocab_size and not getattr(part, "foreign", False):
                    raise ValueError(
                        f"{path}.vocab_size is {part.vocab_size} and {name}.tokens.vocab_size is {tokens.vocab_size}:"
                        " they count the same tokens, so change both together"
                    )

    def check_writing(self, *names: str) -> None:
        """ValueError that names the first Part by which a token sees later ones, and the nearest that does not."""
        written = [(name, getattr(self, name)) for name in names]
        written += [(path, part) for path, part in walk(self.head, "head") if isinstance(part, LMHead)]
        for address, part in (found for path, each in written for found in looking_ahead(each, path)):
            kind = type(part).__name__
            if part.said is None:
                raise ValueError(
                    f"{address}: {kind} does not say what a token sees by it, and this model writes from left to right;"
                    f' say so where it is defined: class {kind}(..., sees="past"), or "itself" or "all"'
                )
            fix = f"; {part.instead} does not" if part.instead else ""
            raise ValueError(f"{address}: {kind} lets a token see the future{fix}")

    def check_needs(self) -> None:
        """What Parts need of what is read (an image's grid, the ids of tokens, ...) its embedding must give."""
        fields = dict(super().items())
        for name in ("encoder", "decoder", "head"):
            own = "embedding" if name == "encoder" else "decoder_embedding"
            source = fields.get(own, fields.get("embedding"))
            for address, part in walk(fields.get(name), name):
                for need in getattr(part, "needs", ()):
                    if source is not None and need not in source.gives:
                        found = f"{type(part).__name__} needs {need}, which {type(source).__name__} does not give"
                        raise ValueError(f"{address}: {found}; {GIVERS.get(need, 'another embedding')} does")

    def items(self) -> Iterator[tuple[str, Any]]:
        """In the order data flows: width, embedding, stacks, then head and the rest."""
        last = Model.__annotations__.keys() - {"width", "length"}
        yield from sorted(super().items(), key=lambda item: item[0] in last)


class EncoderModel(Model):
    """One stack that sees both sides."""

    embedding: Embedding
    encoder: Stack | Stages | Funnel

    def build(self, site: Site) -> nn.Module:
        return OneStackModule(self, "encoder", site)


class DecoderModel(Model):
    """One stack that writes from left to right."""

    left_to_right: ClassVar[tuple[str, ...]] = ("embedding", "decoder")

    embedding: Embedding
    decoder: Stack

    def build(self, site: Site) -> nn.Module:
        return OneStackModule(self, "decoder", site)


class EncoderDecoderModel(Model):
    """A decoder that looks at what an encoder read. Where labels are given and no decoder inputs, the decoder reads the
    labels moved one to the right behind `start_token`."""

    left_to_right: ClassVar[tuple[str, ...]] = ("decoder_embedding", "decoder")

    embedding: Embedding
    encoder: Stack
    decoder_embedding: Embedding
    decoder: Stack
    start_token: int | None = None
    padding_token: int | None = None
    wrap: bool = False  # the last token that is not padding comes first, in start_token's place (fairseq)
    reads_source: bool = False  # with neither, the decoder reads the encoder's tokens moved so (BART; T5 for spans)

    def check(self) -> None:
        super().check()
        if not any(getattr(part, "memory", False) for _, part in walk(self.decoder)):
            raise ValueError("EncoderDecoderModel: no layer of the decoder looks at the encoder, by memory=True")
        for address, part in walk(self.encoder, "encoder"):
            if getattr(part, "memory", False):
                raise ValueError(f"{address}: the encoder of a pair has no memory to look at; its decoder has")
        given = self.encoder.out_width(self.width)
        for address, part in walk(self.decoder, "decoder"):
            wanted = getattr(part, "memory_width", None) or self.width
            if getattr(part, "memory", False) and wanted != given:
                raise ValueError(f"{address}: memory_width is {wanted}, and the encoder gives {given}")

    def build(self, site: Site) -> nn.Module:
        return EncoderDecoderModule(self, site)


class TransformerModule(nn.Module):
    """What the modules of all shapes share: inputs by name, state, what is shown, kernels, ties."""

    common: ClassVar[tuple[str, ...]] = ("output_attentions", "output_hidden_states", "return_dict")
    caching: ClassVar[tuple[str, ...]] = ("past_key_values", "use_cache")

    spec: Any
    inputs: tuple[str, ...]  # the names forward takes
    shows: dict[str, str | None]  # every tapped address, and the output that shows it
    head: HeadModule | None
    folder: Path | None = None  # where it was loaded from: tokenizer files are found there
    fresh: frozenset[str] = frozenset()  # parameters that no checkpoint had, beside those that one had: a new head
    forgotten: tuple[str, ...]  # where tokens meet and nothing is remembered, in what goes from left to right
    listener: Taps | None = None  # while a run is traced

    def __init__(self, spec: Model) -> None:
        super().__init__()
        self.spec = spec
        tree = any(getattr(part, "tree", False) for _, part in walk(spec))
        self.tree_inputs = ("tree_parents",) if tree else ()  # where positions are those in a dependency tree
        if any(getattr(part, "routes", False) for _, part in walk(spec)):  # where experts are chosen
            self.common = (*self.common, "output_router_logits")  # type: ignore[misc]
        self.kernel = "auto"  # of attention: auto, eager, sdpa or flex; a matter of this run, never saved

    # -- inputs and outputs ---------------------------------------------------------------------------------------

    def known_inputs(self) -> tuple[str, ...]:
        raise NotImplementedError

    def hidden(
        self, inputs: dict[str, Any], taps: Taps | None = None, state: State | None = None
    ) -> tuple[Tensor, Context, Outputs]:
        """The last hidden states (B, T, D) that a head reads, with their context and what else was said on the way."""
        raise NotImplementedError

    def run(self, inputs: dict[str, Any], taps: Taps | None, state: State | None) -> Outputs:
        x, ctx, said = self.hidden(inputs, taps, state)
        out = self.head(x, ctx, inputs) if self.head is not None else {"last_hidden_state": x}
        return {**out, **said}

    def forward(self, *args: Tensor, **inputs: Any) -> Any:
        known, state_name = self.inputs, self.spec.state_name
        if len(args) > len(known):
            raise ValueError(f"{len(args)} inputs without a name, and there are {len(known)}: {', '.join(known)}")
        if args:
            inputs = {**dict(zip(known, args, strict=False)), **inputs}
        if state_name in inputs:
            inputs["past_key_values"] = inputs.pop(state_name)
        for name in inputs:
            if name not in known:
                raise TypeError(f"this model takes no input {name!r}; {nearest(name, known)}")
        inputs = {name: value for name, value in inputs.items() if value is not None}
        check_given(inputs)
        if self.kernel not in KERNELS:
            raise ValueError(f"unknown attention kernel {self.kernel!r}; {nearest(self.kernel, KERNELS)}")
        defaults = self.spec.source
        asked = [name for name in OUTPUTS if inputs.pop(name, defaults.get(name) or False)]
        shown = Shown(self.shows, asked, self.listener) if asked else None
        as_output = inputs.pop("return_dict", defaults.get("return_dict", True))
        # a memory is of use where tokens follow: not while gradients are taken, unless it is asked for
        asked_for = inputs.pop("use_cache", None)
        keep = defaults.get("use_cache", True) and not torch.is_grad_enabled() if asked_for is None else asked_for
        state = inputs.pop("past_key_values", None)
        if state is not None or asked_for:
            self.check_memory()
        if state is None and keep and self.remembers:
            state = self.new_state()
        if isinstance(self.head, HeadModule):
            inputs = self.head.arrange(inputs)
            inputs["output_router_logits"] = "output_router_logits" in asked
        resumed = state is not None and (state.capacity is not None or state.length > 0)
        out = self.run(inputs, shown or self.listener, state)
        if state is not None:
            out["past_key_values"] = out[state_name] = state
        self._check_finite(out, inputs, resumed)
        fields = {**out, **(self.shown(shown) if shown else {})}
        # what the encoder of a pair said comes last, as published
        result = Output(dict(sorted(fields.items(), key=lambda field: field[0].startswith("encoder_"))))
        if as_output:
            return result
        return tuple(value for name, value in result.items() if name == state_name or name != "past_key_values")

    def shown(self, seen: Shown) -> dict[str, tuple[Tensor, ...]]:
        """What else published classes return, of what was seen on the way."""
        raise NotImplementedError

    def _check_finite(self, out: Outputs, inputs: dict[str, Any], resumed: bool) -> None:
        """Half precision never returns NaN silently: the first module whose output has one is named."""
        if recording():
            return
        half = [v for v in out.values() if isinstance(v, Tensor) and v.dtype in (torch.float16, torch.bfloat16)]
        if any(bool(v.isnan().any()) for v in half):
            from anyformer.look.nonfinite import explain

            raise FloatingPointError(explain(self, inputs, resumed))

    # -- state ----------------------------------------------------------------------------------------------------

    def forgets(self) -> tuple[str, ...]:
        names = self.spec.left_to_right
        return tuple(at for name in names for at in forgetting(getattr(self.spec, name), getattr(self, name), name))

    @property
    def remembers(self) -> bool:
        """Whether decoding step by step is possible; where it is not, a text is read again for each token."""
        return bool(self.spec.left_to_right) and not self.forgotten

    def check_memory(self) -> None:
        if not self.spec.left_to_right:
            raise ValueError("this model does not write from left to right: it has no past to remember")
        if self.forgotten:
            raise ValueError(f"{self.forgotten[0]} remembers nothing of the tokens before: give use_cache=False")

    def new_state(self, batch_size: int = 1, capacity: int | None = None) -> State:
        """An empty memory for decoding: growing, or static with room for `capacity` tokens (then of `batch_size`)."""
        self.check_memory()
        return State.allocate(self, batch_size, capacity=capacity)

    # -- ties and vocabulary --------------------------------------------------------------------------------------

    def tie(self) -> None:
        """Makes the parameters that the description ties share storage."""
        for name, owner in self.spec.ties:
            path, _, leaf = name.rpartition(".")
            try:
                tied, shared = self.get_parameter(name), self.get_parameter(owner)
            except AttributeError:
                raise ValueError(f"ties: no parameters {name} and {owner} in this model that could be one") from None
            if tied.shape != shared.shape:
                shapes = f"{name} is {tuple(tied.shape)} and {owner} is {tuple(shared.shape)}"
                raise ValueError(f"ties: {shapes}: they cannot be one")
            setattr(self.get_submodule(path), leaf, shared)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @torch.no_grad()
    def resize_token_embeddings(self, vocab_size: int, seed: int = 0) -> None:
        """Another vocabulary size: old rows stay, new ones are initialised as described, ties are kept."""
        from anyformer.build import build

        tables = {path: part.vocab_size for path, part in walk(self.spec) if hasattr(part, "vocab_size")}
        spec = override(self.spec, {f"{path}.vocab_size": vocab_size for path in tables})
        fresh = build(spec, seed=seed, device=self.device, dtype=self.dtype)
        old = self.state_dict()
        for name, tensor in fresh.state_dict().items():
            if tensor.shape == old[name].shape:
                tensor.copy_(old[name])
            else:
                rows = min(tensor.shape[0], old[name].shape[0])
                tensor[:rows].copy_(old[name][:rows])
        for name, module in fresh.named_children():
            setattr(self, name, module)
        self.spec = spec
        self.tie()


def forgetting(part: Part, module: Any, path: str) -> Iterator[str]:
    """The addresses in a module at which a token's result depends on others and no state is declared for them."""
    if part.sees == "itself":
        return
    if part.said != "itself":  # by what its own module does
        declared = (getattr(inner, "state_spec", lambda: None)() for inner in module.modules())
        if part.sees != "past" or all(state is None for state in declared):
            yield path
    elif isinstance(part, Stack) and len(part.steps) > part.depth:
        yield f"{path}.layers"  # what runs more than once has no memory for each time
    else:
        layers = [(f"layers.{i}", part.layer(i)) for i in range(part.depth)] if isinstance(part, Stack) else []
        others = [(name, inner) for name, inner in parts_in(part) if not (layers and name.startswith("layers"))]
        for name, inner in (*layers, *others):
            if inner.sees != "itself":
                yield from forgetting(inner, module.get_submodule(name), f"{path}.{name}")


class OneStackModule(TransformerModule):
    embedding: nn.Module

    def __init__(self, spec: EncoderModel | DecoderModel, stack: str, site: Site) -> None:
        super().__init__(spec)
        self.embedding = spec.embedding.build(site.child("embedding"))
        part = getattr(spec, stack)
        self.add_module(stack, part.build(site.child(stack)))
        self.stack_name = stack
        width = getattr(part, "out_width", lambda width: width)(spec.width)  # stages widen
        self.head = spec.head.build(site.child("head", width=width)) if spec.head else None
        self.inputs, self.shows = self.known_inputs(), declared(self)
        self.forgotten = self.forgets()

    def shown(self, seen: Shown) -> dict[str, tuple[Tensor, ...]]:
        found = getattr(self, self.stack_name).shown(seen)
        for kind, values in seen.under("head").items():  # a head's own form of the last state
            found[kind][-1:] = values
        return {kind: tuple(values) for kind, values in found.items()}

    def known_inputs(self) -> tuple[str, ...]:
        spec = self.spec
        reads = any(getattr(part, "memory", False) for _, part in walk(spec))
        memory = ("encoder_hidden_states", "encoder_attention_mask") if reads else ()
        caching = self.caching if spec.left_to_right else ()
        return (
            *spec.embedding.inputs, *(spec.head.inputs if spec.head else ()), *memory, *self.tree_inputs, *caching,
            *self.common,
        )  # fmt: skip

    def hidden(
        self, inputs: dict[str, Any], taps: Taps | None = None, state: State | None = None
    ) -> tuple[Tensor, Context, Outputs]:
        x, ctx = self.embedding(inputs, state)
        memory, padding = inputs.get("encoder_hidden_states"), inputs.get("encoder_attention_mask")
        if state is not None and state.memory is None:
            state.memory, state.memory_padding = memory, padding
        elif state is not None and memory is None:
            memory, padding = state.memory, state.memory_padding
        seen = None if memory is None else Memory(memory, _mask(padding, memory, "encoder_attention_mask"))
        ctx = ctx.having(kernel=self.kernel, taps=taps, memory=seen)
        x, ctx = getattr(self, self.stack_name)(x, ctx)
        if state is not None:
            state.advance(ctx.index.shape[0])
        return x, ctx, {}


class EncoderDecoderModule(TransformerModule):
    encoder: Any
    decoder: Any

    def __init__(self, spec: EncoderDecoderModel, site: Site) -> None:
        super().__init__(spec)
        self.embedding = spec.embedding.build(site.child("embedding"))
        self.encoder = spec.encoder.build(site.child("encoder"))
        self.decoder_embedding = spec.decoder_embedding.build(site.child("decoder_embedding"))
        self.decoder = spec.decoder.build(site.child("decoder"))
        width = spec.decoder.out_width(spec.width)
        self.head = spec.head.build(site.child("head", width=width)) if spec.head else None
        self.inputs, self.shows = self.known_inputs(), declared(self)
        self.forgotten = self.forgets()

    def known_inputs(self) -> tuple[str, ...]:
        spec = self.spec
        decoder = tuple(f"decoder_{name}" for name in spec.decoder_embedding.inputs)
        head = spec.head.inputs if spec.head else ()
        return (
            *spec.embedding.inputs, *decoder, "encoder_outputs", *head, *self.tree_inputs, *self.caching, *self.common,
        )  # fmt: skip

    def encode(self, inputs: dict[str, Any], taps: Taps | None) -> tuple[Tensor, Context]:
        x, ctx = self.embedding(inputs)
        return self.encoder(x, ctx.having(kernel=self.kernel, taps=taps))

    def hidden(
        self, inputs: dict[str, Any], taps: Taps | None = None, state: State | None = None
    ) -> tuple[Tensor, Context, Outputs]:
        memory, padding = inputs.get("encoder_outputs"), inputs.get("attention_mask")
        read: dict[str, Any] = {}  # what else the encoder says
        routed = None  # the logits of its routers
        if memory is not None:
            memory, read = _encoder_outputs(memory)
            routed = read.get("router_logits")
        elif state is not None and state.memory is not None:
            memory, padding = state.memory, state.memory_padding if padding is None else padding
        else:
            memory, source = self.encode(inputs, taps)
            padding, routed = source.padding, source.losses.get("router_logits")  # of what it says, not of what it read
        if state is not None:
            state.memory, state.memory_padding = memory, padding
        x, ctx = self.decoder_embedding(self.decoder_inputs(inputs), state)
        seen = Memory(memory, _mask(padding, memory, "attention_mask"), inputs.get("document_ids"))
        losses = {"encoder_router_logits": list(routed)} if routed else {}
        x, ctx = self.decoder(x, ctx.having(kernel=self.kernel, taps=taps, memory=seen, losses=losses))
        if state is not None:
            state.advance(ctx.index.shape[0])
        said = {"encoder_last_hidden_state": memory, **{f"encoder_{kind}": v for kind, v in read.items()}}
        return x, ctx, said

    def shown(self, seen: Shown) -> dict[str, tuple[Tensor, ...]]:
        found = {f"encoder_{kind}": tuple(values) for kind, values in self.encoder.shown(seen).items()}
        for kind, values in self.decoder.shown(seen).items():
            found[kind if kind == "cross_attentions" else f"decoder_{kind}"] = tuple(values)
        return found

    def decoder_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs named decoder_*, or the labels (or the source) moved one to the right."""
        mine = {name[len("decoder_") :]: value for name, value in inputs.items() if name.startswith("decoder_")}
        if "input_ids" not in mine and "inputs_embeds" not in mine:
            # a label of the whole text is no token
            labels = None if isinstance(self.spec.head, ClassifyHead) else inputs.get("labels")
            given = inputs.get("input_ids") if labels is None and self.spec.reads_source else labels
            if given is None:
                raise ValueError("give decoder_input_ids (or labels) beside the encoder's input_ids")
            if given.dim() != 2 or given.dtype not in (torch.long, torch.int):
                raise ValueError(f"labels are token ids (batch, tokens), got {given.dtype} of {tuple(given.shape)}")
            mine["input_ids"] = self.shift_right(given, mine.get("document_ids"))
        return mine

    def shift_right(self, labels: Tensor, documents: Tensor | None = None) -> Tensor:
        """(B, T) moved one to the right behind the start token, in each packed document."""
        if (self.spec.start_token is None and not self.spec.wrap) or self.spec.padding_token is None:
            raise ValueError("labels alone need decoder_start_token_id and pad_token_id in the config")
        if self.spec.wrap:
            if documents is not None:
                raise ValueError("packed documents need decoder_input_ids: each starts with its own last token")
            labels = labels.masked_fill(labels == -100, self.spec.padding_token)
            last = ((labels != self.spec.padding_token).sum(-1, keepdim=True) - 1).clamp(min=0)
            return torch.cat((labels.gather(1, last), labels[:, :-1]), dim=1)
        moved = F.pad(labels[:, :-1], (1, 0), value=self.spec.start_token)
        if documents is not None:
            new = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
            moved = moved.masked_fill(new, self.spec.start_token)
        return moved.masked_fill(moved == -100, self.spec.padding_token)


def _encoder_outputs(given: Any) -> tuple[Tensor, dict[str, Any]]:
    """The memory, and what else the encoder showed, of a tensor, a tuple or an encoder's named outputs."""
    if isinstance(given, Tensor):
        return given, {}
    try:
        memory = given[0]
    except (TypeError, LookupError):
        memory = None
    if not isinstance(memory, Tensor):
        raise ValueError(f"encoder_outputs are what an encoder returned, or its hidden states, got {given!r:.80}")
    kinds = ("hidden_states", "attentions", "router_logits")
    named = given if hasattr(given, "get") else dict(zip(kinds, given[1:], strict=False))
    return memory, {kind: named.get(kind) for kind in kinds}


def _mask(mask: Tensor | None, memory: Tensor | None, name: str) -> Tensor | None:
    """A padding mask of the memory (B, M, D) as booleans, or None where it hides nothing."""
    if mask is None:
        return None
    if memory is not None:
        check_shape(name, mask, tuple(memory.shape[:2]))
    return None if hides_nothing(mask, name) else mask.bool()
