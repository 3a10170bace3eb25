"""Generated data: it depends only on the seed, follows its physics, and can be learned from."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.inputs.recordings import AudioRecording
from anyformer_course.data import cartpole, conversations, drawings, speech


def test_our_cartpole_is_gymnasiums() -> None:
    """From every state of some episodes, our step gives gymnasium's next state and end of episode."""
    gymnasium = pytest.importorskip("gymnasium")
    world: Any = gymnasium.make("CartPole-v1").unwrapped
    random = np.random.default_rng(0)
    states = random.uniform(-1, 1, (300, 4)) * (2.5, 2.0, 0.22, 2.0)
    actions = random.integers(2, size=300)
    ours = cartpole.push(states, actions)
    fallen = cartpole.has_fallen(ours)
    assert 0 < fallen.sum() < 300
    for state, action, after, ended in zip(states, actions.tolist(), ours, fallen, strict=True):
        world.reset()
        world.state = state
        _, reward, theirs, _, _ = world.step(action)
        assert np.array_equal(np.asarray(world.state), after) and theirs == ended and reward == 1


def test_episodes_of_three_qualities() -> None:
    arrays = cartpole.play_episodes(60, seed=3)
    lengths = np.diff(arrays["episode_offsets"])
    means = [lengths[arrays["level"] == level].mean() for level in range(3)]
    assert means[0] < 50 < means[1] < 450 < means[2] <= cartpole.LONGEST
    assert len(arrays["obs"]) == len(arrays["actions"]) == len(arrays["rewards"]) == lengths.sum()
    start, end = arrays["episode_offsets"][1:3]  # a stored step leads to the next one
    moved = cartpole.push(arrays["obs"][start : end - 1].astype(float), arrays["actions"][start : end - 1])
    assert np.abs(moved - arrays["obs"][start + 1 : end]).max() < 1e-5  # states are stored in 32 bits
    assert cartpole.has_fallen(arrays["obs"]).sum() == 0, "an episode ends before the state that ends it"


@pytest.fixture(scope="module")
def digits() -> dict[str, np.ndarray]:
    return speech.speak_digits(seed=1, takes=2)


def spectra(samples: np.ndarray, frames: int = 12) -> np.ndarray:
    """Return the log energies of 16 bands over the length of a word."""
    rows = np.lib.stride_tricks.sliding_window_view(samples / 32768, 256)[::64] * np.hanning(256)
    energies = (np.abs(np.fft.rfft(rows))[:, 1:] ** 2).reshape(len(rows), 16, 8).sum(-1)
    logs = np.log(energies + 1e-4)
    places = np.linspace(0, len(logs) - 1, frames)
    return np.stack([np.interp(places, np.arange(len(logs)), band) for band in logs.T], 1).ravel()


def test_digits_sound_alike_across_voices_and_unlike_each_other(digits: dict[str, np.ndarray]) -> None:
    """Templates are means over five voices. For most words of the sixth voice, the nearest of the ten templates is the
    right digit; chance is 10 %."""
    offsets, label, speaker = digits["offsets"], digits["label"], digits["speaker"]
    features = np.stack([spectra(digits["audio"][a:b]) for a, b in itertools.pairwise(offsets)])
    right = []
    for voice in speech.SPEAKERS:
        others = np.stack([features[(label == digit) & (speaker != voice)].mean(0) for digit in range(10)])
        own = features[speaker == voice]
        right.append(((own[:, None] - others) ** 2).sum(-1).argmin(1) == label[speaker == voice])
    assert np.concatenate(right).mean() > 0.8


def test_a_vowel_has_its_formants() -> None:
    """The spectrum of a steady "ee" and "ah" peaks near the requested formants."""
    random = np.random.default_rng(0)
    voice = speech.Speaker(100, 1.0, 1.0, 0.0)
    for formants in (speech.IY, speech.AA):
        take = speech.articulate((speech.vowel(800, *formants),), voice, random)
        (samples,) = speech.synthesise([take], random)
        power = np.abs(np.fft.rfft(samples[1000:5096] * np.hanning(4096))) ** 2
        smooth = np.convolve(power, np.ones(101), mode="same")  # over harmonics, 200 Hz wide
        hertz = np.arange(len(power)) * speech.RATE / 4096
        for low, high, wanted in ((150, 900, formants[0]), (900, 2700, formants[1])):
            band = (hertz > low) & (hertz < high)
            if wanted < high:
                assert abs(hertz[band][smooth[band].argmax()] - wanted) < 150, formants


def test_the_folds_open_and_close_faster() -> None:
    """The flow rises from 0 for 0.4 of a period, falls to 0 more and more steeply for 0.16 of it, and then is 0."""
    phase = (np.arange(10_000) + 0.5) / 10_000
    change = speech.glottal_flow(phase)
    flow = np.cumsum(change) / 10_000
    opening, closing, closed = (phase < 0.4), (phase > 0.4) & (phase < 0.56), phase > 0.56
    assert (change[opening] > 0).all() and (np.diff(change[closing]) < 0).all() and not change[closed].any()
    assert flow.max() == pytest.approx(2 / np.pi, rel=1e-3) and flow.argmax() == pytest.approx(4000, abs=2)
    assert np.abs(flow[closed]).max() < 1e-3 and np.abs(change[3998:4002]).max() < 0.01  # no jump where they turn
    assert change.min() == pytest.approx(-1 / 0.16, rel=1e-3)
    assert np.array_equal(speech.glottal_flow(phase + 3), speech.glottal_flow((phase + 3) % 1))


def test_wav_files_hold_the_recordings(tmp_path: Path) -> None:
    speech.write_digits(tmp_path, 1, lambda done, total: None, takes=1)
    stored = np.load(tmp_path / "digits.npz")
    assert len(list((tmp_path / "wav").iterdir())) == 60
    with AudioRecording.open(tmp_path / "wav" / "seven_ben.wav") as recording:
        samples, rate = recording.read(), recording.rate
    (i,) = np.flatnonzero((stored["label"] == 7) & (stored["speaker"] == "ben"))
    assert rate == speech.RATE == stored["rate"]
    a, b = stored["offsets"][i : i + 2]
    assert np.array_equal(np.rint(samples * 32768), stored["audio"][a:b])


def test_shapes_are_what_their_captions_say() -> None:
    pictures, rows = drawings.draw_shapes(120, seed=2)
    assert pictures.shape == (120, 32, 32, 3) and pictures.dtype == np.uint8
    colours = {name: np.asarray(drawings.COLOURS[name], float) for name in drawings.PALETTE}
    for picture, row in zip(pictures, rows, strict=True):
        away = np.abs(picture.astype(float) - colours[row["colour"]]).max(-1)
        own = away < 30  # the figure: within the variation of the colour
        ys, xs = np.nonzero(own)
        x, y = xs.mean() / 16 - 1, ys.mean() / 16 - 1
        sides = {"left": -x, "right": x, "top": -y, "bottom": y}
        far = {side for side, distance in sides.items() if distance > 0.2}
        assert far == {row["place"]} - {"centre"}, row
        channel = {"red": 0, "green": 1, "blue": 2}.get(row["colour"])
        assert channel is None or picture[own].mean(0).argmax() == channel, row
        assert (len(xs) > 110) == (row["size"] == "large") or row["shape"] in ("cross", "star", "ring", "triangle"), row
    held = {(row["shape"], row["colour"]) for row in rows if row["unseen"]}
    taught = {(row["shape"], row["colour"]) for row in rows if not row["unseen"]}
    assert held and not held & taught and {c for _, c in taught} == set(drawings.PALETTE)


def test_no_two_emoji_are_the_same() -> None:
    """Compares some of the faces and all other emoji."""
    names, pictures = [], []
    for canvas, name, _, keywords in itertools.chain(itertools.islice(drawings.faces(), 200), drawings.symbols()):
        names.append(name)
        pictures.append(canvas.picture().tobytes())
        assert keywords
    assert len({*names}) == len(names) == len({*pictures})


def test_clocks_show_their_time() -> None:
    """The long hand points up, or down at half past; the short hand moves from one hour to the next."""
    clocks = {name: canvas.pixels for canvas, name, kind, _ in drawings.symbols() if kind == "time"}
    angle, radius = np.arctan2(drawings.X, -drawings.Y), np.hypot(drawings.X, drawings.Y)  # an angle of 0 is up

    def along(turn: float, length: float) -> np.ndarray:
        """Return the points in this direction, up to a length."""
        return (np.abs((angle - turn + np.pi) % (2 * np.pi) - np.pi) < 0.03) & (radius < length)

    def name(hour: int, half: int) -> str:
        return f"{drawings.HOURS[hour]}{'-thirty' if half else ' o’clock'}"

    assert len(clocks) == 24
    for hour, half in itertools.product(range(12), (0, 30)):
        pixels = clocks[name(hour, half)]
        hands = (pixels == drawings.DARK).all(-1)
        assert hands[along(np.pi if half else 0, 0.6)].all() and hands[along((hour + half / 60) * np.pi / 6, 0.4)].all()
        longer = hands & (radius > 0.5)  # than the short hand
        assert (
            longer.any() and (drawings.Y[longer] * (1 if half else -1) > 0.49).all() and not hands[radius > 0.7].any()
        )
        mirrored = clocks[name(11 - hour if half else -hour % 12, half)]
        assert (pixels[:, ::-1] != mirrored).any(-1).sum() <= 2  # points on an edge, where numbers are rounded


def test_methods_are_called_without_self() -> None:
    text = '''
class Box:
    """Something with a lid."""
    def open(self, wide): """Opens the lid of the box."""
    @staticmethod
    def weigh(box, scale=1): """Weighs another box."""
    @classmethod
    def make(cls, *sizes): """Makes a box of these sizes."""
    @property
    def lid(self): """The lid of the box."""
def carry(box, /, *, far=True): """Carries a box."""
'''
    found = [subject for node in ast.parse(text).body for subject in conversations.subjects_of(node, "boxes")]
    assert {subject.name: (subject.call, subject.parameters) for subject in found} == {
        "Box.open": ("open(wide)", {"wide": False}),
        "Box.weigh": ("weigh(box, scale=1)", {"box": False, "scale": True}),
        "Box.make": ("make(*sizes)", {"*sizes": True}), "Box": ("", {}),
        "carry": ("carry(box, /, *, far=True)", {"box": False, "far": True}),
    }  # fmt: skip


def test_what_is_said_of_python_is_what_python_says() -> None:
    """The answers in conversations agree with `inspect`."""
    seen: set[str] = set()
    for module in map(importlib.import_module, ("textwrap", "shutil", "calendar", "string", "configparser")):
        for subject in conversations.find_subjects(Path(str(module.__file__))):
            thing: Any = module
            for name in subject.name.split("."):
                owner, thing = thing, inspect.getattr_static(thing, name)
            thing = getattr(thing, "__func__", thing)  # of a class method
            assert subject.module == module.__name__ and inspect.isclass(thing) == (subject.methods is not None)
            assert " ".join(str(inspect.getdoc(thing)).split()).startswith(" ".join(subject.paragraphs)), subject
            seen.add(name := "class" if inspect.isclass(thing) else "method" if inspect.isclass(owner) else "function")
            if subject.call:
                signature = inspect.signature(thing)
                given = [*signature.parameters.values()][name == "method" :]
                optional = {
                    p.name for p in given if p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
                }
                assert {n.lstrip("*"): left_out for n, left_out in subject.parameters.items()} == {
                    p.name: p.name in optional for p in given
                }, subject
                written = re.findall(r"\w+", subject.call.partition("(")[2])
                assert {p.name for p in given} <= {*written} and "self" not in written, subject
    assert seen == {"class", "method", "function"}


def test_conversations_have_turns_and_hold_modules_out(tmp_path: Path) -> None:
    conversations.write_conversations(tmp_path, 0, lambda done, total: None, most=200)
    modules: dict[str, set[str]] = {}
    for split, count in (("train", 190), ("valid", 10)):
        talks = [json.loads(line)["messages"] for line in (tmp_path / f"{split}.jsonl").open()]
        assert len(talks) == count
        for talk in talks:
            assert [message["role"] for message in talk] == ["user", "assistant"] * (len(talk) // 2)
            assert 4 <= len(talk) <= 8 and all(message["content"].strip() for message in talk)
            (name,) = re.findall(r"`(.+?)`", talk[0]["content"])
            modules.setdefault(split, set()).add(name)
    parents = {split: {name.rpartition(".")[0] for name in names} for split, names in modules.items()}
    assert not parents["train"] & parents["valid"]


def test_answers_are_right() -> None:
    parameters = {"text": False, "width": True, "**more": True}
    subject = conversations.Subject("m", "f", ["Folds.", "Well."], "f(text, width=3, **more)", parameters, None)
    turns = [
        turn for seed in range(40) for turn in conversations.follow_ups(subject, ["no"], np.random.default_rng(seed))
    ]
    takes = "It takes `text`, `width` and `**more`; `width` and `**more` can be left out."
    assert {question: answer for questions, answer in turns for question in questions} == {
        "How do I import it?": "`from m import f`", "Where is `f` imported from?": "`from m import f`",
        "Tell me more.": "Well.", "What else should I know?": "Well.",
        "How do I call it?": "`f(text, width=3, **more)`", "What is its signature?": "`f(text, width=3, **more)`",
        "Which parameters does it have?": takes, "What does it take?": takes,
        "Does it have a parameter `text`?": "Yes. It must be given.",
        "Does it have a parameter `width`?": "Yes. It can be left out.",
        "Does it have a parameter `no`?": f"No. {takes}",
    }  # fmt: skip


def test_the_seed_decides(tmp_path: Path) -> None:
    """Two runs with one seed give the same bytes; another seed gives different bytes."""
    writers: list[Any] = [
        lambda folder, seed: cartpole.write_episodes(folder, seed, print, count=6),
        lambda folder, seed: speech.write_digits(folder, seed, print, takes=1),
        lambda folder, seed: drawings.write_shapes(folder, seed, print, count=8),
        lambda folder, seed: drawings.write_emoji(folder, seed, print, most=8),
        lambda folder, seed: conversations.write_conversations(folder, seed, print, most=20),
    ]
    for number, write in enumerate(writers):
        files = []
        for name, seed in (("one", 0), ("two", 0), ("three", 1)):
            folder = tmp_path / f"{name}{number}"
            folder.mkdir()
            write(folder, seed)
            files.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
        assert files[0] == files[1] != files[2] and files[0].keys() == files[2].keys()
