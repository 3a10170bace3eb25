"""Predict a label for each node of a tree: words with their heads, as a graph for Graphormer [Ying et al. 2021]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from anyformer.objectives.batches import Batch, Record, pad_rows
from anyformer.objectives.examples import array, column_name
from anyformer.objectives.tag import Tag, word_list, word_tokens
from anyformer.specs.messages import quote

NUM_EDGE_KINDS = 3  # head to dependent, dependent to head, first token of a word to and from its other tokens


class TagGraph(Tag, called=("Graphormer", "dependency tree", "graph transformer")):
    """Columns "words", "tags" (see `Tag`) and "heads": the number of each word's head, from 1; 0 for the root. Tokens
    are the nodes of the input `graph_edges`. The tree connects the first tokens of words, and a word's other tokens are
    connected with its first."""

    columns: ClassVar[tuple[str, ...]] = ("words", "tags", "heads")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        record = super().encode(example, tokenizer)
        words, heads = word_list(example, "words"), [str(head) for head in word_list(example, "heads")]
        if len(heads) != len(words) or not all(head.isdigit() and int(head) <= len(words) for head in heads):
            name = quote(column_name(example, "heads"))
            raise ValueError(f"column {name} must have a number from 0 to {len(words)} for each of {len(words)} words")
        token_word = word_tokens([str(word) for word in words], tokenizer)[1].tolist()
        first = {word: token for token, word in reversed([*enumerate(token_word)])}
        parents = [  # the node that each token is connected to, -1 for none
            -1 if word < 0 else first[word] if first[word] != token else first.get(int(heads[word]) - 1, -1)
            for token, word in enumerate(token_word)
        ]
        is_first = [first[word] == token for token, word in enumerate(token_word)]
        return {**record, "parents": array(parents), "is_first": array(is_first)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = super().collate(records, pad)
        parents, is_first = (pad_rows([record[name] for record in records], -1) for name in ("parents", "is_first"))
        row, node = (parents >= 0).nonzero(as_tuple=True)
        parent, in_tree = parents[row, node].long(), is_first[row, node] == 1
        edges = torch.zeros(*parents.shape, parents.shape[1], dtype=torch.long)
        edges[row, parent, node] = torch.where(in_tree, 1, NUM_EDGE_KINDS)
        edges[row, node, parent] = torch.where(in_tree, 2, NUM_EDGE_KINDS)
        return {**batch, "graph_edges": edges}
