"""Where the programs are, and how large everything is: on a GPU, and in a rehearsal."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent


def find_root():
    """The bundle, or the sources: the folder that has configs/."""
    for folder in HERE.parents:
        if (folder / "configs" / "models").is_dir():
            return folder
    sys.exit(f"error: no folder above {HERE} has configs/models")


@dataclass(frozen=True)
class Shape:
    """A training run that is measured."""

    name: str
    config: str
    batch: int  # samples of a microbatch
    sequence: int | None  # None: the model has none of its own
    words: tuple = ()  # further options

    @property
    def model_words(self):
        """Those of the model, which benchmarks of operators take."""
        return self.words[: -len(STATES)] if self.states else self.words

    @property
    def states(self):
        return STATES if self.words[-len(STATES) :] == STATES else ()


# fp32 masters and gradients, moments in bf16: 14 bytes a parameter, so that 8B fits one device of 141 GB with activations.
STATES = (
    *("--use_distributed_optimizer", "--use_precision_aware_optimizer", "--exp_avg_dtype", "bf16"),
    *("--exp_avg_sq_dtype", "bf16", "--recompute_granularity", "selective"),
    *("--recompute_modules", "layernorm,mlp_act"),
)


LORA = ("--lora.enabled", "--lora.dim", 16, "--lora.alpha", 32)
FP8 = ("--fp8_format", "hybrid", "--fp8_recipe", "tensorwise")


@dataclass(frozen=True)
class Sizes:
    steps_against_cpu: int
    steps_resumed: int
    families: tuple  # that are compared with the CPU
    captured: tuple  # families that are trained with CUDA graphs and without; no documents
    tested: str  # suites of test_ops
    sanitized: str  # those under the sanitizers
    square_product: int
    copied_bytes: int
    models: tuple  # Shapes of stages 2 and 3
    attention: dict  # name -> shape
    quick: tuple  # options of operators' benchmarks
    iterations: tuple  # options of training benchmarks
    num_microbatches: int
    loss_run: tuple  # the model whose loss is compared between precisions
    loss_steps: int
    compared: int  # how many of the models stage 5 takes
    peer_rounds: int
    peer_steps: int
    small: tuple  # Shapes with CUDA graphs and without
    kinds: tuple  # of other kinds of training
    compile_backend: str = "inductor"
    model_words: tuple = field(default=())


REAL = Sizes(
    steps_against_cpu=20,
    steps_resumed=10,
    families=("llama", "qwen3", "gpt2", "mixtral"),
    captured=("llama", "gpt2", "mixtral"),
    tested="*",
    sanitized="RmsNorm:AddRmsNorm:LayerNorm:AddLayerNorm:Rotary:Swiglu:BiasGelu:Geglu:ExpertActivations:Dropout:"
    "TokenPermutation:LinearCrossEntropy:Adamw:SquaredNorm",
    square_product=8192,
    copied_bytes=2 << 30,
    models=(
        Shape("8b_1k", "llama3.1_8B", 8, 1024, STATES),
        Shape("8b_8k", "llama3.1_8B", 1, 8192, STATES),
        Shape("7b_1k", "qwen2.5_7B", 8, 1024, STATES),
    ),
    attention={"1k": "8x1024x32x8x128", "4k": "2x4096x32x8x128", "8k": "1x8192x32x8x128"},
    quick=("--iterations", 10, "--warmup", 2),
    iterations=("--iterations", 6, "--warmup", 2),
    num_microbatches=4,
    loss_run=("qwen2.5_0.5B", 4, 1024),
    loss_steps=100,
    compared=3,
    peer_rounds=2,
    peer_steps=8,
    small=(
        Shape("125m_1k", "llama_125M", 4, 256),
        Shape("125m_4k", "llama_125M", 4, 1024),
        Shape("0.5b_2k", "qwen2.5_0.5B", 2, 1024),
        Shape("1.5b_4k", "qwen2.5_1.5B", 4, 1024, STATES),
        Shape("experts", "mixtral_8x7B_v0.1", 4, 1024, ("--num_layers", 2)),
    ),
    kinds=(
        Shape("lora_8b", "qwen3_8B", 4, 1024, LORA),
        Shape("lora_fp8_8b", "qwen3_8B", 4, 1024, (*LORA, *FP8)),
        Shape("flux", "flux_535M", 8, None),
        Shape("bert", "bert_large", 16, 512),
    ),
)

DEMO = ("--vocab_size", 257, "--num_layers", 2)
TINY_FLUX = (
    *("--hidden_size", 64, "--num_attention_heads", 2, "--axes_dim", "8,12,12", "--context_dim", 32, "--vec_in_dim", 16),
    *("--model_channels", 32),
)
TINY = Sizes(
    steps_against_cpu=2,
    steps_resumed=2,
    families=("qwen3",),
    captured=("gpt2",),
    tested="Swiglu",
    sanitized="Swiglu",
    square_product=16,
    copied_bytes=1 << 20,
    models=(Shape("8b_1k", "demo", 2, 16, (*DEMO, *STATES)), Shape("8b_8k", "demo", 1, 32, (*DEMO, *STATES))),
    attention={"1k": "2x16x4x2x16", "8k": "1x32x4x2x16"},
    quick=("--iterations", 1, "--warmup", 1),
    iterations=("--iterations", 1, "--warmup", 1),
    num_microbatches=2,
    loss_run=("demo", 1, 16),
    loss_steps=2,
    compared=1,
    peer_rounds=1,
    peer_steps=4,
    small=(Shape("125m_1k", "demo", 1, 16, DEMO), Shape("experts", "demo_mixtral", 1, 16, ("--num_layers", 2))),
    kinds=(
        Shape("lora_8b", "demo", 1, 16, (*DEMO, *LORA)),
        Shape("lora_fp8_8b", "demo", 1, 16, (*DEMO, *LORA, *FP8)),
        Shape("flux", "flux_535M", 1, None, TINY_FLUX),
        Shape("bert", "demo_bert", 1, 16, ("--vocab_size", 257)),
    ),
    compile_backend="eager",
    model_words=DEMO,
)


class Machine:
    def __init__(self, arguments, sizes):
        self.root, self.sizes = find_root(), sizes
        self.device, self.peer_device = arguments.device, arguments.peer_device
        self.launcher = self.root / "run"
        self.is_bundle = self.launcher.exists()
        build = arguments.build or self.root / "build-cuda"
        self.program = arguments.program or (self.root / "megalith" if self.is_bundle else build / "megalith")
        self.names_tests = arguments.operator_tests is not None
        self.tests = arguments.operator_tests or build / "bin" / "test_ops"
        if not self.program.exists():
            sys.exit(f"error: {self.program} is missing\n  name a build folder with --build, or unpack a bundle and start from there")

    def megalith(self, topic, *words):
        return [self.program, *topic.split(), *words, "--device", self.device]

    def config(self, name):
        return ("--config", self.root / "configs" / "models" / f"{name}.yaml")

    def operator_tests(self, *words, under=()):
        """The command, and what its environment has more. under: a tool that starts the program."""
        if self.is_bundle and not self.names_tests:
            return [self.launcher, "test_ops", *words], {"RUN_UNDER": " ".join(map(str, under))} if under else {}
        return [*under, self.tests, *words], {}

    def bench(self, stage, name, topic, *words, limit_s):
        """A benchmark's rows, and the command that ran."""
        path = stage.folder / f"{name}.jsonl"
        ran = stage.command(name, self.megalith(f"bench {topic}", *words, "--output_file", path), limit_s)
        rows = []
        if ran is not None and ran.code == 0:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return rows, ran
