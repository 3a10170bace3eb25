from catalogue import Case

from cases import swin

SMALL = {**swin.SMALL, "pretrained_window_sizes": [0, 2]}
# grids of 11, 5 and 2 rows, windows of 3, 3 and 2, padded with zeros
ODD = {**swin.ODD, "window_size": 3, "pretrained_window_sizes": [4, 0, 2]}


def case(architecture: str, config: dict, name: str = "", **more) -> Case:
    return Case("swinv2", architecture, config, name, skip=swin.SKIP, **more)


CASES = [
    case("Swinv2ForImageClassification", SMALL),
    case("Swinv2Model", SMALL),
    case("Swinv2ForMaskedImageModeling", SMALL),
    case("Swinv2ForImageClassification", ODD, "odd", inputs=swin.WIDE),
    case("Swinv2Model", {**SMALL, "window_size": 4, "image_size": 24, "depths": [2, 2, 2], "num_heads": [2, 3, 6],
                         "pretrained_window_sizes": [6, 4, 3]}, "small"),
    case("Swinv2ForImageClassification", {**SMALL, **swin.ONE, "window_size": 1, "num_labels": 1}, "single"),
]  # fmt: skip
