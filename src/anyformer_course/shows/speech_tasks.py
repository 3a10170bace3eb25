"""Whisper's tasks are tokens: the first tokens of the decoder name the language, the task, and whether to write times.

The prompt is built by the library as for generation, with the token ids of the published model [Radford et al. 2022].
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.generation.options import Settings
from anyformer.generation.speech_prompt import speech_prompt
from anyformer.inputs.languages import CODES
from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.words import split

END, START, TRANSLATE, TRANSCRIBE, NO_SPEECH, NO_TIMES, FIRST_TIME = 50257, 50258, 50358, 50359, 50362, 50363, 50364
STEP = 0.02  # seconds between two time tokens


def example(text: str = "once upon a time", *, language: str = "en", task: str = "transcribe", times: bool = False,
            seconds: float = 1.6) -> Shown:  # fmt: skip
    """Return the tokens that the decoder learns for a recording of `seconds` that says `text`."""
    words = split(text)
    codes = list(dict.fromkeys(CODES.values()))
    if task not in ("transcribe", "translate") or not 0 < seconds <= 30:
        raise ValueError("task must be 'transcribe' or 'translate', and seconds more than 0 and at most 30")
    known = {f"<|{code}|>": START + 1 + i for i, code in enumerate(codes)}
    names = {number: token for token, number in known.items()} | {
        START: "<|startoftranscript|>", END: "<|endoftext|>", TRANSLATE: "<|translate|>",
        TRANSCRIBE: "<|transcribe|>", NO_TIMES: "<|notimestamps|>",
    }  # fmt: skip

    def prompt(asked: str, with_times: bool) -> list[int]:
        settings = Settings(language=language, task=asked, return_timestamps=with_times, lang_to_id=known,
                            task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
                            no_timestamps_token_id=NO_TIMES, is_multilingual=True)  # fmt: skip
        return speech_prompt(None, torch.tensor([[START]]), {}, settings)[0][0].tolist()

    chosen = prompt(task, times)
    rows: list[list[Any]] = [[names[number], number, "given"] for number in chosen]
    last = FIRST_TIME + round(seconds / STEP)
    before = [["<|0.00|>", FIRST_TIME, "predicted: time"]] if times else []
    after = [[f"<|{seconds:.2f}|>", last, "predicted: time"]] if times else []
    rows += [*before, *([word, None, "predicted: text"] for word in words), *after, [names[END], END, "predicted: end"]]
    every = [[asked, with_times, *(str(number) for number in pad(prompt(asked, with_times)))]
             for asked in ("transcribe", "translate") for with_times in (False, True)]  # fmt: skip
    every += [  # tasks whose answer is the second token
        ["find the language", None, str(START), f"predicted: {known[f'<|{language}|>']}", "", ""],
        ["find silence", None, str(START), f"predicted: {NO_SPEECH}", "", ""],
    ]

    def draw() -> Any:
        figure, axes = new(1, 1, max(0.95 * len(rows), 7), 2.2)
        colors = {"given": "tab:orange", "predicted: time": "tab:green", "predicted: text": "tab:blue"}
        for i, (token, _, role) in enumerate(rows):
            axes[0, 0].barh(0, 0.95, left=i, color=colors.get(str(role), "gray"), alpha=0.4)
            axes[0, 0].text(i + 0.47, 0, token, ha="center", va="center", fontsize=9, rotation=60)
        axes[0, 0].set_title("orange: given, green: times, blue: text, gray: end", fontsize=9)
        axes[0, 0].set_axis_off()
        return figure

    return Shown(
        f"{len(chosen)} tokens tell the model what to do: {' '.join(names[number] for number in chosen)}; it then "
        f"predicts {len(rows) - len(chosen)} tokens.",
        [
            Table("what the decoder reads and writes", ("token", "id", "role"), rows),
            Table(f"prompts of all tasks in {language}", ("task", "times", "1", "2", "3", "4"), every),
        ],
        draw,
    )  # fmt: skip


def pad(prompt: list[int]) -> list[int | str]:
    return [*prompt, *["-"] * (4 - len(prompt))]
