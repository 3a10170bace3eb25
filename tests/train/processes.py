"""Small trainings of several families. `fork` does those that cases.json lists in several processes, which it forks
(torch is imported once) and which join as torchrun's do; found-NUM.pt has the results."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from anyformer import families
from anyformer.data import TSV, Bytes, Data, TextFiles
from anyformer.objectives.causal import NextToken
from anyformer.objectives.masked import Masked
from anyformer.objectives.translate import Translate
from anyformer.parts.feedforward.mlp import GatedMLP
from anyformer.parts.feedforward.moe import ExpertsModule, MoE
from anyformer.parts.feedforward.routers import Switch
from anyformer.parts.norm import RMSNorm
from anyformer.parts.position.absolute import DistanceBias
from anyformer.runtime.context import Context
from anyformer.specs.codec import override
from anyformer.specs.part import Site
from anyformer.train import parallel, shard
from anyformer.train.optim import Adafactor, AdamW, Cosine
from anyformer.train.parallel import Mesh
from anyformer.train.progress import Metrics
from anyformer.train.resume import gather_model
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.start import setup
from anyformer.train.trainer import Callback, Trainer
from anyformer.transforms.lora import LoRA

sys.path.insert(0, str(Path(__file__).parent))
import runs

STEPS = 4
Case = list  # a name, a family, and the meshes that train it in turn; the last one finishes
SPECIAL = {"eos_token": "<|end|>", "pad_token": "<|pad|>", "mask_token": "<|mask|>"}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 20, "max_position_embeddings": 32, "architectures": ["LlamaForCausalLM"],
              "tie_word_embeddings": True},
    "bert": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 20,
             "max_position_embeddings": 32, "architectures": ["BertForMaskedLM"], "hidden_dropout_prob": 0.0,
             "attention_probs_dropout_prob": 0.0},
    "t5": {"num_layers": 2, "d_model": 16, "d_kv": 4, "num_heads": 4, "d_ff": 20, "dropout_rate": 0.0,
           "architectures": ["T5ForConditionalGeneration"], "decoder_start_token_id": 1, "pad_token_id": 1},
    "mixtral": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
                "intermediate_size": 12, "num_local_experts": 4, "max_position_embeddings": 32,
                "router_aux_loss_coef": 0.0,  # a mean over the tokens of one process, which depends on the layout
                "architectures": ["MixtralForCausalLM"]},
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {  # parts that depend on the number of heads
    "llama": {"decoder.layers.attention.op.qk_norm": RMSNorm()},
    "bert": {"encoder.layers.attention.op.position": DistanceBias(num_heads=2, before=4)},
}
OBJECTIVES = {"bert": Masked(rate=0.3), "t5": Translate()}


class Losses(Callback):
    """Also records the rows of each step, over all processes."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.rows: list[Any] = []

    def on_start(self, trainer: Trainer) -> None:
        inner = trainer.launch

        def launch(ready: Any) -> Any:
            real = [batch["input_ids"].tolist() for batch, real in zip(ready.batches, ready.real) if real]
            shown: list[Any] = [real]
            if trainer.layout.data_size > 1:
                shown = [None] * trainer.layout.data_size
                dist.all_gather_object(shown, real, group=trainer.layout.data_group)
            self.rows.append([ready.step, sorted(row for batches in shown for batch in batches for row in batch)])
            return inner(ready)

        trainer.launch = launch  # type: ignore[method-assign]

    def on_step(self, trainer: Trainer, done: Any) -> None:
        self.values.append(done.loss)
        self.values.append(done.norm)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.values.append(scores["loss"])


def write_data(folder: Path) -> None:
    texts = runs.write_texts(folder).read_text().splitlines()
    pairs = [f"{text[:25]}\t{text[5:20]}" for text in texts]
    (folder / "pairs.tsv").write_text("\n".join(["source\ttarget", *pairs]))


def run_of(name: str, folder: Path, mesh: Mesh, **changes: Any) -> Run:
    model = families.find(name).read({"vocab_size": 256 + len(SPECIAL), **CONFIGS[name]})
    model = override(model, CHANGES.get(name, {}))
    source: Any = TextFiles(path=str(folder / "text.txt"), unit="line")
    if name == "t5":
        source = TSV(path=str(folder / "pairs.tsv"))
    base: dict[str, Any] = {
        "name": name, "model": model, "vocabulary": Bytes(special=SPECIAL), "data": Data(train=source, valid=source),
        "objective": OBJECTIVES.get(name, NextToken()), "steps": STEPS, "mesh": mesh, "schedule": Cosine(warmup=2),
        # a large eps: Adam turns rounding errors of gradients that are 0 into whole steps otherwise
        "optimizer": AdamW(lr=5e-3, eps=1e-4), "batch": Batch(examples=7, micro=2, length=32), "ema": 0.5,
        "clip": 0.5, "evaluate": Evaluate(every=2, batches=1), "keep": Keep(every=2),
    }  # fmt: skip
    return Run(**{**base, **changes})


def trained(run: Run, folder: Path) -> dict[str, Any]:
    """Return losses, gradient norms, evaluations, rows and the last weights of a run, as plain tensors."""
    log = Losses()
    trainer = setup(run, folder, device="cpu", callbacks=[log], resume=(folder / "run.json").is_file())
    if parallel.rank() == 0:
        trainer.callbacks.append(Metrics())
    trainer.fit()
    spread = [m for m in trainer.core.module.modules() if isinstance(m, ExpertsModule)]
    experts = [(module.num_experts, parallel.local_tensor(module.up).shape[0]) for module in spread]
    model = gather_model(trainer.model, trainer.device)
    return {"values": log.values, "rows": log.rows, "weights": model.state_dict(), "experts": experts}


def troubles(folder: Path, mesh: Mesh) -> dict[str, Any]:
    """Return what each process reports about a NaN weight, a request to stop, and an impossible layout."""
    messages: dict[str, Any] = {}

    class Wish(Callback):
        def on_step(self, trainer: Trainer, done: Any) -> None:
            if done.step == 2 and parallel.rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    class Break(Callback):
        def on_step(self, trainer: Trainer, done: Any) -> None:
            if done.step == 3:
                weight = trainer.module.get_parameter("decoder.layers.1.feedforward.op.up.weight")
                parallel.local_tensor(weight.detach())[0, 0] = float("nan")

    run = run_of("llama", folder, mesh, steps=1000, keep=Keep(every=2))
    trainer = setup(run, folder / f"stopped-{mesh}", device="cpu", callbacks=[Wish()])
    with contextlib.suppress(KeyboardInterrupt):
        trainer.fit()
    messages["stopped"] = (trainer.step, list(trainer.checkpoints.steps()), trainer.reason)
    wrong: dict[str, Any] = {
        "nan": run, "claimed": run,
        "fp16": override(run, {"precision": "fp16"}), "adafactor": override(run, {"optimizer": Adafactor()}),
        "drop": override(run, {"model.decoder.layer_drop": 0.1}), "lora": override(run, {"lora": LoRA()}),
    }  # fmt: skip
    for name, run in wrong.items():
        try:
            place = folder / f"{'nan' if name == 'claimed' else name}-{mesh}"
            setup(run, place, device="cpu", callbacks=[Break()]).fit()
        except (ValueError, FloatingPointError) as error:
            messages[name] = str(error)
    every: list[Any] = [None] * parallel.world_size()
    dist.all_gather_object(every, messages)
    return {"messages": every}


def routed(crowded: bool) -> dict[str, float]:
    """The largest differences between experts that are spread over all processes and the same experts in each: a
    switch drops tokens and, where `crowded`, sends all to an expert of the first process."""
    parallel.start("cpu")
    num, rank = parallel.world_size(), parallel.rank()
    part = MoE(num_experts=4, router=Switch(capacity=9 if crowded else 2), expert=GatedMLP(width=6, bias=True))
    torch.manual_seed(0)
    one, several = (part.build(Site(width=8, address="moe")) for _ in range(2))
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.normal_()
        if crowded:
            one.router.weight[0] = 100.0
        several.load_state_dict(one.state_dict())
    shard.spread_experts(several, dist.device_mesh.init_device_mesh("cpu", (num,)))
    index = torch.arange(9)
    x = torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(rank)).abs()
    results = []
    for module in (one, several):
        own = x.clone().requires_grad_()
        y = module(own, Context(index=index, positions=index[None].expand(3, -1)))
        (y * torch.arange(8)).sum().backward()
        results.append((y, own.grad, module.router.weight.grad))
    pairs = dict(zip(("output", "input", "router"), zip(*results, strict=True), strict=True))
    for name, parameter in one.experts.named_parameters():
        dist.all_reduce(parameter.grad)  # a spread expert gets the gradients of all processes at once
        mine = parallel.local_tensor(several.experts.get_parameter(name).grad)
        pairs[name] = parameter.grad.chunk(num)[rank], mine
    return {name: float(((a - b).abs().max() / a.abs().max().clamp(min=1)).detach()) for name, (a, b) in pairs.items()}


def every_case(folder: Path, cases: list[Case]) -> None:
    found: dict[str, Any] = {}
    for case, family, *meshes in cases:
        if family == "troubles":
            found[case] = troubles(folder, Mesh(**meshes[0]))
            continue
        if family == "routed":
            found[case] = {"differences": [routed(crowded) for crowded in (False, True)]}
            continue
        for i, mesh in enumerate(meshes, 1):
            run = run_of(family, folder, Mesh(**mesh), steps=STEPS * i // len(meshes))
            found[case] = trained(run, folder / case)
    if parallel.rank() == 0:
        torch.save(found, folder / f"found-{parallel.world_size()}.pt")


def fork(folder: Path, num: int) -> int:
    """Return the exit code."""
    cases = json.loads((folder / "cases.json").read_text())
    for name in ("torch.distributed.tensor.parallel", "torch.distributed.checkpoint"):
        importlib.import_module(name)  # otherwise each process would import it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num)}
    children = []
    for rank in range(num):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            try:
                every_case(folder, cases)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)
