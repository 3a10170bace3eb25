"""What the modules of all model shapes share: the internal call, decoding state, ties, the vocabulary."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from anyformer.kernels.capture import can_read_values
from anyformer.kernels.value_checks import check_values, reads_later
from anyformer.models.call import Call, HeadInputs
from anyformer.models.model import Model, notebook_html
from anyformer.models.published import PublishedConfig, PublishedModule, call_published
from anyformer.parts.head.base import HeadModule, Outputs
from anyformer.parts.head.language import LMHead
from anyformer.parts.layer_mix import LayerMix
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import COMMON, Kind, boolean_mask, check_shape
from anyformer.runtime.nonfinite import explain
from anyformer.runtime.state import State
from anyformer.runtime.taps import OutputCollector, declared_taps
from anyformer.specs.addresses import with_values
from anyformer.specs.part import Part, parts_in, walk
from anyformer.specs.part_errors import name_own_parts
from anyformer.stacks.stack import Stack


class TransformerModule(PublishedModule):
    """A model with weights. Users call it with published inputs (models/published.py); inside the package it is called
    with a `Call`: `hidden_states(call)` runs it up to its head, `run(call)` to its named outputs."""

    common: tuple[str, ...] = ("output_attentions", "output_hidden_states", "return_dict")
    caching: ClassVar[tuple[str, ...]] = ("past_key_values", "use_cache")

    spec: Any
    inputs: tuple[str, ...]  # the names forward takes
    input_kinds: dict[str, Kind]  # what the values of these are, where that is checked
    shows: dict[str, str | None]  # every tapped address, and the output that shows it
    also: Mapping[str, str] = {}  # other names of inputs
    embedding: Any
    head: HeadModule | None
    folder: Path | None = None  # where it was loaded from: tokenizer files are found there
    origin: str | None = None  # the name that it was loaded by
    fresh: frozenset[str] = frozenset()  # parameters that the checkpoint did not have: a new head
    stateless: tuple[str, ...]  # addresses that mix tokens and declare no decoding state, in the left-to-right parts

    def __init__(self, spec: Model) -> None:
        super().__init__()
        self.spec = spec
        self.config = PublishedConfig(spec)
        # where positions are those in a dependency tree, or in a graph
        reads = {"tree_parents": lambda part: part.reads_tree, "graph_edges": lambda part: part.reads_graph}
        self.tree_inputs = tuple(name for name, reads in reads.items() if any(reads(part) for _, part in walk(spec)))
        if any(part.routes for _, part in walk(spec)):  # where experts are chosen
            self.common = (*self.common, "output_router_logits")
        always = any(isinstance(part, LayerMix) and part.tells for _, part in walk(spec))
        self.always = ("output_hidden_states",) * always  # shown whether asked for or not
        self.kernel = "auto"  # of attention: auto, eager, sdpa or flex; belongs to this run and is never saved
        self.notes: dict[str, str] = {}  # how this run does things, by what it does: see `explain`

    def _repr_html_(self) -> str:
        return notebook_html(self.spec)

    # -- the internal call ----------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """As every module's; an error in a Part of a user's own names it."""
        if torch.compiler.is_compiling():
            return super().__call__(*args, **inputs)
        with name_own_parts():
            return super().__call__(*args, **inputs)

    def forward(
        self,
        *args: Any,
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
        """The outputs of the published class for the inputs in `self.inputs`. The most common ones are named here:
        Hugging Face's Trainer chooses columns by this signature. With `num_items_in_batch` the loss of a language model
        is the sum over its labels divided by that number. Inside, a model is called with one `Call`."""
        if args and isinstance(args[0], Call):
            return self.run(args[0])
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
        return call_published(self, inputs, args, num_items=num_items_in_batch)

    def hidden_states(self, call: Call) -> HeadInputs:
        """Embedding and stacks: the last hidden states, for the head."""
        if isinstance(self.head, HeadModule):
            call = dataclasses.replace(call, inputs=self.head.arrange(call.inputs))
        return self.compute(call)

    def run(self, call: Call) -> Outputs:
        """The whole model: the named outputs of the head and of the stacks."""
        x, ctx, inputs, others = self.hidden_states(call)
        outputs = self.head(x, ctx, inputs) if self.head is not None else {"last_hidden_state": x}
        return {**outputs, **others}

    def compute(self, call: Call) -> HeadInputs:
        """Embedding and stacks of this shape, on inputs as its head arranged them."""
        raise NotImplementedError

    def encode(self, call: Call) -> tuple[Tensor, Context]:
        """The memory that the encoder of an encoder-decoder makes of its inputs."""
        raise NotImplementedError

    def embed_towers(self, call: Call) -> tuple[dict[str, Any], Outputs]:
        """The inputs with images and sounds as vectors in `inputs_embeds`, and these vectors as named outputs."""
        return call.inputs, {}

    def input_names(self) -> tuple[str, ...]:
        """The names of this shape's inputs, those of its embedding first."""
        raise NotImplementedError

    def declare(self) -> None:
        """Gathers, once all parts are built, what can be given and what can be listened to."""
        self.inputs, self.shows = self.input_names(), declared_taps(self)
        kinds: dict[str, Kind] = {**COMMON, "tree_parents": "integers", "graph_edges": "integers"}
        for part in (self.spec.head, *(model.embedding for model in self.spec.readers)):
            kinds.update({} if part is None else part.input_kinds)
        for name in self.inputs:
            if name.endswith("attention_mask"):  # a tower has its own
                kinds[name] = "mask"
            elif (plain := name.removeprefix("decoder_")) in kinds:
                kinds[name] = kinds[plain]
        self.input_kinds = kinds

    def collect_outputs(self, seen: OutputCollector) -> dict[str, tuple[Tensor, ...]]:
        """The outputs that published classes collect on the way: hidden states, attention weights, router logits."""
        raise NotImplementedError

    def check_finite(self, outputs: Outputs, call: Call, resumed: bool = True) -> None:
        """Raise FloatingPointError if a half-precision output is NaN, naming the first module that returned one.

        While gradients are computed on a GPU, the error is raised by the next call (kernels/value_checks.py).
        """
        if not can_read_values():
            return
        halves = (torch.float16, torch.bfloat16)
        found = [v for v in outputs.values() if isinstance(v, Tensor) and v.dtype in halves and v.numel()]
        if not found:
            return
        loss = outputs.get("loss")
        if loss is not None and reads_later(loss):
            found = [loss]  # it is NaN if a labelled score is: no need to read all scores
        maxima = torch.stack([v.detach().amax() for v in found])  # NaN if any value is
        repeat: Callable[[], object] | None = None
        if not resumed and not reads_later(maxima):  # later, the weights are different: nothing to repeat
            repeat = functools.partial(self.run, Call(dict(call.inputs), kernel=call.kernel))

        def judge(values: list[float]) -> Exception | None:
            return FloatingPointError(explain(self, repeat)) if any(map(math.isnan, values)) else None

        check_values(maxima, judge)

    # -- decoding state -------------------------------------------------------------------------------------------

    def find_stateless(self) -> tuple[str, ...]:
        names = self.spec.left_to_right
        if self.spec.head is not None and self.spec.head.said == "all":  # it reads a text as a whole
            names = (*names, "head")
        return tuple(
            address for name in names for address in without_state(getattr(self.spec, name), getattr(self, name), name)
        )

    @property
    def remembers(self) -> bool:
        """Whether decoding step by step is possible; where it is not, a text is read again for each token."""
        return bool(self.spec.left_to_right) and not self.stateless

    @property
    def predicts_by_position(self) -> bool:
        """Whether it can be asked for the token at any position (XLNet): so it writes, though it reads both sides."""
        return self.spec.embedding.by_position and isinstance(self.spec.head, LMHead)

    def check_memory(self) -> None:
        if not self.spec.left_to_right:
            raise ValueError("this model does not write from left to right: it has no past to remember")
        if self.stateless:
            raise ValueError(f"{self.stateless[0]} remembers nothing of the tokens before: give use_cache=False")

    def new_state(self, batch_size: int = 1, capacity: int | None = None) -> State:
        """An empty decoding state: growing, or static with room for `capacity` tokens (then of `batch_size`)."""
        self.check_memory()
        return State.allocate(self, batch_size, capacity=capacity)

    def explain(self) -> str:
        """Which of several ways this model runs by, and why: a line each, once it has written a text or was trained."""
        return "\n".join(f"{what}: {how}" for what, how in self.notes.items()) or "nothing was run yet"

    # -- ties and vocabulary --------------------------------------------------------------------------------------

    def tie(self) -> None:
        """Makes the parameters that the description ties share storage."""
        for name, owner in self.tied_pairs():
            path, _, leaf = name.rpartition(".")
            try:
                tied, shared = self.get_parameter(name), self.get_parameter(owner)
            except AttributeError:
                raise ValueError(f"ties: no parameters {name} and {owner} in this model that could be one") from None
            if tied.shape != shared.shape:
                shapes = f"{name} is {tuple(tied.shape)} and {owner} is {tuple(shared.shape)}"
                raise ValueError(f"ties: {shapes}: they cannot be one")
            setattr(self.get_submodule(path), leaf, shared)

    def tied_pairs(self) -> list[tuple[str, str]]:
        """(name, owner) of the parameters that the description ties: two parameters, or all that two modules have."""
        pairs = []
        for name, owner in self.spec.ties:
            try:
                inside = [inner for inner, _ in self.get_submodule(name).named_parameters(remove_duplicate=False)]
            except AttributeError:
                inside = []
            pairs += [(f"{name}.{inner}", f"{owner}.{inner}") for inner in inside] or [(name, owner)]
        return pairs

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The tensors by address, as files store them: tied parameters only under their owner's address, because
        safetensors (which Hugging Face's Trainer saves with) refuses shared tensors. With `keep_vars` all addresses."""
        state = super().state_dict(*args, **kwargs)
        if not kwargs.get("keep_vars"):
            prefix, parameters = kwargs.get("prefix", ""), dict(self.named_parameters(remove_duplicate=False))
            for name, owner in self.tied_pairs():
                if name in parameters and parameters[name] is parameters.get(owner):
                    state.pop(prefix + name, None)
        return state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name, owner in self.tied_pairs():
            if prefix + owner in state_dict:
                state_dict.setdefault(prefix + name, state_dict[prefix + owner])
        super()._load_from_state_dict(state_dict, prefix, *args)

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
        spec = with_values(self.spec, {f"{path}.vocab_size": vocab_size for path in tables})
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


def without_state(part: Part, module: Any, path: str) -> Iterator[str]:
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
                yield from without_state(inner, module.get_submodule(name), f"{path}.{name}")


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
    return boolean_mask(mask, name)
