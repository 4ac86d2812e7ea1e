// Whole matrices for ranks that compute them, and the results back: every element once, each matrix once, in shares.
#include "optim/matrix_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "comm/thread_world.h"
#include "nn/linear.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "parallel/sharded_buffer.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

enum class Sharding { kReplicated, kAnywhere, kBetweenMatrices, kFsdp };

// Layers of every role, several of each, so that there is work for all ranks.
struct Layers {
  explicit Layers(const Groups& groups, int count = 4) {
    const LayerContext context{.groups = &groups, .dtype = at::kDouble};
    for (int i = 0; i < count; ++i) {
      const std::string name = "layer" + std::to_string(i);
      layers.push_back(std::make_unique<Linear>(
          context, name + ".qkv", 12, std::vector<LinearPart>{{name + ".q", 16}, {name + ".k", 8}, {name + ".v", 8}},
          LinearOptions{.role = LinearRole::kColumn, .weight_role = ParameterRole::kQkv}));
      layers.push_back(
          std::make_unique<Linear>(context, name + ".out", 16, 12, LinearOptions{.role = LinearRole::kRow}));
      layers.push_back(std::make_unique<Linear>(context, name + ".both", 12, 6, LinearOptions{}));
    }
    for (const auto& layer : layers) params.push_back(&layer->weight());
  }

  std::unique_ptr<DataParallel> shard(Sharding how, const Groups& groups) const {
    switch (how) {
      case Sharding::kReplicated:
        return std::make_unique<GradBuffer>(params, groups, GradBufferOptions{});
      case Sharding::kFsdp:
        return std::make_unique<Fsdp>(params, std::vector<Block>{}, groups, FsdpOptions{});
      default: {
        ShardedBufferOptions options;
        if (how == Sharding::kBetweenMatrices)
          options.cut = [](const Parameter&) { return BucketCut::kBetweenMatrices; };
        return std::make_unique<ShardedGradBuffer>(params, groups, options);
      }
    }
  }

  std::vector<std::unique_ptr<Linear>> layers;
  std::vector<Parameter*> params;
};

// Element (row, column) of a canonical matrix, as read and as answered: what a rank gets back shows whether it was
// computed from the right place of the right matrix.
double input_at(const std::string& name, int64_t row, int64_t column) {
  double seed = 0;
  for (const char letter : name) seed = seed * 3 + letter;
  return std::fmod(seed, 1009.0) + 100.0 * static_cast<double>(row) + static_cast<double>(column);
}
at::Tensor input_of(const std::string& name, int64_t rows, int64_t columns) {
  const at::Tensor whole = at::empty({rows, columns}, at::kDouble);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) whole[r][c] = input_at(name, r, c);
  }
  return whole;
}
at::Tensor answer_to(const at::Tensor& whole) { return whole.square() + whole.sum(); }

// Rank `slice`'s part of the answer, in the order of its flattened local tensor.
at::Tensor slice_of_answer(const ExchangedMatrix& one, int slice, bool wants_input) {
  const at::Tensor whole = input_of(one.matrix.name, one.matrix.rows, one.matrix.columns);
  return one.matrix.take_slice(wants_input ? whole : answer_to(whole), slice).view({-1});
}

struct Case {
  Mesh::Sizes mesh;
  Sharding sharding;
};

class Exchange : public ::testing::TestWithParam<Case> {};

TEST_P(Exchange, EveryElementComesBackFromItsWholeMatrixOnce) {
  const Case& tried = GetParam();
  const Mesh mesh(tried.mesh);
  std::mutex mutex;
  std::map<std::string, int> num_computed;
  std::map<std::string, int64_t> num_written;
  std::vector<int> num_of_rank(static_cast<size_t>(mesh.world_size()));
  ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
    const Layers layers(groups);
    const auto data = layers.shard(tried.sharding, groups);
    // Batches of a few matrices, so that there are several.
    const MatrixExchange exchange(*data, groups, [](const Parameter&) { return true; },
                                  {.dtype = [](const Parameter&) { return at::kDouble; }, .batch_elements = 100});
    const int tp = groups.tp->rank();
    exchange.run(
        [&](const ExchangedMatrix& one, const FlatRange& range) {
          return slice_of_answer(one, tp, /*wants_input=*/true)
              .narrow(0, range.begin - one.matrix.range.begin, range.size());
        },
        [&](const ExchangedMatrix& one, const at::Tensor& whole) {
          EXPECT_TRUE(at::equal(whole, input_of(one.matrix.name, one.matrix.rows, one.matrix.columns)));
          const std::lock_guard lock(mutex);
          ++num_computed[one.matrix.name];
          ++num_of_rank[static_cast<size_t>(groups.rank)];
          return answer_to(whole);
        },
        [&](const ExchangedMatrix& one, const FlatRange& range, const at::Tensor& values) {
          const at::Tensor expected = slice_of_answer(one, tp, /*wants_input=*/false);
          EXPECT_TRUE(at::equal(values, expected.narrow(0, range.begin - one.matrix.range.begin, range.size())))
              << one.matrix.name;
          const std::lock_guard lock(mutex);
          num_written[one.matrix.name] += range.size();
        });
  });
  // Replicas compute and write the same; so do the ranks of tp for a layer that is whole on each of them.
  const int copies = tried.sharding == Sharding::kReplicated ? tried.mesh.dp : tried.mesh.dp_replicate;
  ASSERT_EQ(num_computed.size(), 4u * 5);
  for (const auto& [name, count] : num_computed) {
    const bool is_on_all = name.ends_with("both.weight");
    EXPECT_EQ(count, copies * (is_on_all ? tried.mesh.tp : 1)) << name;
    const int64_t elements = name.find(".q.") != std::string::npos    ? 16 * 12
                             : name.find(".out") != std::string::npos ? 12 * 16
                             : is_on_all                              ? 6 * 12 * tried.mesh.tp
                                                                      : 8 * 12;
    EXPECT_EQ(num_written.at(name), copies * elements) << name;
  }
  // No rank is idle, and none does more than twice the mean.
  int total = 0;
  for (const int count : num_of_rank) total += count;
  for (const int count : num_of_rank) {
    EXPECT_GT(count, 0);
    EXPECT_LE(count * mesh.world_size(), 2 * total);
  }
}

INSTANTIATE_TEST_SUITE_P(
    MatrixExchange, Exchange,
    ::testing::Values(Case{{.dp = 1}, Sharding::kReplicated}, Case{{.tp = 2, .etp = 2}, Sharding::kReplicated},
                      Case{{.tp = 4, .dp = 2, .etp = 4}, Sharding::kReplicated}, Case{{.dp = 3}, Sharding::kAnywhere},
                      Case{{.dp = 4, .dp_replicate = 2}, Sharding::kAnywhere},
                      Case{{.tp = 2, .dp = 2, .etp = 2}, Sharding::kAnywhere},
                      Case{{.dp = 2}, Sharding::kBetweenMatrices},
                      Case{{.tp = 2, .dp = 2, .etp = 2}, Sharding::kBetweenMatrices}, Case{{.dp = 4}, Sharding::kFsdp},
                      Case{{.tp = 2, .dp = 2, .etp = 2}, Sharding::kFsdp}));

// Replicas send nothing, and runs between matrices send nothing over the shards.
TEST(MatrixExchange, SendsNothingThatIsThereAlready) {
  const auto labels = [](const Mesh::Sizes& sizes, Sharding sharding) {
    std::mutex mutex;
    std::map<std::string, int> seen;
    ThreadWorld(Mesh(sizes).world_size()).run(Mesh(sizes), [&](Groups& groups) {
      const Layers layers(groups);
      const auto data = layers.shard(sharding, groups);
      for (const auto& group : groups.all()) {
        group->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
          if (phase != TracePhase::kStart) return;
          const std::lock_guard lock(mutex);
          ++seen[record.label];
        });
      }
      const MatrixExchange exchange(*data, groups, [](const Parameter&) { return true; },
                                    {.dtype = [](const Parameter&) { return at::kDouble; }});
      exchange.run(
          [&](const ExchangedMatrix& one, const FlatRange& range) {
            return at::zeros({range.size()}, at::TensorOptions(one.parameter->data().device()).dtype(at::kDouble));
          },
          [](const ExchangedMatrix&, const at::Tensor& whole) { return whole; },
          [](const ExchangedMatrix&, const FlatRange&, const at::Tensor&) {});
      for (const auto& group : groups.all()) group->set_trace_hook(nullptr);
    });
    return seen;
  };
  using Seen = std::map<std::string, int>;
  EXPECT_EQ(labels({.dp = 2}, Sharding::kReplicated), Seen{});
  EXPECT_EQ(labels({.dp = 2}, Sharding::kBetweenMatrices), Seen{});
  // One collective for all matrices, on each rank.
  EXPECT_EQ(labels({.dp = 3}, Sharding::kAnywhere), (Seen{{"runs of matrices", 3}, {"updates of runs", 3}}));
  EXPECT_EQ(labels({.tp = 2, .etp = 2}, Sharding::kReplicated),
            (Seen{{"slices of matrices", 2}, {"updates of slices", 2}}));
  EXPECT_EQ(labels({.tp = 2, .dp = 2, .etp = 2}, Sharding::kBetweenMatrices),
            (Seen{{"slices of matrices", 4}, {"updates of slices", 4}}));
}

// The products, of which a matrix takes rows x columns x the smaller of the two, are shared out among the ranks that
// hold slices: none is more than a matrix away from its share.
TEST(MatrixExchange, OwnersShareTheWork) {
  std::mutex mutex;
  std::map<int, double> work;
  ThreadWorld(4).run(Mesh({.tp = 4, .etp = 4}), [&](Groups& groups) {
    const Layers layers(groups, 8);
    const auto data = layers.shard(Sharding::kReplicated, groups);
    const auto is_cut = [](const Parameter& one) { return one.name().find("both") == std::string::npos; };
    const MatrixExchange exchange(*data, groups, is_cut, {.dtype = [](const Parameter&) { return at::kDouble; }});
    const std::lock_guard lock(mutex);
    for (const ExchangedMatrix* one : exchange.matrices()) {
      if (one->owner_slice != groups.tp->rank()) continue;
      work[groups.rank] +=
          static_cast<double>(one->matrix.rows * one->matrix.columns * std::min(one->matrix.rows, one->matrix.columns));
    }
  });
  double total = 0;
  for (const auto& [rank, share] : work) total += share;
  ASSERT_EQ(work.size(), 4u);
  EXPECT_EQ(total, 8 * (16 * 12 * 12 + 2 * 8 * 12 * 8 + 12 * 16 * 12));
  for (const auto& [rank, share] : work) EXPECT_NEAR(share, total / 4, 16 * 12 * 12) << rank;
}

}  // namespace
}  // namespace megalith
