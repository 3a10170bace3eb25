"""A Decision Transformer that balances a pole for a given time: learns from CartPole episodes, minutes on a CPU.

The episodes (offline_rl_expert) are from three policies of different quality.
"""

from __future__ import annotations

from anyformer import families
from anyformer.data import Data, Episodes, Held
from anyformer.objectives.decision import Act
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

CONFIG = {
    "architectures": ["DecisionTransformerModel"],
    "state_dim": 4,
    "act_dim": 2,
    "hidden_size": 128,
    "n_layer": 3,
    "n_head": 4,
    "max_ep_len": 500,
    "action_tanh": False,
    "n_positions": 1,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
}


def run(data: str = "data") -> Run:
    episodes = Episodes(path=f"{data}/offline_rl_expert/cartpole_mixed.npz")
    return Run(
        name="cartpole",
        model=families.find("decision_transformer").read(CONFIG),
        data=Data(train=Held(source=episodes), valid=Held(source=episodes, out=True)),
        objective=Act(steps=20, choices=2, scale=500.0),
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01),
        schedule=Cosine(warmup=100, floor=0.1),
        batch=Batch(examples=64),
        steps=3000,
        evaluate=Evaluate(every=500),
        keep=Keep(every=500),
    )
