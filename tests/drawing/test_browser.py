"""Text fits into the pictures in a real browser, which measures text with real fonts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from anyformer.drawing import draw

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

NAMES = ["gpt2", "llama3-8b", "bert-base", "t5-small", "vit-b16", "swin-tiny", "whisper-tiny", "mixtral-8x7b",
         "wav2vec2-conformer-rel-pos-large", "deepseek-v3", "mamba-130m", "decision-transformer-gym", "funnel-small",
         "switch-base-8", "gpt-neox-20b", "longformer-base", "rwkv-4-169m", "opt-350m"]  # fmt: skip

# with the default fonts and with wide fonts: list text that is outside its box or the picture, or on other text
MEASURE = """
const found = [];
const before = (a, b, by) => a.x + a.width <= b.x + by || a.y + a.height <= b.y + 4 * by;
const meet = (a, b) => !before(a, b, 1) && !before(b, a, 1);
const within = (a, b) => a.x >= b.x - 1 && a.x + a.width <= b.x + b.width + 1
  && a.y >= b.y - 2 && a.y + a.height <= b.y + b.height + 2;
let texts = 0;
for (const font of ["", "DejaVu Sans", "Verdana"]) {
  const style = document.createElement("style");
  if (font) style.textContent = `svg text { font-family: "${font}" !important }`;
  document.body.append(style);
  for (const svg of document.querySelectorAll("svg")) {
    const report = (what, text) => found.push([svg.dataset.name, font, what, text.textContent]);
    const whole = svg.viewBox.baseVal, all = [...svg.querySelectorAll("text")].map(t => [t, t.getBBox()]);
    texts += all.length;
    for (const [text, box] of all) {
      const rect = text.parentNode.tagName === "g" ? text.parentNode.querySelector("rect").getBBox() : whole;
      if (!within(box, rect)) report("outside", text);
    }
    for (let i = 0; i < all.length; i++)
      for (let j = i + 1; j < all.length; j++)
        if (meet(all[i][1], all[j][1])) report("on " + all[j][0].textContent, all[i][0]);
  }
  style.remove();
}
const out = document.createElement("pre");
out.id = "result";
out.textContent = JSON.stringify({texts, found});
document.body.append(out);
"""


def test_text_fits_in_a_browser(tmp_path: Path) -> None:
    drawings = {**{name: draw(name) for name in NAMES}, "both": draw("gpt2", "llama3-8b")}
    pictures = [each.svg.replace("<svg ", f'<svg data-name="{name}" ', 1) for name, each in drawings.items()]
    page = tmp_path / "page.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><body>{"".join(pictures)}<script>{MEASURE}</script>')
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([str(CHROMIUM), *options, str(page)], capture_output=True, text=True, timeout=280)
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert result, done.stderr[-2000:]
    measured = json.loads(unescape(result[1]))
    assert measured["texts"] > 3 * 500 and measured["found"] == [], measured["found"][:10]
