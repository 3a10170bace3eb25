from catalogue import Case

from cases import vit

TAUGHT = "DeiTForImageClassificationWithTeacher"


def case(architecture: str, config: dict, name: str = "", **more) -> Case:
    return Case("deit", architecture, config, name, skip=vit.SKIP, **more)


CASES = [
    case(TAUGHT, vit.SMALL),
    case("DeiTForImageClassification", {**vit.ODD, "num_labels": 3}, inputs=vit.WIDE),
    case("DeiTModel", vit.SMALL),
    case("DeiTForMaskedImageModeling", {**vit.SMALL, "num_hidden_layers": 1}),
    case(TAUGHT, vit.ODD, "odd", inputs=vit.WIDE),
    case("DeiTModel", {**vit.ODD, "head_dim": 3, "tie_last_hidden_states": True}, "odd", inputs=vit.WIDE),
]
