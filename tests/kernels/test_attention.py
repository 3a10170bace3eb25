"""All attention kernels (eager, sdpa and, on a GPU, flex) give the same result for every dtype, mask and bias."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from anyformer.kernels import attention as kernels
from anyformer.kernels.attention import Plan, Visible, attend
from anyformer.parts.attention.scores import SoftCap
from anyformer.parts.mask import FULL, Causal, Dilated, Global, Mask, Window
from anyformer.parts.position.absolute import Alibi, BucketedBias
from anyformer.runtime.visibility import see
from anyformer.specs.part import Site
from small import close, compiled_equals_eager

B, H, K = 2, 4, 16
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
MASKS: dict[str, Mask] = {
    "full": FULL, "causal": Causal(), "window": Causal() & Window(size=5), "both ways": Window(size=3, ahead=True),
    "dilated": Causal() & Dilated(step=2) | Global(first=1),
}  # fmt: skip


def tensors(T: int = 13, S: int | None = None, G: int = H, dtype: torch.dtype = torch.float32, device: str = "cpu",
            width: int = K) -> list[Tensor]:  # fmt: skip
    generator = torch.Generator().manual_seed(T)
    shapes = [(B, H, T, width), (B, G, S or T, width), (B, G, S or T, width)]
    return [torch.randn(s, generator=generator).to(device, dtype).requires_grad_() for s in shapes]


def met(mask: Mask, T: int, device: str = "cpu", padding: str = "", documents: bool = False) -> Visible:
    index, real, numbers = torch.arange(T, device=device), None, None
    if padding:
        real = torch.ones(B, T, dtype=torch.bool, device=device)
        real[1, slice(T // 3) if padding == "left" else slice(-(T // 3), None)] = False
    if documents:
        numbers = torch.stack((index * 3 // T, index * 2 // T))
    return see(mask, index, index, real, numbers, numbers)


def bias_of(kind: str, T: int, dtype: torch.dtype, device: str = "cpu") -> Tensor | None:
    index = torch.arange(T, device=device)
    if kind == "none":
        return None
    if kind == "t5":
        module = BucketedBias(num_heads=H, num_buckets=8, max_distance=20).build(Site(width=K))
        module.table.weight.data.normal_(generator=torch.Generator().manual_seed(0))
        return module.to(device)(index, index).detach().to(dtype).requires_grad_()
    if kind == "alibi":
        return Alibi(num_heads=H).build(Site(width=K)).to(device)(index, index).to(dtype)
    return torch.randn(B, H, T, T, generator=torch.Generator().manual_seed(1)).to(device, dtype).requires_grad_()


def capped(bound: float | None) -> tuple[nn.Module, ...]:
    return () if bound is None else (SoftCap(bound=bound).build(Site(width=H)),)


def with_weights(q: Tensor, k: Tensor, v: Tensor, visible: Visible, plan: Plan) -> tuple[Tensor, Tensor]:
    """Return the output, and the weights that a listener receives."""
    seen: list[Tensor] = []

    def listen(weights: Tensor) -> Tensor:
        seen.append(weights)
        return weights

    return attend(q, k, v, visible, plan._replace(on_weights=listen)), seen[0]


def answers(kernel: str, qkv: list[Tensor], visible: Visible, bias: Tensor | None, **more: Any) -> list[Tensor]:
    """The output, and the gradients of q, k, v and the bias."""
    leaves = [*qkv, *([bias] if bias is not None and bias.requires_grad else [])]
    out = attend(*qkv, visible, Plan(0.3, bias=bias, kernel=kernel, **more))
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, weight)]


def equal(a: list[Tensor], b: list[Tensor], dtype: torch.dtype) -> None:
    assert len(a) == len(b)
    for mine, other in zip(a, b):
        assert mine.dtype == dtype and mine.isfinite().all()
        close(mine.float(), other.float(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("kind", ["none", "t5", "alibi", "batch"])
@pytest.mark.parametrize("name", sorted(MASKS))
@pytest.mark.parametrize("padding", ["", "left", "right"])
def test_eager_equals_sdpa(dtype: torch.dtype, kind: str, name: str, padding: str) -> None:
    for groups in (H, 2, 1):
        qkv, bias = tensors(G=groups, dtype=dtype), bias_of(kind, 13, dtype)
        eager, sdpa = (answers(k, qkv, met(MASKS[name], 13, padding=padding), bias) for k in ("eager", "sdpa"))
        equal(sdpa, eager, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_eager_is_the_formula(dtype: torch.dtype) -> None:
    q, k, v = tensors(T=5, S=7, G=2, dtype=dtype)
    bias = torch.randn(1, H, 5, 7).to(dtype)
    visible = see(Causal(), torch.arange(2, 7), torch.arange(7))
    for cap in (None, 0.8):
        out, weights = with_weights(q, k, v, visible, Plan(0.3, bias=bias, changes=capped(cap), kernel="eager"))
        for b in range(B):
            for h in range(H):
                keys, values = k[b, h // 2].float(), v[b, h // 2].float()
                for t in range(5):
                    scores = 0.3 * (keys @ q[b, h, t].float())
                    scores = scores if cap is None else cap * torch.tanh(scores / cap)
                    scores = (scores + bias[0, h, t].float())[: t + 3]  # the query has row index t + 2
                    close(weights[b, h, t, : t + 3].float(), scores.softmax(-1), TOLERANCE[dtype])
                    assert not weights[b, h, t, t + 3 :].any()
                    close(out[b, h, t].float(), scores.softmax(-1) @ values[: t + 3], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("kind", ["none", "t5"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_row_that_sees_nothing(dtype: torch.dtype, kind: str, kernel: str) -> None:
    """A query before all real tokens, and a whole row of pads: zeros, and finite gradients."""
    T, real = 7, torch.ones(B, 7, dtype=torch.bool)
    real[0, :3], real[1] = False, False
    visible = see(Causal(), torch.arange(T), torch.arange(T), real)
    got = answers(kernel, tensors(T, G=2, dtype=dtype), visible, bias_of(kind, T, dtype))
    assert all(tensor.isfinite().all() for tensor in got)
    assert not got[0][0, :, :3].any() and not got[0][1].any() and got[0][0, :, 3:].any()
    assert not got[1][1].any(), "the query of an empty row gets no gradient"


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_large_scores_in_half_precision(kernel: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = (x.detach() for x in tensors(T=6, dtype=dtype))
        out = attend(q * 200, k * 200, v, met(Causal(), 6), Plan(1.0, kernel=kernel))
        assert out.isfinite().all() and out.abs().max() <= v.abs().max() * 1.01


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "eager"])
def test_softcap_and_weights_on_every_kernel(kernel: str) -> None:
    qkv, visible = tensors(), met(Causal(), 13, padding="left")
    reference, weights = with_weights(*qkv, visible, Plan(0.3, changes=capped(0.5), kernel="eager"))
    out, again = with_weights(*qkv, visible, Plan(0.3, changes=capped(0.5), kernel=kernel))
    close(out, reference, 1e-6)
    close(again, weights, 1e-6)
    close(attend(*qkv, visible, Plan(0.3, changes=capped(0.5), kernel=kernel)), reference)
    rows = weights.sum(-1)
    close(rows, visible.dense().any(-1).float().expand_as(rows))  # 1, or 0 for a query that sees no key


def test_values_go_with_the_weights() -> None:
    q, k, v = tensors()
    extra = torch.randn(13, K)
    out = attend(q, k, v, met(FULL, 13), Plan(0.3, value_bias=lambda w: w @ extra))
    plain, weights = with_weights(q, k, v, met(FULL, 13), Plan(0.3))
    close(out, plain + weights @ extra)


# -- arguments of SDPA ------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    real = F.scaled_dot_product_attention

    def record(*args: Any, **kwargs: Any) -> Tensor:
        seen.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(kernels.F, "scaled_dot_product_attention", record)
    return seen


def test_is_causal_exactly_when_right(calls: list[dict[str, Any]]) -> None:
    def given(visible: Visible, bias: Tensor | None = None) -> tuple[bool, bool]:
        q, k, v = tensors(visible.index.shape[0], visible.keys.shape[0])
        attend(q, k, v, visible, Plan(0.3, bias=bias, kernel="sdpa"))
        return calls[-1]["is_causal"], calls[-1]["attn_mask"] is None

    places, bias = torch.arange(9), torch.zeros(1, H, 9, 9)
    plain = torch.ones(B, 9, dtype=torch.bool)
    assert given(see(Causal(), places, places)) == (True, True)
    assert given(see(FULL, places, places)) == (False, True)
    assert given(see(Causal(), places, places), bias) == (False, False)
    assert given(see(FULL, places, places), bias) == (False, False)
    assert given(see(Causal(), places[4:], places)) == (
        False,
        False,
    )  # cached keys: SDPA would align the mask to the wrong corner
    assert given(see(Causal(), places[:4], places)) == (False, False)  # a static state with free columns
    assert given(see(Causal(), places, places, plain)) == (False, False)
    assert given(see(Causal(), places, places, None, plain.long(), plain.long())) == (False, False)
    assert given(see(Causal() & Window(size=2), places, places)) == (False, False)
    assert given(see(Window(size=2), places, places)) == (False, False)


def test_grouped_queries_are_not_copied(calls: list[dict[str, Any]]) -> None:
    attend(*tensors(G=2), met(FULL, 13), Plan(0.3))
    attend(*tensors(G=H), met(FULL, 13), Plan(0.3))
    assert [call["enable_gqa"] for call in calls] == [True, False]


def test_a_shared_bias_meets_the_mask_once(calls: list[dict[str, Any]]) -> None:
    visible, qkv = met(Causal(), 13, padding="right"), tensors()
    one, other = (torch.randn(1, H, 13, 13) for _ in range(2))
    for bias in (one, one, other):
        attend(*qkv, visible, Plan(0.3, bias=bias, kernel="sdpa"))
    masks = [call["attn_mask"] for call in calls]
    assert masks[0] is masks[1] and masks[1] is not masks[2]
    close(masks[2].masked_fill(~visible.dense(), 0), other.masked_fill(~visible.dense(), 0))


def test_masks_and_biases_survive_compilation() -> None:
    q, k, v = (x.detach() for x in tensors())
    biases = [bias_of(kind, 13, torch.float32) for kind in ("none", "t5", "alibi")]
    biases = [None if bias is None else bias.detach() for bias in biases]

    def run(q: Tensor) -> list[Tensor]:
        found = []
        for mask in MASKS.values():
            visible = met(mask, 13, padding="left", documents=True)
            ways = [(bias, kernel) for bias in biases for kernel in ("eager", "sdpa")]
            found += [attend(q, k, v, visible, Plan(0.3, bias=bias, kernel=kernel)) for bias, kernel in ways]
        return found

    compiled_equals_eager(run, q)


def test_an_unknown_kernel_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown attention kernel 'spda'; did you mean 'sdpa'"):
        attend(*tensors(), met(FULL, 13), Plan(1.0, kernel="spda"))
    with pytest.raises(ValueError, match="the flex kernel needs a CUDA device"):
        attend(*tensors(), met(FULL, 13), Plan(1.0, kernel="flex"))


# -- FlexAttention ----------------------------------------------------------------------------------------------------

LENGTH = 200  # not a multiple of the block of 128
# above a limit of compilations, torch falls back to a slow kernel with this warning
fused = pytest.mark.filterwarnings("error:flex_attention called without torch.compile")


def gpu(test: Any) -> Any:
    return pytest.mark.gpu(fused(test))


def flex_cases() -> list[Any]:
    """Every mask, bias and dtype. Each compiles a kernel, so most of them are marked slow."""
    every = itertools.product(sorted(MASKS), ["none", "t5", "alibi"], [torch.float32, torch.bfloat16, torch.float16])

    def slow(name: str, kind: str, dtype: torch.dtype) -> bool:
        others = (name != "causal") + (kind != "none") + (dtype != torch.float32)
        return others > 1

    return [pytest.param(*case, marks=[pytest.mark.slow] * slow(*case), id="-".join(map(str, case))) for case in every]


@gpu
@pytest.mark.parametrize(("name", "kind", "dtype"), flex_cases())
def test_flex_equals_eager(name: str, kind: str, dtype: torch.dtype) -> None:
    """Compares outputs and gradients, including the gradient of a learned bias."""
    qkv, bias = tensors(LENGTH, G=2, dtype=dtype, device="cuda", width=32), bias_of(kind, LENGTH, dtype, "cuda")
    eager, flex = (answers(k, qkv, met(MASKS[name], LENGTH, "cuda"), bias) for k in ("eager", "flex"))
    flex_equal(flex, eager, dtype)


@gpu
@pytest.mark.parametrize(
    ("padding", "documents", "groups"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case not in {("left", True, 1), ("right", False, 4)}))
        for case in itertools.product(["", "left", "right"], [False, True], [1, 2, 4])
    ],
)
def test_flex_with_padding_documents_and_groups(padding: str, documents: bool, groups: int) -> None:
    dtype = torch.float32
    qkv = tensors(LENGTH, G=groups, dtype=dtype, device="cuda", width=32)
    visible = met(Causal(), LENGTH, "cuda", padding, documents)
    eager, flex = (answers(k, qkv, visible, None) for k in ("eager", "flex"))
    flex_equal(flex, eager, dtype)


@gpu
def test_flex_with_a_past_a_softcap_and_a_bias_of_the_batch() -> None:
    q, k, v = tensors(64, LENGTH, G=2, device="cuda", width=32)
    places = torch.arange(LENGTH, device="cuda")
    visible = see(Causal() & Window(size=90), places[-64:], places)
    bias = torch.randn(B, H, 64, LENGTH, device="cuda").requires_grad_()
    eager, flex = (answers(name, [q, k, v], visible, bias, changes=capped(2.0)) for name in ("eager", "flex"))
    flex_equal(flex, eager, torch.float32)


@gpu
def test_flex_gives_zeros_to_a_row_that_sees_nothing() -> None:
    real = torch.ones(B, LENGTH, dtype=torch.bool, device="cuda")
    real[0, :140], real[1] = False, False
    places = torch.arange(LENGTH, device="cuda")
    got = answers("flex", tensors(LENGTH, device="cuda", width=32), see(Causal(), places, places, real), None)
    assert all(tensor.isfinite().all() for tensor in got)
    assert not got[0][0, :, :140].any() and not got[0][1].any()


@gpu
def test_flex_inside_a_compiled_function() -> None:
    q, k, v = (x.detach() for x in tensors(LENGTH, device="cuda", width=32))
    visible = met(Causal(), LENGTH, "cuda", padding="left")
    visible.block_mask()

    def run(q: Tensor) -> Tensor:
        return attend(q, k, v, visible, Plan(0.3, kernel="flex"))

    close(torch.compile(run, fullgraph=True)(q), attend(q, k, v, visible, Plan(0.3, kernel="eager")), 1e-4)


@gpu
def test_flex_compiles_once_a_kind_of_mask() -> None:
    from torch._dynamo.utils import counters

    def run(length: int) -> int:
        real = torch.rand(B, length, device="cuda") > 0.2
        places = torch.arange(length, device="cuda")
        visible = see(Causal() & Window(size=77), places, places, real)
        qkv = [x.detach() for x in tensors(length, device="cuda", width=32)]
        flex, eager = (attend(*qkv, visible, Plan(0.3, kernel=kernel)) for kernel in ("flex", "eager"))
        close(flex, eager, 2e-5)
        return counters["stats"]["unique_graphs"]

    counts = [run(length) for length in (256, 256, 300, 333, 517, 333)]
    assert counts[0] == counts[1] and counts[2] == counts[-1], "a new batch or a third length compiled again"


@gpu
def test_flex_refuses_dropout() -> None:
    with pytest.raises(ValueError, match="flex kernel does not support attention dropout"):
        attend(*tensors(device="cuda"), met(FULL, 13, "cuda"), Plan(1.0, dropout=0.1, kernel="flex"))


@pytest.mark.parametrize(("change", "tokens", "faster"), [
    ({}, 16384, True), ({}, 4096, False), ({"mask": Causal()}, 16384, False), ({"mask": FULL}, 16384, False),
    ({"mask": Causal(), "changes": capped(30.0)}, 8192, True), ({"changes": capped(30.0)}, 4096, False),
    ({"changes": capped(30.0), "learns": False}, 8192, False), ({"dtype": torch.float32}, 16384, False),
    ({"learns": False}, 16384, False), ({"learns": False}, 65536, True), ({"dropout": 0.1}, 16384, False),
    ({"width": 80}, 16384, False), ({"documents": True, "mask": Causal()}, 16384, True),
    ({"mix_heads": lambda x, weights: x}, 16384, False), ({"device": "cpu"}, 16384, False),
])  # fmt: skip
def test_auto_uses_flex_for_long_rows_that_would_need_a_dense_mask(
    change: dict[str, Any], tokens: int, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.hardware, "triton", lambda: True)
    given = {"mask": Causal() & Window(size=1024), "dtype": torch.bfloat16, "learns": True, "width": 64, **change}
    device, width = given.pop("device", "cuda"), given.pop("width")
    with FakeTensorMode():
        index = torch.arange(tokens, device=device)
        documents = torch.empty(1, tokens, device=device) if given.pop("documents", False) else None
        visible = see(given.pop("mask"), index, index, None, documents, documents)
        q = torch.empty(1, 4, tokens, width, dtype=given.pop("dtype"), device=device, requires_grad=given.pop("learns"))
        assert kernels.flex_is_faster(q, q, q, visible, Plan(1.0, **given)) is faster


@gpu
@pytest.mark.parametrize("documents", [False, True])
def test_auto_equals_eager_where_it_uses_flex(documents: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "FLEX_SCORES", {"training": 1, "inference": 1})
    monkeypatch.setattr(kernels, "EAGER_PAIRS", 1)  # the block mask is compiled too
    used: list[bool] = []
    real = kernels._flex
    monkeypatch.setattr(kernels, "_flex", lambda *given: used.append(True) or real(*given))
    qkv = tensors(LENGTH, G=2, dtype=torch.bfloat16, device="cuda", width=32)
    visible = met(Causal() & Window(size=77), LENGTH, "cuda", documents=documents)
    eager, auto = (answers(kernel, qkv, visible, None) for kernel in ("eager", "auto"))
    flex_equal(auto, eager, torch.bfloat16)
    assert used == [True]


def flex_equal(flex: list[Tensor], eager: list[Tensor], dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 5e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    assert len(flex) == len(eager)
    for mine, other in zip(flex, eager):
        assert mine.dtype == dtype and mine.isfinite().all()
        close(mine.float(), other.float(), tolerance)
