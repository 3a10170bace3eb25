"""Decision Transformer [Chen et al. 2021]: predict actions from a return-to-go; without one, behaviour cloning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows
from anyformer.objectives.examples import field
from anyformer.objectives.heads import head_of, logits_of
from anyformer.objectives.objective import HeadInputs, Objective
from anyformer.parts.embedding.trajectory import KINDS
from anyformer.parts.head.trajectory import TrajectoryModule
from anyformer.specs.field_types import Count, Natural, Positive


class Act(Objective, called=("Decision Transformer", "return-to-go", "offline reinforcement learning", "offline RL")):
    """Columns "states" (N, S), "actions" (N,) or (N, A) and "rewards" (N,) of an episode of N time steps. A random
    window of `steps` time steps is read each time. Actions are numbers, or indices below `choices` if that is not 0.
    With `asks=False` all returns-to-go are 0, which is behaviour cloning."""

    columns: ClassVar[tuple[str, ...]] = ("states", "actions", "rewards")

    steps: Count = 20
    choices: Natural = 0
    scale: Positive = 1.0  # returns are divided by it; choose it so that they are of order 1
    asks: bool = True

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        states, actions, rewards = (np.asarray(field(example, name)) for name in self.columns)
        N = len(rewards)
        if states.shape[:1] != (N,) or actions.shape[:1] != (N,):
            raise ValueError(f"{len(states)} states, {len(actions)} actions and {N} rewards; expected equally many")
        if self.choices:
            actions = actions.reshape(N).astype(np.int64)
            if N and not (actions.min() >= 0 and actions.max() < self.choices):
                raise ValueError(f"actions are {actions.min()} to {actions.max()}, outside choices={self.choices}")
        to_go = np.cumsum(rewards[::-1].astype(np.float64))[::-1] / self.scale
        numbers = states.reshape(-1), actions.reshape(-1), to_go
        if not all(np.isfinite(each).all() for each in numbers):
            raise ValueError("states, actions and rewards must be finite: a number is infinite or NaN")
        dtypes = (np.float32, np.int64 if self.choices else np.float32, np.float32)
        arrays = [each.astype(dtype) for each, dtype in zip(numbers, dtypes, strict=True)]
        return dict(zip(("states", "actions", "to_go"), arrays, strict=True)) | {"times": np.arange(N)}

    def size(self, record: Record) -> int:
        return KINDS * min(len(record["times"]), self.steps)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        N = len(record["times"])
        start = int(random.integers(max(N - self.steps, 0) + 1))
        return {name: values.reshape(N, -1)[start : start + self.steps].reshape(-1) for name, values in record.items()}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        lengths = torch.tensor([len(record["times"]) for record in records])
        width = {name: records[0][name].size // len(records[0]["times"]) for name in records[0]}
        rows = {name: pad_rows([record[name] for record in records], 0) for name in records[0]}
        B, N = rows["times"].shape
        actions = rows["actions"]
        actions = F.one_hot(actions, self.choices).float() if self.choices else actions.view(B, N, width["actions"])
        batch = {
            "states": rows["states"].view(B, N, width["states"]),
            "actions": actions,
            "returns_to_go": rows["to_go"][..., None] * float(self.asks),
            "timesteps": rows["times"],
        }
        if int(lengths.min()) < N:
            batch["attention_mask"] = (torch.arange(N) < lengths[:, None]).long()
        return batch

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, TrajectoryModule, "acting")
        if self.choices and (head.bounded or head.action.out_features != self.choices):
            output = f"{head.action.out_features} numbers" + (" between -1 and 1" if head.bounded else "")
            raise ValueError(f"choices={self.choices} needs as many unbounded scores; the model outputs {output}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        mask = batch.get("attention_mask")
        return {"loss": float(batch["timesteps"].numel() if mask is None else mask.sum())}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        logits, actions = logits_of(model, states, "action_preds"), batch["actions"]  # (B, N, A)
        if self.choices:
            each = F.cross_entropy(logits.flatten(0, 1), actions.argmax(-1).flatten(), reduction="none").view(
                actions.shape[:2]
            )
        else:
            each = (logits - actions).square().mean(-1)
        mask = batch.get("attention_mask")
        return {"loss": each.sum() if mask is None else (each * mask).sum()}
