from catalogue import Case

SMALL = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "num_labels": 5}
# the first layer keeps width and grid; a stage of one layer; a stride in the first of three convolutions; an odd grid
BASIC = {
    "num_channels": 2, "embedding_size": 6, "hidden_sizes": [6, 10, 7], "depths": [3, 1, 2], "layer_type": "basic",
    "hidden_act": "gelu", "num_labels": 3,
}  # fmt: skip
EARLY = {
    "embedding_size": 17, "hidden_sizes": [17, 42], "depths": [1, 3], "downsample_in_first_stage": True,
    "downsample_in_bottleneck": True, "hidden_act": "silu", "num_labels": 1,
}  # fmt: skip
WIDE = {"pixel_values": (2, 61, 23)}
NO_MASK = "the published classes take no mask of pixels"
SKIP = {"N4": NO_MASK, "N5": NO_MASK, "N7": "one row is one image: nothing can be packed"}


def case(architecture: str, config: dict, name: str = "", **more) -> Case:
    return Case("resnet", architecture, config, name, skip=SKIP, **more)


CASES = [
    case("ResNetForImageClassification", SMALL),
    case("ResNetModel", SMALL),
    case("ResNetForImageClassification", BASIC, "basic", inputs=WIDE),
    case("ResNetModel", BASIC, "basic", inputs=WIDE),
    case("ResNetModel", EARLY, "early"),
    case("ResNetForImageClassification", EARLY, "early"),
]
