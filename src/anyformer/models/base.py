"""Base class of all model modules: the internal call, decoding state, weight tying, vocabulary size."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

import torch
from torch import Tensor

from anyformer.kernels.capture import can_read_values
from anyformer.kernels.value_checks import check_values, reads_later
from anyformer.models.call import Call, HeadInputs
from anyformer.models.model import Model, notebook_html
from anyformer.models.output import Output
from anyformer.models.published import PublishedConfig, PublishedModule, call_published
from anyformer.parts.base import HasVocabulary, extra_inputs
from anyformer.parts.head.base import HeadModule, Outputs
from anyformer.parts.head.language import LMHead
from anyformer.parts.layer_mix import LayerMix
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import COMMON, Kind, boolean_mask, check_shape
from anyformer.runtime.nonfinite import explain
from anyformer.runtime.state import HasState, State
from anyformer.runtime.taps import OutputCollector, declared_taps
from anyformer.specs.addresses import with_values
from anyformer.specs.part import Part, parts_in, walk
from anyformer.specs.part_errors import name_own_parts
from anyformer.stacks.stack import Stack

if TYPE_CHECKING:
    import typing_extensions

    M = typing_extensions.TypeVar("M", bound=Model, default=Any)
else:
    M = TypeVar("M")

NAMED = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "inputs_embeds",
    "pixel_values",
    "input_values",
    "labels",
    "start_positions",
    "end_positions",
)


def names_inputs(forward: Any) -> Any:
    """Add the common inputs to the signature of `forward`, because Hugging Face's Trainer selects columns by it."""
    first, args, number, others = inspect.signature(forward).parameters.values()
    named = [inspect.Parameter(name, number.kind, default=None) for name in NAMED]
    forward.__signature__ = inspect.Signature([first, args, *named, number, others])
    return forward


class TransformerModule(PublishedModule, Generic[M]):
    """A model with weights. Users call it with published inputs (models/published.py); the package calls it with a
    `Call`: `hidden_states(call)` runs embedding and stacks, `run(call)` runs the head too and returns named outputs."""

    common: tuple[str, ...] = ("output_attentions", "output_hidden_states", "return_dict")
    caching: ClassVar[tuple[str, ...]] = ("past_key_values", "use_cache")

    spec: M
    inputs: tuple[str, ...]  # names of the inputs of `forward`
    input_kinds: dict[str, Kind]  # input name -> kind of value, for inputs whose values are checked
    shows: dict[str, str | None]  # tapped address -> the output that contains its value, or None
    also: Mapping[str, str] = {}  # alias of an input -> its name in `inputs`
    embedding: Any
    head: HeadModule | None
    folder: Path | None = None  # folder of the checkpoint and its tokenizer files
    origin: str | None = None  # the name passed to `af.load`
    fresh: frozenset[str] = frozenset()  # parameters missing in the checkpoint, such as a new head's
    stateless: tuple[str, ...]  # addresses in the left-to-right parts that mix tokens without a decoding state

    def __init__(self, spec: M) -> None:
        super().__init__()
        self.spec = spec
        self.config = PublishedConfig(spec)
        self.extra_inputs = tuple(extra_inputs(spec))
        if any(part.routes for _, part in walk(spec)):  # mixture of experts
            self.common = (*self.common, "output_router_logits")
        always = any(isinstance(part, LayerMix) and part.tells for _, part in walk(spec))
        self.always = ("output_hidden_states",) * always  # outputs that are returned without being requested
        self.kernel = "auto"  # attention kernel: auto, eager, sdpa or flex; never saved
        self.notes: dict[str, str] = {}  # task -> how this model runs it and why; see `explain`

    def _repr_html_(self) -> str:
        return notebook_html(self.spec)

    # -- the internal call ----------------------------------------------------------------------------------------

    @overload
    def __call__(self, call: Call, /) -> dict[str, Any]: ...
    @overload
    def __call__(
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
        **inputs: Any,
    ) -> Output: ...
    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Call the module; an error in the code of a user-defined Part gets a note that names this Part."""
        if torch.compiler.is_compiling():
            return super().__call__(*args, **inputs)
        with name_own_parts():
            return super().__call__(*args, **inputs)

    @names_inputs
    def forward(self, *args: Any, num_items_in_batch: Tensor | int | None = None, **inputs: Any) -> Any:
        """Return the outputs of the published class for the inputs in `self.inputs`. With `num_items_in_batch`, the
        loss of a language model is the sum over its labels divided by that number. Inside the package, the only
        argument is a `Call`."""
        if args and isinstance(args[0], Call):
            return self.run(args[0])
        inputs = {name: value for name, value in inputs.items() if value is not None or name not in NAMED}
        return call_published(self, inputs, args, num_items=num_items_in_batch)

    def hidden_states(self, call: Call) -> HeadInputs:
        """Run embedding and stacks; return the last hidden states and the head's other inputs."""
        if isinstance(self.head, HeadModule):
            call = dataclasses.replace(call, inputs=self.head.arrange(call.inputs))
        return self.compute(call)

    def run(self, call: Call) -> Outputs:
        """Run the whole model; return the named outputs of the head and of the stacks."""
        x, ctx, inputs, others = self.hidden_states(call)
        outputs = self.head(x, ctx, inputs) if self.head is not None else {"last_hidden_state": x}
        return {**outputs, **others}

    def compute(self, call: Call) -> HeadInputs:
        """Run embedding and stacks of this model shape, on inputs that the head has arranged."""
        raise NotImplementedError

    def encode(self, call: Call) -> tuple[Tensor, Context]:
        """Run the encoder of an encoder-decoder; return the memory and the encoder's context."""
        raise NotImplementedError

    def embed_towers(self, call: Call) -> tuple[dict[str, Any], Outputs]:
        """Return the inputs with images and audio embedded in `inputs_embeds`, and their vectors as named outputs."""
        return call.inputs, {}

    def input_names(self) -> tuple[str, ...]:
        """Return the input names of this model shape, the embedding's first."""
        raise NotImplementedError

    def declare(self) -> None:
        """Collect input names, input kinds and tapped addresses. Call it once all modules are built."""
        self.inputs, self.shows = self.input_names(), declared_taps(self)
        kinds: dict[str, Kind] = {**COMMON, **dict.fromkeys(self.extra_inputs, "integers")}
        readers: Any = self.spec.readers
        for part in (self.spec.head, *(model.embedding for model in readers)):
            kinds.update({} if part is None else part.input_kinds)
        for name in self.inputs:
            if name.endswith("attention_mask"):  # or a tower's mask, such as `video_attention_mask`
                kinds[name] = "mask"
            elif (plain := name.removeprefix("decoder_")) in kinds:
                kinds[name] = kinds[plain]
        self.input_kinds = kinds

    def collect_outputs(self, seen: OutputCollector) -> dict[str, tuple[Tensor, ...]]:
        """Return the collected outputs of the published class: hidden states, attention weights, router logits."""
        raise NotImplementedError

    def check_finite(self, outputs: Outputs, call: Call, resumed: bool = True) -> None:
        """Raise FloatingPointError if a half-precision output is NaN, naming the first module that returned one.

        While gradients are computed on a GPU, the error is raised by the next call (kernels/value_checks.py).
        """
        if not can_read_values():
            return
        halves = (torch.float16, torch.bfloat16)
        values = [*outputs.values(), *(outputs.get("feature_maps") or ())]
        tensors = [v for v in values if isinstance(v, Tensor) and v.dtype in halves and v.numel()]
        if not tensors:
            return
        loss = outputs.get("loss")
        if loss is not None and reads_later(loss):
            tensors = [loss]  # NaN if the logits of any label are NaN: no need to read all logits
        maxima = torch.stack([v.detach().amax() for v in tensors])  # NaN if any value is NaN
        repeat: Callable[[], object] | None = None
        if not resumed and not reads_later(maxima):  # the next call has different weights and cannot repeat this one
            repeat = functools.partial(self.run, Call(dict(call.inputs), kernel=call.kernel))

        def judge(values: list[float]) -> Exception | None:
            return FloatingPointError(explain(self, repeat)) if any(map(math.isnan, values)) else None

        check_values(maxima, judge)

    # -- decoding state -------------------------------------------------------------------------------------------

    def find_stateless(self) -> tuple[str, ...]:
        names = self.spec.left_to_right
        if self.spec.head is not None and self.spec.head.declared_sees == "all":  # the head reads the whole text
            names = (*names, "head")
        return tuple(
            address for name in names for address in without_state(getattr(self.spec, name), getattr(self, name), name)
        )

    @property
    def remembers(self) -> bool:
        """Whether the model can decode with a cache; without one, generation reads the whole text for each token."""
        return bool(self.spec.left_to_right) and not self.stateless

    @property
    def predicts_by_position(self) -> bool:
        """Whether it can predict the token at any position, and so generate although it is bidirectional (XLNet)."""
        spec: Any = self.spec
        return spec.embedding.by_position and isinstance(spec.head, LMHead)

    def check_memory(self) -> None:
        if not self.spec.left_to_right:
            raise ValueError("this model does not decode from left to right, so it has no cache")
        if self.stateless:
            raise ValueError(f"{self.stateless[0]} does not support caching: pass use_cache=False")

    def new_state(self, batch_size: int = 1, capacity: int | None = None) -> State:
        """Return an empty decoding state: growing, or preallocated for `batch_size` rows of `capacity` tokens."""
        self.check_memory()
        return State.allocate(self, batch_size, capacity=capacity)

    def explain(self) -> str:
        """Return which implementations generation and training chose, and why, one per line."""
        return "\n".join(f"{what}: {how}" for what, how in self.notes.items()) or "nothing was run yet"

    # -- ties and vocabulary --------------------------------------------------------------------------------------

    def tie(self) -> None:
        """Make the parameters in `spec.ties` share storage."""
        for name, owner in self.tied_pairs():
            path, _, leaf = name.rpartition(".")
            try:
                tied, shared = self.get_parameter(name), self.get_parameter(owner)
            except AttributeError:
                raise ValueError(f"ties: this model does not have both parameters {name} and {owner}") from None
            if tied.shape != shared.shape:
                shapes = f"{name} is {tuple(tied.shape)}, {owner} is {tuple(shared.shape)}"
                raise ValueError(f"ties: cannot tie parameters of different shapes: {shapes}")
            setattr(self.get_submodule(path), leaf, shared)

    def tied_pairs(self) -> list[tuple[str, str]]:
        """(name, owner) of each tied parameter. A tie of two modules ties all their parameters."""
        pairs = []
        for name, owner in self.spec.ties:
            try:
                inside = [inner for inner, _ in self.get_submodule(name).named_parameters(remove_duplicate=False)]
            except AttributeError:
                inside = []
            pairs += [(f"{name}.{inner}", f"{owner}.{inner}") for inner in inside] or [(name, owner)]
        return pairs

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tensors by address. Tied parameters appear only under their owner's address, because safetensors
        (used by Hugging Face's Trainer) refuses shared tensors; with `keep_vars` they appear under all addresses."""
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
        """Change the vocabulary size. Old rows are kept and new rows are initialised by the description's rules; ties,
        frozen parameters and the train/eval mode are kept."""
        tables = [path for path, part in walk(self.spec) if isinstance(part, HasVocabulary)]
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
    """Yield the addresses in `module` that mix tokens and declare no decoding state."""
    if part.sees == "itself":
        return
    if part.declared_sees != "itself":  # its own module mixes tokens
        declared = (inner.state_spec() for inner in module.modules() if isinstance(inner, HasState))
        if part.sees != "past" or all(state is None for state in declared):
            yield path
    elif isinstance(part, Stack) and len(part.steps) > part.depth:
        yield f"{path}.layers"  # a layer that runs more than once would need a state for each run
    else:
        stacked = isinstance(part, Stack)  # possibly with no layers
        layers = [(f"layers.{i}", part.layer(i)) for i in range(part.depth)] if isinstance(part, Stack) else []
        others = [(name, inner) for name, inner in parts_in(part) if not (stacked and name.startswith("layers"))]
        for name, inner in (*layers, *others):
            if inner.sees != "itself":
                yield from without_state(inner, module.get_submodule(name), f"{path}.{name}")


def memory_mask(mask: Tensor | None, memory: Tensor | None, name: str) -> Tensor | None:
    """Return the padding mask of the memory (B, M, D) as booleans, or None if there is no padding."""
    if mask is None:
        return None
    if memory is not None:
        check_shape(name, mask, tuple(memory.shape[:2]))
    return boolean_mask(mask, name)
