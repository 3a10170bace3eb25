"""Chat templates: transformers' text and ids, one beginning-of-text token (G6), no access to Python (X1). Limits are
tested in hostile/test_chat_templates.py."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from anyformer.inputs import chat
from anyformer.inputs.tokenizer import Tokenizer
from vocabularies import gpt2, llama, whole, write

transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
{%- set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- set first = ('<<SYS>>' ~ system ~ '<</SYS>>') if loop.first and system else '' %}
        {{- '[INST] ' ~ first ~ message.content.strip() ~ ' [/INST]' }}
    {%- else %}{% generation %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}"""
TOOLS = """{%- macro show(thing, deep=0) %}{{ '  ' * deep }}{{ thing | tojson(indent=2) }}{% endmacro %}
{%- set ns = namespace(last=0, seen=[]) %}
{%- for message in messages %}{% set ns.last = loop.index0 %}{% set ns.seen = ns.seen + [message.role] %}{% endfor %}
{%- if tools is not none and tools %}{% for tool in tools %}{{ show(tool, 1) }}
{% endfor %}{% endif %}{{ ns.seen | join(',') }} {{ ns.last }} {{ dict(a=1) }} {{ messages[-1]['content'] | upper }}
{%- for key, value in messages[0].items() | sort %}<{{ key }}={{ value | string | length }}>
{%- if loop.index > 1 %}{% break %}{% endif %}{% endfor %}
{{- messages | map(attribute='role') | unique | list }}{{ 'x' in messages[0].content }}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}"""
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "  Hello <there> & \"you\"? "},
    {"role": "assistant", "content": "Hi 🦊, it's é. "},
    {"role": "user", "content": "Again\nplease"},
]  # fmt: skip
TOOL = [{"type": "function", "function": {"name": "f", "parameters": {"x": {"type": "integer", "é": "<&>"}}}}]


def with_template(folder: Path, template: Any) -> Tokenizer:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", {**config, "chat_template": template})
    return Tokenizer.load(folder)


def both(folder: Path, template: Any) -> tuple[Any, Tokenizer]:
    ours = with_template(folder, template)
    return transformers.AutoTokenizer.from_pretrained(folder), ours


@pytest.mark.parametrize("template", [CHATML, LLAMA2, TOOLS], ids=["chatml", "llama2", "tools"])
@pytest.mark.parametrize("make", [gpt2, whole])
@pytest.mark.parametrize("prompt", [False, True])
def test_text_and_ids_are_those_of_transformers(tmp_path: Path, template: str, make: Any, prompt: bool) -> None:
    theirs, ours = both(make(tmp_path), template)
    for talk in (TALK, TALK[:1]):
        for tools in (None, TOOL):
            asked: dict[str, Any] = {"add_generation_prompt": prompt, "tools": tools}
            assert chat.render(ours, talk, **asked) == theirs.apply_chat_template(talk, tokenize=False, **asked)
            ids = theirs.apply_chat_template(talk, **asked)["input_ids"]
            assert ours.chat(talk, **asked) == ids


def test_there_is_one_beginning(tmp_path: Path) -> None:
    """There is one beginning-of-text token if the template, the tokenizer or both add it, or if it is written twice."""
    folder = llama(tmp_path, add_bos_token=True)
    plain = "{{ messages[0].content }}"
    for template in (plain, "{{ bos_token }}" + plain, "{{ bos_token }}{{ bos_token }}" + plain):
        tokenizer = with_template(folder, template)
        ids = tokenizer.chat(TALK[2:])
        assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
    without = gpt2(tmp_path / "gpt2")  # neither the tokenizer nor the template adds one
    _, tokenizer = both(without, plain)
    assert tokenizer.bos_token_id not in tokenizer.chat(TALK[2:])


def test_where_templates_are_found(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t{{ 1 }}"}]
    theirs, ours = both(gpt2(tmp_path), named)
    for tools in (None, TOOL):
        assert chat.render(ours, TALK, tools=tools) == theirs.apply_chat_template(TALK, tokenize=False, tools=tools)
    assert chat.render(ours, TALK, template="tool_use") == "t1" and chat.render(ours, TALK, template="{{ 2 }}") == "2"
    with pytest.raises(ValueError, match="did you mean 'tool_use'"):
        chat.render(ours, TALK, template="tool_us")
    write(tmp_path, "chat_template.jinja", "from a file")
    assert chat.render(Tokenizer.load(tmp_path), TALK) == "from a file"
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer.load(gpt2(tmp_path / "bare")).chat(TALK)


@pytest.mark.parametrize("messages", [[], ["hello"], [{"content": "no role"}]])
def test_messages_that_are_none(tmp_path: Path, messages: Any) -> None:
    _, tokenizer = both(gpt2(tmp_path), CHATML)
    with pytest.raises(ValueError, match="messages must be a non-empty list"):
        tokenizer.chat(messages)


def test_a_template_may_refuse(tmp_path: Path) -> None:
    _, tokenizer = both(gpt2(tmp_path), LLAMA2)
    with pytest.raises(ValueError, match="the chat template: roles must alternate"):
        tokenizer.chat(TALK[1:])
    for template, words in (("{% if", "line 1"), ("{{ nothing.here }}", "undefined"), ("{% include 'x' %}", "loader")):
        with pytest.raises(ValueError, match=words) as caught:
            chat.render(tokenizer, TALK, template=template)
        assert "\n" not in str(caught.value)


class Evil(dict):
    def leak(self) -> str:
        raise SystemExit("ran")


def test_a_template_sees_data_and_nothing_else(tmp_path: Path) -> None:
    _, tokenizer = both(gpt2(tmp_path), CHATML)
    secret = Evil(role="user", content="x", picture=Path("/etc"))
    assert chat.render(tokenizer, [secret], template="{{ messages[0].picture }}").startswith("<")
    for template in (
        "{{ messages[0].leak() }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}", "{{ namespace.__init__.__globals__ }}", "{{ messages[0].update(a=1) }}",
        "{{ self.__init__.__globals__ }}", "{{ (1).__class__.__base__ }}", "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ strftime_now.__globals__['json'] }}", "{{ lipsum.__globals__ }}", "{% import 'os' as os %}{{ os }}",
    ):  # fmt: skip
        try:
            assert chat.render(tokenizer, [secret], template=template) == "", template  # undefined
        except ValueError as error:
            assert "the chat template" in str(error)


def test_long_conversations_are_within_the_budget(tmp_path: Path) -> None:
    _, tokenizer = both(gpt2(tmp_path), LLAMA2)
    talk = TALK[:2] * 1000 + TALK[2:]
    assert len(chat.render(tokenizer, talk)) > 40_000
    assert chat.render(tokenizer, [{"role": "user", "content": "y" * 2_000_000}]).count("y") == 2_000_000
    assert chat.render(tokenizer, talk, template=TOOLS)


def test_without_jinja_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tokenizer = both(gpt2(tmp_path), CHATML)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r"anyformer\[chat\]"):
        tokenizer.chat(TALK)
    shutil.rmtree(tmp_path)
