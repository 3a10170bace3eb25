"""Chat with a model: a line is a message, and the answer is streamed. If the folder has no chat template, the
conversation is plain text ("User: ...", "Assistant: ...").

Ctrl-C stops an answer; /quit or the end of input ends the program. /help shows the other commands."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.generate import check, settings, show, tokenizer_and_loader, visible, writing_flags
from anyformer.cli.settings import MODEL
from anyformer.specs.messages import nearest

if TYPE_CHECKING:
    from anyformer.generation.writing import TextStream
    from anyformer.inputs.tokenizer import Tokenizer
    from anyformer.models import TransformerModule

Message = dict[str, str]
NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}  # in plain text

PLAIN = "this folder has no chat template: the conversation is plain text, 'User: ...' and 'Assistant: ...'"


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add("--system", metavar="TEXT", help="system message")
    add("--load", metavar="FILE", help="continue a conversation that /save wrote")
    add("--plain", action="store_true", help="use the plain layout even if the folder has a chat template")
    writing_flags(parser)


def run(options: argparse.Namespace) -> None:
    check(options)
    messages = read_messages(options.load) if options.load else []
    tokenizer, load = tokenizer_and_loader(options)
    from anyformer.generation.setup import check_can_generate
    from anyformer.inputs.chat import templates

    plain = options.plain or not templates(tokenizer)
    model = load()
    check_can_generate(model)
    if plain and not options.plain:
        tell(PLAIN)
    chat = Chat(model, tokenizer, plain, options, messages)
    if options.system is not None:
        chat.system(options.system)
    for line in lines():
        if not chat.take(line):
            break


def lines() -> Iterator[str]:
    """Read lines, with a prompt and a history on a terminal."""
    typed = sys.stdin is not None and sys.stdin.isatty()
    if typed:
        with contextlib.suppress(ImportError):  # not on every system
            import readline  # noqa: F401  (arrow keys and a history at the prompt)
        tell("/help shows the commands")
    while sys.stdin is not None:
        try:
            line = input("> " if typed else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            if not typed:
                raise
            tell("\n/quit ends")
            continue
        if line.strip():
            yield line


def tell(line: str) -> None:
    """Print a line that is not part of an answer."""
    print(line, file=sys.stderr, flush=True)


def read_messages(file: str) -> list[Message]:
    from anyformer.weights.io import read_json

    messages: Any = read_json(Path(file).expanduser()).get("messages")
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and m.get("role") in NAMES and isinstance(m.get("content"), str) for m in messages
    ):
        raise ValueError(f"{file}: not a conversation: {{'messages': [{{'role': 'user', 'content': ...}}, ...]}}")
    return messages


class Chat:
    """A conversation and its commands."""

    def __init__(
        self,
        model: TransformerModule,
        tokenizer: Tokenizer,
        plain: bool,
        options: argparse.Namespace,
        messages: list[Message],
    ) -> None:
        self.model, self.tokenizer, self.plain, self.options = model, tokenizer, plain, options
        self.messages = messages
        self.commands: dict[str, tuple[Callable[[str], None], str]] = {
            "help": (self.help, "shows this list"),
            "system": (self.system, "TEXT: sets the system message; without TEXT, removes it"),
            "reset": (self.reset, "forgets the conversation, except the system message"),
            "undo": (self.undo, "removes the last message and its answer"),
            "retry": (self.retry, "answers the last message again"),
            "history": (self.history, "shows the conversation"),
            "save": (self.save, "FILE: writes the conversation as JSON, for --load"),
        }

    def take(self, line: str) -> bool:
        """Handle one line of input. Returns False if the conversation ends."""
        if not line.startswith("/"):
            self.messages.append({"role": "user", "content": line})
            self.answer()
            return True
        name, _, rest = line[1:].strip().partition(" ")
        if name in ("quit", "exit"):
            return False
        if name not in self.commands:
            tell(f"no command /{name}; {nearest(name, [*self.commands, 'quit'])}")
            return True
        try:
            self.commands[name][0](rest.strip())
        except (OSError, ValueError) as error:  # a mistake at the prompt does not end a conversation
            tell(str(error))
        return True

    # -- commands

    def help(self, rest: str) -> None:
        for name, (_, about) in self.commands.items():
            tell(f"/{name:8} {about}")
        tell("/quit     ends; so does the end of input. Ctrl-C stops an answer")

    def system(self, text: str) -> None:
        others = [message for message in self.messages if message["role"] != "system"]
        self.messages = [{"role": "system", "content": text}] * bool(text) + others

    def reset(self, rest: str) -> None:
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def undo(self, rest: str) -> None:
        questions = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        self.messages = self.messages[: questions[-1]] if questions else self.messages

    def retry(self, rest: str) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages or self.messages[-1]["role"] != "user":
            raise ValueError("no message to answer")
        self.answer()

    def history(self, rest: str) -> None:
        for message in self.messages:
            tell("".join(map(visible, f"{NAMES[message['role']]}: {message['content']}")))

    def save(self, file: str) -> None:
        if not file:
            raise ValueError("/save FILE")
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1)
        Path(file).expanduser().write_text(text + "\n", encoding="utf-8")

    # -- answers

    def answer(self) -> None:
        """Stream the answer to the last message; Ctrl-C ends it and keeps the text so far."""
        try:
            writing = self.start_writing()
        except ValueError as error:  # too long, or refused by the template: drop the message
            self.messages.pop()
            tell(str(error))
            return
        try:
            for piece in writing:
                show(piece)
        except KeyboardInterrupt:
            tell(" (stopped)")
        print(flush=True)
        self.messages.append({"role": "assistant", "content": writing.text.strip()})

    def start_writing(self) -> TextStream:
        from anyformer.generation.writing import TextStream
        from anyformer.models import position_limit

        limit = None if self.model.spec.pair else position_limit(self.model.spec)
        shown = self.messages
        while limit is not None and len(self.ids(shown)) >= limit:
            shorter = without_oldest(shown)
            if shorter is None:
                raise ValueError(f"the message is longer than the {limit:,} tokens that this model takes")
            shown = shorter
        if shown is not self.messages:
            tell(f"(the oldest {len(self.messages) - len(shown)} messages no longer fit and are left out)")
        stop = [*(self.options.stop or ()), *([f"\n{NAMES['user']}:"] if self.plain else ())]
        return TextStream(
            self.model, self.tokenizer, self.ids(shown), settings(self.options), stop or None, self.options.compile
        )

    def ids(self, messages: list[Message]) -> list[int]:
        """Return the tokens of a conversation up to the start of the answer."""
        if not self.plain:
            return self.tokenizer.chat(messages)
        text = "".join(f"{NAMES[message['role']]}: {message['content']}\n" for message in messages)
        return self.tokenizer.encode(f"{text}{NAMES['assistant']}:")


def without_oldest(messages: list[Message]) -> list[Message] | None:
    """Return the messages without the first question and answer; None if only the last question is left."""
    questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return [*messages[: questions[0]], *messages[questions[1] :]] if len(questions) > 1 else None
