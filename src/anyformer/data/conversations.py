"""Conversations in the formats that people have: columns of prompts and answers, Alpaca, ShareGPT and OpenAI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from anyformer.data.source import Example, Row, Source, reach
from anyformer.specs.messages import nearest, quote

Format = Literal["columns", "alpaca", "sharegpt", "openai"]
ROLES = {  # ShareGPT's names -> the names in chat templates
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "system": "system", "tool": "tool",
    "observation": "tool", "function_call": "assistant",
}  # fmt: skip
PROMPTS, ANSWERS = ("prompt", "question"), ("completion", "response", "answer")  # usual names of columns


class Conversations(Source, called=("ShareGPT", "Alpaca", "instruction data")):
    """Turns rows into {"messages": [{"role", "content"}, ...]}. Formats:

    - columns: the texts in `prompt` and `answer`
    - alpaca: {"instruction", "input", "output"}, and optionally "system"
    - sharegpt: {"conversations": [{"from": "human", "value": ...}, ...]}, and optionally "system"; also with the keys
      "role" and "content"
    - openai: {"messages": [...]}, unchanged
    """

    source: Source
    format: Format = "columns"
    prompt: str = "prompt"
    answer: str = "completion"

    def raw(self) -> Iterator[Row]:
        for row in self.source.raw():
            if row.example is None:
                yield row
                continue
            try:
                yield Row(row.place, {**row.example, "messages": self.messages(row.example)})
            except ValueError as error:
                yield Row(row.place, None, str(error))

    def digest(self) -> str:
        return self.source.digest()

    def messages(self, example: Example) -> Any:
        """Return the messages of a row; ValueError if it is not in this format."""
        if self.format == "openai":
            return example.get("messages")
        if self.format == "sharegpt":
            turns = [turn(each) for each in conversation_turns(example)]
        else:
            alpaca = self.format == "alpaca"
            prompt, answer = ("instruction", "output") if alpaca else (self.prompt, self.answer)
            question = text_in(example, prompt)
            if alpaca and str(example.get("input") or "").strip():
                question += f"\n\n{example['input']}"
            turns = [message("user", question), message("assistant", text_in(example, answer))]
        system = example.get("system") if self.format != "columns" else None
        return [message("system", str(system)), *turns] if system else turns


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def text_in(example: Example, column: str) -> str:
    try:
        value = reach(example, column)
    except KeyError:
        raise ValueError(f"no column {quote(column)}; {nearest(column, map(str, example))}") from None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"column {quote(column)} {'is empty' if value in (None, '') else 'is not a text'}")
    return value


def conversation_turns(example: Example) -> list[Any]:
    turns = example.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise ValueError("column 'conversations' must be a list of {'from': ..., 'value': ...}")
    return turns


def turn(each: Any) -> dict[str, str]:
    """Return one turn of ShareGPT's format as a message."""
    sender, text = ("role", "content") if isinstance(each, Mapping) and "role" in each else ("from", "value")
    if not isinstance(each, Mapping) or not isinstance(each.get(text), str):
        raise ValueError("column 'conversations' must be a list of {'from': ..., 'value': ...}")
    role = str(each.get(sender))
    if role not in ROLES:
        raise ValueError(f"column 'conversations': no role {quote(role)}; {nearest(role, ROLES)}")
    return message(ROLES[role], each[text])


def conversations_in(source: Source, example: Example) -> Conversations | None:
    """Return the conversations of a source; None if its first example is in none of the formats."""
    if isinstance(example.get("messages"), list):
        return Conversations(source=source, format="openai")
    if isinstance(example.get("conversations"), list):
        return Conversations(source=source, format="sharegpt")
    if isinstance(example.get("instruction"), str) and isinstance(example.get("output"), str):
        return Conversations(source=source, format="alpaca")
    prompt, answer = (next((name for name in names if name in example), "") for names in (PROMPTS, ANSWERS))
    return Conversations(source=source, prompt=prompt, answer=answer) if prompt and answer else None
