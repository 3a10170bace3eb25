"""The scores after fine-tuning of the table of Narang et al. 2021: XSum, WebQuestions, WMT English-German."""

from __future__ import annotations

# row: XSum, WebQ, WMT EnDe, as printed; from the same machine-read copy as the steps of `narang_table`, in which the
# last cell of the Evolved Transformer cannot be read
FINE_TUNED: dict[str, tuple[float, float, float | None]] = {
    "Vanilla Transformer": (17.78, 23.02, 26.62), "GeLU": (17.86, 25.13, 26.47), "Swish": (17.74, 24.34, 26.75),
    "ELU": (16.73, 23.02, 26.08), "GLU": (17.42, 24.34, 27.12), "GeGLU": (18.27, 24.87, 26.87),
    "ReGLU": (18.36, 24.87, 27.02), "SeLU": (16.76, 22.75, 25.99), "SwiGLU": (18.2, 24.34, 27.02),
    "LiGLU": (17.97, 24.34, 26.53), "Sigmoid": (17.51, 23.02, 26.3), "Softplus": (17.65, 24.34, 26.89),
    "RMS Norm": (17.94, 24.07, 27.14), "Rezero": (15.64, 20.9, 26.37), "Rezero + LayerNorm": (17.58, 23.02, 26.29),
    "Rezero + RMS Norm": (17.32, 23.02, 26.19), "Fixup": (14.42, 23.02, 26.31),
    "24 layers, d_ff = 1536, H = 6": (17.75, 25.13, 26.89), "18 layers, d_ff = 2048, H = 8": (16.83, 24.34, 26.89),
    "8 layers, d_ff = 4608, H = 18": (17.69, 23.28, 26.85), "6 layers, d_ff = 6144, H = 24": (17.59, 24.6, 26.66),
    "Block sharing": (14.53, 21.96, 25.48), "Block sharing + factorized embeddings": (14.0, 19.84, 25.27),
    "Block sharing + factorized & shared embeddings": (11.37, 19.84, 25.19),
    "Encoder only block sharing": (16.23, 23.02, 26.23), "Decoder only block sharing": (16.13, 23.81, 26.08),
    "Factorized Embedding": (15.92, 22.75, 26.5), "Factorized & shared embeddings": (16.33, 22.22, 26.44),
    "Tied encoder/decoder input embeddings": (17.72, 24.34, 26.49),
    "Tied decoder input and output embeddings": (17.74, 24.87, 26.67), "Untied embeddings": (17.58, 23.28, 26.48),
    "Adaptive input embeddings": (16.21, 24.07, 26.66), "Adaptive softmax": (16.67, 21.16, 25.56),
    "Adaptive softmax without projection": (17.1, 23.02, 25.72), "Mixture of softmaxes": (17.62, 22.75, 26.82),
    "Transparent attention": (10.4, 21.16, 26.8), "Dynamic convolution": (12.67, 21.16, 17.03),
    "Lightweight convolution": (14.86, 23.02, 24.73), "Evolved Transformer": (10.76, 24.07, None),
    "Synthesizer (dense)": (14.27, 16.14, 26.63), "Synthesizer (dense plus)": (16.96, 23.81, 26.71),
    "Synthesizer (dense plus alpha)": (17.02, 23.28, 26.61), "Synthesizer (factorized)": (15.39, 23.55, 26.42),
    "Synthesizer (random)": (10.35, 19.56, 26.44), "Synthesizer (random plus)": (17.04, 24.87, 26.43),
    "Synthesizer (random plus alpha)": (17.08, 24.08, 26.39), "Universal Transformer": (14.09, 19.05, 23.91),
    "Mixture of experts": (18.13, 24.08, 26.94), "Switch Transformer": (18.02, 26.19, 26.81),
    "Funnel Transformer": (16.26, 22.75, 23.2), "Weighted Transformer": (16.98, 23.02, 26.3),
    "Product key memory": (17.04, 23.55, 26.73),
}  # fmt: skip
