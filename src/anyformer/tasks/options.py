"""The options of a task, as flags of the command line: read from the signature of its function, without torch.

Every keyword-only parameter is a flag, with its help next to its type:

    def shout(model, inputs, *, loud: Annotated[int, "number of exclamation marks"] = 1, **run_options): ...

So is every key of a TypedDict of the same file that the function unpacks (`**others: Unpack[WriteOptions]`).
A second text after the help is the flag's short form ("-o"). Options that several tasks share are types below.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

# None: cut texts to the length that the tokenizer's folder stores (model_max_length: training cuts there too), if any;
# True: also to the longest text that the model takes; False: never
Truncate = Annotated[bool | None, "cut long texts (default: only if the folder stores a maximum length)"]
Interpolate = Annotated[bool, "accept pictures of other sizes by interpolating the position embeddings"]
Raw = Annotated[bool, "do not scale vectors to length 1"]
Beams = Annotated[int | None, "number of beams (default: the folder's, else 1)"]
LengthPenalty = Annotated[float | None, "above 0 favours long texts (default: the folder's, else 1)"]
MaxNewTokens = Annotated[
    int | None, "longest text, in tokens (default: the folder's, else a little over twice the input)"
]
MaxAnswerTokens = Annotated[int, "longest text, in tokens"]
Labels = Annotated[Sequence[str] | None, "name of a label, in the model's order; can be repeated"]
TopLabels = Annotated[int, "number of labels, most likely first; 0 for all"]
Examples = str | Path | Sequence[Mapping[str, Any]]  # a file of JSON lines, or its objects


@dataclasses.dataclass(frozen=True)
class Flag:
    """An option of a task's function, as a flag of the command line."""

    help: str
    kind: type = str  # str, int, float, or bool for a flag without a value
    negated: bool = False  # a flag without a value that also has the form --no-...
    several: bool = False  # can be repeated; the function gets a list
    short: str = ""


def read_flags(name: str) -> dict[str, Flag]:
    """Read the flags of the function `name` in each/`name`.py without importing it."""
    tree = ast.parse((Path(__file__).parent / "each" / f"{name}.py").read_text("utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    parameters = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    flags = {parameter.arg: _flag(parameter.annotation, default) for parameter, default in parameters}
    keys = [key for node in tree.body if _is_typed_dict(node, function) for key in ast.walk(node)]
    return flags | {
        ast.unparse(key.target): _flag(key.annotation, None) for key in keys if isinstance(key, ast.AnnAssign)
    }


def _is_typed_dict(node: ast.stmt, function: ast.FunctionDef) -> bool:
    """Whether `node` is the class of the `**options` of `function`."""
    rest = function.args.kwarg
    if not isinstance(node, ast.ClassDef) or rest is None or rest.annotation is None:
        return False
    return ast.unparse(rest.annotation) == f"Unpack[{node.name}]"


def _flag(annotation: ast.expr | None, default: ast.expr | None) -> Flag:
    assert annotation is not None
    hint, help, *short = get_args(eval(ast.unparse(annotation), globals()))
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if get_origin(hint) is Sequence:
        kinds = [hint]
    several = get_origin(kinds[0]) is Sequence
    kind = get_args(kinds[0])[0] if several else kinds[0]
    value = ast.literal_eval(default) if isinstance(default, ast.Constant) else None
    if value is not None and value is not False and value != "":
        help += f" (default: {value!r})"
    return Flag(help, kind, negated=kind is bool and hint is not bool, several=several, short=short[0] if short else "")
