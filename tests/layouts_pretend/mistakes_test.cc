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

struct Overlap {
  std::string name;
  Kind kind;
  std::string label;  // part of it
  std::string words;
};

std::vector<Overlap> overlaps() {
  const std::string buckets = "untied dp2 --overlap_grad_reduce";
  return {
      {"gradient buckets", Kind::kAllReduce, "grad bucket", buckets},
      {"gradient buckets of the distributed optimizer", Kind::kReduceScatter, "grad bucket", "untied dp2 zero"},
      {"parameter gathers of the distributed optimizer", Kind::kAllGather, "parameter bucket", "untied dp2 zero"},
      {"parameter gathers of FSDP", Kind::kAllGather, "model.layers", "untied dp2 fsdp"},
      {"gradients of FSDP", Kind::kReduceScatter, "model.layers", "untied dp2 fsdp"},
      {"tensor parallel: sum of dx beside the weight gradient", Kind::kAllReduce, "gate_up_proj.weight", "untied tp2"},
      {"sequence parallel: dx beside its weight gradient", Kind::kReduceScatter, "gate_up_proj.weight",
       "untied tp2 sp"},
      {"pipeline: activations", Kind::kSendReceive, "inputs of stage", "untied pp2"},
      {"pipeline: gradients", Kind::kSendReceive, "gradient of the inputs", "untied pp2"},
      {"ring attention: keys and values", Kind::kSendReceive, "self_attn k v", "untied cp2"},
      {"ring attention: gradients of keys and values", Kind::kSendReceive, "self_attn dk dv", "untied cp2"},
      {"attention by heads: queries, keys and values", Kind::kAllToAll, "self_attn q k v", "untied cp2 heads"},
      {"experts: tokens", Kind::kAllToAll, " tokens", "mixtral dp2 ep2"},
      {"experts: results", Kind::kAllToAll, " results", "mixtral dp2 ep2"},
  };
}

// The float64 difference from one rank, or an error; "" for none.
std::string seen(LayoutRow& row, const CheckHooks& hooks = {}) {
  std::string what = row.difference(on_devices(hooks));
  forget_what_streams_hold();
  return what;
}

TEST(StreamMistakes, AreSeenInEveryOverlap) {
  for (const Overlap& overlap : overlaps()) {
    LayoutRow row(overlap.words);
    for (const Haste haste : {Haste::kNone, Haste::kNoWait, Haste::kOtherStream, Haste::kWrites}) {
      const HastyCollective hasty{.kind = overlap.kind, .label = overlap.label, .haste = haste};
      const std::string what = seen(row, {.change_groups = [&](Groups& groups) { make_hasty(groups, hasty); }});
      const std::string name = fmt::format("{}: {}", overlap.name, name_of(haste));
      EXPECT_GT(hasty.times->load(), 0) << name << ": no collective was meant";
      if (haste == Haste::kNone) {
        EXPECT_EQ(what, "") << name;
      } else {
        EXPECT_NE(what, "") << "no run shows: " << name;
      }
    }
  }
}

// A microbatch's inputs come on a stream of their own, while the one before is computed.
TEST(StreamMistakes, AreSeenInInputs) {
  LayoutRow row("untied two");
  EXPECT_EQ(seen(row), "");
  pretend::ignore(pretend::Ignored::kEventWaits);
  EXPECT_NE(seen(row), "");
  pretend::ignore(pretend::Ignored::kNothing);
}

// Activations in host memory travel on a stream of their own.
TEST(StreamMistakes, AreSeenInOffloading) {
  LayoutRow row("untied tp2 offloaded");
  using pretend::Ignored;
  EXPECT_EQ(seen(row), "");
  for (const Ignored what : {Ignored::kEventWaits, Ignored::kEventWaitsOfSideStreams, Ignored::kRecordStream}) {
    pretend::ignore(what);
    EXPECT_NE(seen(row), "") << static_cast<int>(what);
    pretend::ignore(Ignored::kNothing);
  }
}

}  // namespace
}  // namespace megalith
