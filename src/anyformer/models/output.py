"""The named outputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import MappingKey, register_pytree_node


class Output(dict[str, Any]):
    """Named outputs, by attribute, key or index: `out[0]` is the first. Fields that are None are left out. It is a dict
    and a torch pytree, so that DDP, torch.export and other trainers find the tensors in it."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)  # as in published classes, a field that was not requested is None

    def __repr__(self) -> str:
        shown = {k: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for k, v in self.items()}
        return f"Output({', '.join(f'{k}: {v}' for k, v in shown.items())})"


register_pytree_node(
    Output,
    lambda out: ([*out.values()], [*out]),
    lambda values, names: Output(dict(zip(names, values, strict=True))),
    serialized_type_name="anyformer.Output",
    flatten_with_keys_fn=lambda out: ([(MappingKey(name), value) for name, value in out.items()], [*out]),
)
