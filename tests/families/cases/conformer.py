"""torchaudio's models in `reference/`; make_conformer.py describes what is unusual about each."""

from catalogue import Case
from reference.make_conformer import CONFIGS

N4 = "the published depthwise convolution reads padding next to the last frames, and a group norm includes it"
N7 = "frames are one recording: the published convolution has no document mask"


def case(name: str, config: dict) -> Case:
    pads = config["depthwise_conv_kernel_size"] == 1 and not config.get("use_group_norm")
    skip = {"N7": N7} if pads else {"N4": N4, "N7": N7}
    return Case("torchaudio-conformer", "Conformer", config, name, {"inputs_embeds": (17, config["input_dim"])}, skip)


CASES = [case(name, config) for name, config in CONFIGS.items()]
