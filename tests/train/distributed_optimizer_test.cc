// Training with the distributed optimizer: overlap, steps that are skipped, memory, rules. Rows of layouts/rows.txt
// hold its numbers to one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "comm/thread_world.h"
#include "kinds/kinds.h"
#include "models/tiny_models.h"
#include "parallel/data_parallel_options.h"
#include "support/source_dir.h"
#include "train/config.h"
#include "train/step.h"
#include "train/tiny_rows.h"

namespace megalith {
namespace {

using test::TensorMap;

constexpr int kSteps = 5;
constexpr int64_t kSamples = 12;  // of a step: two microbatches for each rank

struct Course {
  std::vector<double> losses, norms;
  TensorMap weights;  // after the last step
};

// Five steps of two ranks in bf16. The same model, samples and optimizer whatever the options.
Course take_course(const ModelConfig& config, const DataParallelOptions& options) {
  Course course;
  std::mutex mutex;
  const auto body = [&](Groups& groups) {
    const auto model = test::build_model(config, test::tiny_context(groups, at::kBFloat16, Kernels::kFused));
    test::load(*model, test::golden_weights(*model, at::kBFloat16));
    const auto data = make_data_parallel(model->parameters(), groups, options);
    model->set_runner(data->runner());
    Optimizer optimizer(*data, groups, {}, Kernels::kFused);
    PipelinedModel pipeline(*model, groups, at::kCPU);
    TrainStep step(pipeline, test::tiny_task(), *data, optimizer, groups, at::kCPU);
    const int64_t share = kSamples / groups.dp->size(), micro = std::max<int64_t>(share / 2, 1);
    for (int k = 0; k < kSteps; ++k) {
      test::NaiveInput whole = test::tiny_batch(config, kSamples, 7, false);
      whole.tokens = (whole.tokens + k) % *config.vocab_size;
      std::vector<Batch> batches;
      for (int64_t first = 0; first < share; first += micro) {
        const int64_t row = groups.dp->rank() * share + first;
        batches.push_back(test::tiny_rows(whole, row, micro, row + 40));
      }
      const StepResult computed = step.compute_gradients(batches);
      const OptimizerStep updated = optimizer.step(1e-2, 0.1);
      const std::lock_guard lock(mutex);
      if (groups.rank == 0) {
        course.losses.push_back(computed.losses.at(0).value);
        course.norms.push_back(updated.grad_norm);
      }
    }
    data->wait_for_parameters();
    const std::lock_guard lock(mutex);
    const TensorMap weights = test::values_of(*model);
    for (const auto& [name, weight] : weights) {
      const auto [known, is_new] = course.weights.try_emplace(name, weight.clone());
      EXPECT_TRUE(is_new || at::equal(known->second, weight)) << name << " differs on rank " << groups.rank;
    }
  };
  ThreadWorld(2).run(Mesh({.dp = 2}), body);
  return course;
}

// When things are sent changes no bit.
TEST(DistributedOptimizer, OverlapIsBitIdentical) {
  ModelConfig tied = test::tiny_config();
  tied.untie_embeddings_and_output_weights = false;
  tied.hidden_dropout = tied.attention_dropout = 0.2;
  tied.add_qkv_bias = true;
  for (const bool in_bf16 : {false, true}) {
    std::vector<Course> courses;
    for (const int overlap : {0, 1, 2}) {
      courses.push_back(take_course(tied, {.use_distributed_optimizer = true,
                                           .overlap_grad_reduce = overlap > 0,
                                           .overlap_param_gather = overlap > 1,
                                           .grad_reduce_in_bf16 = in_bf16,
                                           .ddp_bucket_size = 500}));
    }
    for (const Course& course : courses) {
      EXPECT_EQ(course.losses, courses[0].losses);
      EXPECT_EQ(course.norms, courses[0].norms);
      for (const auto& [name, weight] : courses[0].weights) {
        EXPECT_TRUE(at::equal(course.weights.at(name), weight)) << name;
      }
    }
  }
}

// Only one rank owns the bad element; all refuse the step, and all say which rank it was.
TEST(DistributedOptimizer, AllRanksSeeANonFiniteGradientThatOneOwns) {
  for (const int ranks : {2, 4}) {
    std::vector<std::string> named(static_cast<size_t>(ranks));
    std::vector<int> first_bad(static_cast<size_t>(ranks), -2);
    ThreadWorld(ranks).run(Mesh({.dp = ranks}), [&](Groups& groups) {
      Placement placement = Placement::whole("weight", {1000});
      placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
      Parameter param("weight", placement, {.init = Init::constant(1)});
      param.initialise(1);
      const auto data = make_data_parallel({&param}, groups, {.use_distributed_optimizer = true});
      Optimizer optimizer(*data, groups, {}, Kernels::kFused);
      data->begin_step();
      data->begin_microbatch(true);
      param.expect_contribution();
      at::Tensor gradient = at::ones({1000});
      if (groups.rank == 0) gradient[999] = std::numeric_limits<float>::infinity();  // the last rank's run
      param.add_grad(gradient);
      data->finish_step();
      const OptimizerStep step = optimizer.step(0.1, 0.1);
      EXPECT_TRUE(step.was_skipped());
      first_bad[static_cast<size_t>(groups.rank)] = step.first_bad_rank;
      named[static_cast<size_t>(groups.rank)] = step.bad_parameter;
      EXPECT_TRUE((param.data() == 1).all().item<bool>());
      EXPECT_EQ(optimizer.num_steps(), 0);
    });
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(first_bad[static_cast<size_t>(rank)], ranks - 1);
      EXPECT_EQ(named[static_cast<size_t>(rank)], rank == ranks - 1 ? "weight" : "");
    }
  }
}

TEST(DistributedOptimizer, StateOfAllRanksIsThatOfOne) {
  const ModelConfig config = test::tiny_config();
  for (const int ranks : {1, 2, 3, 4}) {
    int64_t bytes = 0, elements = 0;
    std::mutex mutex;
    ThreadWorld(ranks).run(Mesh({.dp = ranks}), [&](Groups& groups) {
      const auto model = test::build_model(config, test::tiny_context(groups, at::kBFloat16));
      const auto data = make_data_parallel(model->parameters(), groups, {.use_distributed_optimizer = true});
      const Optimizer optimizer(*data, groups, {}, Kernels::kReference);
      // Master, first and second moment of at most an n-th of the padded buffer.
      EXPECT_LE(optimizer.num_bytes(), 3 * data->gradient_bytes() / ranks);
      const std::lock_guard lock(mutex);
      bytes += optimizer.num_bytes();
      elements = 0;
      for (const Parameter* param : model->parameters()) elements += param->placement().num_local_elements();
    });
    EXPECT_EQ(bytes, elements * 3 * 4) << ranks;
  }
}

// As Megatron's scripts write them; two ranks started.
TEST(DistributedOptimizer, MegatronsSwitchesAreReadAndTheirRulesHold) {
  const auto resolve = [](std::vector<std::string> more) {
    ConfigInputs inputs;
    inputs.arguments = {"--num_layers=1",  "--hidden_size=32", "--num_attention_heads=2", "--vocab_size=67",
                        "--seq_length=16", "--mock_data",      "--normalization=RMSNorm", "--swiglu"};
    for (const char* word : {"--position_embedding_type=rope", "--max_position_embeddings=16", "--lr=1e-2",
                             "--disable_bias_linear", "--eval_iters=0"}) {
      inputs.arguments.emplace_back(word);
    }
    inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
    inputs.config_root = test::source_dir() / "configs";
    return resolve_config(all_kinds(), inputs, 2);
  };
  const auto resolved = resolve({"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather",
                                 "--ddp-average-in-collective", "--accumulate-allreduce-grads-in-fp32",
                                 "--num-distributed-optimizer-instances", "2"});
  const DataParallelOptions& options = resolved->config.data_parallel;
  EXPECT_TRUE(options.use_distributed_optimizer && options.overlap_grad_reduce && options.overlap_param_gather);
  std::string notes;
  for (const std::string& note : resolved->notes) notes += note + "\n";
  EXPECT_NE(notes.find("ddp_average_in_collective (gradients are summed"), std::string::npos) << notes;
  EXPECT_NE(notes.find("accumulate_allreduce_grads_in_fp32 (main_grads_dtype says"), std::string::npos) << notes;
  EXPECT_EQ(notes.find("use_distributed_optimizer"), std::string::npos) << notes;

  try {
    resolve({"--overlap-param-gather", "--num-distributed-optimizer-instances", "3"});
    FAIL() << "accepted";
  } catch (const UserErrors& errors) {
    EXPECT_EQ(errors.errors().size(), 4u) << errors.what();  // three rules of data parallelism, and 3 does not divide 2
  }
}

}  // namespace
}  // namespace megalith
