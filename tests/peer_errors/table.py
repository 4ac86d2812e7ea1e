"""Wrong numbers that other trainers shipped without a word: the class of the mistake, where it is reported or mended, and
what finds it here.

A check is a test of this repository, "Suite.Test" or "file.py::test", or "mistake: NAME", one that is built in on
purpose and must be seen (tests/layouts/mistakes.cc, tests/layouts_seeded/seed_mistakes.py, tests/oracle/mutation_test.py).
peer_errors_test.py looks every check up; render.py makes docs/peer_errors.md of this table.
"""

MEGATRON, TITAN, TUNE = "NVIDIA/Megatron-LM", "pytorch/torchtitan", "meta-pytorch/torchtune"
BRIDGE, ENGINE, AUTOMODEL = "NVIDIA-NeMo/Megatron-Bridge", "NVIDIA/TransformerEngine", "NVIDIA-NeMo/Automodel"
SPEED, VERL, FACE = "deepspeedai/DeepSpeed", "verl-project/verl", "huggingface/transformers"
ACCELERATE, TRL, PEFT, AXOLOTL = "huggingface/accelerate", "huggingface/trl", "huggingface/peft", "axolotl-ai-cloud/axolotl"
SPMD = f"{MEGATRON}#7452"  # a list of thirteen findings

ACCUMULATION = "TrainStep.AccumulationEqualsOneBigBatchWithUnevenTokenCountsAndDropout"
LAYOUTS = "ContextRows.TrainAsOneRank"
EXPERTS = "ExpertRows.TrainAsOneRank"
ADAPTERS = "AdapterRows.TrainAsOneRank"
PACKS = "SftRows.PackedAreAsRowsOfOneSample"
SFT_LOSS = "sft_training_test.py::test_the_loss_is_that_of_transformers_over_the_answers_packed_or_not"
RESUME = "resume_test.py::test_resumed_run_equals_one_in_one_go"

# group: [(class of mistake, [repository#number], [checks])]
TABLE = {
    "The loss and its accumulation": [
        ("The mean of the micro-batches' means is taken for the mean over tokens", [f"{FACE}#37766", f"{TUNE}#1875", f"{TITAN}#2206"], [ACCUMULATION]),
        ("The loss grows with the number of micro-batches", [f"{FACE}#35438", "karpathy/nanoGPT#206"], [ACCUMULATION]),
        ("Micro-batches are weighed by their samples, not by their tokens", [f"{VERL}#5641", f"{VERL}#906"], [ACCUMULATION]),
        ("Each rank divides by its own tokens", [f"{TITAN}#2206", f"{TUNE}#2172"], ["mistake: loss divided by this rank's tokens"]),
        ("Gradients are averaged over ranks where their sum is wanted", [f"{TUNE}#2172"], ["mistake: gradients averaged over dp"]),
        ("The loss is multiplied by the context-parallel size", [f"{MEGATRON}#673", f"{MEGATRON}#906"], [LAYOUTS]),
        ("Tokens are counted without the context-parallel ranks", [f"{VERL}#5983"], ["mistake: loss divided by this rank's tokens", LAYOUTS]),
        ("Tokens that several ranks hold are counted by each", [f"{VERL}#3691"], [LAYOUTS]),
        ("The denominator counts tokens that the numerator leaves out", [f"{TRL}#6369"], [SFT_LOSS]),
        ("A micro-batch without a label gives NaN", [f"{MEGATRON}#1764"], ["TrainStep.ABatchWithoutAValidTokenHasNoLossAndNoGradient"]),
        ("The last, smaller batch of an evaluation weighs as much as the others", [f"{FACE}#41898", f"{FACE}#16716"], ["TrainStep.EvaluationGivesTheLossOfTrainingWithoutDropout", "StepStatistics.ReduceOverPassesAndRanksByWhatTheySay"]),
        ("The softmax, or what smooths its labels, is of a rank's part of the vocabulary", [f"{MEGATRON}#737", f"{MEGATRON}#7464"], ["mistake: loss: sums of the softmax not summed over tp"]),
        ("Gathered logits go through the loss of a divided vocabulary", [SPMD], ["Transformer.TensorParallelLogitsAndTokenLossesAreThoseOfOneRank"]),
        ("A loss in chunks passes on one rank's share of its gradient", [f"{TITAN}#3412"], ["mistake: loss: dx not summed over tp"]),
        ("The loss scale that is divided out is the next step's", [f"{SPEED}#2686"], ["Optimizer.TheLossScaleIsDividedOut", "Trainer.AFixedScaleOfFp16ChangesNothingButTheScale"]),
        ("Clipping meets gradients that still have the loss's scale", ["milesial/Pytorch-UNet#468", "rwth-i6/returnn#1595"], ["Optimizer.TheLossScaleIsDividedOut", "Trainer.AFixedScaleOfFp16ChangesNothingButTheScale"]),
        ("Each micro-batch's gradient is clipped by itself", [f"{FACE}#1563", f"{FACE}#986", "tenstorrent/tt-metal#17568"], ["DenseRows.TrainAsOneRank"]),
        ("Gradients of micro-batches add up in bf16", [f"{SPEED}#1800", f"{SPEED}#2768", "linkedin/Liger-Kernel#830"], ["Bf16.NarrowGradientsAreThoseOfFp32BuffersRounded", "Bf16.APipelineChangesNoBitOfAGradient"]),
        ("A fused loss keeps its gradient in its narrow input", [f"{ENGINE}#3193"], ["CrossEntropyKernels.EqualLoopsInDoubleInEveryOrder"]),
        ("A rank reports the loss of its own part of an evaluation", ["Lightning-AI/litgpt#599", f"{MEGATRON}#6717"], ["mistake: reported loss not summed over dp", "StepStatistics.ReduceOverPassesAndRanksByWhatTheySay"]),
    ],
    "Prediction modules": [
        ("Labels are rolled within a rank's own part", [f"{MEGATRON}#4495", f"{MEGATRON}#6205"], ["mistake: prediction module: labels rolled within a rank's own part"]),
        ("The modules' loss is divided by one rank's tokens", [SPMD], [EXPERTS]),
    ],
    "Mixtures of experts": [
        ("The objective of balance grows with the tensor-parallel size", [f"{MEGATRON}#5047"], ["mistake: balance of experts: the objective counted by every rank of tp and cp"]),
        ("The objective of balance shrinks with the data-parallel size", [f"{MEGATRON}#3769", f"{MEGATRON}#3672"], ["mistake: balance of experts: statistics averaged over the ranks", EXPERTS]),
        ("The objective for each sequence depends on the micro-batch", [f"{MEGATRON}#5798"], ["ExpertRouter.IsWhatLoopsOverTokensAndExpertsGive"]),
        ("Under sequence parallelism a sequence's statistics are of other sequences", [f"{MEGATRON}#5996"], ["mistake: balance of experts: a tp rank's tokens counted for the first sequences"]),
        ("The objective's gradient never flows", [f"{AUTOMODEL}#1412"], ["ExpertRouter.AttachedObjectivesEnterBackwardOnce"]),
        ("The z loss has another scale than the loss", [f"{MEGATRON}#3768"], ["mistake: z loss's formula: another scale than the loss has"]),
        ("The objective grows with the pipeline-parallel size", ["databricks/megablocks#85"], [EXPERTS]),
        ("The router's weight drifts apart under sequence parallelism", [f"{MEGATRON}#619"], ["mistake: router weight not marked as partial over tp"]),
        ("The router's gradient is of only this rank's experts", [f"{FACE}#48687"], ["mistake: all-gather of tokens: gradients of the weights not summed"]),
        ("Gradients of experts are scaled as those of dense layers", ["pytorch/pytorch#160285", f"{MEGATRON}#7165", f"{MEGATRON}#5956", "databricks/megablocks#20"], ["mistake: experts: gradients reduced as those of dense layers"]),
        ("Gradients of experts are not reduced over their own ranks", [f"{MEGATRON}#1622"], ["mistake: experts: gradients not reduced over edp"]),
        ("A factor is left out where experts are on one rank each", ["pytorch/pytorch#167178"], [EXPERTS]),
        ("The router misses the other ranks' gradient where experts are not spread", [f"{TITAN}#4054", f"{TITAN}#2387"], ["mistake: router weight not marked as partial over tp", EXPERTS]),
        ("Weights of gathered tokens carry no gradient", [f"{AUTOMODEL}#2995"], ["mistake: all-to-all of tokens: gradients of the weights lost"]),
        ("Recomputation counts tokens twice for the experts' bias", [f"{TITAN}#1593"], [EXPERTS]),
        ("Experts are left out of the gradient norm", [f"{MEGATRON}#5916", "radixark/Megatron-LM#80"], ["mistake: experts: those of other ranks taken for replicas in the norm"]),
        ("Norms of ranks with different experts are averaged", [f"{SPEED}#8475"], ["mistake: experts: parts of other ranks taken for replicas in the norm"]),
        ("Biases of experts are counted several times in the norm", [f"{MEGATRON}#6099"], ["mistake: experts: every replica counted in the gradient norm"]),
        ("Dense layers and experts are clipped by norms of their own", [f"{MEGATRON}#785"], [EXPERTS]),
        ("Every group of experts clips by its own norm", [f"{AUTOMODEL}#3816", "laekov/fastmoe#29"], ["mistake: clipping by the local norm"]),
    ],
    "The gradient norm": [
        ("Parameters that tensor-parallel ranks share are counted by each", ["NVIDIA-NeMo/RL#3788", "ROCm/TransformerEngine#715"], ["mistake: norm: every tp replica counted in the gradient norm"]),
        ("The norm is of a rank's shard", ["areal-project/AReaL#312", "pytorch/pytorch#170862", f"{ACCELERATE}#3465", "RLinf/RLinf#1558"], ["mistake: clipping by the local norm"]),
        ("Replicas of shards are counted", ["ByteDance-Seed/VeOmni#184"], ["mistake: norm: every dp replica counted in the gradient norm"]),
        ("Parameters that no rank shards are counted by each", ["mindspore-ai/hyper-parallel#279"], ["mistake: norm: every dp replica counted in the gradient norm"]),
        ("A weight of two pipeline stages is counted twice", [f"{SPEED}#1252"], ["mistake: tied embedding: counted twice in the gradient norm"]),
        ("Slices of a parameter are taken for replicas", [SPMD], ["mistake: norm: slices taken for replicas in the gradient norm"]),
    ],
    "Tensor and sequence parallelism": [
        ("A row layer's bias is added by every rank", ["PaddlePaddle/Paddle#35186", "huggingface/text-generation-inference#1036"], ["mistake: row linear: bias added on every tp rank"]),
        ("A row layer's bias gets a part of its gradient", [f"{TITAN}#4332"], ["Linear.TensorAndSequenceParallelPairsEqualOneRank"]),
        ("Gradients of shared norms and keys stay partial", ["bigcode-project/Megatron-LM#35", "bigcode-project/Megatron-LM#37", "areal-project/AReaL#313", SPMD], ["mistake: norm weights not summed over tp", "mistake: norm weight not marked as partial over tp"]),
        ("The shared rotary key of latent attention misses the other ranks' gradient", [f"{TITAN}#1373"], ["mistake: latent attention: gradient of the shared key not summed over tp"]),
        ("Tokens are scattered or gathered over another group", [SPMD], ["mistake: column linear, sequence parallel: tokens gathered in the wrong order"]),
        ("Dropout or first weights depend on the layout", ["pytorch/pytorch#168058"], ["Transformer.InitialValuesDoNotDependOnTheLayout", "mistake: hidden dropout keyed by the rank's own token numbers"]),
        ("Sequence-parallel ranks drop by the same mask", [f"{MEGATRON}#1256", f"{ENGINE}#1272", "PaddlePaddle/PaddleNLP#7515"], ["mistake: hidden dropout keyed by the rank's own token numbers"]),
        ("Data-parallel ranks drop by the same mask", ["tenstorrent/tt-metal#55947"], ["mistake: dropout keyed by place in the microbatch"]),
    ],
    "Context parallelism and documents": [
        ("Gradients of attention are wrong over a ring", [f"{ENGINE}#1557", f"{MEGATRON}#1464"], ["mistake: context parallelism: sums of dk and dv lost at the last hop", "mistake: ring: sums of gradients go the other way"]),
        ("The backward pass of a ring uses only the own keys", [f"{AUTOMODEL}#3157"], ["mistake: ring: keys and values never arrive"]),
        ("A ring forgets where packed documents end", [f"{AXOLOTL}#3608", f"{ENGINE}#1930"], ["mistake: context parallelism: documents of the wrong rank"]),
        ("Packed documents see each other", [f"{AXOLOTL}#1375", f"{AXOLOTL}#131", "alex-hh/profam#495"], ["DocumentRows.AreFoundToTouchWhereTheyAreNotToldApart", "DenseRows.TrainAsOneRank"]),
        ("Positions go on from one packed document to the next", ["allenai/OLMo-core#591", f"{TITAN}#2560", "hiyouga/LlamaFactory#7318"], ["DataSetsTest.MasksAndPositionsAreMegatrons", PACKS]),
        ("Positions are of a contiguous part, not of the zig-zag", ["alibaba/rtp-llm#1186", "sgl-project/sglang#28463"], ["mistake: positions of a contiguous part, not of the zig-zag"]),
        ("Labels are of a contiguous part, not of the zig-zag", ["THUDM/slime#73"], ["mistake: labels of a contiguous part, not of the zig-zag"]),
        ("Lengths of packed documents reach only some ranks of a group", ["sii-research/siiRL#69"], ["mistake: documents of another context-parallel rank's row"]),
    ],
    "Pipelines": [
        ("Gradients of a tied embedding are summed over parts that do not match", [f"{MEGATRON}#844", f"{MEGATRON}#6500"], ["mistake: tied embedding: the gradients of the two ends not summed"]),
        ("A weight's gradient is reduced before all of it is there", [f"{MEGATRON}#1012"], ["mistake: tied weight reduced after its first contribution"]),
        ("Tied weights drift apart", [f"{MEGATRON}#656"], ["SharedParameters.AreWrittenOnceAndComparedAmongTheirHolders"]),
        ("Sharding parts a tied head from its embedding", ["facebookresearch/lingua#75", "NVIDIA-NeMo/RL#227", f"{TUNE}#616"], ["SharedParameters.OfStagesAnywhereTrainAsOnOneRank", EXPERTS]),
        ("The last stage loads no head where it is tied", ["sgl-project/sglang#15890", "sgl-project/sglang#6908"], ["Hf.TiedHeadMayBeOnDiskAndOldBuffersArePassedOver", "Transformer.ATiedHeadOfAPipelineIsAnEmbedding"]),
        ("Layers that do not divide by the stages are dropped", [f"{MEGATRON}#1304"], ["PipelineOptions.LayersThatCannotBeSharedOutEvenlyMayFillTheFirstStages"]),
        ("Virtual stages begin at wrong layers", [f"{MEGATRON}#1583"], ["mistake: pipeline: two stages hold each other's layers"]),
    ],
    "Data parallelism and recomputation": [
        ("Gradients are reduced before the last micro-batch", ["karpathy/build-nanogpt#30"], ["mistake: reduction begun by the first microbatch"]),
        ("Sharded gradients lose earlier micro-batches", [f"{SPEED}#7718", f"{SPEED}#545", f"{ACCELERATE}#3877"], ["mistake: accumulation overwrites", "DenseRows.TrainAsOneRank"]),
        ("Replicas drift apart unseen", ["huggingface/nanotron#242", f"{AUTOMODEL}#3822"], ["mistake: a parameter not updated on one dp rank", "ReplicaCheck.OneElementOnOneRankIsNamedToAll"]),
        ("Recomputation drops other activations than the forward pass did", ["allenai/OLMo-core#828", "pytorch/pytorch#190758", f"{SPEED}#6811"], ["Recompute.ThreeStepsAreBitIdenticalInEveryFormAndPrecision"]),
        ("Recomputation gathers over another group", [SPMD], ["Recompute.ThreeStepsAreBitIdenticalOverTensorAndDataParallelRanks"]),
        ("Gradients on the host lose all micro-batches but the last", [f"{SPEED}#7981"], ["mistake: accumulation overwrites", "DenseRows.TrainAsOneRank"]),
    ],
    "The optimizer and its schedule": [
        ("Norms and biases decay", ["ServiceNow/Fast-LLM#542", "PaddlePaddle/PaddleFormers#4639"], ["mistake: AdamW's formula: norms and biases decay too", "Optimizer.DecaySparesParametersWithoutIt"]),
        ("The schedule moves once for every process", [f"{FACE}#24088", f"{ACCELERATE}#2926"], ["LearningRateCurve.WarmUpIsLinearInSamplesAndReachesThePeakAtItsEnd"]),
        ("A resumed run warms up again", ["aqlaboratory/openfold#181", "PolymathicAI/the_well#63", "lightly-ai/lightly-train#301"], [RESUME, "Trainer.Fp16ResumesWithItsScaleAndItsPlaceInTheSchedule"]),
        ("Ranks skip different steps where one overflows", ["hpcaitech/ColossalAI#1175", "ecmwf/WeatherGenerator#2718"], ["DistributedOptimizer.AllRanksSeeANonFiniteGradientThatOneOwns", "Faults.AllRanksDoTheSameAboutASpike"]),
        ("Muon makes each slice orthogonal by itself", [f"{SPEED}#8437"], ["mistake: Muon: each slice made orthogonal by itself", "MuonRows.UpdatesAgreeInFloat32GivenTheSameGradients"]),
    ],
    "Eight bits": [
        ("The largest value is that of the wrong ranks", [f"{MEGATRON}#442", f"{ENGINE}#656", "AMD-AGI/Primus#669"], ["mistake: eight bits: gradients with a scale of the rank's part", "Fp8Memory.AllRanksOfAStageHaveTheLargestAmax"]),
        ("A layer that is computed again rounds by newer scales", [f"{ENGINE}#1190", f"{ENGINE}#1723"], ["mistake: eight bits: a backward pass rounds again by the newest scales", "Fp8Memory.ABackwardPassHasTheScalesOfItsForwardPassAndRecordsNoInputs"]),
    ],
    "Adapters": [
        ("A factor that ranks share has the gradient of one rank's tokens", ["modelscope/mcore-bridge#173", "ISEEKYAN/Megatron-LM#131", "OpenPipe/ART#619"], ["mistake: adapters of experts: what is cut taken for whole, and the other way round", ADAPTERS]),
        ("Adapters that join a sharded model are not reduced", ["hao-ai-lab/FastVideo#1666", "radixark/miles#2723"], [ADAPTERS]),
        ("First values of a divided adapter depend on the layout", ["InfiniTensor/InfiniTrain#150"], [ADAPTERS]),
        ("Adapters are merged without their scale", [f"{PEFT}#2489", "Blaizzy/mlx-vlm#986"], ["adapter_test.py::test_merged_weights_are_those_of_peft"]),
    ],
    "Checkpoints, resuming and conversion": [
        ("Moments are not loaded", ["areal-project/AReaL#1468", "KempnerInstitute/KempnerForge#115"], ["OptimizerCheckpoints.TheSameLayoutGoesOnBitForBit", RESUME]),
        ("The optimizer's state is another rank's", [f"{FACE}#48569"], ["DistributedOptimizer.StateOfAllRanksIsThatOfOne"]),
        ("Later stages get the layers of the first", [SPMD], ["EveryLayout.GoesOnFromEveryOther"]),
        ("Weights of other ranks are not gathered after a load", [f"{MEGATRON}#6920"], ["OptimizerCheckpoints.TheSameLayoutGoesOnBitForBit", "EveryLayout.GoesOnFromEveryOther"]),
        ("A vocabulary that does not divide resumes to other numbers", [f"{TITAN}#1136"], ["EveryLayout.GoesOnFromEveryOther"]),
        ("Layers without a counterpart keep their random weights", ["swiss-ai/Megatron-LM#116"], ["Hf.EverythingThatDoesNotFitIsNamedAndNothingIsChanged"]),
        ("A converter leaves experts out", [f"{MEGATRON}#5844"], ["convert_test.py::test_there_and_back_is_the_same", "convert_test.py::test_a_folder_with_a_missing_tensor_is_refused_and_nothing_written"]),
        ("A converter leaves expert biases out", [f"{BRIDGE}#4199"], ["ExpertCheckpoints.HoldEveryExpertBiasAndPredictionModule"]),
        ("Spread experts are exported in another order", [f"{BRIDGE}#1716", f"{BRIDGE}#1871"], ["expert_parallel_test.py::test_export_is_byte_for_byte_the_same", "mistake: experts: two of a rank in the wrong order"]),
        ("Queries, keys and values are interleaved wrongly", ["NVIDIA-NeMo/RL#2802"], ["mistake: key and value swapped", "mistake: llama: key heads swapped"]),
        ("The order of samples begins anew after a resume", [f"{FACE}#40691", f"{ACCELERATE}#4071", "modelscope/ms-swift#10050"], ["Order.CyclicOrderIsMegatronsAcrossEpochs", RESUME]),
        ("A resume at the end of a pass skips the next one", [f"{VERL}#7401"], ["SftData.PassesAreNewOrdersThatKnowOfNoLayout", "sft_training_test.py::test_fine_tuning_learns_prepares_once_and_resumes_to_the_same_numbers"]),
        ("The place in the data is not saved", ["paiml/entrenar#294"], [RESUME]),
    ],
    "Data": [
        ("Ranks shuffle by different seeds", ["NVlabs/LongLive#71", "open-mmlab/mmpose#1257"], ["DataSetsTest.LayoutsReadTheSameGlobalBatch", "mistake: data-parallel ranks read the same samples"]),
        ("Passes of ranks end at different steps", [f"{BRIDGE}#5944"], ["Order.WithoutShardingAPassIsOnePermutationOfAllSamplesInEveryLayout"]),
        ("The seed does not reach the sampler", [f"{FACE}#11406", f"{TUNE}#2339"], ["data_test.py::test_seed_chooses_the_order"]),
        ("The question of one of two answers counts in the loss of pairs", ["OpenRLHF/OpenRLHF#294"], ["SftData.PairsAreTwoDocumentsAndAreCutTogether", "dpo_test.py::test_all_weights_are_trained_as_the_formula_says"]),
        ("Padding counts in the loss", [f"{TRL}#1625"], [SFT_LOSS]),
        ("Padding counts in the likelihood of an answer", ["0xallam/Direct-Preference-Optimization#4", "NVIDIA/NeMo-Aligner#68"], ["dpo_test.py::test_ten_steps_equal_those_of_trl"]),
        ("Packed pairs are parted at padded lengths", ["allenai/open-instruct#1900"], ["SftData.PairsAreTwoDocumentsAndAreCutTogether", "dpo_test.py::test_ten_steps_equal_those_of_trl"]),
        ("The mask of answers is one token off", ["jingyaogong/minimind#621"], ["SftRows.MistakesOfPacksAreSeen"]),
    ],
    "Models and operators": [
        ("The factor of rotary scaling is ignored", [f"{MEGATRON}#6305"], ["mistake: llama: rope scaling factor"]),
        ("Rotary scaling is not applied", ["Blaizzy/mlx-vlm#1710"], ["mistake: llama: no rope scaling"]),
        ("A stated factor of attention gives way to the formula's", ["vllm-project/vllm#48351", "ml-explore/mlx-lm#1507"], ["mistake: olmo3: an attention factor"]),
        ("The scores of latent attention miss the factor of their scaling", [f"{FACE}#47435", "sgl-project/sglang#22711"], ["RotaryFrequencies.YarnScalesTheScores", "Deepseek.YarnWithoutItsScalesHasTheClasssMultiplier"]),
        ("Rotary frequencies are rounded to the weights' type", ["EleutherAI/gpt-neox#1003", f"{FACE}#25681", "sgl-project/sglang-jax#1472"], ["mistake: rotation's formula: frequencies rounded to bf16"]),
        ("Channels are rotated in the other convention's pairs", [f"{FACE}#25199"], ["mistake: llama: query channels interleaved"]),
        ("A window has one token more or less", [f"{FACE}#39408", "zml/zml#763"], ["mistake: mistral: a window of one token less"]),
        ("A fused attention has a wrong gradient of its queries", [f"{ENGINE}#1615"], ["Attention.EveryMaskMatchesFloat64"]),
    ],
}
