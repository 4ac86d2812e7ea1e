// The distributed optimizer's buffers: their layout, whose run is whose, and that reducing, updating runs and gathering
// gives what replicated data parallelism gives.
#include "parallel/sharded_buffer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "comm/thread_world.h"
#include "parallel/grad_buffer.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

using Params = std::vector<std::unique_ptr<Parameter>>;

constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();

// A dense parameter whose element i is `first` + i.
std::unique_ptr<Parameter> numbered(const std::string& name, std::vector<int64_t> shape, double first = 0,
                                    ParameterOptions options = {}, AxisSet axes = {Axis::kDp, Axis::kCp}) {
  Placement placement = Placement::whole(name, std::move(shape));
  placement.replica_axes = placement.partial_axes = axes;
  auto param = std::make_unique<Parameter>(name, placement, options);
  param->data().copy_((at::arange(placement.num_local_elements(), at::kDouble) + first).view(placement.local_shape));
  return param;
}

// Matrices and vectors of awkward sizes, one smaller than any number of ranks here, one frozen, three dtypes.
Params toy_parameters() {
  Params params;
  params.push_back(numbered("embedding", {37, 5}, 1));
  params.push_back(numbered("frozen", {6}, 2, {.is_trainable = false}));
  params.push_back(numbered("norm", {3}, 3));
  params.push_back(numbered("scalar", {1}, 4));
  params.push_back(numbered("half", {33, 9}, 5, {.dtype = at::kBFloat16}));
  params.push_back(numbered("head", {64, 4}, 6));
  params.push_back(numbered("wide", {71}, 7, {.dtype = at::kDouble}));
  params.push_back(numbered("unused", {10}, 8));
  return params;
}

std::vector<Parameter*> pointers(const Params& params) {
  std::vector<Parameter*> all;
  for (const auto& param : params) all.push_back(param.get());
  return all;
}

// What rank `rank` adds to a parameter in a microbatch: small whole numbers, so that sums are exact in any order.
at::Tensor contribution(const Parameter& param, int rank, int microbatch) {
  const int64_t count = param.placement().num_local_elements();
  return ((at::arange(count, at::kLong) * (rank + 2) + microbatch) % 13 - 6)
      .to(param.grad_dtype())
      .view(param.placement().local_shape);
}

// Two microbatches; every rank in an order of its own, rank 1 without "scalar", everyone without "unused".
void deliver_step(DataParallel& data, const std::vector<Parameter*>& params, int rank) {
  data.begin_step();
  for (const int microbatch : {0, 1}) {
    data.begin_microbatch(microbatch == 1);
    std::vector<Parameter*> present;
    for (Parameter* param : params) {
      const bool is_left_out = param->name() == "unused" || (rank == 1 && param->name() == "scalar");
      if (param->is_trainable() && !is_left_out) present.push_back(param);
    }
    for (Parameter* param : present) param->expect_contribution();
    for (size_t k = 0; k < present.size(); ++k) {
      Parameter* param = present[(k + static_cast<size_t>(rank)) % present.size()];
      param->add_grad(contribution(*param, rank, microbatch));
    }
  }
  data.finish_step();
}

// A plain descent, exact in fp32 for these numbers.
void descend(DataParallel& data) {
  for (const OwnedPart& part : data.parts()) part.model.sub_((part.grad * 0.5).to(part.model.scalar_type()));
  data.publish();
}

TEST(ShardedGradBuffer, TheBytesAreThoseOfTheStatedFormula) {
  for (const int64_t bucket_elements : {int64_t{1}, int64_t{100}, kOneBucket}) {
    const Mesh mesh({.dp = 3});
    ThreadWorld(3).run(mesh, [&](Groups& groups) {
      const Params params = toy_parameters();
      const ShardedGradBuffer buffer(pointers(params), groups, {.gradients = {.bucket_elements = bucket_elements}});
      int64_t parameter_bytes = 6 * 4, gradient_bytes = 0;
      for (const auto& [dtype, bytes, grad_bytes] :
           {std::tuple{at::kFloat, 4, 4}, std::tuple{at::kBFloat16, 2, 4}, std::tuple{at::kDouble, 8, 8}}) {
        int64_t end = 0, begin = 0;
        const auto pad = [&] { begin = end = begin + (end - begin + 3 * 64 - 1) / (3 * 64) * (3 * 64); };
        for (auto param = params.rbegin(); param != params.rend(); ++param) {
          if (!(*param)->is_trainable() || (*param)->value().scalar_type() != dtype) continue;
          end = (end + 63) / 64 * 64 + (*param)->placement().num_local_elements();
          if (end - begin >= bucket_elements) pad();
        }
        pad();
        parameter_bytes += end * bytes;
        gradient_bytes += end * grad_bytes;
      }
      EXPECT_EQ(buffer.parameter_bytes(), parameter_bytes) << bucket_elements;
      EXPECT_EQ(buffer.gradient_bytes(), gradient_bytes) << bucket_elements;
    });
  }
}

TEST(ShardedGradBuffer, ParametersMoveIntoTheBufferAndStayThemselves) {
  const Groups groups = Groups::single();
  const Params params = toy_parameters();
  std::vector<const void*> leaves;
  for (const auto& param : params) leaves.push_back(param->value().unsafeGetTensorImpl());
  const ShardedGradBuffer buffer(pointers(params), groups, {});
  const Params fresh = toy_parameters();
  for (size_t i = 0; i < params.size(); ++i) {
    const Parameter& param = *params[i];
    EXPECT_EQ(param.value().unsafeGetTensorImpl(), leaves[i]) << param.name();
    EXPECT_EQ(param.value().requires_grad(), param.is_trainable()) << param.name();
    EXPECT_TRUE(param.value().is_leaf()) << param.name();
    EXPECT_TRUE(at::equal(param.data(), fresh[i]->data())) << param.name();
  }
  // The same offsets in both buffers: fp32 parameters and gradients are equally far apart.
  const auto distance = [](const at::Tensor& a, const at::Tensor& b) {
    return a.data_ptr<float>() - b.data_ptr<float>();
  };
  EXPECT_EQ(distance(params[0]->data(), params[5]->data()), distance(params[0]->grad(), params[5]->grad()));
  EXPECT_EQ(distance(params[0]->data(), params[5]->data()) % 64, 0);
}

// Every element of every parameter belongs to exactly one rank, whatever the buckets.
TEST(ShardedGradBuffer, TheRunsOfAllRanksAreThePartition) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t bucket_elements : {int64_t{1}, int64_t{100}, kOneBucket}) {
      std::map<std::string, at::Tensor> owners;
      std::vector<int64_t> owned(static_cast<size_t>(ranks));
      for (const auto& param : toy_parameters()) {
        if (param->is_trainable())
          owners[param->name()] = at::zeros({param->placement().num_local_elements()}, at::kLong);
      }
      std::mutex mutex;
      ThreadWorld(ranks).run(Mesh({.dp = ranks}), [&](Groups& groups) {
        const Params params = toy_parameters();
        const ShardedGradBuffer buffer(pointers(params), groups, {.gradients = {.bucket_elements = bucket_elements}});
        const std::lock_guard lock(mutex);
        for (const OwnedPart& part : buffer.parts()) {
          ASSERT_TRUE(part.range && part.range->size() > 0);
          EXPECT_EQ(part.model.numel(), part.range->size());
          EXPECT_EQ(part.grad.numel(), part.range->size());
          EXPECT_TRUE(part.replica_axes.empty()) << part.replica_axes.text();
          owners.at(part.parameter->name()).narrow(0, part.range->begin, part.range->size()).add_(1);
          owned[static_cast<size_t>(groups.rank)] += part.range->size();
        }
      });
      int64_t total = 0;
      for (const auto& [name, count] : owners) {
        EXPECT_TRUE((count == 1).all().item<bool>()) << name << " over " << ranks;
        total += count.numel();
      }
      EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), int64_t{0}), total);
    }
  }
}

// Two steps of replicated data parallelism on the same ranks, bit for bit: the numbers are exact in any order.
TEST(ShardedGradBuffer, EqualsReplicatedWhateverTheBucketsOverlapAndLayout) {
  const Mesh meshes[] = {Mesh({.dp = 1}),
                         Mesh({.dp = 2}),
                         Mesh({.dp = 3}),
                         Mesh({.dp = 4}),
                         Mesh({.cp = 2, .dp = 2}),
                         Mesh({.dp = 4, .dp_replicate = 2}),
                         Mesh({.cp = 2, .dp = 2, .dp_replicate = 2})};
  for (const Mesh& mesh : meshes) {
    ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
      const Params expected = toy_parameters();
      GradBuffer replicated(pointers(expected), groups, {});
      for (int step = 0; step < 2; ++step) {
        deliver_step(replicated, pointers(expected), groups.rank);
        descend(replicated);
      }
      for (const int64_t bucket_elements : {int64_t{1}, int64_t{100}, kOneBucket}) {
        for (const bool overlap : {false, true}) {
          for (const bool overlap_gather : {false, true}) {
            const std::string what = fmt::format("{}, {} elements, overlap {} {}", mesh.describe(groups.rank),
                                                 bucket_elements, overlap, overlap_gather);
            const Params params = toy_parameters();
            ShardedGradBuffer sharded(pointers(params), groups,
                                      {.gradients = {.bucket_elements = bucket_elements, .overlap = overlap},
                                       .overlap_gather = overlap_gather});
            EXPECT_EQ(sharded.runner() != nullptr, overlap_gather);
            for (int step = 0; step < 2; ++step) {
              deliver_step(sharded, pointers(params), groups.rank);
              descend(sharded);
            }
            for (const OwnedPart& part : sharded.parts()) {
              Parameter* same = nullptr;
              for (const auto& param : expected) {
                if (param->name() == part.parameter->name()) same = param.get();
              }
              const at::Tensor whole = same->grad().view(-1);
              EXPECT_TRUE(at::equal(part.grad, whole.narrow(0, part.range->begin, part.range->size())))
                  << what << ": gradient of " << same->name();
            }
            sharded.wait_for_parameters();
            for (size_t i = 0; i < params.size(); ++i) {
              EXPECT_TRUE(at::equal(params[i]->data(), expected[i]->data())) << what << ": " << params[i]->name();
            }
          }
        }
      }
    });
  }
}

TEST(ShardedGradBuffer, CopiesOfTheShardsAreReplicas) {
  const Mesh mesh({.dp = 4, .dp_replicate = 2});
  ThreadWorld(4).run(mesh, [&](Groups& groups) {
    const Params params = toy_parameters();
    const ShardedGradBuffer buffer(pointers(params), groups, {});
    for (const OwnedPart& part : buffer.parts()) EXPECT_EQ(part.replica_axes, AxisSet{Axis::kDpReplicate});
  });
}

// Experts are summed only over edp, and dense parameters beside them over dp; norms under sequence parallelism are
// summed over tp too, and stay replicas along it.
TEST(ShardedGradBuffer, EachParameterIsSummedOverItsOwnAxes) {
  const Mesh mesh({.tp = 2, .dp = 4, .etp = 1, .ep = 4});
  for (const bool is_sharded : {false, true}) {
    ThreadWorld(8).run(mesh, [&](Groups& groups) {
      Params params;
      params.push_back(numbered("dense", {50}));
      params.push_back(numbered("expert", {50}, 0, {}, {Axis::kEdp}));
      Placement placement = Placement::whole("norm", {50});
      placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp, Axis::kTp};
      params.push_back(std::make_unique<Parameter>("norm", placement, ParameterOptions{}));
      std::unique_ptr<DataParallel> data;
      if (is_sharded) {
        data = std::make_unique<ShardedGradBuffer>(pointers(params), groups, ShardedBufferOptions{});
      } else {
        data = std::make_unique<GradBuffer>(pointers(params), groups, GradBufferOptions{});
      }
      data->begin_step();
      data->begin_microbatch(true);
      for (const auto& param : params) {
        param->expect_contribution();
        param->add_grad(at::full({50}, std::ldexp(1.0, groups.rank)));
      }
      data->finish_step();
      const auto sum_over = [&](const AxisSet& axes) {
        double sum = 0;
        for (const int rank : mesh.ranks_of(axes, groups.rank)) sum += std::ldexp(1.0, rank);
        return sum;
      };
      for (const OwnedPart& part : data->parts()) {
        const std::string& name = part.parameter->name();
        const double sum = name == "dense"    ? sum_over({Axis::kDp, Axis::kCp})
                           : name == "expert" ? sum_over({Axis::kEdp})
                                              : sum_over({Axis::kDp, Axis::kCp, Axis::kTp});
        EXPECT_TRUE((part.grad == sum).all().item<bool>()) << name << " on rank " << groups.rank;
        const AxisSet replicas = name == "norm" ? AxisSet{Axis::kTp} : AxisSet{};
        EXPECT_EQ(part.replica_axes, is_sharded ? replicas : part.parameter->placement().replica_axes) << name;
      }
    });
  }
}

struct OneParameterModule : Module {
  OneParameterModule(const std::string& name, double first) {
    Placement placement = Placement::whole(name, {100});
    placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
    param = &register_parameter(name, placement, {});
    param->data().fill_(first);
  }
  Parameter* param;
};

// The thread back end fills what is still being gathered with NaN: a block sees its own parameters gathered, and those
// of later blocks are still under way.
TEST(ShardedGradBuffer, ABlockWaitsForItsOwnParametersOnly) {
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    const OneParameterModule first("first", 1), second("second", 2);
    ShardedGradBuffer buffer({first.param, second.param}, groups,
                             {.gradients = {.bucket_elements = 1}, .overlap_gather = true});
    buffer.publish();
    const auto is_there = [](const OneParameterModule& module, double value) {
      return (module.param->data() == value).all().item<bool>();
    };
    EXPECT_FALSE(is_there(first, 1));
    const at::Tensor input = at::ones({1});
    const auto ran =
        run_block(buffer.runner(), {.name = "first", .modules = {&first}}, {input}, [&](const auto& inputs) {
          EXPECT_TRUE(is_there(first, 1));
          EXPECT_FALSE(is_there(second, 2));
          return std::vector<at::Tensor>{inputs[0] + first.param->data()[0]};
        });
    EXPECT_EQ(ran.at(0).item<float>(), 2);
    buffer.wait_for_parameters();
    EXPECT_TRUE(is_there(second, 2));
    // Published again with gatherings under way: those end first.
    buffer.publish();
    buffer.publish();
    buffer.wait_for_parameters();
    EXPECT_TRUE(is_there(first, 1) && is_there(second, 2));
  });
}

}  // namespace
}  // namespace megalith
