"""Which cases represent which features in `make test`; `make test-all` runs all of them.

A line of BEHAVIOUR.md depends on some aspect of a case: its family, its class, the kinds of Parts in it, their
settings. `make test` runs as few cases as show every value of that aspect, preferring STANDS_FOR, so that most lines
use the same models, which a worker builds once. test_everyday.py checks that these cases show every kind of Part,
state, norm placement, head and model.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import Any

from anyformer.models.construct import skeleton
from anyformer.runtime.state import declarations
from anyformer.specs.part import walk
from anyformer.stacks.sublayer import Sublayer

# case -> the features for which it was chosen
STANDS_FOR: dict[str, str] = {
    "GPT2LMHeadModel": "decoder, learned positions, pre-norm, growing cache",
    "T5ForConditionalGeneration": "encoder and decoder, bucketed position bias, cache of a memory",
    "MambaForCausalLM": "selective state space, state per row",
    "BertForMaskedLM": "encoder, post-norm, masked language model head",
    "LlamaForCausalLM-llama3": "rotary positions, Llama 3 scaling, gated feed-forward, RMSNorm",
    "Gemma2ForCausalLM": "capped scores, norms before and after the branch, window in every other layer",
    "MixtralForCausalLM-window": "experts, sliding window, cache that forgets",
    "GptOssForCausalLM": "attention sinks, experts with bounded activations",
    "WhisperForConditionalGeneration": "log-mel input, sinusoids, speech to text",
    "RwkvForCausalLM": "time mix and channel mix",
    "Mamba2ForCausalLM": "state space duality",
    "DeepseekV2ForCausalLM-odd": "latent attention, YaRN",
    "BloomForCausalLM": "ALiBi",
    "GPTNeoXForCausalLM-linear": "parallel branches, linear scaling",
    "GPTNeoXForCausalLM-dynamic": "dynamic scaling",
    "Olmo2ForCausalLM-odd": "queries and keys normalised across heads, norm after the branch",
    "OPTForCausalLM": "positions that count real tokens",
    "SwitchTransformersForConditionalGeneration": "one expert per token",
    "FSMTModel": "decoder output over a vocabulary without a head",
    "LlavaForConditionalGeneration": "decoder that reads a tower",
    "DecisionTransformerModel": "trajectories",
    "GPT2LMHeadModel-odd": "scores divided by the number of the layer",
    "GPT2ForSequenceClassification": "vector of the last token",
    "BartForSequenceClassification": "vector of the last end-of-text token",
    "OPTForCausalLM-bare": "projection after the last layer",
    "XLNetForMultipleChoice-mean": "mean of all columns",
    "XLNetForMultipleChoice-cls_index": "vector of the last column",
    "BartForConditionalGeneration-odd": "offset of the scores, unused second token table",
    "ImageGPTForCausalImageModeling": "output vocabulary that is not the input's",
    "XLMWithLMHeadModel-odd": "a token that is hidden without a mask",
    "DebertaModel-talking": "heads that mix scores and weights",
    "SiglipModel-odd": "attention pooling, sigmoid loss of pairs",
    "SiglipForImageClassification": "pooling head that is stored and not used",
    "GPT2DoubleHeadsModel": "two heads, summary of a sequence",
    "XLNetForQuestionAnswering": "two streams, segments, likely spans",
    "XLNetModel-same-length": "same reach for each token",
    "ReformerForQuestionAnswering": "LSH and chunk attention, reversible layers, axial positions, span head",
    "BertForNextSentencePrediction": "pooler, next sentence head",
    "ErnieForMaskedLM": "a vector for the task of each token",
    "XLMWithLMHeadModel": "a vector for the language of each token",
    "AlbertForPreTraining": "shared layers, sentence order head",
    "DistilBertForMaskedLM-odd": "sines in a position table",
    "DebertaV2ForMultipleChoice-odd": "disentangled attention, token convolution, multiple choice",
    "ModernBertForMaskedLM-sparse": "first layer without a norm, transform without a bias, scores of labelled tokens",
    "ModernBertForMultipleChoice": "transform of a pooled vector",
    "ModernBertForTokenClassification-odd": "transform before tags, rotary positions by kind of layer",
    "ModernBertForQuestionAnswering": "transform before spans",
    "BigBirdForPreTraining-sparse": "block-sparse attention, pretraining head",
    "BigBirdForQuestionAnswering-sparse": "question head",
    "LongformerForTokenClassification": "local attention with global tokens, tags",
    "NystromformerForMaskedLM": "Nystrom attention",
    "FunnelForPreTraining": "funnel, detector head",
    "PerceiverForMaskedLM": "Perceiver",
    "DeiTForImageClassificationWithTeacher": "distillation token",
    "Dinov2WithRegistersBackbone": "feature maps of chosen layers",
    "Dinov2WithRegistersForImageClassification": "registers, LayerScale, class token and patches",
    "SwinModel": "windows with a grid bias",
    "Swinv2ForMaskedImageModeling": "continuous grid bias, post-norm on the branch, pixel head",
    "ResNetModel": "convolutions in stages",
    "MViT-v1": "video, pooled attention",
    "MViT-v2": "vectors of a grid",
    "DiTTransformer2DModel": "adaptive norms, noise head",
    "AutoencoderKL": "autoencoder",
    "CLIPModel": "two towers, similarity",
    "CLIPTextModelWithProjection": "projection head, pooling of the highest id",
    "Wav2Vec2ConformerForPreTraining": "waveform, Conformer, relative sinusoids, contrastive head",
    "Wav2Vec2ConformerForAudioFrameClassification-mixed": "mix of layers, rotary input, frame head",
    "Wav2Vec2Model-adapter": "convolution adapter",
    "Wav2Vec2ForXVector": "speaker vectors",
    "ParakeetForCTC": "subsampled spectrogram, CTC",
    "ParakeetEncoder": "output of the frames that are real",
    "Conformer-conformer-group": "vectors as input, norm of a row",
}  # fmt: skip


def features(spec: Any) -> frozenset[tuple[str, str]]:
    """Return (aspect, value) pairs: the kind of model, head and each Part, and where norms are placed around each
    step."""
    found = {("model", type(spec).__name__), ("head", type(spec.head).__name__)}
    for _, part in walk(spec):
        found.add(("part", type(part).__name__))
        if isinstance(part, Sublayer):
            norms = [name for name in ("pre_norm", "post_norm", "out_norm") if getattr(part, name) is not None]
            found.add(("norms", " ".join(norms)))
    return frozenset(found)


def states(spec: Any) -> frozenset[tuple[str, str]]:
    """Return the kinds of decoding state that a description declares."""
    declared = [each for _, each in declarations(skeleton(spec))] if spec.left_to_right else []
    windows = [" in a window" if getattr(each, "window", None) is not None else "" for each in declared]
    return frozenset(("state", f"{type(each).__name__}{window}") for each, window in zip(declared, windows))


def enough(news: Mapping[str, Collection[Any]]) -> set[str]:
    """Return few of these cases that together show everything that any case shows: first cases of STANDS_FOR that show
    something new, then repeatedly the case that adds most."""
    left = {new for each in news.values() for new in each}
    found: set[str] = set()
    for case in STANDS_FOR:
        if not left.isdisjoint(news.get(case, ())):
            found.add(case)
            left.difference_update(news[case])
    heap = [(-len(each), place, case) for place, (case, each) in enumerate(news.items())]
    heapq.heapify(heap)
    while left:
        _, place, case = heapq.heappop(heap)
        adds = len(left.intersection(news[case]))
        if heap and -adds > heap[0][0]:  # it added more before others were chosen
            heapq.heappush(heap, (-adds, place, case))
        elif adds:
            found.add(case)
            left.difference_update(news[case])
    return found
