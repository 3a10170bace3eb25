"""Model shapes, from embedding to named outputs: one stack (encoder or decoder), a pair, and two towers."""

from anyformer.model.base import Model, Output, TransformerModule, position_limit
from anyformer.model.one import DecoderModel, EncoderModel, OneStackModule
from anyformer.model.pair import EncoderDecoderModel, EncoderDecoderModule
from anyformer.model.towers import TwoTowerModel, TwoTowerModule

__all__ = [
    "DecoderModel", "EncoderDecoderModel", "EncoderDecoderModule", "EncoderModel", "Model", "OneStackModule", "Output",
    "TransformerModule", "TwoTowerModel", "TwoTowerModule", "position_limit",
]  # fmt: skip
