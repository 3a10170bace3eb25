"""Playing: the inputs of the model at each step, and environments that do not fit it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.tasks.each.play import play

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium, an extra")

CONFIG: dict[str, Any] = {
    "architectures": ["DecisionTransformerModel"], "state_dim": 4, "act_dim": 2, "hidden_size": 16, "n_layer": 1,
    "n_head": 2, "max_ep_len": 60, "action_tanh": False,
}  # fmt: skip


def player(**changes: Any) -> Any:
    return af.build(families.find("decision_transformer").read({**CONFIG, **changes}), seed=1).eval()


def test_the_inputs_of_each_step() -> None:
    """The same episode by hand: the states of the environment, the actions taken, the remaining return."""
    model, target, scale, steps = player(), 30.0, 10.0, 5
    seen: list[dict[str, Any]] = []
    hook = model.register_forward_pre_hook(lambda _, args, inputs: seen.append(inputs), with_kwargs=True)
    (found,) = play(model, "CartPole-v1", returns=[target], scale=scale, steps=steps, seed=3)
    hook.remove()
    environment = gymnasium.make("CartPole-v1")
    state, won, running = environment.reset(seed=3)[0], 0.0, True
    states, actions, to_go = [state], [np.zeros(2)], [target / scale]
    while running:
        times = torch.arange(len(states))[-steps:][None]
        with torch.no_grad():
            scores = model(
                states=torch.tensor(np.stack(states[-steps:]), dtype=torch.float32)[None],
                actions=torch.tensor(np.stack(actions[-steps:]), dtype=torch.float32)[None],
                returns_to_go=torch.tensor(to_go[-steps:], dtype=torch.float32)[None, :, None], timesteps=times,
            ).action_preds[0, -1]  # fmt: skip
        action = int(scores.argmax())
        actions[-1] = np.eye(2)[action]
        state, reward, ended, cut, _ = environment.step(action)
        won += reward
        running = not (ended or cut)
        states.append(state)
        actions.append(np.zeros(2))
        to_go.append((target - won) / scale)
    assert found == {"asked": target, "return": won, "steps": len(states) - 1}
    assert len(seen) == len(states) - 1
    remaining = torch.tensor(to_go[:-1][-steps:], dtype=torch.float32)
    assert torch.equal(seen[-1]["returns_to_go"][0, :, 0], remaining)


def test_episodes_in_one_batch_equal_separate_ones() -> None:
    together = play(player(), "CartPole-v1", returns=[10.0, 40.0], episodes=2, scale=10.0)
    assert [each["asked"] for each in together] == [10.0, 10.0, 40.0, 40.0]
    alone = play(player(), "CartPole-v1", returns=[40.0], episodes=2, scale=10.0)
    assert together[2:] == alone


@pytest.mark.parametrize(("environment", "changes", "sentence"), [
    ("NoSuchWorld-v1", {}, "NoSuchWorld"),
    ("Pendulum-v1", {}, "states of 3 numbers and 1 actions; the model has 4 and 2"),
    ("CartPole-v1", {"act_dim": 3}, "4 numbers and 2 actions; the model has 4 and 3"),
])  # fmt: skip
def test_environments_that_do_not_fit(environment: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        play(player(**changes), environment, returns=[1.0])


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="target returns"):
        play(player(), "CartPole-v1", returns=[])
    with pytest.raises(ValueError, match="a model that predicts actions"):
        play(af.build(af.override(af.spec("gpt2"), {"decoder.depth": 1, "width": 24})), "CartPole-v1", returns=[1.0])
