"""Checks of a model's inputs: types, dtypes and shapes, with one-line errors that name the input.

Only the values of masks are read, because the choice of a kernel depends on them anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.kernels.capture import can_read_values, extremes
from anyformer.runtime.state import State
from anyformer.specs.messages import quote

Kind = Literal["integers", "floats", "mask", "labels", "flag"]

PUBLISHED = "published"  # set in the inputs of a call by published names, not in the package's own calls

# kinds of common inputs; the Part that reads any other input declares its kind (`input_kinds`)
COMMON: dict[str, Kind] = {
    **dict.fromkeys(("input_ids", "position_ids", "token_type_ids", "document_ids"), "integers"),
    **dict.fromkeys(
        ("inputs_embeds", "encoder_hidden_states", "pixel_values", "input_values", "input_features"), "floats"
    ),
    **dict.fromkeys(("attention_mask", "encoder_attention_mask"), "mask"),
    **dict.fromkeys(("labels", "start_positions", "end_positions"), "labels"),
    **dict.fromkeys(("use_cache", "return_dict"), "flag"),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_router_logits"), "flag"),
}


def check_given(inputs: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Raise ValueError for the first input that does not match its kind; None is skipped."""
    for name, value in inputs.items():
        kind = kinds.get(name)
        if value is None:
            continue
        if name == "past_key_values" and not isinstance(value, State):
            raise ValueError(f"{name} must be the state that a model returned, got a {type(value).__name__}")
        if kind == "flag" and not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {quote(value)}")
        if kind is None or kind == "flag":
            continue
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} must be a tensor, got a {type(value).__name__}; use torch.tensor(...)")
        if value.dim() > 1 and not value.shape[0]:  # len() would make the batch size a constant in torch.export
            raise ValueError(f"{name} has no rows: {tuple(value.shape)}")
        if kind == "integers" and value.dtype not in (torch.long, torch.int):
            raise ValueError(f"{name} must be integers (int64 or int32), got {value.dtype}")
        if kind == "floats" and not value.is_floating_point():
            raise ValueError(f"{name} must be floating-point numbers, got {value.dtype}")
        if kind == "mask" and value.is_complex():
            raise ValueError(f"{name} must contain 0 and 1, got {value.dtype}")


def in_model_dtype(inputs: Mapping[str, Any], kinds: Mapping[str, Kind], model: torch.nn.Module) -> dict[str, Any]:
    """Cast floating-point inputs to the dtype of the weights: processors return fp32 even for a bf16 model."""
    floats = [name for name, value in inputs.items() if kinds.get(name) == "floats" and value is not None]
    dtype = next(model.parameters()).dtype if floats else None
    return {**inputs, **{name: inputs[name].to(dtype) for name in floats}}


def check_shape(name: str, tensor: Tensor | None, *shapes: tuple[int, ...]) -> None:
    if tensor is not None and tuple(tensor.shape) not in shapes:
        raise ValueError(f"{name} must have the shape {' or '.join(map(str, shapes))}, got {tuple(tensor.shape)}")


def boolean_mask(mask: Tensor, name: str = "attention_mask") -> Tensor | None:
    """Convert a mask to booleans; None if it hides nothing."""
    return None if hides_nothing(mask, name) else mask.bool()


def hides_nothing(mask: Tensor, name: str = "attention_mask") -> bool:
    """Whether a mask is all ones (False if values cannot be read). Raises if a value is neither 0 nor 1."""
    if not can_read_values():
        return False
    if mask.dtype == torch.bool:
        return bool(mask.all())
    if not mask.is_floating_point() and mask.numel():
        least, greatest = extremes(mask)
        if least >= 0 and greatest <= 1:
            return least == 1
    shown = mask == 1
    everything, valid = torch.stack((shown.all(), (shown | (mask == 0)).all())).tolist()  # one synchronization
    if not valid:
        bad = mask[~(shown | (mask == 0))][0].item()
        raise ValueError(f"{name} must be 1 for tokens and 0 for padding, got {bad}")
    return bool(everything)
