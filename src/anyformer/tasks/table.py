"""What tasks there are: the command line makes its help and reads its input from this, without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Flag:
    """A keyword of a task's function, as a flag of the command line; its default is the function's."""

    about: str
    kind: type = str  # str, int, float, or bool for a flag without a value
    negated: bool = False  # of such a flag: it also has a form that begins with --no-
    several: bool = False  # it may be given again; the function gets a list
    short: str = ""  # one letter that a command may write in its place


@dataclasses.dataclass(frozen=True)
class About:
    """A task: in one line; the fields that an input has, in the order in which a command gives them; its flags."""

    line: str
    fields: tuple[str, ...] = ("text",)
    optional: tuple[str, ...] = ()
    ranked: bool = False  # a result is a list of candidates, likeliest first
    raw: tuple[str, ...] = ()  # fields that name files or folders, and may be what is in one: a picture, samples
    flags: Mapping[str, Flag] = dataclasses.field(default_factory=dict)

    @property
    def all_fields(self) -> tuple[str, ...]:
        return (*self.fields, *self.optional)


INTERPOLATE = Flag("read pictures of another size than the model learned its positions for", bool)
TRUNCATE = Flag("cut longer texts; default: where the folder says how long a text may be", bool, negated=True)

LONGEST = Flag("of the longest text; the folder's, else twice what is read, and a little", int)
BEAMS = {
    "num_beams": Flag("the folder's, else 1", int),
    "length_penalty": Flag("above 0 favours long texts; the folder's, else 1", float),
}

# task -> what it is; the function and its file have the same name, with _ for -
TASKS: dict[str, About] = {
    "fill-mask": About(
        "likeliest words in the place of the mask token",
        ranked=True,
        flags={
            "top_k": Flag("how many; 5", int),
            "targets": Flag("only this word; may be given again", several=True),
            "truncate": TRUNCATE,
        },
    ),
    "classify": About(
        "a label for a text, or for a pair of texts (--pair)",
        optional=("pair",),
        ranked=True,
        flags={
            "pair": Flag("the second text: each input is a pair with it"),
            "top_k": Flag("how many labels, likeliest first; 1, and 0 for all", int),
            "labels": Flag("a name for a label of the model, in its order; may be given again", several=True),
            "truncate": TRUNCATE,
        },
    ),
    "tag": About(
        "what the words of a text are: entities, parts of speech, with their places",
        flags={
            "aggregation": Flag(
                "how tokens become words: word, none, simple, first, average or max; default: word for models"
                " trained here, else simple"
            ),
            "stride": Flag("tokens that windows over a long text have in common; a quarter of one", int),
        },
    ),
    "answer": About(
        "the words of a text that answer a question",
        fields=("question", "context"),
        ranked=True,
        flags={
            "top_k": Flag("how many answers, likeliest first; 1", int),
            "length": Flag("tokens of a window over a long text; 384, or what the model takes", int),
            "stride": Flag("tokens that two windows have in common; a third of one", int),
            "max_answer_tokens": Flag("of the longest answer; 30", int),
            "threshold": Flag("no answer where its score is above the best one's by more; never unless said", float),
        },
    ),
    "embed": About(
        "a vector for a text",
        flags={
            "pool": Flag("cls, mean or last; the folder's own, else mean, and last for a decoder"),
            "raw": Flag("as long as they come out, not of length 1", bool),
            "truncate": TRUNCATE,
        },
    ),
    "write": About(
        "what comes after a text",
        flags={
            "max_new_tokens": Flag("of the longest text; the folder's, else 128", int),
            "num_beams": Flag("the folder's, else 1", int),
            "do_sample": Flag("sample tokens instead of taking the most likely", bool),
            "temperature": Flag("sampling temperature: lower is more predictable, higher more varied", float),
            "top_k": Flag("sample from so many of the likeliest tokens", int),
            "top_p": Flag(
                "sample from the smallest set of tokens whose probabilities sum to X (nucleus sampling)", float
            ),
            "min_p": Flag("sample from tokens with at least X times the probability of the most likely one", float),
            "seed": Flag("seed of sampling: the same seed gives the same text", int),
            "stop": Flag("stop before this text; can be repeated", several=True),
            "chat": Flag("the text is a user's message: apply the chat template", bool),
        },
    ),
    "translate": About(
        "a text in another language",
        optional=("source", "target"),
        flags={
            "source": Flag("code of the language that is read, where the model has several; the folder's"),
            "target": Flag("code of the language to write, where the model has several"),
            "prefix": Flag("text before every text; the one that the config has for these languages"),
            **BEAMS,
            "max_new_tokens": LONGEST,
            "truncate": TRUNCATE,
        },
    ),
    "summarize": About(
        "a short text that says what a long one says",
        flags={
            "prefix": Flag("text before every text; the config's"),
            **BEAMS,
            "no_repeat_ngram_size": Flag("so many words are never written twice; the folder's, else 0", int),
            "min_new_tokens": Flag("of the shortest summary", int),
            "max_new_tokens": LONGEST,
            "truncate": TRUNCATE,
        },
    ),
    "few-shot": About(
        "answers after zero, one or a few examples",
        optional=("choices", "answer"),
        flags={
            "examples": Flag("JSON lines, each with a text and its answer"),
            "shots": Flag("how many of the examples; all of them", int),
            "template": Flag(r"how a text and its answer are written; '{text}\n{answer}'"),
            "instruction": Flag("what stands before everything else"),
            "separator": Flag(r"what stands between examples; '\n\n'"),
            "choices": Flag("a possible answer; may be given again", several=True),
            "per_token": Flag("the likeliest choice by its mean token, not as a whole", bool),
            "stop": Flag("an answer that is written ends before this; may be given again; a line's end", several=True),
            "max_new_tokens": Flag("of the longest answer that is written; 32", int),
        },
    ),
    "classify-image": About(
        "a label for a picture, or for each of a folder",
        ranked=True,
        fields=("image",),
        raw=("image",),
        flags={
            "top_k": Flag("how many labels, likeliest first; 1, and 0 for all", int),
            "labels": Flag("a name for a label of the model, in its order; may be given again", several=True),
            "interpolate": INTERPOLATE,
        },
    ),
    "zero-shot-image": About(
        "which of some names fits a picture best, or each of a folder: for models with two towers",
        ranked=True,
        fields=("image",),
        raw=("image",),
        flags={
            "labels": Flag("a name to choose from; given again for each", several=True),
            "template": Flag("the sentence around a name; 'a photo of a {}.'"),
            "top_k": Flag("how many names, likeliest first; all", int),
        },
    ),
    "caption": About(
        "a sentence about a picture, or about each of a folder",
        fields=("image",),
        raw=("image",),
        flags={
            "template": Flag("what is read before it is said, with {image} for the picture; LLaVA's"),
            "num_beams": BEAMS["num_beams"],
            "max_new_tokens": Flag("of the longest; 64", int),
        },
    ),
    "ask-image": About(
        "an answer to a question about a picture, or about each of a folder",
        fields=("image",),
        optional=("question",),
        raw=("image",),
        flags={
            "question": Flag("what is asked, where a picture brings no question of its own"),
            "template": Flag("how it is asked, with {image} and {question}; LLaVA's"),
            "num_beams": BEAMS["num_beams"],
            "max_new_tokens": Flag("of the longest answer; 64", int),
        },
    ),
    "ask-audio": About(
        "an answer to a question about a recording, or about each of a folder",
        fields=("audio",),
        optional=("question",),
        raw=("audio",),
        flags={
            "question": Flag("what is asked, where a recording brings no question of its own"),
            "template": Flag("how it is asked, with {audio} and {question}; as of a picture"),
            "num_beams": BEAMS["num_beams"],
            "max_new_tokens": Flag("of the longest answer; 64", int),
        },
    ),
    "search-images": About(
        "the pictures of a folder that fit a text best: for models with two towers",
        ranked=True,
        flags={
            "folder": Flag("with the pictures"),
            "index": Flag("a file that keeps their vectors; made where it is not there"),
            "top_k": Flag("how many; 5", int),
        },
    ),
    "embed-image": About(
        "a vector for a picture, or for each of a folder",
        fields=("image",),
        raw=("image",),
        flags={
            "pool": Flag("cls or mean; cls where a token speaks for the picture, else mean"),
            "raw": Flag("as long as they come out, not of length 1", bool),
            "interpolate": INTERPOLATE,
        },
    ),
    "transcribe": About(
        "what is said in a recording, a file or a folder of them",
        fields=("audio",),
        raw=("audio",),
        flags={
            "language": Flag("that is spoken, as a code or a name, where the model hears several; it is heard"),
            "translate": Flag("into English, where the model can", bool),
            "timestamps": Flag("when, too", bool),
            "num_beams": BEAMS["num_beams"],
            "max_new_tokens": Flag("of half a minute; as many as the model can", int),
            "temperatures": Flag("tried in turn where a text looks wrong; 0, 0.2, ... 1", float, several=True),
        },
    ),
    "detect-language": About(
        "the language that is spoken in a recording",
        ranked=True,
        fields=("audio",),
        raw=("audio",),
        flags={"top_k": Flag("how many, likeliest first; 1", int)},
    ),
    "draw": About(
        "a picture of what a text asks for: one of the labels of a model that draws, or more",
        flags={
            "out": Flag("the file to write, a row of pictures for each text; drawn.png", short="o"),
            "count": Flag("pictures of each text; 1", int),
            "seed": Flag("the same seed gives the same pictures; 0", int),
            "steps": Flag("of taking noise away, where pictures come out of noise; 50", int),
            "guidance": Flag("above 1, what is asked for counts by so much more; 4", float),
            "eta": Flag("how much of the noise is new at each step: 0 is DDIM, 1 DDPM; 0", float),
            "temperature": Flag("of sampling, where pictures are written token by token", float),
            "top_k": Flag("... from so many of the likeliest tokens", int),
        },
    ),
    "next-sentence": About(
        "does the second text follow the first?", fields=("text", "pair"), flags={"truncate": TRUNCATE}
    ),
    "detect-replaced": About("the words that were not in the original text", flags={"truncate": TRUNCATE}),
}
