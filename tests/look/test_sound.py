"""Words below a spectrogram: the line of each word, and its start and end."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.look.sound import LINE, LONGEST, Sound
from anyformer.look.views import Scene
from anyformer_course.pictures import lectures
from planted import planted


def sound(seconds: float, *words: tuple[float, float, str]) -> Sound:
    power = torch.arange(round(seconds * 100)).float().expand(8, -1)
    return Sound(power, 0.01, 8, "mel channel", lambda: [dict(zip(("start", "end", "text"), word)) for word in words])


def test_lines_of_a_recording() -> None:
    found = sound(14.4, (0, 0, "a"), (4.5, 5, "b"), (4.7, 4.9, "c"), (9, 10, "d"), (14, 15, "e")).lines()
    assert [(round(line.start, 2), round(line.end, 2)) for line in found] == [(0, 4.8), (4.8, 9.6), (9.6, 14.4)]
    assert [[word.text for word in line.words] for line in found] == [["a", "b", "c"], ["b", "c", "d"], ["d", "e"]]
    assert torch.equal(torch.cat([line.power for line in found], 1), sound(14.4).power)
    assert len(sound(LINE, (0, 1, "a")).lines()) == 1
    long = sound(2 * LONGEST, (1, 2, "a"), (LONGEST + 1, LONGEST + 2, "b"))
    assert long.lines()[-1].end == pytest.approx(LONGEST) and long.about.startswith("the first 30 of 60.0 seconds")
    assert [word.text for line in long.lines() for word in line.words] == ["a"]


def test_what_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    words = [(0.5, 0.9, "one"), (1.2, 1.3, "$two"), (2.0, 2.9, "three four")]
    scene: Any = Scene(planted(), {}, reads="sound", sound=lambda: sound(3.0, *words))
    figure = lectures.spectrogram(scene)
    upper, lower = figure.axes
    assert [tuple(line.get_xdata()) for line in lower.lines] == [word[:2] for word in words]
    assert [text.get_text() for text in lower.texts] == ["one", r"\$two", "three four"]
    assert [text.get_position()[0] for text in lower.texts] == pytest.approx([0.7, 1.25, 2.45])
    assert sorted({float(line.get_xdata()[0]) for line in upper.lines}) == [0.5, 0.9, 1.2, 1.3, 2.0, 2.9]
    assert upper.get_xlim() == lower.get_xlim() == (0, 3) and upper.images[0].get_extent() == [0, 3, 0, 8]
    assert np.array_equal(upper.images[0].get_array(), sound(3.0).power)
    silent = dataclasses.replace(scene, sound=lambda: sound(3.0, (0, 1, " ")))
    with pytest.raises(ValueError, match="no words in this recording"):
        lectures.spectrogram(silent)
