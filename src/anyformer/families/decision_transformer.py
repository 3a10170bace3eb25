"""The Decision Transformer [Chen et al. 2021]: a GPT-2 over returns, states and actions that predicts actions."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, derived, divides
from anyformer.families.gpt2 import GPT2, INNER, TEMPLATE
from anyformer.parts import Learned, Tokens, TrajectoryEmbedding, TrajectoryHead
from anyformer.specs.addresses import edit

TEXT_FIELDS = ("n_embd", "tie_word_embeddings", "problem_type", "classifier_dropout", "hidden_dropout", "n_ctx")

STACK = edit(
    TEMPLATE,
    {
        "width": 128,
        "embedding.tokens.vocab_size": 1,
        "decoder.depth": 3,
        "decoder.layers.*.op[Attention].num_heads": 1,
        "decoder.layers.*.op[Attention].head_width": 128,
        "decoder.layers.feedforward.op.width": 512,
        "decoder.layers.feedforward.op.activation": "relu",
    },
)
EPISODES = STACK.replace(
    embedding=TrajectoryEmbedding(
        state_width=17,
        action_width=4,
        steps=4096,
        everywhere=Learned(length=1024),
        tokens=Tokens(vocab_size=1),
        dropout=0.1,
    )
)

DECISION_TRANSFORMER = GPT2.but(
    "decision_transformer",
    about="predicts the next action for a desired return (offline reinforcement learning)",
    tokenizer=None,
    template=STACK,
    classes={
        "DecisionTransformerModel": Class(
            TrajectoryHead(state_width=17, action_width=4),
            template=EPISODES,
            weights={"~wpe": "embedding.everywhere"},
        ),
        "DecisionTransformerGPT2Model": Class(prefix=""),  # only the stack, over tokens
    },
    config={
        "state_dim": ("embedding.state_width", "head.state_width"),
        "act_dim": ("embedding.action_width", "head.action_width"),
        "hidden_size": "width",
        "max_ep_len": "embedding.steps",
        "action_tanh": "head.bounded",
        "n_positions": ("embedding.everywhere.length", "embedding.position.length"),
        "n_inner": derived(f"{INNER}.width", of=lambda c: 4 * c.hidden_size, usual=lambda spec: 4 * spec.width),
        "pad_token_id": Ignored(None, "there is no text to pad"),
        **dict.fromkeys((*TEXT_FIELDS, *(name for name in GPT2.config if name.startswith("summary_")))),
    },
    computed={"decoder.layers.*.op.head_width": lambda c: c.hidden_size // c.n_head},
    weights={
        "embed_{timestep,return,state,action,ln}": "embedding.{time,to_go,state,action,norm}",
        "predict_{state,action.0,return}": "head.{state,action,to_go}",
    },
    prefix="encoder.",
    checks=(divides("n_head", "hidden_size"),),
    aliases={alias: name for alias, name in GPT2.aliases.items() if alias != "hidden_size"},
    sizes={"decision-transformer-gym": Size({"state_dim": 11, "act_dim": 3, "n_positions": 1024}, None)},
)
