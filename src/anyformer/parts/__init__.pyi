# Written by `python -m anyformer.cli.listing`.
# fmt: off
# ruff: noqa: E501
# ruff: noqa: I001

from anyformer.data.captions import Captions as Captions, Worded as Worded
from anyformer.data.conversations import Conversations as Conversations
from anyformer.data.episodes import Episodes as Episodes
from anyformer.data.media import Folder as Folder, ImageFolder as ImageFolder, JoinedRecordings as JoinedRecordings, Recordings as Recordings, SoundFolder as SoundFolder
from anyformer.data.mixture import Mixture as Mixture, Share as Share, TextToText as TextToText
from anyformer.data.oversample import Oversample as Oversample
from anyformer.data.prepare import Data as Data
from anyformer.data.source import Beside as Beside, Files as Files, First as First, Held as Held, Numbers as Numbers, Source as Source, Subset as Subset, Where as Where
from anyformer.data.table import Arrays as Arrays, CSV as CSV, HFDataset as HFDataset, IDX as IDX, JSONLines as JSONLines, Parquet as Parquet, SQuAD as SQuAD, TSV as TSV
from anyformer.data.text_files import Columns as Columns, ParallelText as ParallelText, PythonDocs as PythonDocs, TextFiles as TextFiles
from anyformer.data.vocabulary import BuiltVocabulary as BuiltVocabulary, Bytes as Bytes, PieceVocabulary as PieceVocabulary, Stored as Stored, TrainedBPE as TrainedBPE, TrainedUnigram as TrainedUnigram, TrainedWordPiece as TrainedWordPiece, Vocabulary as Vocabulary, Words as Words
from anyformer.inputs.image import Images as Images
from anyformer.models.autoencoder import AutoencoderModel as AutoencoderModel
from anyformer.models.decoder_with_towers import Tower as Tower, TowerDecoderModel as TowerDecoderModel, TowerEncoderModel as TowerEncoderModel, TowerInputModel as TowerInputModel
from anyformer.models.encoder_decoder import EncoderDecoderModel as EncoderDecoderModel
from anyformer.models.hidden_spans import HiddenSpansModel as HiddenSpansModel
from anyformer.models.last_token_start import LastTokenStartModel as LastTokenStartModel
from anyformer.models.model import Model as Model
from anyformer.models.single_stack import DecoderModel as DecoderModel, EncoderModel as EncoderModel
from anyformer.models.towers import ThreeTowerModel as ThreeTowerModel, TowersModel as TowersModel, TwoTowerModel as TwoTowerModel
from anyformer.objectives.answer import Answer as Answer
from anyformer.objectives.auxiliary import Auxiliary as Auxiliary
from anyformer.objectives.causal import NextToken as NextToken
from anyformer.objectives.choose import Choose as Choose
from anyformer.objectives.classify import Classify as Classify
from anyformer.objectives.contrast import Contrast as Contrast
from anyformer.objectives.ctc import CTC as CTC
from anyformer.objectives.decision import Act as Act
from anyformer.objectives.denoise import Denoise as Denoise, DocumentRotation as DocumentRotation, Noise as Noise, SentencePermutation as SentencePermutation, TextInfilling as TextInfilling, TokenDeletion as TokenDeletion, TokenMasking as TokenMasking
from anyformer.objectives.dialogue import Dialogue as Dialogue
from anyformer.objectives.diffuse import Diffuse as Diffuse, DiffuseText as DiffuseText
from anyformer.objectives.distill import Distill as Distill
from anyformer.objectives.draw import NextImageToken as NextImageToken, Reconstruct as Reconstruct
from anyformer.objectives.hidden_spans import HiddenSpans as HiddenSpans
from anyformer.objectives.images import ClassifyImage as ClassifyImage, LabelledPictures as LabelledPictures, Pictures as Pictures
from anyformer.objectives.masked import Masked as Masked
from anyformer.objectives.masked_image import MaskedImage as MaskedImage
from anyformer.objectives.mass import MASS as MASS
from anyformer.objectives.match import Captioned as Captioned, MatchImage as MatchImage
from anyformer.objectives.match_text import MatchText as MatchText
from anyformer.objectives.multi_label import MultiLabel as MultiLabel
from anyformer.objectives.objective import Objective as Objective
from anyformer.objectives.permuted import Permuted as Permuted
from anyformer.objectives.recordings import Sounds as Sounds
from anyformer.objectives.regress import Regress as Regress
from anyformer.objectives.replaced import ReplacedTokens as ReplacedTokens
from anyformer.objectives.rewrite import Rewrite as Rewrite
from anyformer.objectives.sentences import MaskedAndNext as MaskedAndNext
from anyformer.objectives.span_corruption import SpanCorruption as SpanCorruption
from anyformer.objectives.tag import Tag as Tag
from anyformer.objectives.tag_graph import TagGraph as TagGraph
from anyformer.objectives.transcribe import Transcribe as Transcribe
from anyformer.objectives.translate import Translate as Translate
from anyformer.objectives.video import MatchVideo as MatchVideo
from anyformer.objectives.vocabulary_info import VocabularyInfo as VocabularyInfo, VocabularyObjective as VocabularyObjective
from anyformer.objectives.wrapper import ObjectiveWrapper as ObjectiveWrapper
from anyformer.parts.attention.attention import Attention as Attention
from anyformer.parts.attention.bahdanau import AdditiveAttention as AdditiveAttention
from anyformer.parts.attention.big_bird import BlockSparseAttention as BlockSparseAttention
from anyformer.parts.attention.deberta import DebertaAttention as DebertaAttention
from anyformer.parts.attention.joint_norm import JointNormAttention as JointNormAttention
from anyformer.parts.attention.latent import LatentAttention as LatentAttention
from anyformer.parts.attention.linear import EluFeatures as EluFeatures, Features as Features, LinearAttention as LinearAttention, LinformerAttention as LinformerAttention, OrthogonalRows as OrthogonalRows, Projections as Projections, RandomFeatures as RandomFeatures, SoftmaxFeatures as SoftmaxFeatures
from anyformer.parts.attention.local_chunks import ChunkAttention as ChunkAttention
from anyformer.parts.attention.longformer import LocalAttention as LocalAttention
from anyformer.parts.attention.lsh import InChunks as InChunks, LSHAttention as LSHAttention
from anyformer.parts.attention.memory_compressed import BlockAttention as BlockAttention, CompressedAttention as CompressedAttention
from anyformer.parts.attention.nystrom import NystromAttention as NystromAttention
from anyformer.parts.attention.poolingformer import PoolingAttention as PoolingAttention
from anyformer.parts.attention.routing import RoutingAttention as RoutingAttention
from anyformer.parts.attention.scores import Entmax as Entmax, HeadMixing as HeadMixing, LearnedScale as LearnedScale, Normalizer as Normalizer, PointwiseChange as PointwiseChange, QueryChange as QueryChange, ScaleByLayer as ScaleByLayer, ScoreChange as ScoreChange, Sinks as Sinks, SoftCap as SoftCap, Softmax as Softmax, Sparsemax as Sparsemax, TalkingHeads as TalkingHeads
from anyformer.parts.attention.set_transformer import InducedAttention as InducedAttention, LunaAttention as LunaAttention, Seeds as Seeds
from anyformer.parts.attention.sinkhorn import SinkhornAttention as SinkhornAttention
from anyformer.parts.attention.synthesizer import Synthesizer as Synthesizer
from anyformer.parts.attention.token_learner import TokenLearner as TokenLearner
from anyformer.parts.attention.transformer_xl import RecurrentAttention as RecurrentAttention
from anyformer.parts.attention.transparent import TransparentAttention as TransparentAttention
from anyformer.parts.attention.weighted_transformer import BranchedAttention as BranchedAttention
from anyformer.parts.base import AbsolutePosition as AbsolutePosition, Embedding as Embedding
from anyformer.parts.condition import AdaptiveNorm as AdaptiveNorm, Gated as Gated, StepAndLabel as StepAndLabel
from anyformer.parts.convolution.conformer import ConvolutionModule as ConvolutionModule
from anyformer.parts.convolution.tokens import BranchedConvolution as BranchedConvolution, Convolved as Convolved, Convolving as Convolving, Gate as Gate, LightweightConvolution as LightweightConvolution, TokenConvolution as TokenConvolution
from anyformer.parts.diffusion import NoiseHead as NoiseHead, NoiseSchedule as NoiseSchedule, NoisyEmbedding as NoisyEmbedding
from anyformer.parts.embedding.adaptive import AdaptiveTokens as AdaptiveTokens
from anyformer.parts.embedding.autoencoder import ConvEmbedding as ConvEmbedding, KLEmbedding as KLEmbedding
from anyformer.parts.embedding.block_text import BlockTextEmbedding as BlockTextEmbedding, TextOnly as TextOnly
from anyformer.parts.embedding.charformer import SubwordBlocks as SubwordBlocks
from anyformer.parts.embedding.convolution import ConvolutionEmbedding as ConvolutionEmbedding, GridEmbedding as GridEmbedding
from anyformer.parts.embedding.global_text import GlobalTextEmbedding as GlobalTextEmbedding
from anyformer.parts.embedding.labelled_text import LanguageText as LanguageText, TaskText as TaskText
from anyformer.parts.embedding.padded_text import HiddenTokenText as HiddenTokenText, XLMText as XLMText, ZeroedPaddingText as ZeroedPaddingText
from anyformer.parts.embedding.patches import PatchEmbedding as PatchEmbedding, VideoEmbedding as VideoEmbedding
from anyformer.parts.embedding.permuted_text import OrderedText as OrderedText
from anyformer.parts.embedding.prefix import PrefixTokens as PrefixTokens
from anyformer.parts.embedding.regression_pairs import PairEmbedding as PairEmbedding
from anyformer.parts.embedding.scaled_tokens import ScaledTokens as ScaledTokens
from anyformer.parts.embedding.segment_ids import IgnoredSegments as IgnoredSegments, SegmentIds as SegmentIds, TokenSegments as TokenSegments
from anyformer.parts.embedding.segments import SegmentedText as SegmentedText
from anyformer.parts.embedding.spare_table import SpareTableTokens as SpareTableTokens
from anyformer.parts.embedding.spec_augment import SpecAugment as SpecAugment
from anyformer.parts.embedding.spectrogram import SpectrogramEmbedding as SpectrogramEmbedding
from anyformer.parts.embedding.subsampling import SubsampledSpectrogram as SubsampledSpectrogram
from anyformer.parts.embedding.text import TextEmbedding as TextEmbedding, Tokens as Tokens
from anyformer.parts.embedding.trajectory import TrajectoryEmbedding as TrajectoryEmbedding
from anyformer.parts.embedding.vectors import Vectors as Vectors
from anyformer.parts.embedding.waveform import ConvolutionStem as ConvolutionStem, SegmentEmbedding as SegmentEmbedding, WaveformEmbedding as WaveformEmbedding
from anyformer.parts.feedforward.balance import Balance as Balance, EntropyBalance as EntropyBalance, PooledBalance as PooledBalance, SwitchBalance as SwitchBalance, VariationBalance as VariationBalance
from anyformer.parts.feedforward.base import FeedForward as FeedForward
from anyformer.parts.feedforward.clamped_mlp import ClampedGatedMLP as ClampedGatedMLP
from anyformer.parts.feedforward.mlp import GatedMLP as GatedMLP, MLP as MLP
from anyformer.parts.feedforward.moe import MoE as MoE
from anyformer.parts.feedforward.product_keys import ProductKeyMemory as ProductKeyMemory
from anyformer.parts.feedforward.routers import GShard as GShard, NoisyTopK as NoisyTopK, Router as Router, Switch as Switch, TopK as TopK
from anyformer.parts.grid.autoencoder_kl import KLDecoder as KLDecoder
from anyformer.parts.grid.convolution import Convolution as Convolution, Convolutions as Convolutions, GridLayer as GridLayer, LayersDown as LayersDown, OpLayer as OpLayer, ResidualDown as ResidualDown
from anyformer.parts.grid.dvae import ConvDecoder as ConvDecoder, GaussianLatent as GaussianLatent, GumbelCodes as GumbelCodes, ImageDecoder as ImageDecoder, Latent as Latent, RoundedCodes as RoundedCodes
from anyformer.parts.grid.halo import HaloAttention as HaloAttention
from anyformer.parts.grid.local_relation import LocalRelation as LocalRelation
from anyformer.parts.grid.merge import Down as Down, Merge as Merge
from anyformer.parts.grid.non_local import CrissCross as CrissCross, NonLocal as NonLocal
from anyformer.parts.grid.pooled_attention import GridPool as GridPool, PooledAttention as PooledAttention, Skip as Skip
from anyformer.parts.grid.windows import Windows as Windows
from anyformer.parts.halve import Halve as Halve
from anyformer.parts.head.adaptive import AdaptiveHead as AdaptiveHead, MixtureHead as MixtureHead
from anyformer.parts.head.attention_pool import AttentionPool as AttentionPool
from anyformer.parts.head.base import Head as Head, Transform as Transform
from anyformer.parts.head.capped import CappedHead as CappedHead
from anyformer.parts.head.class_and_patches import ClassAndPatchesHead as ClassAndPatchesHead
from anyformer.parts.head.classify import ClassifyHead as ClassifyHead, MultipleChoiceHead as MultipleChoiceHead, PooledOutput as PooledOutput
from anyformer.parts.head.contrastive import ContrastHead as ContrastHead, Quantizer as Quantizer
from anyformer.parts.head.ctc import CTCHead as CTCHead
from anyformer.parts.head.double import DoubleHead as DoubleHead, Summary as Summary
from anyformer.parts.head.feature_maps import ChosenLayers as ChosenLayers, FeatureMapsHead as FeatureMapsHead
from anyformer.parts.head.frames import RealOutput as RealOutput
from anyformer.parts.head.image import DistilledHead as DistilledHead, ImageOutput as ImageOutput, PixelHead as PixelHead
from anyformer.parts.head.language import LMHead as LMHead, VocabularyOutput as VocabularyOutput
from anyformer.parts.head.language_kinds import OffsetLMHead as OffsetLMHead, OwnVocabularyHead as OwnVocabularyHead, OwnVocabularyOffsetHead as OwnVocabularyOffsetHead
from anyformer.parts.head.likely_spans import LikelySpans as LikelySpans
from anyformer.parts.head.pool import Pool as Pool
from anyformer.parts.head.pooling import FirstOccurrence as FirstOccurrence, FirstToken as FirstToken, HighestId as HighestId, LastColumn as LastColumn, LastOccurrence as LastOccurrence, LastToken as LastToken, MeanColumns as MeanColumns, MeanTokens as MeanTokens, Pooling as Pooling, SeedPool as SeedPool
from anyformer.parts.head.prediction import PredictionPool as PredictionPool, PredictionSpanHead as PredictionSpanHead, PredictionTagHead as PredictionTagHead, PredictionTransform as PredictionTransform
from anyformer.parts.head.pretraining import NextSentenceHead as NextSentenceHead, PretrainingHead as PretrainingHead, SentenceOrderHead as SentenceOrderHead
from anyformer.parts.head.question_span import QuestionHead as QuestionHead
from anyformer.parts.head.regression import PairHead as PairHead
from anyformer.parts.head.replaced_tokens import DetectHead as DetectHead
from anyformer.parts.head.sigmoid import PooledVector as PooledVector, SigmoidSimilarityHead as SigmoidSimilarityHead
from anyformer.parts.head.similarity import HiddenSpansHead as HiddenSpansHead, ProjectionHead as ProjectionHead, SimilarityHead as SimilarityHead, SpacesHead as SpacesHead
from anyformer.parts.head.span import SpanHead as SpanHead
from anyformer.parts.head.sparse import SparseHead as SparseHead
from anyformer.parts.head.speech import ConvolutionAdapter as ConvolutionAdapter, FrameHead as FrameHead, SpeechNeck as SpeechNeck, SpeechOutput as SpeechOutput
from anyformer.parts.head.tag import TagHead as TagHead
from anyformer.parts.head.trajectory import TrajectoryHead as TrajectoryHead
from anyformer.parts.head.xvector import XVectorHead as XVectorHead
from anyformer.parts.init import Initializer as Initializer, Kaiming as Kaiming, Normal as Normal, Uniform as Uniform, Value as Value, Xavier as Xavier
from anyformer.parts.language_specific import LanguageSpecific as LanguageSpecific
from anyformer.parts.later_norm import LaterLayerNorm as LaterLayerNorm
from anyformer.parts.layer_mix import LayerMix as LayerMix, Neck as Neck
from anyformer.parts.mask import All as All, Axial as Axial, BlockAndBefore as BlockAndBefore, Causal as Causal, Dilated as Dilated, Either as Either, Fixed as Fixed, Full as Full, Global as Global, GridBlocks as GridBlocks, Mask as Mask, Not as Not, Padding as Padding, RandomBlocks as RandomBlocks, SameBlock as SameBlock, SameDocument as SameDocument, SameReach as SameReach, Several as Several, Strided as Strided, Window as Window
from anyformer.parts.norm import BatchNorm as BatchNorm, LayerNorm as LayerNorm, Norm as Norm, RMSNorm as RMSNorm, RowNorm as RowNorm, ScaleNorm as ScaleNorm, UnitNorm as UnitNorm
from anyformer.parts.op import Op as Op, Reshaping as Reshaping
from anyformer.parts.output_projection import OutputProjection as OutputProjection
from anyformer.parts.position.absolute import AxialLearned as AxialLearned, Binary as Binary, Concatenated as Concatenated, Convolutional as Convolutional, Integer as Integer, Learned as Learned, Sinusoidal as Sinusoidal, Sinusoidal2D as Sinusoidal2D, Summed as Summed, TreeDepth as TreeDepth
from anyformer.parts.position.bias import Alibi as Alibi, AttentionPosition as AttentionPosition, BucketedBias as BucketedBias, Distance as Distance, DistanceBias as DistanceBias, HeadwisePosition as HeadwisePosition, RelativeVectors as RelativeVectors
from anyformer.parts.position.disentangled import Disentangled as Disentangled
from anyformer.parts.position.global_local import GlobalLocalVectors as GlobalLocalVectors
from anyformer.parts.position.graph import DegreeCentrality as DegreeCentrality, ShortestPathBias as ShortestPathBias
from anyformer.parts.position.grid import AxialRope as AxialRope, ContinuousGridBias as ContinuousGridBias, GridBias as GridBias, GridVectors as GridVectors, SeparableLearned as SeparableLearned
from anyformer.parts.position.numbering import ByPlace as ByPlace, Numbering as Numbering, RealTokens as RealTokens, WithoutToken as WithoutToken
from anyformer.parts.position.relative import InputRope as InputRope, RelativeSinusoids as RelativeSinusoids
from anyformer.parts.position.resized import ResizedLearned as ResizedLearned
from anyformer.parts.position.rotary import DynamicScaling as DynamicScaling, LinearScaling as LinearScaling, Llama3Scaling as Llama3Scaling, LongScaling as LongScaling, ProportionalScaling as ProportionalScaling, Rope as Rope, RopeScaling as RopeScaling, YarnScaling as YarnScaling
from anyformer.parts.position.segments import SegmentedSinusoids as SegmentedSinusoids
from anyformer.parts.position.sinusoid_init import Sines as Sines
from anyformer.parts.projector import MLPProjector as MLPProjector, Projector as Projector
from anyformer.parts.recurrent.lstm import GRU as GRU, LSTM as LSTM, Recurrent as Recurrent
from anyformer.parts.recurrent.mamba import Rates as Rates, SelectiveState as SelectiveState, StepBias as StepBias, StepWeight as StepWeight
from anyformer.parts.recurrent.mamba2 import DualState as DualState
from anyformer.parts.recurrent.rwkv import ChannelMix as ChannelMix, Halved as Halved, Orthogonal as Orthogonal, Ramp as Ramp, TimeMix as TimeMix
from anyformer.parts.recurrent.s4 import Frequencies as Frequencies, LogUniform as LogUniform, ReadStates as ReadStates, S4 as S4
from anyformer.parts.residual import Activated as Activated, Add as Add, Fixup as Fixup, LayerScale as LayerScale, ReZero as ReZero, Residual as Residual, Scaled as Scaled
from anyformer.parts.truncated_init import TruncatedLeCun as TruncatedLeCun, TruncatedNormal as TruncatedNormal
from anyformer.parts.unused import Unused as Unused, UnusedNeck as UnusedNeck
from anyformer.parts.zero_centered_norm import ZeroCenteredRMSNorm as ZeroCenteredRMSNorm
from anyformer.stacks.backbone import Backbone as Backbone
from anyformer.stacks.block import Block as Block, Parallel as Parallel, Steps as Steps
from anyformer.stacks.constant_drop import ConstantDropSublayer as ConstantDropSublayer
from anyformer.stacks.funnel import Funnel as Funnel
from anyformer.stacks.perceiver import Look as Look, Perceiver as Perceiver, Write as Write
from anyformer.stacks.reversible import Reversible as Reversible
from anyformer.stacks.stack import Stack as Stack
from anyformer.stacks.stages import Stages as Stages
from anyformer.stacks.step_kinds import BlockInputStep as BlockInputStep, NormedShortcut as NormedShortcut, ZeroedPadding as ZeroedPadding
from anyformer.stacks.sublayer import Sublayer as Sublayer
from anyformer.stacks.timed import TimedStack as TimedStack
from anyformer.stacks.two_streams import TwoStreams as TwoStreams
from anyformer.train.optim import Adafactor as Adafactor, AdamW as AdamW, Constant as Constant, Cosine as Cosine, Linear as Linear, Muon as Muon, Noam as Noam, Optimizer as Optimizer, Schedule as Schedule, WSD as WSD
from anyformer.train.parallel import Mesh as Mesh
from anyformer.train.run import Batch as Batch, Begin as Begin, Evaluate as Evaluate, Keep as Keep, Pretrained as Pretrained, Run as Run
from anyformer.transforms.lora import LoRA as LoRA
