"""A WordPiece tokenizer that knows the reader's words, for examples that show BERT's input."""

from __future__ import annotations

import tempfile
from typing import Any

from anyformer_course.shows._trained import STORIES


def tokenizer(*texts: str, size: int = 200) -> Any:
    """Train WordPiece on the stories and on `texts`. Frequent words become one piece, rare words several."""
    from anyformer.data.vocabulary import TrainedWordPiece

    if not all(text.split() for text in texts):
        raise ValueError("the text is empty; write a few words")
    with tempfile.TemporaryDirectory() as folder:
        return TrainedWordPiece(size=size).make([STORIES, *texts], folder)


def encode(pieces: Any, text: str, second: str = "", length: int | None = None) -> dict[str, Any]:
    """Return input_ids, token_type_ids and attention_mask (1, T), truncated or padded to `length` tokens."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    return pieces.batch([text], [second] if second else None, max_length=length, at_least=length or 0, names=names)
