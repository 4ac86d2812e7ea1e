// Training with the distributed optimizer: the losses, gradients, parameters and optimizer state of one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
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
constexpr int64_t kSamples = 12;  // of a step: divided by 1, 2, 3 and 4 ranks, two microbatches or more each

struct Course {
  std::vector<double> losses, norms;
  TensorMap first_gradients, weights;  // of the first step, and after the last
};

struct Precision {
  at::ScalarType dtype = at::kDouble;
  Kernels kernels = Kernels::kReference;
};

// Copies every part's gradient into whole flat tensors shared by the ranks, NaN where nobody owns.
void gather_gradients(const DataParallel& data, TensorMap& whole, std::mutex& mutex) {
  const std::lock_guard lock(mutex);
  for (const OwnedPart& part : data.parts()) {
    const Placement& placement = part.parameter->placement();
    at::Tensor& gradient = whole[part.parameter->name()];
    if (!gradient.defined()) {
      gradient = at::full({placement.num_local_elements()}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
    }
    const FlatRange range = part.range.value_or(FlatRange{0, placement.num_local_elements()});
    gradient.narrow(0, range.begin, range.size()).copy_(part.grad.reshape(-1));
  }
}

// Five steps over the ranks of `mesh`. The same model, samples and optimizer whatever the mesh and the options.
Course take_course(const Mesh& mesh, const ModelConfig& config, const DataParallelOptions& options,
                   const Precision& precision = {}) {
  Course course;
  std::mutex mutex;
  const auto body = [&](Groups& groups) {
    const auto model = test::build_model(config, test::tiny_context(groups, precision.dtype, precision.kernels));
    test::load(*model, test::golden_weights(*model, precision.dtype));
    const auto data = make_data_parallel(model->parameters(), groups, options);
    model->set_runner(data->runner());
    Optimizer optimizer(*data, groups, {}, precision.kernels);
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
      if (k == 0) gather_gradients(*data, course.first_gradients, mutex);
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
  if (mesh.world_size() == 1) {
    Groups groups = Groups::single();
    body(groups);
  } else {
    ThreadWorld(mesh.world_size()).run(mesh, body);
  }
  return course;
}

void expect_same_course(const Course& a, const Course& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t k = 0; k < b.losses.size(); ++k) {
    EXPECT_NEAR(a.losses[k], b.losses[k], tolerance * b.losses[k]) << what << ", loss of step " << k;
    EXPECT_NEAR(a.norms[k], b.norms[k], tolerance * b.norms[k]) << what << ", norm of step " << k;
  }
  ASSERT_EQ(a.first_gradients.size(), b.first_gradients.size()) << what;
  for (const auto& [name, gradient] : b.first_gradients) {
    EXPECT_LE(test::relative_difference(a.first_gradients.at(name), gradient), tolerance)
        << what << ", gradient " << name;
  }
  // Adam divides by the root of the second moment: where a gradient is all rounding, its sign decides a step of lr. The
  // updated weights are compared at the size of the whole course.
  for (const auto& [name, weight] : b.weights) {
    EXPECT_LE(test::relative_difference(a.weights.at(name).to(at::kDouble), weight.to(at::kDouble)), 100 * tolerance)
        << what << ", weight " << name;
  }
}

std::vector<ModelConfig> course_models() {
  ModelConfig tied = test::tiny_config();
  tied.untie_embeddings_and_output_weights = false;
  tied.hidden_dropout = tied.attention_dropout = 0.2;
  tied.add_qkv_bias = true;
  return {test::tiny_config(), tied};
}

std::vector<DataParallelOptions> course_options() {
  std::vector<DataParallelOptions> all;
  for (const bool is_sharded : {false, true}) {
    for (const std::optional<int64_t> bucket : {std::optional<int64_t>(1), std::optional<int64_t>()}) {
      for (const bool overlap : {false, true}) {
        DataParallelOptions options{
            .use_distributed_optimizer = is_sharded, .overlap_grad_reduce = overlap, .ddp_bucket_size = bucket};
        all.push_back(options);
        if (!is_sharded || !overlap) continue;
        options.overlap_param_gather = true;
        all.push_back(options);
      }
    }
  }
  return all;
}

std::string course_text(const Mesh& mesh, const DataParallelOptions& o) {
  return fmt::format("dp {} ({} copies), sharded {}, bucket {}, overlap {} {}", mesh.size(Axis::kDp),
                     mesh.size(Axis::kDpReplicate), o.use_distributed_optimizer, o.ddp_bucket_size.value_or(-1),
                     o.overlap_grad_reduce, o.overlap_param_gather);
}

TEST(DistributedOptimizer, EqualsOneRankInFloat64) {
  for (const ModelConfig& config : course_models()) {
    const Course alone = take_course(Mesh::single(), config, {});
    EXPECT_LT(alone.losses.back(), alone.losses.front());
    for (const DataParallelOptions& options : course_options()) {
      for (const Mesh& mesh : {Mesh({.dp = 1}), Mesh({.dp = 2}), Mesh({.dp = 3}), Mesh({.dp = 4})}) {
        const Course course = take_course(mesh, config, options);
        expect_same_course(course, alone, 1e-9, course_text(mesh, options));
      }
    }
    const DataParallelOptions sharded{
        .use_distributed_optimizer = true, .overlap_grad_reduce = true, .overlap_param_gather = true};
    const Mesh hybrid({.dp = 4, .dp_replicate = 2});
    expect_same_course(take_course(hybrid, config, sharded), alone, 1e-9, course_text(hybrid, sharded));
  }
}

TEST(DistributedOptimizer, EqualsOneRankWithFusedKernelsInFloat32) {
  const Precision fp32{at::kFloat, Kernels::kFused};
  for (const ModelConfig& config : course_models()) {
    const Course alone = take_course(Mesh::single(), config, {}, fp32);
    for (const int ranks : {2, 3, 4}) {
      const DataParallelOptions options{
          .use_distributed_optimizer = true, .overlap_grad_reduce = true, .overlap_param_gather = true};
      expect_same_course(take_course(Mesh({.dp = ranks}), config, options, fp32), alone, 1e-5,
                         course_text(Mesh({.dp = ranks}), options));
    }
  }
}

// When things are sent changes no bit.
TEST(DistributedOptimizer, OverlapIsBitIdentical) {
  const Precision bf16{at::kBFloat16, Kernels::kFused};
  for (const bool in_bf16 : {false, true}) {
    std::vector<Course> courses;
    for (const int overlap : {0, 1, 2}) {
      courses.push_back(take_course(Mesh({.dp = 2}), course_models()[1],
                                    {.use_distributed_optimizer = true,
                                     .overlap_grad_reduce = overlap > 0,
                                     .overlap_param_gather = overlap > 1,
                                     .grad_reduce_in_bf16 = in_bf16,
                                     .ddp_bucket_size = 500},
                                    bf16));
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
