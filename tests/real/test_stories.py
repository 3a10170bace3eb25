"""stories260K [Karpathy, llama2.c] writes a fluent story, and the same story after export to transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import anyformer as af

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.real

STORY = " Once upon a time, there was a little girl named Lily. She loved to play outside in the park."


def test_a_story(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import stories

    monkeypatch.delitem(sys.modules, "stories")
    model, encode = stories.load(shared_data / "weights" / "stories260K")
    prompt = torch.tensor([encode("Once upon a time")])
    ours = af.generate(model, input_ids=prompt, max_new_tokens=200, eos_token_id=None)
    assert encode.decode(ours[0].tolist()).startswith(STORY)
    af.save(model, tmp_path, format="hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    theirs.generation_config.eos_token_id = None
    mask = torch.ones_like(prompt)
    text = theirs.generate(prompt, attention_mask=mask, max_new_tokens=200, do_sample=False, pad_token_id=0)
    assert torch.equal(ours, text)
    with torch.no_grad():
        assert float((model(input_ids=ours).logits - theirs(input_ids=ours).logits).abs().max()) < 1e-4
