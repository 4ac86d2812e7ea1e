// Whole models with every form of recomputation: the same bits as without, in less memory, and the peak as stated.
#include "parallel/recompute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "device/memory.h"
#include "models/tiny_models.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "train/activation_report.h"
#include "train/step.h"
#include "train/tiny_rows.h"

namespace megalith {
namespace {

using test::TensorMap;

struct Form {
  std::string name;
  RecomputeOptions options;
};

std::vector<Form> forms() {
  const auto full = [](const std::string& method, int64_t num_layers, int64_t num_offloaded = 0) {
    return RecomputeOptions{.recompute_granularity = "full",
                            .recompute_method = method,
                            .recompute_num_layers = num_layers,
                            .cpu_offloading_num_layers = num_offloaded};
  };
  const auto selective = [](std::vector<std::string> modules) {
    return RecomputeOptions{.recompute_granularity = "selective", .recompute_modules = std::move(modules)};
  };
  return {
      {"block 5", full("block", 5)},
      {"block 2", full("block", 2)},
      {"uniform 1", full("uniform", 1)},
      {"uniform 2", full("uniform", 2)},  // the last group has one layer
      {"layer ids", {.recompute_granularity = "full", .recompute_layer_ids = {1, 4}}},
      {"offloaded", full("block", 5, 5)},
      {"uniform 2, two offloaded", full("uniform", 2, 2)},
      {"core_attn", {.recompute_activations = true}},
      {"layernorm", selective({"layernorm"})},
      {"mlp", selective({"mlp"})},
      {"mlp_act", selective({"mlp_act"})},
      {"mlp, layernorm", selective({"mlp", "layernorm"})},
      {"all parts", selective({"core_attn", "layernorm", "mlp", "mlp_act"})},
  };
}

ModelConfig five_layers(bool is_tied) {
  ModelConfig config = test::tiny_config();
  config.num_layers = 5;
  config.hidden_dropout = config.attention_dropout = 0.2;
  config.untie_embeddings_and_output_weights = !is_tied;
  config.add_qkv_bias = true;
  return config;
}

struct RecomputeSetting {
  at::ScalarType dtype = at::kDouble;
  Kernels kernels = Kernels::kReference;
  bool is_tied = true;
  bool is_sequence_parallel = false;
  bool is_fsdp = false;
};

// A model that runs as the options say.
struct RecomputedChunk {
  RecomputedChunk(const ModelConfig& config, const RecomputeSetting& setting, const Groups& groups,
                  const RecomputeOptions& options)
      : plan(make_recompute_plan(options, 0, config.num_layers)) {
    LayerContext context = test::tiny_context(groups, setting.dtype, setting.kernels);
    context.is_sequence_parallel = setting.is_sequence_parallel;
    context.recompute = options.selective();
    ModelPart part = ModelPart::whole(model_units(config));
    part.layers_per_block = plan.layers_per_block;
    model = family_for(config).build(config, context, part);
    test::load(*model, test::golden_weights(*model, setting.dtype));
  }
  void run_through(BlockRunner* outer) {
    runner = std::make_unique<RecomputeRunner>(plan, outer, &offload);
    model->set_runner(runner.get());
  }
  RecomputePlan plan;
  HostOffload offload{at::kCPU};
  std::unique_ptr<Model> model;
  std::unique_ptr<RecomputeRunner> runner;
};

struct ThreeSteps {
  std::vector<double> losses;
  std::vector<at::Tensor> gradients, values;  // of this rank's parts, after the last step
};

// Three steps of two microbatches on every data-parallel rank.
ThreeSteps train_three(const Groups& groups, const RecomputeSetting& setting, const RecomputeOptions& options) {
  const ModelConfig config = five_layers(setting.is_tied);
  RecomputedChunk chunk(config, setting, groups, options);
  std::unique_ptr<DataParallel> data;
  if (setting.is_fsdp) {
    TensorMap weights = test::values_of(*chunk.model);
    for (auto& [name, tensor] : weights) tensor = tensor.clone();
    auto fsdp = std::make_unique<Fsdp>(chunk.model->parameters(), chunk.model->blocks(), groups, FsdpOptions{});
    fsdp->fill_units([&](const std::vector<Parameter*>& params) {
      for (Parameter* parameter : params) {
        for (const Piece& piece : parameter->placement().pieces) {
          test::box_view(parameter->data(), piece.local).copy_(test::box_view(weights.at(piece.name), piece.canonical));
        }
      }
    });
    data = std::move(fsdp);
  } else {
    // Small buckets, so that a parameter that is ready too early is reduced too early.
    data = std::make_unique<GradBuffer>(chunk.model->parameters(), groups, GradBufferOptions{.bucket_elements = 1});
  }
  chunk.run_through(data->runner());
  Optimizer optimizer(*data, groups, {}, setting.kernels);
  PipelinedModel pipeline(*chunk.model, groups, at::kCPU);
  TrainStep step(pipeline, test::tiny_task(), *data, optimizer, groups, at::kCPU);
  const test::NaiveInput whole = test::tiny_batch(config, 4 * groups.dp->size(), 6, false);
  ThreeSteps outcome;
  for (int i = 0; i < 3; ++i) {
    std::vector<Batch> batches;
    for (int64_t microbatch = 0; microbatch < 2; ++microbatch) {
      const int64_t first = (groups.dp->rank() * 2 + microbatch) * 2;
      batches.push_back(test::tiny_rows(whole, first, 2, first + 100 * i));
    }
    outcome.losses.push_back(step.run(batches, 1e-2, 0.1).read().losses.at(0).value);
    data->publish();
  }
  for (const OwnedPart& part : data->parts()) {
    outcome.gradients.push_back(part.grad.clone());
    outcome.values.push_back(part.model.clone());
  }
  return outcome;
}

void expect_same_bits(const ThreeSteps& actual, const ThreeSteps& expected, const std::string& what) {
  EXPECT_EQ(actual.losses, expected.losses) << what;
  EXPECT_NE(expected.losses.front(), expected.losses.back()) << what;
  ASSERT_EQ(actual.values.size(), expected.values.size()) << what;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << what << ", gradient of part " << i;
    EXPECT_TRUE(at::equal(actual.values[i], expected.values[i])) << what << ", part " << i;
  }
}

TEST(Recompute, ThreeStepsAreBitIdenticalInEveryFormAndPrecision) {
  const Groups groups = Groups::single();
  for (const RecomputeSetting& setting :
       {RecomputeSetting{}, RecomputeSetting{at::kFloat, Kernels::kFused},
        RecomputeSetting{at::kBFloat16, Kernels::kFused}, RecomputeSetting{.is_tied = false}}) {
    const ThreeSteps expected = train_three(groups, setting, {});
    for (const Form& form : forms()) {
      expect_same_bits(train_three(groups, setting, form.options), expected,
                       fmt::format("{}, {}", form.name, c10::toString(setting.dtype)));
    }
  }
}

// The thread back end checks that the ranks of a group issue the same collectives in the same order.
TEST(Recompute, ThreeStepsAreBitIdenticalOverTensorAndDataParallelRanks) {
  struct Layout {
    Mesh mesh;
    int num_ranks;
    RecomputeSetting setting;
  };
  const Layout layouts[] = {
      {Mesh({.tp = 2}), 2, {at::kFloat, Kernels::kFused}},
      {Mesh({.tp = 2}), 2, {at::kBFloat16, Kernels::kFused, true, true}},
      {Mesh({.dp = 2}), 2, {at::kFloat, Kernels::kFused}},
      {Mesh({.tp = 2, .dp = 2}), 4, {.is_sequence_parallel = true}},
      {Mesh({.dp = 2}), 2, {.dtype = at::kFloat, .kernels = Kernels::kFused, .is_fsdp = true}},
  };
  for (const Layout& layout : layouts) {
    std::vector<ThreeSteps> expected(static_cast<size_t>(layout.num_ranks));
    ThreadWorld(layout.num_ranks).run(layout.mesh, [&](Groups& groups) {
      expected[static_cast<size_t>(groups.rank)] = train_three(groups, layout.setting, {});
    });
    for (const Form& form : forms()) {
      // Groups of layers are other units of FSDP, whose runs, and so the parts of the gradient's norm, are cut
      // elsewhere.
      if (layout.setting.is_fsdp && make_recompute_plan(form.options, 0, 5).layers_per_block > 1) {
        ThreadWorld(layout.num_ranks).run(layout.mesh, [&](Groups& groups) {
          const ThreeSteps actual = train_three(groups, layout.setting, form.options);
          for (size_t i = 0; i < actual.losses.size(); ++i) {
            EXPECT_NEAR(actual.losses[i], expected[0].losses[i], 1e-5 * expected[0].losses[i]) << form.name;
          }
        });
        continue;
      }
      ThreadWorld(layout.num_ranks).run(layout.mesh, [&](Groups& groups) {
        expect_same_bits(train_three(groups, layout.setting, form.options), expected[static_cast<size_t>(groups.rank)],
                         fmt::format("{}, rank {} of {}", form.name, groups.rank, layout.num_ranks));
      });
    }
  }
}

TEST(Recompute, EveryParameterBecomesReadyOnceAStep) {
  const Groups groups = Groups::single();
  const ModelConfig config = five_layers(/*is_tied=*/true);
  for (const Form& form : forms()) {
    RecomputedChunk chunk(config, {}, groups, form.options);
    chunk.run_through(nullptr);
    test::attach_gradients(*chunk.model);
    std::map<std::string, int> ready;
    for (Parameter* parameter : chunk.model->parameters()) {
      parameter->set_ready_hook([&](Parameter& p) { ++ready[p.name()]; });
    }
    const ModelInput input = test::model_input(test::tiny_batch(config, 2, 5, false));
    for (const bool is_last : {false, true}) {
      for (Parameter* parameter : chunk.model->parameters()) parameter->set_last_microbatch(is_last);
      chunk.model->forward(input, {}, HeadOutput::kLoss).terms[0].objective.backward();
      EXPECT_EQ(ready.empty(), !is_last) << form.name;
    }
    for (const Parameter* parameter : chunk.model->parameters()) {
      EXPECT_EQ(ready[parameter->name()], 1) << form.name << ": " << parameter->name();
    }
  }
}

struct MeasuredMemory {
  int64_t kept = 0, peak = 0;  // of the allocator
  ActivationCost on_meta;
};

// The memory of one microbatch of a model whose activations are far larger than anything else in it.
MeasuredMemory measure_memory(const RecomputeOptions& options, at::ScalarType dtype, bool has_head_norms = false) {
  manage_cpu_memory();
  const Groups groups = Groups::single();
  ModelConfig config = test::tiny_config();
  config.num_layers = 6;
  config.hidden_size = 96;
  config.kv_channels = 16;
  config.ffn_hidden_size = 256;
  config.qk_layernorm = has_head_norms;
  RecomputedChunk chunk(config, {dtype, Kernels::kFused}, groups, options);
  chunk.run_through(nullptr);
  test::attach_gradients(*chunk.model);
  const int64_t b = 2, s = 512;
  const ModelInput input = test::model_input(test::tiny_batch(config, b, s, false));
  const int64_t before = memory_stats(at::kCPU).allocated_bytes;
  reset_peak_memory(at::kCPU);
  MeasuredMemory memory;
  {
    const ModelOutput output = chunk.model->forward(input, {}, HeadOutput::kLoss);
    memory.kept = memory_stats(at::kCPU).allocated_bytes - before - chunk.offload.host_bytes();
    output.terms[0].objective.backward();
  }
  memory.peak = memory_stats(at::kCPU).peak_allocated_bytes - before - chunk.offload.peak_host_bytes();
  LayerContext context = test::tiny_context(groups, dtype, Kernels::kFused);
  context.device = context.buffer_device.emplace(at::kMeta);
  context.recompute = options.selective();
  ModelPart part = ModelPart::whole(model_units(config));
  part.layers_per_block = chunk.plan.layers_per_block;
  const auto model = family_for(config).build(config, context, part);
  memory.on_meta = measure_chunk(*model, shape_of_microbatch(b, s, 0), chunk.plan, /*are_layers_alike=*/true);
  return memory;
}

TEST(Recompute, ThePeakIsSmallerAndWithinATenthOfWhatIsMeasuredOnTheMetaDevice) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const MeasuredMemory plain = measure_memory({}, dtype);
    for (const Form& form : forms()) {
      const MeasuredMemory memory = measure_memory(form.options, dtype);
      const std::string what =
          fmt::format("{}, {}: kept {}, peak {}, on meta {} and {}; plain: {}, {}, {} and {}", form.name,
                      c10::toString(dtype), memory.kept, memory.peak, memory.on_meta.kept, memory.on_meta.peak,
                      plain.kept, plain.peak, plain.on_meta.kept, plain.on_meta.peak);
      EXPECT_LT(memory.kept, plain.kept) << what;
      EXPECT_LT(memory.peak, plain.peak) << what;
      EXPECT_NEAR(static_cast<double>(memory.peak), static_cast<double>(memory.on_meta.peak),
                  0.1 * static_cast<double>(memory.on_meta.peak))
          << what;
    }
  }
}

TEST(ActivationMemory, WhatIsKeptIsMeasuredAsTheAllocatorHasIt) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool has_head_norms : {false, true}) {
      const MeasuredMemory memory = measure_memory({}, dtype, has_head_norms);
      // Beside the activations there are the angles' tables, losses, weights and positions: a few numbers a token.
      EXPECT_NEAR(static_cast<double>(memory.kept), static_cast<double>(memory.on_meta.kept),
                  0.02 * static_cast<double>(memory.on_meta.kept))
          << c10::toString(dtype) << (has_head_norms ? ", norms of heads" : "");
    }
  }
}

}  // namespace
}  // namespace megalith
