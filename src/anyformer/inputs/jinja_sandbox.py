"""The process that renders chat templates: Jinja's immutable sandbox, in a guarded process.

`chat.py` runs it as `python -m anyformer.inputs.jinja_sandbox`. It imports neither torch nor tokenizers, so it starts
in a fraction of a second. The sandbox hides Python's objects from templates, and `runtime/guarded_process.py` limits
their memory and time.
"""

from __future__ import annotations

import datetime
import functools
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes

from anyformer.runtime.guarded_process import Refused, serve
from anyformer.specs.messages import shorten

GENERATION_MARK = "generation_mark"  # variable that is written on both sides of the text in {% generation %}
OUTPUT_CHARACTERS = 8_000_000
CACHED_TEMPLATES = 8


class GenerationTag(jinja2.ext.Extension):
    """The tag {% generation %} around the assistant's text. It writes the variable `GENERATION_MARK` on both sides; if
    the variable is not set, the tag has no effect."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        before, after = (nodes.Output([nodes.Name(GENERATION_MARK, "load")]).set_lineno(line) for _ in range(2))
        return [before, *body, after]


def raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write JSON. Unlike Jinja's filter, which is for HTML, it does not escape < and >."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


@functools.cache
def environment() -> jinja2.Environment:
    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return sandbox


@functools.lru_cache(maxsize=CACHED_TEMPLATES)
def compile_template(source: str) -> jinja2.Template:
    return environment().from_string(source)


def render(request: dict[str, Any]) -> str:
    """Return the text of the template `source` with `variables`. Errors of the template become a one-line Refused."""
    pieces, size = [], 0
    try:
        for piece in compile_template(request["source"]).generate(**request["variables"]):
            size += len(piece)
            if size > OUTPUT_CHARACTERS:
                raise Refused(f"the chat template exceeds its limits: more than {OUTPUT_CHARACTERS:,} characters")
            pieces.append(piece)
        return "".join(pieces)
    except (MemoryError, Refused):
        raise
    except jinja2.TemplateSyntaxError as error:
        message = f"the chat template, line {error.lineno}: {error.message}"
    except jinja2.TemplateError as error:
        message = f"the chat template: {error.message or type(error).__name__}"
    except RecursionError:
        message = "the chat template is nested too deeply"
    except Exception as error:  # a template can raise any error
        message = f"the chat template: {type(error).__name__}: {error}"
    raise Refused(shorten(" ".join(message.split()), 600))


if __name__ == "__main__":
    serve(render)
