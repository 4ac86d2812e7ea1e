// Options of context parallelism: what is read and what is refused.
#include "comm/context_parallel.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

ParallelOptions shared(int64_t cp, std::vector<std::string> kinds = {"p2p"}, std::vector<int64_t> sizes = {}) {
  ParallelOptions options;
  options.context_parallel_size = cp;
  options.cp_comm_type = std::move(kinds);
  options.hierarchical_context_parallel_sizes = std::move(sizes);
  return options;
}

// The one error's text.
std::string only(const std::vector<UserError>& errors) {
  EXPECT_EQ(errors.size(), 1U);
  return errors.empty() ? "" : errors[0].message() + "; " + errors[0].remedy();
}

TEST(ContextParallel, EveryWordIsRead) {
  for (const char* word : {"p2p", "all_gather", "a2a", "a2a+p2p"}) {
    const auto kind = find_context_parallel_kind(word);
    ASSERT_TRUE(kind) << word;
    EXPECT_EQ(name_of(*kind), word);
  }
  const auto kinds = context_parallel_kinds(shared(2, {"p2p", "a2a"}));
  EXPECT_EQ(context_parallel_kind(kinds, 1), ContextParallelKind::kAllToAll);
  EXPECT_EQ(context_parallel_kind({ContextParallelKind::kAllGather}, 5), ContextParallelKind::kAllGather);
  EXPECT_EQ(context_parallel_kind({}, 5), ContextParallelKind::kP2p);
  // The prediction modules of a model of two layers.
  EXPECT_EQ(context_parallel_kind(kinds, 2), ContextParallelKind::kAllToAll);
  EXPECT_EQ(context_parallel_kind(kinds, 3), ContextParallelKind::kAllToAll);
}

TEST(ContextParallel, SizesMakeTheMesh) {
  ParallelOptions options = shared(4, {"a2a+p2p"}, {2, 2});
  options.tensor_model_parallel_size = 2;
  ASSERT_TRUE(check_parallel_sizes(options, 16).empty());
  const Mesh mesh = Mesh::from_options(options, 16);
  EXPECT_EQ(mesh.size(Axis::kCpUlysses), 2);
  EXPECT_EQ(mesh.size(Axis::kCpRing), 2);
  EXPECT_EQ(mesh.ranks_of(Axis::kCpUlysses, 0), (std::vector<int>{0, 2}));
  EXPECT_EQ(Mesh::from_options(shared(4), 4).size(Axis::kCpUlysses), 1);
}

TEST(ContextParallel, WrongOptionsAreRefused) {
  EXPECT_EQ(only(check_parallel_sizes(shared(2, {"ring"}), 2)),
            "cp_comm_type has no 'ring'; choose among p2p, all_gather, a2a and a2a+p2p");
  EXPECT_NE(only(check_parallel_sizes(shared(2, {}), 2)).find("is empty"), std::string::npos);
  EXPECT_NE(only(check_parallel_sizes(shared(4, {"a2a+p2p"}), 4)).find("set hierarchical_context_parallel_sizes"),
            std::string::npos);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 3}, {4}, {-2, -2}, {1, 2, 2}}) {
    EXPECT_NE(
        only(check_parallel_sizes(shared(4, {"a2a+p2p"}, sizes), 4)).find("does not make context_parallel_size 4"),
        std::string::npos);
  }
}

TEST(ContextParallel, ModelsThatDoNotDivideAreRefused) {
  ContextParallelModel model{.num_layers = 2, .num_heads = 8, .num_kv_heads = 4, .seq_length = 64};
  EXPECT_TRUE(check_context_parallel_model(shared(4, {"a2a", "p2p"}), model).empty());
  EXPECT_EQ(only(check_context_parallel_model(shared(4, {"a2a", "p2p", "p2p"}), model)),
            "cp_comm_type has 3 words, and the model 2 layers; give one word, or one for each layer; "
            "prediction modules take the last layer's");
  EXPECT_EQ(only(check_context_parallel_model(shared(3), model)),
            "context_parallel_size 3 cuts sequences into 6 equal chunks, which does not divide seq_length 64; set "
            "seq_length to a multiple of 6");
  EXPECT_EQ(
      only(check_context_parallel_model(shared(8, {"a2a"}), model)),
      "cp_comm_type a2a with context_parallel_size 8 spreads the heads of a layer over 8 ranks, which does not "
      "divide num_query_groups 4; use fewer ranks there, or cp_comm_type p2p or all_gather, which leave the heads "
      "together");
  ParallelOptions options = shared(4, {"a2a+p2p"}, {4, 1});
  options.tensor_model_parallel_size = 2;
  EXPECT_NE(
      only(check_context_parallel_model(options, model)).find("the 2 heads that a rank has of num_query_groups 4"),
      std::string::npos);
  // Without a shared sequence nothing has to divide; with one rank neither.
  EXPECT_EQ(
      check_context_parallel_model(shared(8, {"a2a"}), {.num_layers = 2, .num_heads = 8, .num_kv_heads = 4}).size(),
      0U);
  model.seq_length = 63;
  EXPECT_TRUE(check_context_parallel_model(shared(1), model).empty());
}

}  // namespace
}  // namespace megalith
