"""Decision Transformer: windows of episodes, returns-to-go, and losses computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.data import Episodes
from anyformer.objectives.batches import Record
from anyformer.objectives.decision import Act

CONFIG: dict[str, Any] = {
    "architectures": ["DecisionTransformerModel"], "state_dim": 3, "act_dim": 2, "hidden_size": 16, "n_layer": 1,
    "n_head": 2, "max_ep_len": 40, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


def model(**changes: Any) -> Any:
    return af.build(families.find("decision_transformer").read({**CONFIG, **changes}), seed=0)


def episode(length: int, choices: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(length)
    actions = random.integers(choices, size=length) if choices else random.normal(size=(length, 2)).astype(np.float32)
    return {"states": random.normal(size=(length, 3)).astype(np.float32), "actions": actions,
            "rewards": np.arange(1, length + 1, dtype=np.float32)}  # fmt: skip


def records(objective: Act, *lengths: int) -> list[Record]:
    return [objective.encode(episode(length, objective.choices), None) for length in lengths]


def test_a_window_is_a_part_of_the_episode() -> None:
    objective = Act(steps=4, scale=2.0)
    (whole,) = records(objective, 9)
    assert np.allclose(whole["to_go"], np.arange(1, 10)[::-1].cumsum()[::-1] / 2)
    starts = set()
    for seed in range(40):
        seen = objective.vary(whole, np.random.default_rng(seed))
        first = int(seen["times"][0])
        starts.add(first)
        assert seen["times"].tolist() == list(range(first, first + 4))
        assert np.array_equal(seen["states"], whole["states"].reshape(9, 3)[first : first + 4].reshape(-1))
        assert np.array_equal(seen["to_go"], whole["to_go"][first : first + 4])
    assert starts == set(range(6)), "every window is seen, and none goes over the end"
    assert objective.size(whole) == 12


@pytest.mark.parametrize("choices", [0, 2])
def test_the_loss_by_hand(choices: int) -> None:
    objective = Act(steps=6, choices=choices)
    batch = objective.collate(records(objective, 6, 3), 0)
    assert batch["attention_mask"].tolist() == [[1] * 6, [1] * 3 + [0] * 3]
    net = objective.module(model(action_tanh=not choices)).eval()
    with torch.no_grad():
        predicted = net(**batch).action_preds
        loss = objective.losses(net, batch)["loss"]
    expected = torch.zeros(())
    for row, n in enumerate((6, 3)):
        done = batch["actions"][row, :n]
        if choices:
            expected += F.cross_entropy(predicted[row, :n], done.argmax(-1), reduction="sum")
        else:
            expected += F.mse_loss(predicted[row, :n], done) * n
    torch.testing.assert_close(loss, expected)
    assert objective.weights(batch) == {"loss": 9.0}


def test_cloning_asks_for_nothing() -> None:
    asking, cloning = Act(steps=6), Act(steps=6, asks=False)
    assert float(asking.collate(records(asking, 5), 0)["returns_to_go"].abs().min()) > 0
    assert float(cloning.collate(records(cloning, 5), 0)["returns_to_go"].abs().max()) == 0


def test_one_batch_is_learnt_by_heart() -> None:
    objective = Act(steps=6, choices=2)
    batch = objective.collate(records(objective, 6, 5), 0)
    net = model(action_tanh=False).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(60):
        loss = objective.losses(net, batch)["loss"] / objective.weights(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05


@pytest.mark.parametrize(("objective", "change", "sentence"), [
    (Act(), {"actions": np.zeros((2, 2))}, "3 states, 2 actions and 3 rewards"),
    (Act(choices=2), {"actions": np.array([0, 1, 2])}, "actions are 0 to 2, outside choices=2"),
    (Act(), {"states": np.full((3, 3), np.nan)}, "must be finite"),
])  # fmt: skip
def test_episodes_that_cannot_be(objective: Act, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        objective.encode({**episode(3, objective.choices), **change}, None)


def test_a_model_that_cannot_choose_is_refused() -> None:
    with pytest.raises(ValueError, match="choices=.* unbounded scores; the model outputs 2 numbers between -1 and 1"):
        Act(choices=2).module(model())
    headless = model()
    headless.head = None
    with pytest.raises(ValueError, match="acting needs a model with"):
        Act().module(headless)


@pytest.mark.parametrize("marked", [False, True])
def test_episodes_are_read_from_a_file(tmp_path: Path, marked: bool) -> None:
    each = [episode(4), episode(7)]
    arrays = {theirs: np.concatenate([e[ours] for e in each])
              for ours, theirs in (("states", "obs"), ("actions", "actions"), ("rewards", "rewards"))}  # fmt: skip
    starts = np.zeros(11, dtype=bool)
    starts[[0, 4]] = True
    where = {"episode_starts": starts} if marked else {"episode_offsets": np.array([0, 4, 11])}
    np.savez(tmp_path / "x.npz", **arrays, **where)
    found = [row.example for row in Episodes(path=str(tmp_path / "x.npz")).raw()]
    assert len(found) == 2
    for mine, theirs in zip(found, each, strict=True):
        assert mine is not None and all(np.array_equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"rewards": None}, "no array 'rewards'"),
    ({"episode_offsets": None}, "no array 'episode_offsets' or 'episode_starts'"),
    ({"episode_offsets": np.array([0, 5, 3, 11])}, "offsets must rise from 0 to 11"),
    ({"obs": np.zeros((3, 3))}, "arrays of unequal length"),
])  # fmt: skip
def test_files_that_cannot_be(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    arrays = {"obs": np.zeros((11, 3)), "actions": np.zeros(11), "rewards": np.zeros(11),
              "episode_offsets": np.array([0, 4, 11])}  # fmt: skip
    np.savez(tmp_path / "x.npz", **{name: a for name, a in {**arrays, **change}.items() if a is not None})
    with pytest.raises(ValueError, match=sentence):
        list(Episodes(path=str(tmp_path)).raw())
