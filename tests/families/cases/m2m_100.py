from catalogue import Case

from cases import bart
from cases.bart import SMALL

ODD = {name: value for name, value in bart.ODD.items() if name != "classifier_dropout"}

CLASSES = ("M2M100ForConditionalGeneration", "M2M100Model")

CASES = [
    *[Case("m2m_100", name, SMALL) for name in CLASSES],
    *[Case("m2m_100", name, {**SMALL, **ODD, "scale_embedding": False}, "odd") for name in CLASSES],
    Case("m2m_100", CLASSES[0], {**SMALL, "tie_word_embeddings": False}, "untied"),
]
