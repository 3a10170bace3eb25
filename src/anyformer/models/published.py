"""The calling convention of Hugging Face, on top of the internal call of `TransformerModule`.

Callers pass inputs and flags under their published names. The outputs have the same fields in the same order as those
of the published class, with a cache if the published class returns one, and as a tuple on request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from torch import Tensor

from anyformer.kernels.attention import KERNELS
from anyformer.kernels.loss import IGNORED
from anyformer.models.call import Call
from anyformer.models.output import Output
from anyformer.parts.base import PartModule
from anyformer.parts.head.base import HeadModule
from anyformer.parts.head.language import LMHead
from anyformer.runtime.inputs import PUBLISHED, check_given, in_model_dtype
from anyformer.runtime.taps import OUTPUTS, OutputCollector, Taps
from anyformer.specs.frozen import thaw
from anyformer.specs.messages import nearest, quote
from anyformer.specs.services import service

if TYPE_CHECKING:
    from anyformer.known_names import GenerateOptions

# first input of a model -> the key of its config in the config of a published composite model
INNER_CONFIGS = {"input_ids": "text_config", "pixel_values": "vision_config", "input_features": "encoder_config"}


class PublishedConfig:
    """`model.config`: the fields of the published config that are not part of the architecture. Hugging Face's Trainer
    reads them and sets `use_cache`, which is never saved."""

    def __init__(self, spec: Any) -> None:
        self.use_cache = True
        self.keys_to_ignore_at_inference = [*{"past_key_values", spec.state_name}]
        self.is_encoder_decoder = spec.pair
        vars(self).update(thaw(spec.source))

    def get_text_config(self, **_: Any) -> PublishedConfig:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"model_type": "anyformer", **vars(self)}  # PEFT looks up its defaults by this name

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


class PublishedModule(PartModule):
    """The methods of a published class, besides `forward`, that users and Hugging Face's Trainer need."""

    spec: Any
    config: PublishedConfig
    is_gradient_checkpointing: bool = False

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether `forward` takes `num_items_in_batch`, the number of labels in several batches."""
        return isinstance(self.spec.head, LMHead)

    @property
    def loss_type(self) -> str | None:
        """Which labels `num_items_in_batch` counts: a causal language model's labels are shifted."""
        return "ForCausalLM" if isinstance(self.spec.head, LMHead) and self.spec.head.shift else None

    if TYPE_CHECKING:  # these are the types of `af.generate` too

        @overload
        def generate(
            self,
            input_ids: Tensor | None = None,
            *,
            return_dict: Literal[False] | None = None,
            return_dict_in_generate: Literal[False] | None = None,
            **options: Unpack[GenerateOptions],
        ) -> Tensor: ...
        @overload
        def generate(
            self, input_ids: Tensor | None = None, *, return_dict: Literal[True], **options: Unpack[GenerateOptions]
        ) -> Output: ...
        @overload
        def generate(
            self,
            input_ids: Tensor | None = None,
            *,
            return_dict_in_generate: Literal[True],
            **options: Unpack[GenerateOptions],
        ) -> Output: ...
        @overload
        def generate(
            self, input_ids: Tensor | None = None, *, return_dict: bool, **options: Unpack[GenerateOptions]
        ) -> Tensor | Output: ...
        def generate(self, input_ids: Tensor | None = None, **options: Any) -> Any: ...

    else:

        @property
        def generate(self) -> Any:
            """`af.generate` with this model."""
            return MethodType(service("generate"), self)

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: Mapping[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Recompute the activations of layers in the backward pass (transforms/recompute.py). transformers passes these
        arguments; only their defaults are supported."""
        options = {**(gradient_checkpointing_kwargs or {}), "every_n_layers": every_n_layers, "offload": offload}
        supported = {"use_reentrant": False, "every_n_layers": 1, "offload": False}
        for name, value in options.items():
            if name not in supported or value != supported[name]:
                known = ", ".join(f"{name}={value}" for name, value in supported.items())
                raise ValueError(f"gradient checkpointing with {name}={quote(value)} is not supported; use {known}")
        service("recompute")(self)
        self.is_gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        service("keep_activations")(self)
        self.is_gradient_checkpointing = False


def call_published(
    model: Any,
    inputs: Mapping[str, Any],
    args: Sequence[Any] = (),
    *,
    taps: Taps | None = None,
    num_items: Tensor | int | None = None,
) -> Any:
    """Run a model on published inputs and return published outputs; `taps` receives intermediate values."""
    inputs = accept_inputs(model, inputs, args)
    labels = inputs.get("labels")
    if model.kernel not in KERNELS:
        raise ValueError(f"unknown attention kernel {quote(model.kernel)}; {nearest(model.kernel, KERNELS)}")
    defaults = output_config(model.spec)
    flags = [flag for flag in OUTPUTS if inputs.pop(flag, defaults.get(flag) or False) or flag in model.always]
    shown = OutputCollector(model.shows, flags, taps) if flags else None
    as_output = inputs.pop("return_dict", model.spec.source.get("return_dict", True))
    # no cache in a training step or in torch.export, unless the caller asks for one
    use_cache = inputs.pop("use_cache", None)
    cacheless = torch.is_grad_enabled() or torch.compiler.is_exporting()
    caches = not cacheless and returns_cache(model, inputs) if use_cache is None else use_cache
    state = inputs.pop("past_key_values", None)
    if state is not None or use_cache:
        model.check_memory()
    if state is None and caches and model.remembers:
        state = model.new_state()
    if isinstance(model.head, HeadModule):
        inputs["output_router_logits"] = "output_router_logits" in flags
    inputs[PUBLISHED] = True
    resumed = state is not None and (state.capacity is not None or state.length > 0)
    call = Call(inputs, state, shown or taps, model.kernel)
    outputs: dict[str, Any] = model.run(call)
    model.check_finite(outputs, call, resumed)
    if state is not None:
        outputs["past_key_values"] = outputs[model.spec.state_name] = state
    if num_items is not None and labels is not None and (loss := outputs.get("loss")) is not None:
        outputs["loss"] = loss_per_item(model, loss, labels, num_items)
    fields = {**outputs, **(model.collect_outputs(shown) if shown else {})}
    # outputs of an encoder come last
    result = Output(dict(sorted(fields.items(), key=lambda field: field[0].startswith("encoder_"))))
    if as_output:
        return result
    unlisted = {"past_key_values"} - {model.spec.state_name} | (
        {*model.head.unlisted} if model.head is not None else set()
    )
    return tuple(value for name, value in result.items() if name not in unlisted)


def accept_inputs(model: Any, inputs: Mapping[str, Any], args: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the inputs under the names of `model.inputs`, without those that are None. Raise if a name is unknown or a
    value has the wrong type."""
    known, state_name = model.inputs, model.spec.state_name
    if len(args) > len(known):
        raise ValueError(f"got {len(args)} positional inputs, expected at most {len(known)}: {', '.join(known)}")
    inputs = {**dict(zip(known, args, strict=False)), **inputs}
    for name, own in model.also.items():
        if inputs.get(name) is not None and inputs.get(own) is not None:
            raise ValueError(f"{name} and {own} are two names of the same input: pass only one of them")
        if (value := inputs.pop(name, None)) is not None:
            inputs[own] = value
    if state_name in inputs:
        inputs["past_key_values"] = inputs.pop(state_name)
    for name in inputs:
        if name not in known:
            raise TypeError(f"this model has no input {quote(name)}; {nearest(name, known)}")
    inputs = {name: value for name, value in inputs.items() if value is not None}
    check_given(inputs, model.input_kinds)
    return in_model_dtype(inputs, model.input_kinds, model)


def returns_cache(model: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether the published class returns a cache for these inputs if the caller does not set `use_cache`."""
    spec = model.spec
    # no set comparison: torch 2.11 cannot compile one
    labelled = "labels" in inputs or ("start_positions" in inputs and "end_positions" in inputs)
    offered = {"always": True, "without labels": not labelled, "never": False}[spec.state_offered]
    by_head = spec.head is None or spec.head.remembers or spec.pair
    return offered and by_head and model.config.use_cache


def output_config(spec: Any) -> Mapping[str, Any]:
    """Return the config with the default values of `output_attentions` etc. In a composite config this is the inner
    config of the stack, as in transformers."""
    inner = spec.source.get(INNER_CONFIGS.get(spec.embedding.inputs[0], ""))
    return inner if isinstance(inner, Mapping) else spec.source


def loss_per_item(model: Any, loss: Tensor, labels: Tensor, count: Tensor | int) -> Tensor:
    """Turn the loss, a mean over labels, into the sum over labels divided by `count`."""
    if not model.accepts_loss_kwargs:
        raise ValueError("num_items_in_batch is only for language models, and this model is not one")
    return loss * (labels[..., int(model.loss_type is not None) :] != IGNORED).sum() / count
