"""Model shapes, from embedding to named outputs: one stack (encoder or decoder), and a pair."""

from anyformer.model.base import Model, Output, TransformerModule, position_limit
from anyformer.model.one import DecoderModel, EncoderModel, OneStackModule
from anyformer.model.pair import EncoderDecoderModel, EncoderDecoderModule

__all__ = [
    "DecoderModel", "EncoderDecoderModel", "EncoderDecoderModule", "EncoderModel", "Model", "OneStackModule", "Output",
    "TransformerModule", "position_limit",
]  # fmt: skip
