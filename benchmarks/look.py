"""Measure how fast `anyformer look --serve` shows a page for a loaded model of GPT-2's size (random weights):
python benchmarks/look.py [TOKENS ...]"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time

import torch
from playwright.sync_api import sync_playwright

import anyformer as af
from anyformer.look.serve import Server
from anyformer.look.views import Scene


def main(lengths: list[int]) -> None:
    model = af.build(af.spec("gpt2"), seed=0).eval()
    ids = torch.randint(0, 50257, (1, max(lengths)), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(input_ids=ids[:, :8])
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for length in lengths:
            scene = Scene(model, {"input_ids": ids[:, :length]}, name="gpt2", words=lambda i: f" {i}")
            start, busy = time.perf_counter(), time.process_time()
            server = Server(scene, 0)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            page = browser.new_page()
            page.goto(server.address, wait_until="commit")
            page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
            painted = time.perf_counter() - start
            page.wait_for_function("() => document.getElementById('large')?.dataset.key === '0 0'")
            drawn, busy = time.perf_counter() - start, time.process_time() - busy
            server.shutdown()
            server.server_close()
            shown = f"painted after {painted:.2f} s, a large map after {drawn:.2f} s"
            load = f"{busy:.2f} s of CPU time in this process, load {os.getloadavg()[0]:.0f}"
            print(f"{length} tokens: {shown} ({load})", flush=True)
        browser.close()


if __name__ == "__main__":
    main([int(length) for length in sys.argv[1:]] or [16, 64, 512])
