"""The model that `--model` names, made ready for data of your own: with a head for labels, and a vocabulary."""

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
from anyformer.specs.codec import override
from anyformer.specs.part import thaw, walk
from anyformer.train.run import Pretrained, description_of, model_of
from anyformer.weights import hub

CLASSIFIER = "ForSequenceClassification"  # how published classes with a head for labels of texts end


def classifier(name: str, ending: str = CLASSIFIER) -> tuple[Pretrained, int | None]:
    """A model with weights under its family's head for labels, and how many tokens it takes."""
    given = model_of(name)
    if not isinstance(given, Pretrained):
        raise ValueError(f"{name} is a description without weights; give a folder or a hub id")
    like = description_of(given)
    own = class_for_labels(like, ending)
    if own is None:
        lack = f"{like.family} has no class {ending}" if like.family else "it belongs to no published family"
        raise ValueError(f"--model {name}: {lack}; --model {name}/spec.json trains its description from scratch")
    return given.replace(architecture=own), position_limit(like)


def class_for_labels(spec: Model, ending: str) -> str | None:
    """The class of a description's family that has a head for labels."""
    classes = families.find(spec.family).architectures if spec.family else ()
    return next((each for each in classes if each.endswith(ending)), None)


def with_labels(name: str, labels: tuple[str, ...], ending: str = CLASSIFIER) -> Model | Pretrained:
    """The model of this name with its family's head for labels, that of the published class with this `ending`. A text
    model of no family gets a head of ours."""
    like = model_of(name)
    if isinstance(like, Pretrained):
        return classifier(name, ending)[0].replace(labels=labels)
    own = class_for_labels(like, ending)
    if own is not None:
        family = families.find(like.family)
        table = {field: thaw(like.with_labels(labels).source[field]) for field in ("id2label", "label2id")}
        with contextlib.suppress(ValueError):  # no published config can say a description that was changed so much
            return family.read({**family.write(like), "architectures": [own], **table})
    if ending != CLASSIFIER:
        raise ValueError(f"--model {name}: its family has no class {ending}")
    head = ClassifyHead(num_labels=len(labels), pool=Pool(take="mean"))
    ties = tuple(tie for tie in like.ties if not any(side.startswith("head.") for side in tie))
    return like.replace(head=head, ties=ties, family="", architecture="").with_labels(labels)


def with_vocabulary(
    name: str, model: Model | Pretrained, vocabulary: TrainedBPE
) -> tuple[Model | Pretrained, Vocabulary | None]:
    """The model, and the vocabulary to make for it: None where it has a tokenizer. The tables of a description get the
    size of the vocabulary; where there are weights, the vocabulary gets the size of their tables. One line says so."""
    tables = {path: part for path, part in walk(description_of(model)) if isinstance(part, HasVocabulary)}
    sizes = {part.vocab_size for part in tables.values()}
    if isinstance(model, Pretrained):
        with contextlib.suppress(FileNotFoundError):
            Tokenizer.load(hub.resolve(model.path))
            return model, None
        size, least = min(sizes, default=0), 256 + len(vocabulary.special)
        if size < least:
            lack = f"it has no tokenizer, and its table of {size} is too small for a new one ({least})"
            raise ValueError(
                f"--model {name}: {lack}; --model {name}/spec.json trains from scratch with a table that fits"
            )
        warnings.warn(f"{name} has no tokenizer: one of {size:,} tokens is made from the training texts", stacklevel=2)
        return model, vocabulary.replace(size=size)
    changes = {f"{path}.vocab_size": vocabulary.size for path in tables}
    padding = list(vocabulary.special).index("pad_token")  # special tokens have the first ids
    for path, part in walk(model):
        if isinstance(part, Tokens) and part.padding_index is not None:
            changes[f"{path}.padding_index"] = padding
        if isinstance(part, Pool) and part.take == "last":  # the last token of a row that is not a pad
            changes[f"{path}.padding_token"] = padding
    if sizes != {vocabulary.size}:
        before = " and ".join(f"{size:,}" for size in sorted(sizes))
        line = (
            f"a vocabulary of {vocabulary.size:,} tokens is made from the training texts (the description has {before})"
        )
        warnings.warn(f"{name}: {line}", stacklevel=2)
    return override(model, changes), vocabulary
