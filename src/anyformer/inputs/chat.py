"""Chat templates: they convert messages to the text format that a model was trained on.

A template is untrusted code, so a guarded process (`jinja_sandbox.py`) renders it, with plain data only.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from anyformer.runtime.guarded_process import ChildFailed, GuardedProcess, LimitExceeded, Limits, Refused
from anyformer.specs.messages import nearest, quote
from anyformer.weights.io import read_json


class ChatTokenizer(Protocol):
    """The parts of a tokenizer that chat templates use."""

    folder: Path | None
    config: dict[str, Any]
    special: dict[str, str]

    @property
    def bos_token_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class MaskingTokenizer(ChatTokenizer, Protocol):
    """A tokenizer that also gives the characters of each token."""

    @property
    def special_ids(self) -> Any: ...

    def token(self, number: int) -> str | None: ...
    def plain(self, text: str) -> Any: ...
    def _ids(self, encoding: Any) -> list[int]: ...
    def _text(self, text: str) -> str: ...


PLAIN = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- 'Assistant:' }}
        {%- generation %}{{- ' ' + message.content + (eos_token or '') }}{%- endgeneration %}
    {%- else %}
        {{- ('User' if message.role == 'user' else message.role | capitalize) + ': ' + message.content }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'Assistant:' }}{% endif %}"""  # for models without a template
TEMPLATE_CHARACTERS = 300_000  # ten times the longest published template
DEPTH = 64  # nesting of messages, tools and documents
GENERATION_MARK = "generation_mark"  # variable that jinja_sandbox.py writes on both sides of {% generation %}
LIMITS = Limits(memory_bytes=512 * 2**20, cpu_seconds=5.0)  # for one rendering
RENDERER = GuardedProcess("anyformer.inputs.jinja_sandbox")  # one per process, started by the first template
atexit.register(RENDERER.close)


def encode(
    tokenizer: ChatTokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    template: str | None = None,
    tools: Any = None,
    documents: Any = None,
    **more: Any,
) -> list[int]:
    """Return the token ids of a conversation, with one beginning-of-text token if the model has one.

    The template writes the special tokens. The tokenizer adds only a missing beginning-of-text token; repeated ones are
    reduced to one."""
    text = render(
        tokenizer,
        messages,
        add_generation_prompt=add_generation_prompt,
        template=template,
        tools=tools,
        documents=documents,
        **more,
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    begin, count = bos_prefix(tokenizer, ids)
    return begin + ids[count:]


def bos_prefix(tokenizer: ChatTokenizer, ids: Sequence[int]) -> tuple[list[int], int]:
    """Return (beginning-of-text ids, number of leading ids that they replace)."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return [], 0
    count = next((i for i, token in enumerate(ids) if token != bos), len(ids))
    wanted = tokenizer.encode("")[:1] == [bos]
    return [bos] * (count > 0 or wanted), count


def encode_with_mask(
    tokenizer: MaskingTokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str | None = None,
    tools: Any = None,
) -> tuple[list[int], list[bool]]:
    """Return the token ids of a conversation, and a mask of the assistant's tokens."""
    text, spans = assistant_spans(tokenizer, messages, template, tools)
    encoding = tokenizer.plain(text)
    ids, moved = tokenizer._ids(encoding), len(tokenizer._text(text)) - len(text)
    spans = [(start + moved, stop + moved) for start, stop in spans]
    mask = [any(first < stop and last > start for start, stop in spans) for first, last in encoding.offsets]
    begin, count = bos_prefix(tokenizer, ids)
    return begin + ids[count:], [False] * len(begin) + mask[count:]


def assistant_spans(
    tokenizer: MaskingTokenizer, messages: Sequence[Mapping[str, Any]], template: str | None = None, tools: Any = None
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a conversation and the character spans of the assistant.

    These are the spans inside {% generation %}. Without this tag: the text that each assistant message adds after the
    generation prompt, up to and including its end token."""
    source = choose(tokenizer, template, tools is not None)

    def text(stop: int, prompt: bool = False, mark: str = "") -> str:
        more: dict[str, Any] = {GENERATION_MARK: mark} if mark else {}
        return render(tokenizer, messages[:stop], add_generation_prompt=prompt, template=source, tools=tools, **more)

    whole = text(len(messages))
    if _GENERATION.search(source):
        mark = next(letter for letter in map(chr, range(0xE000, 0xF900)) if letter not in whole)
        pieces = text(len(messages), mark=mark).split(mark)
        if "".join(pieces) != whole:
            raise ValueError("the chat template changes the text inside {% generation %}")
        ends = [0, *itertools.accumulate(map(len, pieces))]
        return whole, list(zip(ends[1::2], ends[2::2]))
    last = tuple(filter(None, map(tokenizer.token, tokenizer.special_ids)))
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        after = text(i + 1)
        before = text(i, prompt=True) if i else after.partition(str(message.get("content")).strip())[0]
        if not (whole.startswith(after) and after.startswith(before)):
            raise ValueError(
                "the chat template formats a message differently if more messages follow, so the assistant's text "
                "cannot be located; mark it with {% generation %} in the template"
            )
        kept = after.rstrip()
        spans.append((len(before), len(kept if last and kept.endswith(last) else after)))
    return whole, spans


_GENERATION = re.compile(r"{%[-+]?\s*generation\b")


def render(
    tokenizer: ChatTokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    template: str | None = None,
    tools: Any = None,
    documents: Any = None,
    **more: Any,
) -> str:
    """Return the text of a conversation. `template` is a template or its name in the folder; `more` are variables."""
    if not messages or not all(isinstance(message, Mapping) and "role" in message for message in messages):
        raise ValueError("messages must be a non-empty list of {'role': ..., 'content': ...}")
    source = choose(tokenizer, template, tools is not None)
    data = {**tokenizer.special, **more, "messages": messages, "tools": tools, "documents": documents}
    return run(source, {**data, "add_generation_prompt": add_generation_prompt})


def choose(tokenizer: ChatTokenizer, template: str | None = None, tools: bool = False) -> str:
    """Return `template` itself or by its name; if it is None, the folder's template for tools or its default."""
    if template is not None and ("{{" in template or "{%" in template):
        return template
    sources = templates(tokenizer)
    if not sources:
        raise ValueError(f"{tokenizer.folder or 'this tokenizer'} has no chat template; pass a text, not messages")
    name = template or ("tool_use" if tools and "tool_use" in sources else "default")
    if name not in sources:
        raise ValueError(f"no chat template {quote(name)}; {nearest(name, sources)}")
    return sources[name]


def templates(tokenizer: ChatTokenizer) -> dict[str, str]:
    """Return {name: template} from the folder's *.jinja files, chat_template.json or tokenizer_config.json."""
    stored: Any = tokenizer.config.get("chat_template")
    folder = tokenizer.folder
    if folder is not None and (folder / "chat_template.json").is_file():
        stored = read_json(folder / "chat_template.json").get("chat_template", stored)
    if isinstance(stored, list):
        sources = {str(entry.get("name")): entry.get("template") for entry in stored if isinstance(entry, dict)}
    else:
        sources = {"default": stored}
    if folder is not None:
        if (folder / "chat_template.jinja").is_file():
            sources["default"] = _read(folder / "chat_template.jinja")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))[:100]:
            sources[path.stem] = _read(path)
    return {name: source for name, source in sources.items() if isinstance(source, str)}


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(TEMPLATE_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None


def run(source: str, data: Mapping[str, Any]) -> str:
    """Render a template. Every error becomes a one-line ValueError."""
    if len(source) > TEMPLATE_CHARACTERS:
        raise ValueError(f"the chat template has more than {TEMPLATE_CHARACTERS:,} characters")
    if importlib.util.find_spec("jinja2") is None:
        raise ValueError("chat templates need jinja2: pip install 'anyformer[chat]'")
    variables = {name: plain_data(value) for name, value in data.items()}
    try:
        return RENDERER.ask({"source": source, "variables": variables}, LIMITS)
    except LimitExceeded as error:
        raise ValueError(f"the chat template exceeds its limits: {error}") from None
    except ChildFailed as error:
        raise ValueError(f"the chat template cannot be rendered: {error}") from None
    except Refused as error:
        raise ValueError(str(error)) from None


def plain_data(value: Any, depth: int = 0) -> Any:
    """Return the data in JSON types only, so that a template cannot call methods of objects."""
    if depth > DEPTH:
        raise ValueError(f"messages are nested more than {DEPTH} levels deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_data(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item, depth + 1) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):  # for example an enum
            return kind.__str__(value) if kind is str else kind(value)
    return f"<{type(value).__name__}>"  # for example a picture: templates only test whether there is one
