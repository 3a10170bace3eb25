"""Chat templates that need gigabytes or hours are refused in one line, within 20 s and 2 GB (X4)."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prisoner import MeasuredPopen

import anyformer as af
from anyformer import cli, families
from anyformer.inputs import chat
from anyformer.runtime import guarded_process
from anyformer.runtime.guarded_process import GuardedProcess
from vocabularies import gpt2, write

pytest.importorskip("jinja2")

FORMATS = {
    "percent": "{{ ('%(a)99999d' * 50000) | format(a=1) | length }}",
    "operator": "{{ (('%(a)99999d' * 50000) % {'a': 1}) | length }}",
    "format": "{{ ('{0:99999}' * 50000).format(1) | length }}",
    "format_map": "{{ ('{a:99999}' * 50000).format_map({'a': 1}) | length }}",
    "translate": "{{ ('x' * 50000).translate({120: 'y' * 99999}) | length }}",
    "loop": "{% set n = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set n.l = n.l + ['{a:99999}{a:99999}'.format_map({'a': i})] %}{% endfor %}",
}
HOSTILE = [
    "{{ 'a' * 10**9 }}", "{{ [0] * 10**9 }}", "{{ 'x'.ljust(10**9) }}", "{{ '%0999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}", "{{ '{:>999999999}'.format('') }}", "{{ '{:>{w}}'.format('', w=999999999) }}",
    "{{ '%999999999d' | format(1) }}", "{{ 'a' | indent(999999999) }}", "{{ range(10**9) | list }}",
    "{{ ('x' * 900000).replace('', 'y' * 900000) }}", "{{ range(100000) | map('string') | join('y' * 900000) }}",
    "{{ ('y' * 90000).join(range(90000) | map('string') | list) }}", "{{ (['x'] * 900000) | tojson(indent=100000) }}",
    "{{ ('\t' * 900000).expandtabs(900000) }}", "{% for a in range(100000) %}{{ 'x' * 900000 }}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(100) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set n = namespace(s='aa') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='aa') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=[1]) %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=1, t=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}"
    "{% endfor %}{{ n.s == n.t }}",
    "{% set n = namespace(s={}) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ lipsum(1000000) }}", "x" * 300_001,
    "{% set n = namespace(l=[]) %}{% for i in range(900) %}{% set n.l = n.l + ['x' * (7999999 - i)] %}{% endfor %}",
    "{% set n = namespace(s=9) %}{% for i in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "{{ raise_exception('two\nlines' * 1000000) }}",
]  # fmt: skip
EVERYDAY = [HOSTILE[0], HOSTILE[16], HOSTILE[-1]]  # memory, time, and a long message


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Measure the rendering child process, and limit it to one second."""
    chat.RENDERER.close()
    monkeypatch.setattr(guarded_process.subprocess, "Popen", MeasuredPopen)
    monkeypatch.setattr(MeasuredPopen, "peak", 0)
    monkeypatch.setattr(chat, "LIMITS", dataclasses.replace(chat.LIMITS, cpu_seconds=1.0))
    yield
    chat.RENDERER.close()


def refusal(template: str) -> str:
    start = time.monotonic()
    with pytest.raises(ValueError, match="the chat template") as caught:
        chat.run(template, {"messages": []})
    assert time.monotonic() - start < 20
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    return str(caught.value)


@pytest.mark.parametrize(
    "template", [pytest.param(t, id=t[:60], marks=() if t in EVERYDAY else pytest.mark.slow) for t in HOSTILE]
)
def test_hostile_templates_are_one_line(template: str) -> None:
    refusal(template)
    chat.RENDERER.close()
    assert MeasuredPopen.peak < 2**30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talker")
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 400, "n_positions": 64}
    af.save(af.build(families.find("gpt2").read(sizes), seed=0), folder, format="hf")
    return gpt2(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_that_multiply_are_one_line_of_the_command(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "chat_template.jinja", FORMATS[name])
    start = time.monotonic()
    code = cli.main(["generate", str(folder), "hello", "--chat", "--max-new-tokens", "2", "--device", "cpu"])
    seconds = time.monotonic() - start
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1) and "exceeds its limits" in err, err
    chat.RENDERER.close()
    assert seconds < 20 and 0 < MeasuredPopen.peak < 2**31


def test_without_a_limit_of_the_system_the_parent_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems without RLIMIT_AS."""
    monkeypatch.setattr(guarded_process, "HAS_ADDRESS_SPACE_LIMIT", False)
    monkeypatch.setattr(chat, "LIMITS", dataclasses.replace(chat.LIMITS, memory_bytes=2**27, cpu_seconds=10.0))
    assert chat.run("{{ 1 + 1 }}", {}) == "2"
    assert "more than 128 MB of memory" in refusal(FORMATS["translate"])
    chat.RENDERER.close()
    assert MeasuredPopen.peak < 2**30


def test_after_a_refusal_templates_are_rendered_as_before() -> None:
    for _ in range(2):
        assert "of memory" in refusal(HOSTILE[0])
        assert chat.run("{{ messages[0] }}", {"messages": ["yes"]}) == "yes"


def test_a_child_that_was_killed_is_replaced() -> None:
    assert chat.run("{{ 1 }}", {}) == "1"
    process = chat.RENDERER._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert chat.run("{{ 2 }}", {}) == "2"


def test_threads_get_their_own_answers_from_one_child() -> None:
    processes = set()

    def ask(number: int) -> bool:
        text = chat.run("{{ number }} {{ 'x' * (number % 50) * 1000 }}", {"number": number})
        processes.add(chat.RENDERER._process and chat.RENDERER._process.pid)
        return text == f"{number} {'x' * (number % 50) * 1000}"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(200)))
    assert len(processes) == 1


def test_a_forked_process_has_its_own_child() -> None:
    """Even if another thread is rendering at the time of the fork."""
    assert chat.run("{{ 1 }}", {}) == "1"
    busy = threading.Thread(target=lambda: chat.run("{% for i in range(99999) %}{{ i }}{% endfor %}", {}))
    busy.start()
    pid = os.fork()
    if not pid:
        signal.alarm(200)  # a lock must not block the test forever
        os._exit(0 if chat.run("{{ 3 }}", {}) == "3" else 1)
    assert os.waitpid(pid, 0)[1] == 0
    busy.join()
    assert chat.run("{{ 4 }}", {}) == "4"


def test_the_child_starts_without_torch_and_a_rendering_takes_a_millisecond() -> None:
    chat.RENDERER.close()
    talk = {"messages": [{"role": "user", "content": "hello " * 50}] * 6}
    template = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    chat.run(template, talk)
    start = time.process_time()
    for _ in range(100):
        chat.run(template, talk)
    assert time.process_time() - start < 0.5, "processor time of the parent in 100 renderings"
    assert chat.RENDERER._process is not None
    assert guarded_process.resident_bytes(chat.RENDERER._process.pid) < 100 * 2**20, "torch takes more"
    chat.RENDERER.close()
    assert MeasuredPopen.seconds < 1.0, "processor time of the child, including its start"


def test_a_child_that_keeps_much_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child caches compiled templates, here with large constants; each rendering still has the whole limit."""
    monkeypatch.setattr(chat, "LIMITS", dataclasses.replace(chat.LIMITS, cpu_seconds=20.0))
    processes = set()
    for i in range(8):
        assert chat.run(f"{{% set constant = 'y' * {7_900_000 - i} %}}{{{{ constant | length }}}}", {}) == str(
            7_900_000 - i
        )
        processes.add(chat.RENDERER._process and chat.RENDERER._process.pid)
    assert None in processes, "the child was not replaced"


def test_a_module_that_does_not_start_is_one_line() -> None:
    absent = GuardedProcess("anyformer.no_such_module")
    with pytest.raises(guarded_process.ChildFailed, match="-m anyformer.no_such_module` did not start"):
        absent.ask(1, chat.LIMITS)
