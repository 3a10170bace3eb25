"""Prepare the model given by `--model` for your data: add a head for the labels, and a vocabulary."""

from __future__ import annotations

import contextlib
import warnings

from anyformer import families
from anyformer.data import TrainedBPE, Vocabulary
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.models import Model, position_limit
from anyformer.parts.base import HasVocabulary
from anyformer.parts.embedding.text import Tokens
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import LastToken, MeanTokens
from anyformer.specs.codec import override
from anyformer.specs.part import thaw, walk
from anyformer.train.run import Pretrained, description_of, model_of
from anyformer.weights import hub

CLASSIFIER = "ForSequenceClassification"  # suffix of published classes that classify texts


def classifier(name: str, ending: str = CLASSIFIER) -> tuple[Pretrained, int | None]:
    """Return a pretrained model with its family's classification head, and its maximum length in tokens."""
    pretrained = model_of(name)
    if not isinstance(pretrained, Pretrained):
        raise ValueError(f"{name} is a description without weights; expected a folder or a hub id with weights")
    spec = description_of(pretrained)
    architecture = class_for_labels(spec, ending)
    if architecture is None:
        reason = f"{spec.family} has no class {ending}" if spec.family else "it has no published family"
        raise ValueError(f"--model {name}: {reason}; --model {name}/spec.json trains its description from scratch")
    return pretrained.replace(architecture=architecture), position_limit(spec)


def class_for_labels(spec: Model, ending: str) -> str | None:
    """Return the class of a description's family whose name ends with `ending`."""
    classes = families.find(spec.family).architectures if spec.family else ()
    return next((each for each in classes if each.endswith(ending)), None)


def with_labels(name: str, labels: tuple[str, ...], ending: str = CLASSIFIER) -> Model | Pretrained:
    """Return the model of this name with the head of its family's published class with this `ending`. If a text model
    has no family, it gets a ClassifyHead."""
    spec = model_of(name)
    if isinstance(spec, Pretrained):
        return classifier(name, ending)[0].replace(labels=labels)
    architecture = class_for_labels(spec, ending)
    if architecture is not None:
        family = families.find(spec.family)
        names = ("id2label", "label2id") if labels else ()
        table = {field: thaw(spec.with_labels(labels).source[field]) for field in names}
        with contextlib.suppress(ValueError):  # the description has changes that a config cannot express
            return family.read({**family.write(spec), "architectures": [architecture], **table})
    if ending != CLASSIFIER:
        raise ValueError(f"--model {name}: its family has no class {ending}")
    head = ClassifyHead(num_labels=len(labels), pool=Pool(take=MeanTokens()))
    ties = tuple(tie for tie in spec.ties if not any(side.startswith("head.") for side in tie))
    return spec.replace(head=head, ties=ties, family="", architecture="").with_labels(labels)


def with_vocabulary(
    name: str, model: Model | Pretrained, vocabulary: TrainedBPE
) -> tuple[Model | Pretrained, Vocabulary | None]:
    """Return the model, and the vocabulary to train for it: None if it has a tokenizer. In a description, token tables
    get the size of the vocabulary; with weights, the vocabulary gets the size of the tables. A warning reports this."""
    tables = {path: part for path, part in walk(description_of(model)) if isinstance(part, HasVocabulary)}
    sizes = {part.vocab_size for part in tables.values()}
    if isinstance(model, Pretrained):
        with contextlib.suppress(FileNotFoundError):
            Tokenizer.load(hub.resolve(model.path))
            return model, None
        size, least = min(sizes, default=0), 256 + len(vocabulary.special)
        if size < least:
            reason = f"it has no tokenizer, and its {size} token ids are too few for a new one, which needs {least}"
            raise ValueError(
                f"--model {name}: {reason}; --model {name}/spec.json trains from scratch with as many as needed"
            )
        warnings.warn(f"{name} has no tokenizer: training one of {size:,} tokens on the texts", stacklevel=2)
        return model, vocabulary.replace(size=size)
    changes = {f"{path}.vocab_size": vocabulary.size for path in tables}
    padding = list(vocabulary.special).index("pad_token")  # special tokens have the first ids
    for path, part in walk(model):
        if isinstance(part, Tokens) and part.padding_index is not None:
            changes[f"{path}.padding_index"] = padding
        if isinstance(part, LastToken):
            changes[f"{path}.padding_token"] = padding
    if sizes != {vocabulary.size}:
        before = " and ".join(f"{size:,}" for size in sorted(sizes))
        change = f"training a vocabulary of {vocabulary.size:,} tokens on the texts (the description has {before})"
        warnings.warn(f"{name}: {change}", stacklevel=2)
    return override(model, changes), vocabulary
