// Mistakes of order between streams, planted in everything that overlaps with computation: the accelerator or the
// groups of threads must show every one.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <vector>

#include "layouts_pretend/devices_of_ranks.h"
#include "layouts_pretend/hasty_group.h"
#include "pretend/accelerator/streams.h"

namespace megalith {
namespace {

using namespace test;
using Kind = CollectiveKind;

constexpr int kSteps = 2;  // parameters that are gathered behind a step are used in the next

struct Overlap {
  std::string name;
  Kind kind;
  std::string label;  // part of it
  Layout layout;
};

std::vector<Overlap> overlaps() {
  TinyRun one_layer{.num_layers = 1}, shared{.num_layers = 1, .sequence = 8}, experts{.family = "mixtral"};
  const TinyRun two_layers;
  experts.num_layers = 1;
  const Layout data_parallel{.dp = 2, .micro_batch = 4, .task = one_layer};
  Layout zero = data_parallel, sharded = data_parallel;
  zero.data_parallel = zero1();
  sharded.data_parallel = fsdp();
  sharded.task = two_layers;
  const Layout tensor{.tp = 2, .micro_batch = 8, .task = one_layer};
  const Layout sequence{.tp = 2, .is_sequence_parallel = true, .micro_batch = 8, .task = one_layer};
  const Layout stages{.pp = 2, .micro_batch = 4, .task = two_layers};
  const Layout ring{.cp = 2, .micro_batch = 8, .task = shared, .cp_comm_type = {"p2p"}};
  const Layout heads{.cp = 2, .micro_batch = 8, .task = shared, .cp_comm_type = {"a2a"}};
  const Layout tokens{.dp = 2, .micro_batch = 4, .task = experts, .ep = 2};
  return {
      {"gradient buckets", Kind::kAllReduce, "grad bucket", data_parallel},
      {"gradient buckets of the distributed optimizer", Kind::kReduceScatter, "grad bucket", zero},
      {"parameter gathers of the distributed optimizer", Kind::kAllGather, "parameter bucket", zero},
      {"parameter gathers of FSDP", Kind::kAllGather, "model.layers", sharded},
      {"gradients of FSDP", Kind::kReduceScatter, "model.layers", sharded},
      {"tensor parallel: sum of dx behind the weight gradient", Kind::kAllReduce, "gate_up_proj.weight", tensor},
      {"sequence parallel: dx behind the weight gradient", Kind::kReduceScatter, "gate_up_proj.weight", sequence},
      {"pipeline: activations", Kind::kSendReceive, "inputs of stage", stages},
      {"pipeline: gradients", Kind::kSendReceive, "gradient of the inputs", stages},
      {"ring attention: keys and values", Kind::kSendReceive, "self_attn k v", ring},
      {"ring attention: gradients of keys and values", Kind::kSendReceive, "self_attn dk dv", ring},
      {"attention by heads: queries, keys and values", Kind::kAllToAll, "self_attn q k v", heads},
      {"experts: tokens", Kind::kAllToAll, " tokens", tokens},
      {"experts: results", Kind::kAllToAll, " results", tokens},
  };
}

// What a run shows: an error, or how it differs from one rank; "" when it does not.
std::string seen(const Layout& layout, const Mistake* mistake) {
  const RankOutcome& expected = single_rank_outcome(layout, {}, kSteps);
  const Precision on_devices{.devices = &devices_of_ranks()};
  std::string what;
  try {
    what = compare(layout, run_layout(layout, on_devices, kSteps, mistake), expected, 1e-9).first_failure;
  } catch (const std::exception& error) {
    what = error.what();
  }
  forget_what_streams_hold();
  return what;
}

TEST(StreamMistakes, AreSeenInEveryOverlap) {
  for (const Overlap& overlap : overlaps()) {
    for (const Haste haste : {Haste::kNone, Haste::kNoWait, Haste::kOtherStream, Haste::kWrites}) {
      const HastyCollective hasty{.kind = overlap.kind, .label = overlap.label, .haste = haste};
      const Mistake mistake{.name = overlap.name,
                            .hooks = {.change_groups = [&](Groups& groups) { make_hasty(groups, hasty); }}};
      const std::string what = seen(overlap.layout, &mistake);
      const std::string name = fmt::format("{}: {}", overlap.name, name_of(haste));
      EXPECT_GT(hasty.times->load(), 0) << name << ": no collective was meant";
      if (haste == Haste::kNone) {
        EXPECT_EQ(what, "") << name;
      } else {
        EXPECT_NE(what, "") << "nobody sees: " << name;
      }
    }
  }
}

// A microbatch's inputs come on a stream of their own, while the one before is computed.
TEST(StreamMistakes, AreSeenInInputs) {
  const Layout layout{.micro_batch = 4};
  EXPECT_EQ(seen(layout, nullptr), "");
  pretend::ignore(pretend::Ignored::kEventWaits);
  EXPECT_NE(seen(layout, nullptr), "");
  pretend::ignore(pretend::Ignored::kNothing);
}

// Activations in host memory travel on a stream of their own.
TEST(StreamMistakes, AreSeenInOffloading) {
  RecomputeOptions offloaded{.recompute_granularity = "full", .recompute_method = "block", .recompute_num_layers = 2};
  offloaded.cpu_offloading_num_layers = 2;
  const TinyRun three_layers{.num_layers = 3};
  const Layout layout{.tp = 2, .micro_batch = 4, .task = three_layers, .recompute = offloaded};
  using pretend::Ignored;
  EXPECT_EQ(seen(layout, nullptr), "");
  for (const Ignored what : {Ignored::kEventWaits, Ignored::kEventWaitsOfSideStreams, Ignored::kRecordStream}) {
    pretend::ignore(what);
    EXPECT_NE(seen(layout, nullptr), "") << static_cast<int>(what);
    pretend::ignore(Ignored::kNothing);
  }
}

}  // namespace
}  // namespace megalith
