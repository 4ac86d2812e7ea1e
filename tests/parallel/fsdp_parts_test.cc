// FSDP's units beside the layers, and units whose gradients are reduced part by part.
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "device/memory.h"
#include "parallel/data_parallel_options.h"
#include "parallel/fsdp_runs.h"

namespace megalith {
namespace {

using namespace test;
using namespace fsdp_runs;

// Embedding and head have 1152 elements each; a layer's parts are its input norm and queries, keys and values; the
// output projection, norm, gate and up; and down.
constexpr int64_t kPart = 1000;

TEST(FsdpParts, EqualOneRankAndTheirOrderChangesNoBit) {
  const auto is_frozen = [](const std::string& name) {
    return name.find("embed") != name.npos || name.find("layers.0") != name.npos ||
           name.find("layers.2.mlp") != name.npos;
  };
  struct Case {
    bool is_tied, freezes;
  };
  for (const auto& [is_tied, freezes] : {Case{false, false}, Case{true, false}, Case{false, true}}) {
    Setting s = setting();
    s.config.hidden_dropout = 0.2;
    s.config.untie_embeddings_and_output_weights = !is_tied;
    s.num_steps = 2;
    s.evaluates = true;
    if (freezes) s.is_frozen = is_frozen;
    const Outcome expected = train(Groups::single(), s, false);
    s.num_microbatches = 3;
    for (const Layout& layout :
         {Layout{"dp 3", Mesh({.dp = 3})}, Layout{"tp 2 dp 2x2", Mesh({.tp = 2, .dp = 4, .dp_replicate = 2})}}) {
      std::optional<Outcome> first;
      for (const auto& [overlap, reshard] : {std::pair{true, true}, {false, true}, {true, false}}) {
        s.fsdp = {.reshard_after_forward = reshard, .overlap = overlap, .part_elements = kPart};
        s.recomputes = !reshard;
        const Outcome found = train_on(layout.mesh, s);
        const std::string what = fmt::format("{} overlap {} reshard {} tied {} frozen {}", layout.name, overlap,
                                             reshard, is_tied, freezes);
        if (!first) first = found;
        expect_near(found, expected, kExact, what);
        expect_equal(found, *first, what);
      }
    }
  }
}

TEST(FsdpParts, AreReducedOneAfterTheOtherAndTheirBytesAreTheBounds) {
  const std::vector<std::string> expected = {
      "all_gather embedding", "all_gather model.layers.0", "all_gather model.layers.1", "all_gather model.layers.2",
      "all_gather head",
      // Backward: the head is whole, and no layer beside it.
      "reduce_scatter head", "all_gather model.layers.2", "all_gather model.layers.1",
      "reduce_scatter model.layers.2 2", "reduce_scatter model.layers.2 1", "reduce_scatter model.layers.2 0",
      "all_gather model.layers.0",
      "reduce_scatter model.layers.1 2", "reduce_scatter model.layers.1 1", "reduce_scatter model.layers.1 0",
      "reduce_scatter model.layers.0 2", "reduce_scatter model.layers.0 1", "reduce_scatter model.layers.0 0",
      "all_gather embedding", "reduce_scatter embedding"};
  for (const at::ScalarType grads : {at::kFloat, at::kBFloat16}) {
    ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
      Setting s = setting();
      s.dtype = at::kBFloat16;
      const auto model = make_model(groups, s);
      for (Parameter* param : model->parameters()) {
        if (grads == at::kBFloat16) param->narrow_grad();
      }
      Fsdp fsdp(model->parameters(), model->blocks(), groups, {.part_elements = kPart});
      model->set_runner(fsdp.runner());
      std::vector<std::string> seen;
      groups.dp_shard_cp->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
        if (phase != TracePhase::kStart) return;
        std::string text = fmt::format("{} {}", name_of(record.kind), record.label);
        const size_t part = text.find(" part ");
        if (part != text.npos) text.erase(part, 5);  // "reduce_scatter model.layers.2 1"
        if (part != text.npos && text.starts_with("all_gather")) text.erase(part);
        // A unit's parts are gathered at once.
        if (seen.empty() || seen.back() != text) seen.push_back(text);
      });
      for (int64_t step = 0; step < 2; ++step) {
        seen.clear();
        fsdp.reset_peak_memory();
        fsdp.begin_step();
        run_microbatches(*model, fsdp, groups, s, step);
        fsdp.finish_step();
        EXPECT_EQ(seen, expected) << groups.rank;
        EXPECT_EQ(fsdp.memory().parameters.peak, fsdp.whole_parameter_bytes_bound());
        EXPECT_EQ(fsdp.memory().gradients.peak, fsdp.whole_gradient_bytes_bound());
        EXPECT_LE(fsdp.whole_bytes_bound(), fsdp.whole_parameter_bytes_bound() + fsdp.whole_gradient_bytes_bound());
      }
      groups.dp_shard_cp->set_trace_hook({});
      model->set_runner(nullptr);
    });
  }
}

// Allocated by two ranks of a model that is mostly vocabulary: a table is whole only while it is used.
TEST(FsdpParts, ALargeVocabularyTakesLessThanWithZero1) {
  Setting s = setting();
  s.dtype = at::kBFloat16;
  s.kernels = Kernels::kFused;
  s.config.num_layers = 4;
  s.config.hidden_size = 96;
  s.config.ffn_hidden_size = 384;
  s.config.vocab_size = 6000;
  manage_cpu_memory();
  const c10::Device cpu(at::kCPU);
  const auto peak_of = [&](const DataParallelOptions& options) {
    reset_peak_memory(cpu);
    const int64_t before = memory_stats(cpu).allocated_bytes;
    ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
      const auto model = build_model(s.config, tiny_context(groups, s.dtype, s.kernels));
      const auto data = make_data_parallel(model->parameters(), groups, options, model->blocks());
      Optimizer optimizer(*data, groups, {}, s.kernels);
      data->initialise(1);
      model->set_runner(data->runner());
      data->begin_step();
      data->begin_microbatch(true);
      const NaiveInput batch = part_of_batch(s.config, 0, groups.rank, groups.rank + 1);
      model->forward(model_input(batch), {}, HeadOutput::kLoss).terms.at(0).objective.backward();
      data->finish_step();
      optimizer.step(1e-2, 0.1);
      model->set_runner(nullptr);
    });
    return memory_stats(cpu).peak_allocated_bytes - before;
  };
  const int64_t zero1 = peak_of({.use_distributed_optimizer = true});
  const int64_t sharded = peak_of({.use_torch_fsdp2 = true, .ddp_bucket_size = 100'000});
  EXPECT_LT(sharded, zero1);
}

}  // namespace
}  // namespace megalith
