from catalogue import Case

from cases import dinov2, vit


def case(architecture: str, config: dict, name: str = "", **more) -> Case:
    return Case("dinov2_with_registers", f"Dinov2WithRegisters{architecture}", config, name, skip=vit.SKIP, **more)


CASES = [
    case("Backbone", dinov2.BACKBONE),
    case("ForImageClassification", dinov2.SMALL),
    case("Model", dinov2.SMALL),
    case("ForImageClassification", {**dinov2.ODD, "use_swiglu_ffn": True, "num_register_tokens": 1}, "odd",
         inputs={"pixel_values": (2, 15, 62)}),  # smaller than in training: antialiased
    case("Model", {**dinov2.ODD, "num_register_tokens": 2}, "odd", inputs=dinov2.WIDE),
    case("Model", {**dinov2.SMALL, "num_register_tokens": 0}, "none"),
]  # fmt: skip
