"""Blocks compiled one by one: equal results, and the same number of graphs for any depth."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import anyformer as af
from anyformer.objectives.heads import forward_to_head
from anyformer.transforms import compile as by_block
from anyformer.transforms import lora
from anyformer.transforms.compile import compile_blocks, structure
from anyformer.transforms.fuse import fuse
from anyformer.transforms.half_weights import HalfWeights
from anyformer.transforms.recompute import recompute
from small import close
from tiny import inputs_of, model_of


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """List the compiled forward and backward graphs; they run without generated code."""
    found: list[str] = []

    def count(kind: str) -> Any:
        def compile_graph(graph: Any, inputs: Any) -> Any:
            found.append(kind)

            def call(values: list[Any]) -> Any:
                return graph.forward(*values)

            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        return compile_graph

    compiled, backend = torch.compile, aot_autograd(fw_compiler=count("forward"), bw_compiler=count("backward"))
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled(f, backend=backend, **options))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def gradients(model: torch.nn.Module, half: Any = contextlib.nullcontext, **inputs: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    with half():
        loss = model(**inputs).loss
        loss.backward()
    return {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def same(model: torch.nn.Module, changed: torch.nn.Module, **inputs: Any) -> None:
    expected, found = gradients(model, **inputs), gradients(changed, **inputs)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        close(found[name], value, 1e-5)


MASK = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
# family -> number of kinds of layers
KINDS = {"gpt2": 1, "llama": 1, "t5": 2}


@pytest.mark.parametrize("family", KINDS)
def test_layers_alike_compile_once(family: str, graphs: list[str]) -> None:
    inputs, masks = inputs_of(family), {"attention_mask": MASK}
    inputs |= {"labels": inputs.pop("decoder_input_ids", inputs["input_ids"])} | masks
    model, changed = model_of(family, depth=5), compile_blocks(model_of(family, depth=5))
    same(model, changed, **inputs)
    same(model, changed, **inputs)  # a second step compiles nothing
    assert (graphs.count("forward"), graphs.count("backward")) == (2 * KINDS[family], KINDS[family])


def test_weights_cast_once_a_step_are_inputs_like_others(graphs: list[str]) -> None:
    ids, found = inputs_of("gpt2")["input_ids"], []
    for change in (lambda model: model, compile_blocks):
        model = change(fuse(model_of("gpt2", depth=4), training=True))
        half = functools.partial(HalfWeights(model), torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            found += [gradients(model, half, input_ids=ids, labels=ids) for _ in range(2)]
    assert graphs == ["forward", "forward", "backward"]
    for name, value in found[0].items():
        close(found[-1][name], value, 1e-2)


def swin(depth: int = 2) -> torch.nn.Module:
    """Windows put a context into the context, which compiled code cannot return. drop_path differs between layers."""
    config = {
        "model_type": "swin", "image_size": 16, "patch_size": 2, "num_channels": 1, "embed_dim": 8, "depths": [depth],
        "num_heads": [2], "window_size": 4, "drop_path_rate": 0.3, "architectures": ["SwinForImageClassification"],
    }  # fmt: skip
    return af.build(af.families.find("swin").read(config), seed=0).train()


def test_layers_that_cannot_share_make_their_own(graphs: list[str]) -> None:
    inputs = {"pixel_values": torch.randn(2, 1, 16, 16), "labels": torch.tensor([0, 1])}
    same(swin(12), compile_blocks(swin(12)), **inputs)
    # plain, shifted; 4: with shared values
    assert (graphs.count("forward"), graphs.count("backward")) in ((2, 2), (4, 2))


@pytest.mark.parametrize(("family", "recomputes", "factor"), [
    ("gpt2", False, 1.0), ("gpt2", True, 1.0), ("gpt2", False, float("nan")), ("swin", True, 1.0),
])  # fmt: skip
def test_code_that_differs_from_plain_code_is_not_used(
    family: str, recomputes: bool, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that drops or reverses the operation `wrong`, or returns NaN. Only shifted windows use cat."""

    def compile_graph(graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if wrong == "cat" and str(node.target).startswith("aten.cat."):
                node.args = ([*reversed(node.args[0])], *node.args[1:])  # undoes a shift
            elif str(node.target).startswith(f"aten.{wrong}."):
                node.replace_all_uses_with(node.args[0])
        graph.recompile()

        def call(values: list[Any]) -> Any:
            found = graph.forward(*values)
            return [x * factor if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in found]

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    compiled, backend = torch.compile, aot_autograd(fw_compiler=compile_graph)
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled(f, backend=backend, **options))
    if family == "swin":
        torch.manual_seed(0)
        wrong, make, inputs = "cat", lambda: swin(4), {"pixel_values": torch.randn(2, 1, 16, 16)}
        inputs["labels"] = torch.tensor([0, 1])
    else:
        wrong, make, inputs = "gelu", lambda: model_of("gpt2"), inputs_of("gpt2")
        inputs["labels"] = inputs["input_ids"]
    torch._dynamo.reset()
    plain, changed = (recompute(m) if recomputes else m for m in (make(), compile_blocks(make())))
    with pytest.warns(UserWarning, match="differs from plain code by .*; blocks of this kind run uncompiled"):
        same(plain, changed, **inputs)
    same(plain, changed, **inputs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("family", [*KINDS, "swin"])
def test_code_generated_for_a_gpu(family: str) -> None:
    if family == "swin":
        models, inputs = [swin(4).eval() for _ in range(2)], {"pixel_values": torch.randn(2, 1, 16, 16)}
        inputs["labels"] = torch.tensor([0, 1])
    else:
        models, inputs = [model_of(family) for _ in range(2)], inputs_of(family)
        inputs |= {"labels": inputs.pop("decoder_input_ids", inputs["input_ids"]), "attention_mask": MASK}
    torch._dynamo.reset()
    plain, changed = (model.cuda() for model in models)
    same(plain, compile_blocks(changed), **{name: tensor.cuda() for name, tensor in inputs.items()})


def test_router_losses_of_all_layers_count(graphs: list[str]) -> None:
    config = {
        "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 50, "num_local_experts": 3,
        "router_aux_loss_coef": 0.5, "architectures": ["MixtralForCausalLM"],
    }  # fmt: skip
    models = [af.build(af.families.find("mixtral").read(config), seed=0).train() for _ in range(2)]
    inputs = inputs_of("gpt2")
    plain, found = (forward_to_head(model, inputs).ctx.losses for model in (models[0], compile_blocks(models[1])))
    assert plain.keys() == found.keys() and graphs == ["forward", "forward"]
    for name, losses in plain.items():
        assert len(losses) == len(found[name]) == 3
        for a, b in zip(found[name], losses, strict=True):
            close(a, b, 1e-5)


def test_dropout_differs_between_layers_and_recomputing_repeats_it(graphs: list[str]) -> None:
    ids = inputs_of("gpt2")["input_ids"]
    plain, again = (compile_blocks(model_of("gpt2").train()) for _ in range(2))
    recompute(again)
    drawn: list[torch.Tensor] = []
    for layer in plain.decoder.layers:
        layer.register_forward_hook(lambda module, args, out: drawn.append((out == args[0]).float()))
    same(plain, again, input_ids=ids, labels=ids)
    assert all(kept.sum() for kept in drawn) and not torch.equal(drawn[0], drawn[1])


def test_blocks_run_as_before_without_gradients_and_while_looked_at(graphs: list[str]) -> None:
    model, inputs = compile_blocks(model_of("gpt2")), inputs_of("gpt2")
    with torch.no_grad():
        model(**inputs)
    af.generate(model, **inputs, max_new_tokens=2)
    af.trace(model, keep=["decoder.layers.*.attention.op.weights"], **inputs)
    assert graphs == []


def test_statistics_are_counted_once(graphs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(by_block, "has_statistics", lambda block: calls.append("asked") or True)
    ids = inputs_of("gpt2")["input_ids"]
    same(model_of("gpt2"), compile_blocks(model_of("gpt2")), input_ids=ids, labels=ids)
    assert set(calls) == {"asked"} and graphs == ["forward", "backward"]  # no extra pass before the first layer


def test_saved_buffers_are_statistics() -> None:
    assert by_block.has_statistics(torch.nn.BatchNorm1d(2)) and not by_block.has_statistics(torch.nn.Linear(2, 2))


def test_layers_with_adapters_of_different_scales_are_compiled_separately() -> None:
    layers = lora.apply(model_of("gpt2"), lora.LoRA(rank=2)).decoder.layers
    assert structure(layers[0]) == structure(layers[1])
    layers[1].attention.op.q.forward.scale *= 2
    assert structure(layers[0]) != structure(layers[1])
