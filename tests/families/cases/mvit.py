"""Models in `reference/`; make_mvit.py describes what is unusual about each."""

import json
from pathlib import Path

from catalogue import Case

MADE = json.loads((Path(__file__).parents[1] / "reference" / "mvit.json").read_text())["models"]
WHOLE = "the published classes take no mask of pixels or patches"
SKIP = {"N4": WHOLE, "N5": WHOLE, "N7": "one row is one video or image: nothing can be packed"}


def case(made: str) -> Case:
    library, name = made.split("-")
    config = {"num_labels": 5, **MADE[made]["config"]}
    if library == "torchvision":
        pixels = (3, config["temporal_size"], *config["spatial_size"])
    else:
        pixels = (3, *config.setdefault("img_size", [32, 32]))
    model_type = {"torchvision": "mvit", "timm": "mvitv2"}[library]
    return Case(model_type, MADE[made]["class"], config, name, inputs={"pixel_values": pixels}, skip=SKIP)


CASES = [case(made) for made in MADE]
