"""The Conformer [Gulati et al. 2020]: half a feed-forward, attention, a convolution and another half feed-forward per
layer, on a spectrogram that two convolutions shorten to every fourth frame. Text is read off the frames by CTC or
written by a Transformer decoder [Guo et al. 2020]; the paper's transducer (LSTM and joint network) is not included.

The paper's weights are not published, so models are saved only in our own format; config fields are named as in the
original Transformer."""

from __future__ import annotations

import dataclasses
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Class, Config, Entry, Weights, activation, entry
from anyformer.families.shared import transformer
from anyformer.models import EncoderDecoderModel, EncoderModel, Model
from anyformer.parts.attention.attention import Attention
from anyformer.parts.convolution.conformer import ConvolutionModule
from anyformer.parts.embedding.subsampling import SubsampledSpectrogram
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Initializer, Kaiming
from anyformer.parts.norm import LayerNorm
from anyformer.parts.op import Op
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.residual import Scaled
from anyformer.runtime.mask import CAUSAL
from anyformer.specs.addresses import edit
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

INIT: dict[str, Initializer] = {"*": Kaiming(gain=3**-0.5, normal=False)}  # torch's default: the paper gives no std


def macaron(half: Sublayer, attention: Sublayer, convolution: Sublayer) -> Block:
    """Return a layer: two half feed-forwards [Lu et al. 2019] around attention and convolution, and a final norm."""
    last = half.replace(out_norm=LayerNorm())
    return Block(half_before=half, attention=attention, convolution=convolution, feedforward=last)


def step(op: Op, dropout: float = 0.1, **kind: Any) -> Sublayer:
    return Sublayer(pre_norm=LayerNorm(), op=op, dropout=dropout, **kind)


TEMPLATE = EncoderDecoderModel(
    width=144,
    embedding=SubsampledSpectrogram(channels=80, depth=2, width=144, separable=False, dropout=0.1),
    encoder=Stack(
        depth=16,
        layers=macaron(
            half=step(MLP(width=576, activation="silu", dropout=0.1), residual=Scaled(branch=0.5)),
            attention=step(Attention(num_heads=4, position=RelativeSinusoids(num_heads=4), dropout=0.1)),
            convolution=step(ConvolutionModule(kernel=32, bias=True, masked=True)),
        ),
    ),
    decoder_embedding=TextEmbedding(
        tokens=Tokens(vocab_size=1025, scale=12.0, padding_index=0),  # 1024 word pieces, and padding = CTC's blank
        position=Sinusoidal(length=512),
        dropout=0.1,
    ),
    decoder=Stack(
        depth=6,
        layers=Block(
            attention=step(Attention(num_heads=4, mask=CAUSAL, dropout=0.1)),
            cross=step(Attention(num_heads=4, memory=True, dropout=0.1)),
            feedforward=step(MLP(width=576, activation="relu", dropout=0.1)),
        ),
        norm=LayerNorm(),
    ),
    start_token=1,
    padding_token=0,
    ties=(("head.out.weight", "decoder_embedding.tokens.weight"),),
    init=INIT,
)


def check_odd(name: str, kernel_size: int) -> None:
    """Refuse an even kernel size: published classes pad both ends equally, so they would lose a frame."""
    if kernel_size % 2 == 0:
        raise ValueError(f"{name} must be odd, so that the number of frames stays the same; got {kernel_size}")


def build_decoder(spec: EncoderDecoderModel, layers: int, c: Config) -> Model:
    """Set the decoder's depth; with 0 layers, return an encoder with a CTC head."""
    if layers:
        return edit(spec, {"decoder.depth": layers})
    head = CTCHead(vocab_size=c.vocab_size, blank=c.pad_token_id, reduction="mean")
    return EncoderModel(width=spec.width, embedding=spec.embedding, encoder=spec.encoder, head=head, init=spec.init)


def decoder_field(of: str | Entry) -> Entry:
    """An entry that is read only if the model has a decoder."""
    field = entry(of) if isinstance(of, str) else of
    default = next(value for _, value in field.places(TEMPLATE))

    def read(value: Any, c: Config) -> Any:
        return default if not c.decoder_layers else value if field.read is None else field.read(value, c)

    return dataclasses.replace(field, read=read)


def check(c: Config) -> None:
    transformer.check_padding(c, c.vocab_size)
    for heads in (c.encoder_attention_heads, *([c.decoder_attention_heads] if c.decoder_layers else [])):
        if c.d_model % heads:
            raise ValueError(f"d_model {c.d_model} is not a multiple of {heads} attention heads")


def no_files(spec: Model) -> Weights:
    raise ValueError("no conformer checkpoints are published; load a folder saved by anyformer (with spec.json)")


def size(shape: tuple[int, int, int], decoder: int = 0) -> dict[str, Any]:
    """A size of the paper's table 1: width, layers, heads."""
    width, layers, heads = shape
    sides = {"attention_heads": heads, "ffn_dim": 4 * width}
    return {
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": decoder,
        "subsampling_channels": width,
        **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides.items()},
        **({"eos_token_id": 1} if decoder else {}),
    }


SHAPES = {"s": ((144, 16, 4), "10.3 M"), "m": ((256, 16, 4), "30.7 M"), "l": ((512, 17, 8), "118.8 M")}


CONFORMER = Family(
    name="conformer",
    about="speech recognition with convolutions and attention",
    template=TEMPLATE,
    classes={"": Class(LMHead(vocab_size=1025, shift=False))},
    config={
        **transformer.CONFIG,
        **dict.fromkeys(("init_std", "decoder_layerdrop", "is_causal")),
        "encoder_attention_heads": (
            "encoder.layers.attention.op.num_heads",
            "encoder.layers.attention.op.position.num_heads",
        ),
        "encoder_ffn_dim": "encoder.layers.*.op[MLP].width",
        "decoder_layers": Entry(0, lambda spec: spec.decoder.depth if spec.pair else 0, build=build_decoder),
        "decoder_ffn_dim": decoder_field("decoder.layers.feedforward.op.width"),
        "decoder_attention_heads": decoder_field("decoder.layers.*.op.num_heads"),
        "activation_dropout": "*.layers.*.op[MLP].dropout",
        "activation_function": decoder_field(activation("decoder.layers.feedforward.op.activation")),
        "conv_kernel_size": "encoder.layers.convolution.op.kernel",
        "num_mel_bins": "embedding.channels",
        "subsampling_channels": "embedding.width",
        "vocab_size": ("decoder_embedding.tokens.vocab_size", "head.vocab_size"),
        "pad_token_id": Entry(
            0,
            lambda spec: spec.padding_token if spec.pair else spec.head.blank,
            addresses=("decoder_embedding.tokens.padding_index", "padding_token"),
        ),
        "decoder_start_token_id": decoder_field("start_token"),
        "max_target_positions": decoder_field("decoder_embedding.position.length"),
    },
    computed={"decoder_embedding.tokens.scale": lambda c: c.d_model**0.5},
    checks=(check,),
    weights=no_files,
    sizes={
        **{
            f"conformer-{name}": Size(size(shape), note=f"with CTC; the paper's {count} include an LSTM transducer")
            for name, (shape, count) in SHAPES.items()
        },
        **{
            f"conformer-transformer-{name}": Size(size(shape, decoder=6), note="with a Transformer decoder")
            for name, (shape, _) in SHAPES.items()
        },
    },
)

FAMILIES = (CONFORMER,)
