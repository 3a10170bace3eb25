"""What every model shape shares: the description and its module.

A shape is a Part like any other; its module takes the keyword inputs and gives the output fields of the published class
it stands for.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anyformer.kernels.attention import KERNELS
from anyformer.kernels.loss import IGNORED
from anyformer.kernels.recording import is_recording
from anyformer.models.output import Offered, Output, offered, shown_unasked
from anyformer.parts.embedding.text import GIVERS
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.head.base import Head, HeadModule, Outputs
from anyformer.parts.head.language import LMHead, VocabularyOutput
from anyformer.parts.init import Initializer, initialise, is_within, owner_of
from anyformer.parts.layer_mix import LayerMix
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import check_given, check_shape, hiding
from anyformer.runtime.nonfinite import explain
from anyformer.runtime.state import State
from anyformer.runtime.taps import OUTPUTS, Shown, Taps
from anyformer.specs.addresses import at, edited
from anyformer.specs.messages import quote
from anyformer.specs.part import Part, Site, Table, looking_ahead, nearest, parts_in, public, tree, walk
from anyformer.specs.part_errors import error_origin
from anyformer.stacks.stack import Stack


class Model(Part):
    """What every model description has. `family`, `architecture` and `source` say where it came from and let it go back
    there: `source` keeps the published config's fields that do not change the mathematics (token ids, labels, ...)."""

    width: int
    length: int | None = None  # the longest text it was made for, where no position table sets the limit
    head: Head | None = None
    state_name: str = "past_key_values"  # what the published class calls the decoding state
    state_offered: Offered = "always"  # when it returns one that nobody asked for
    init: Mapping[str, Initializer] = Table()
    # (parameter, the one whose storage it shares), by address; of two Parts that are alike, all that is in them
    ties: tuple[tuple[str, str], ...] = ()
    family: str = ""
    architecture: str = ""
    source: Mapping[str, Any] = Table()
    note: str = ""

    # the fields that a text goes through from left to right where the head scores its tokens
    left_to_right: ClassVar[tuple[str, ...]] = ()
    pair: ClassVar[bool] = False  # an encoder reads one text and a decoder writes another
    target: ClassVar[str] = "embedding"  # the field with which the tokens are read that the head scores
    gives: ClassVar[tuple[str, ...]] = ()  # what Parts may need of the shape itself

    @property
    def towers(self) -> tuple[Model, ...]:
        """The models it is put together from, where it is."""
        return ()

    @property
    def readers(self) -> tuple[Model, ...]:
        """Every model in it that has an embedding, the one that reads texts first."""
        return self.towers or (self,)

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

    def owner_of(self, name: str) -> str | None:
        """The parameter whose storage this one shares, by its address; None where it has its own."""
        return owner_of(self.ties, name)

    def shares(self, name: str) -> bool:
        """Whether a parameter, or all of a module, is one with another."""
        return any(is_within(name, side) or is_within(side, name) for tie in self.ties for side in tie)

    def labelled(self, labels: Sequence[str]) -> Self:
        """The same model under these names of its labels."""
        others = {name: value for name, value in self.source.items() if name not in ("num_labels", "_num_labels")}
        numbers = {label: i for i, label in enumerate(labels)}
        table = {"id2label": {str(i): label for label, i in numbers.items()}, "label2id": numbers}
        return self.replace(source=Table({**others, **table}))

    def check(self) -> None:
        if self.width < 1:
            raise ValueError(f"{type(self).__name__}.width is {self.width}")
        parts = [part for _, part in walk(self)]
        layers = sum(part.depth for part in parts if isinstance(part, Stack))
        if layers > 10_000:  # a hostile file must not keep a machine busy for hours
            raise ValueError(f"{layers:,} layers; at most 10,000 can be built")
        experts = max((part.num_experts for part in parts if isinstance(part, MoE)), default=0)
        if layers * experts > 1_000_000:
            raise ValueError(f"{experts:,} experts in each of {layers:,} layers; at most 1,000,000 can be built")
        routers = {(type(part.router).__name__, part.num_experts) for part in parts if isinstance(part, MoE)}
        if self.head is not None and self.head.balance is not None and len(routers) > 1:
            found = " and ".join(f"{kind} of {count}" for kind, count in sorted(routers))
            raise ValueError(f"head.balance counts experts chosen in one way, here by {found}; set it to None")
        self.check_vocabulary()
        self.check_pixels()
        self.check_ties()
        if self.writes:
            self.check_writing(*self.left_to_right)
        self.check_needs()

    def sizes_left_behind(self, before: Part, path: str, changes: Mapping[str, Any]) -> str:
        """Widths inside of layers, and heads that together have the old width, after the model's width was changed."""
        home, _, field = path.rpartition(".")
        old = getattr(before, "width", None)
        if field != "width" or self.width == old:
            return ""
        kept = []
        for address, part in walk(self, home):
            own = dict(part.items())
            if address == home or any(address == each or address.startswith(f"{each}.") for each in changes):
                continue
            heads, each = own.get("num_heads"), own.get("head_width")
            touched = any(f"{address}.{name}" in changes for name in ("num_heads", "head_width"))
            if heads and each and heads * each == old and not touched:
                kept.append(f"{address} ({heads} heads of {each})")
            if own.get("width") is not None and f"{address}.width" not in changes and not isinstance(part, Model):
                kept.append(f"{address}.width ({own['width']})")
        return f"{path} is {self.width} now, and these did not follow: {', '.join(kept)}" if kept else ""

    def check_vocabulary(self) -> None:
        """A head over the vocabulary scores the tokens that the embedding before it reads."""
        name = self.target
        tokens = getattr(getattr(self, name, None), "tokens", None)
        for path, part in walk(self.head, "head"):
            if tokens is not None and isinstance(part, (LMHead, VocabularyOutput)):
                if part.vocab_size != tokens.vocab_size and not part.foreign:
                    raise ValueError(
                        f"{path}.vocab_size is {part.vocab_size} and {name}.tokens.vocab_size is {tokens.vocab_size}:"
                        " they count the same tokens, so change both together"
                    )

    def check_pixels(self) -> None:
        """A head that draws pixels draws those that the embedding reads, and one that reads features reads its."""
        read = dict(super().items()).get("embedding")
        for name in ("patch_size", "channels", "features"):
            drawn, given = getattr(self.head, name, None), getattr(read, name, None)
            if drawn is not None and given is not None and drawn != given:
                raise ValueError(f"head.{name} is {drawn} and embedding.{name} is {given}: change both together")

    def check_ties(self) -> None:
        """Parts that share all that they hold are described alike."""
        if len({name for name, _ in self.ties}) < len(self.ties):
            raise ValueError("ties: a parameter shares the storage of one other, and here one stands twice")
        for name, owner in self.ties:
            try:
                tied, shared = at(self, name), at(self, owner)
            except ValueError:
                continue  # parameters, which are found once there is a module
            if isinstance(tied, Part) and tied != shared:
                raise ValueError(f"ties: {name} and {owner} are one, and described differently: change both together")

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
            fix = f"; {part.causal_alternative} does not" if part.causal_alternative else ""
            raise ValueError(f"{address}: {kind} lets a token see the future{fix}")

    def check_needs(self) -> None:
        """What Parts need of what is read (an image's grid, the ids of tokens, ...) its embedding must give."""
        fields = dict(super().items())
        needed: set[str] = set()
        for name in ("embedding", "decoder_embedding", "encoder", "decoder", "head"):
            source = fields.get("embedding" if name in ("embedding", "encoder") else self.target)
            for address, part in walk(fields.get(name), name):
                for need in part.requires:
                    needed.add(need)
                    if source is not None and need not in (*source.gives, *self.gives):
                        found = f"{type(part).__name__} needs {need}, which {type(source).__name__} does not give"
                        raise ValueError(f"{address}: {found}; {GIVERS.get(need, 'another embedding')} does")
        for name in ("embedding", "decoder_embedding"):
            given = getattr(fields.get(name), "gives", ())
            if "a condition" in given and "a condition" not in needed:
                raise ValueError(f"{name}.condition: nothing in this model reads it; AdaptiveNorm and Gated do")
            if "an order" in given and "an order" not in needed:
                kind = type(fields[name]).__name__
                raise ValueError(f"{name}: nothing in this model reads the order that {kind} gives; TwoStreams does")

    def __str__(self) -> str:
        return tree(self)

    def _repr_html_(self) -> str:
        """In a notebook: the picture, and the description as text behind it."""
        return shown_in_notebook(self)

    # -- from a description to a module -------------------------------------------------------------------------------

    def skeleton(self, kind: type[Site] = Site) -> TransformerModule:
        """The model on the meta device: shapes and addresses, no memory. It is built at a site of this kind."""
        try:
            with torch.device("meta"), _Unfilled():
                model = self.build(kind(width=self.width))
        except (TypeError, RuntimeError, AssertionError, ArithmeticError) as error:  # of torch, about sizes
            origin = error_origin(error)
            where = f"{origin}: {type(error).__name__}" if origin else "this description cannot be built"
            raise ValueError(f"{where}: {(str(error).splitlines() or [repr(error)])[0]}") from error
        model.tie()
        return model

    def make(self, seed: int, device: torch.device, dtype: torch.dtype | None) -> TransformerModule:
        """A model with the weights that the initialisation gives for this seed; on `meta` nothing is allocated."""
        model = self.skeleton()
        if dtype is not None:
            model = model.to(dtype)
        if device.type == "meta":
            return model
        model.to_empty(device=device)
        model.tie()
        initialise(model, self.init, seed)
        return model

    def items(self) -> Iterator[tuple[str, Any]]:
        """In the order data flows: width, embedding, stacks, then head and the rest."""
        last = Model.__annotations__.keys() - {"width", "length"}
        yield from sorted(super().items(), key=lambda item: item[0] in last)


def shown_in_notebook(spec: Model) -> str:
    """The picture of a description, and its text folded away; the text alone where it cannot be built."""
    words = f"<pre>{html.escape(tree(spec))}</pre>"
    try:
        return f"{public('draw')(spec).svg}<details><summary>as text</summary>{words}</details>"
    except ValueError:
        return words


class _Unfilled(TorchFunctionMode):
    """On meta there is nothing to fill; and torch's random fills there import its whole compiler first (seconds)."""

    fills = frozenset(("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_"))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in self.fills:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


class TransformerModule(nn.Module):
    """What the modules of all shapes share: inputs by name, state, what is shown, kernels, ties."""

    common: tuple[str, ...] = ("output_attentions", "output_hidden_states", "return_dict")
    caching: ClassVar[tuple[str, ...]] = ("past_key_values", "use_cache")

    spec: Any
    inputs: tuple[str, ...]  # the names forward takes
    shows: dict[str, str | None]  # every tapped address, and the output that shows it
    also: Mapping[str, str] = {}  # other names of inputs
    embedding: Any
    head: HeadModule | None
    folder: Path | None = None  # where it was loaded from: tokenizer files are found there
    origin: str | None = None  # the name that it was loaded by
    fresh: frozenset[str] = frozenset()  # parameters that no checkpoint had, beside those that one had: a new head
    forgotten: tuple[str, ...]  # where tokens meet and nothing is remembered, in what goes from left to right
    listener: Taps | None = None  # while a run is traced

    def __init__(self, spec: Model) -> None:
        super().__init__()
        self.spec = spec
        tree = any(part.reads_tree for _, part in walk(spec))
        self.tree_inputs = ("tree_parents",) if tree else ()  # where positions are those in a dependency tree
        if any(part.routes for _, part in walk(spec)):  # where experts are chosen
            self.common = (*self.common, "output_router_logits")
        always = any(isinstance(part, LayerMix) and part.tells for _, part in walk(spec))
        self.always = ("output_hidden_states",) * always  # what is shown whatever is asked
        self.kernel = "auto"  # of attention: auto, eager, sdpa or flex; a matter of this run, never saved

    def _repr_html_(self) -> str:
        return shown_in_notebook(self.spec)

    # -- inputs and outputs ---------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """As every module's; an error in a Part of a user's own names it."""
        if torch.compiler.is_compiling():
            return super().__call__(*args, **inputs)
        try:
            return super().__call__(*args, **inputs)
        except Exception as error:
            if (origin := error_origin(error)) is not None and origin not in getattr(error, "__notes__", ()):
                error.add_note(origin)
            raise

    def known_inputs(self) -> tuple[str, ...]:
        raise NotImplementedError

    def hidden(
        self, inputs: dict[str, Any], taps: Taps | None = None, state: State | None = None
    ) -> tuple[Tensor, Context, Outputs]:
        """The last hidden states (B, T, D) that a head reads, with their context and what else was said on the way."""
        raise NotImplementedError

    def encode(self, inputs: dict[str, Any], taps: Taps | None) -> tuple[Tensor, Context]:
        """What the encoder of a pair makes of what it reads."""
        raise NotImplementedError

    def fed(self, inputs: dict[str, Any], taps: Taps | None = None) -> tuple[dict[str, Any], Outputs]:
        """The inputs of a text with what else is read put into it as vectors, and these by themselves."""
        return inputs, {}

    def run(self, inputs: dict[str, Any], taps: Taps | None, state: State | None) -> Outputs:
        x, ctx, said = self.hidden(inputs, taps, state)
        out = self.head(x, ctx, inputs) if self.head is not None else {"last_hidden_state": x}
        return {**out, **said}

    def forward(
        self,
        *args: Tensor,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None,
        input_values: Tensor | None = None,
        labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Any:
        """What the published class gives for the inputs in `self.inputs`, of which the most usual are named here, where
        those look who choose columns by a signature. With `num_items_in_batch` the loss of a language model is a sum
        over its labels, divided by that."""
        named = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            "pixel_values": pixel_values,
            "input_values": input_values,
            "labels": labels,
            "start_positions": start_positions,
            "end_positions": end_positions,
        }
        inputs = {**{name: value for name, value in named.items() if value is not None}, **others}
        known, state_name = self.inputs, self.spec.state_name
        if len(args) > len(known):
            raise ValueError(f"{len(args)} inputs without a name, and there are {len(known)}: {', '.join(known)}")
        if args:
            inputs = {**dict(zip(known, args, strict=False)), **inputs}
        for name, own in self.also.items():
            if inputs.get(name) is not None and inputs.get(own) is not None:
                raise ValueError(f"{name} and {own} are two names of one input: give one of them")
            if (value := inputs.pop(name, None)) is not None:
                inputs[own] = value
        if state_name in inputs:
            inputs["past_key_values"] = inputs.pop(state_name)
        for name in inputs:
            if name not in known:
                raise TypeError(f"this model takes no input {quote(name)}; {nearest(name, known)}")
        inputs = {name: value for name, value in inputs.items() if value is not None}
        check_given(inputs)
        if self.kernel not in KERNELS:
            raise ValueError(f"unknown attention kernel {quote(self.kernel)}; {nearest(self.kernel, KERNELS)}")
        usual = shown_unasked(self.spec)
        asked = [name for name in OUTPUTS if inputs.pop(name, usual.get(name) or False) or name in self.always]
        shown = Shown(self.shows, asked, self.listener) if asked else None
        as_output = inputs.pop("return_dict", self.spec.source.get("return_dict", True))
        # a memory is of use where tokens follow: not while gradients are taken, unless it is asked for
        asked_for = inputs.pop("use_cache", None)
        keep = not torch.is_grad_enabled() and offered(self.spec, inputs) if asked_for is None else asked_for
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
        if num_items_in_batch is not None and labels is not None and (loss := out.get("loss")) is not None:
            out["loss"] = self._per_item(loss, labels, num_items_in_batch)
        self._check_finite(out, inputs, resumed)
        fields = {**out, **(self.shown(shown) if shown else {})}
        # what the encoder of a pair said comes last, as published
        result = Output(dict(sorted(fields.items(), key=lambda field: field[0].startswith("encoder_"))))
        if as_output:
            return result
        left = {"past_key_values"} - {state_name} | ({*self.head.unlisted} if self.head is not None else set())
        return tuple(value for name, value in result.items() if name not in left)

    # what Hugging Face's Trainer asks: whether a loss can be divided by the labels of several batches, and which count

    @property
    def accepts_loss_kwargs(self) -> bool:
        return isinstance(self.spec.head, LMHead)

    @property
    def loss_type(self) -> str | None:
        return "ForCausalLM" if isinstance(self.spec.head, LMHead) and self.spec.head.shift else None

    def _per_item(self, loss: Tensor, labels: Tensor, count: Tensor | int) -> Tensor:
        if not self.accepts_loss_kwargs:
            raise ValueError("num_items_in_batch counts the tokens of a language model's loss, and this is none")
        return loss * (labels[..., int(self.loss_type is not None) :] != IGNORED).sum() / count

    def shown(self, seen: Shown) -> dict[str, tuple[Tensor, ...]]:
        """What else published classes return, of what was seen on the way."""
        raise NotImplementedError

    def _check_finite(self, out: Outputs, inputs: dict[str, Any], resumed: bool) -> None:
        """Half precision never returns NaN silently: the first module whose output has one is named."""
        if is_recording():
            return
        half = [v for v in out.values() if isinstance(v, Tensor) and v.dtype in (torch.float16, torch.bfloat16)]
        if any(bool(v.isnan().any()) for v in half):
            raise FloatingPointError(explain(self, inputs, resumed))

    # -- state ----------------------------------------------------------------------------------------------------

    def forgets(self) -> tuple[str, ...]:
        names = self.spec.left_to_right
        if self.spec.head is not None and self.spec.head.said == "all":  # it reads a text as a whole
            names = (*names, "head")
        return tuple(at for name in names for at in forgetting(getattr(self.spec, name), getattr(self, name), name))

    @property
    def remembers(self) -> bool:
        """Whether decoding step by step is possible; where it is not, a text is read again for each token."""
        return bool(self.spec.left_to_right) and not self.forgotten

    @property
    def asked(self) -> bool:
        """Whether a token that is not there yet can be asked for by its place: so it writes, though not from left to
        right alone."""
        return "target_mapping" in self.inputs and isinstance(self.spec.head, LMHead)

    def check_memory(self) -> None:
        if not self.spec.left_to_right:
            raise ValueError("this model does not write from left to right: it has no past to remember")
        if self.forgotten:
            raise ValueError(f"{self.forgotten[0]} remembers nothing of the tokens before: give use_cache=False")

    def new_state(self, batch_size: int = 1, capacity: int | None = None) -> State:
        """An empty memory for decoding: growing, or static with room for `capacity` tokens (then of `batch_size`)."""
        self.check_memory()
        return State.allocate(self, batch_size, capacity=capacity)

    @property
    def generate(self) -> Callable[..., Any]:
        """`af.generate` with this model."""
        return MethodType(public("generate"), self)

    # -- ties and vocabulary --------------------------------------------------------------------------------------

    def tie(self) -> None:
        """Makes the parameters that the description ties share storage."""
        for name, owner in [pair for tie in self.spec.ties for pair in self.tied_by(*tie)]:
            path, _, leaf = name.rpartition(".")
            try:
                tied, shared = self.get_parameter(name), self.get_parameter(owner)
            except AttributeError:
                raise ValueError(f"ties: no parameters {name} and {owner} in this model that could be one") from None
            if tied.shape != shared.shape:
                shapes = f"{name} is {tuple(tied.shape)} and {owner} is {tuple(shared.shape)}"
                raise ValueError(f"ties: {shapes}: they cannot be one")
            setattr(self.get_submodule(path), leaf, shared)

    def tied_by(self, name: str, owner: str) -> Iterator[tuple[str, str]]:
        """The parameters that become one by a tie: these two, or all that are in two modules."""
        try:
            inside = [inner for inner, _ in self.get_submodule(name).named_parameters(remove_duplicate=False)]
        except AttributeError:
            inside = []
        yield from [(f"{name}.{inner}", f"{owner}.{inner}") for inner in inside] or [(name, owner)]

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @torch.no_grad()
    def resize_token_embeddings(self, vocab_size: int, seed: int = 0) -> None:
        """Another vocabulary size: old rows stay, new ones are initialised as described; ties, frozen parameters and
        the mode are kept."""
        tables = [path for path, part in walk(self.spec) if hasattr(part, "vocab_size")]
        spec = edited(self.spec, {f"{path}.vocab_size": vocab_size for path in tables})
        fresh = spec.make(seed, self.device, self.dtype).train(self.training)
        old, learns = self.state_dict(), {name: p.requires_grad for name, p in self.named_parameters()}
        for name, tensor in fresh.state_dict().items():
            rows = min(tensor.shape[0], old[name].shape[0]) if tensor.dim() else None
            tensor[:rows].copy_(old[name][:rows]) if rows is not None else tensor.copy_(old[name])
        for name, parameter in fresh.named_parameters():
            parameter.requires_grad_(learns[name])
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
        stacked = isinstance(part, Stack)  # of no layers at all, maybe
        layers = [(f"layers.{i}", part.layer(i)) for i in range(part.depth)] if isinstance(part, Stack) else []
        others = [(name, inner) for name, inner in parts_in(part) if not (stacked and name.startswith("layers"))]
        for name, inner in (*layers, *others):
            if inner.sees != "itself":
                yield from forgetting(inner, module.get_submodule(name), f"{path}.{name}")


def position_limit(spec: Any) -> int | None:
    """The longest text a model can read, where there is one."""
    limit = getattr(getattr(getattr(spec, spec.target), "position", None), "length", None)
    if limit is None and not any(part.length_dependent for _, part in walk(spec)):
        limit = spec.length  # made for longer texts by stretching, dynamic rotary positions have no end
    return limit


def memory_mask(mask: Tensor | None, memory: Tensor | None, name: str) -> Tensor | None:
    """A padding mask of the memory (B, M, D) as booleans, or None where it hides nothing."""
    if mask is None:
        return None
    if memory is not None:
        check_shape(name, mask, tuple(memory.shape[:2]))
    return hiding(mask, name)
