// The check of collectives: right ones pass in any world, and each mistake is found and named.
#include "verify/collective_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>

#include "comm/single_group.h"
#include "comm/thread_world.h"

namespace megalith {
namespace {

constexpr int64_t kFewCounts[] = {1, 67};

enum class Mistake {
  kNone,
  kNothing,      // an all_reduce, or a broadcast, that does nothing
  kMaxForSum,    // another operation
  kSumForAvg,    // not divided
  kMissingRank,  // the last rank's contribution is not there
  kTwice,        // the first rank's counts twice
  kSwapped,      // two neighbouring elements change places
  kReversed,     // the ranks' parts in the opposite order, or the ring the other way round
  kShifted,      // parts of the next rank
  kWrongRoot,    // another rank's tensor
  kLastElement,  // the last element is left as it was
};

class Done : public WorkState {
 public:
  void wait() override {}
  bool is_done() override { return true; }
};

// Runs everything through another group, and one kind of collective wrongly.
class ErringGroup : public Group {
 public:
  ErringGroup(Group& inner, CollectiveKind kind, Mistake mistake)
      : Group(inner.ranks(), inner.rank(), inner.axis()), inner_(inner), kind_(kind), mistake_(mistake) {}

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override {
    const Mistake mistake = of(CollectiveKind::kAllReduce);
    reduce(tensor, op, record->label, mistake);
    return std::make_shared<Done>();
  }

  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override {
    const Mistake mistake = of(CollectiveKind::kReduceScatter);
    const at::Tensor all = in.clone();
    reduce(all, op, record->label, mistake);
    out.copy_(arranged(all, mistake).narrow(0, rank() * out.size(0), out.size(0)));
    return std::make_shared<Done>();
  }

  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override {
    const at::Tensor all = at::empty_like(out);
    inner_.all_gather(all, in, record->label).wait();
    give(out, arranged(all, of(CollectiveKind::kAllGather)), of(CollectiveKind::kAllGather));
    return std::make_shared<Done>();
  }

  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override {
    const at::Tensor all = at::empty_like(out);
    inner_.all_to_all(all, in, out_splits, in_splits, record->label).wait();
    give(out, all, of(CollectiveKind::kAllToAll));
    return std::make_shared<Done>();
  }

  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override {
    const Mistake mistake = of(CollectiveKind::kBroadcast);
    const at::Tensor copy = tensor.clone();
    inner_.broadcast(copy, mistake == Mistake::kWrongRoot ? (root + 1) % size() : root, record->label).wait();
    if (mistake != Mistake::kNothing) give(tensor, copy, mistake);
    return std::make_shared<Done>();
  }

  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    std::vector<Transfer> changed = transfers;
    std::vector<at::Tensor> received;
    const Mistake mistake = of(CollectiveKind::kSendReceive);
    for (Transfer& transfer : changed) {
      if (mistake == Mistake::kReversed) transfer.peer = (2 * rank() - transfer.peer + size()) % size();
      if (!transfer.is_send) transfer.tensor = at::empty_like(transfer.tensor);
    }
    inner_.send_receive(changed, record->label).wait();
    for (size_t i = 0; i < changed.size(); ++i) {
      if (!changed[i].is_send) give(transfers[i].tensor, changed[i].tensor, mistake);
    }
    return std::make_shared<Done>();
  }

  State start_barrier(const Record& record) override {
    inner_.barrier(record->label).wait();
    return std::make_shared<Done>();
  }

 private:
  Mistake of(CollectiveKind kind) const { return kind == kind_ ? mistake_ : Mistake::kNone; }

  void reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label, Mistake mistake) {
    const at::Tensor own = tensor.clone();
    const bool is_sum = op == ReduceOp::kSum;
    if (mistake == Mistake::kMissingRank && is_sum && rank() + 1 == size()) own.zero_();
    if (mistake == Mistake::kTwice && is_sum && rank() == 0) own.mul_(2);
    if (mistake == Mistake::kMaxForSum && is_sum) op = ReduceOp::kMax;
    if (mistake == Mistake::kSumForAvg && op == ReduceOp::kAvg) op = ReduceOp::kSum;
    inner_.all_reduce(own, op, label).wait();
    if (mistake != Mistake::kNothing) give(tensor, own, mistake);
  }

  at::Tensor arranged(const at::Tensor& parts, Mistake mistake) const {
    if (mistake != Mistake::kReversed && mistake != Mistake::kShifted) return parts;
    std::vector<at::Tensor> chunks = parts.chunk(size());
    if (mistake == Mistake::kReversed) {
      std::reverse(chunks.begin(), chunks.end());
    } else {
      std::rotate(chunks.begin(), chunks.begin() + 1, chunks.end());
    }
    return at::cat(chunks);
  }

  static void give(const at::Tensor& out, const at::Tensor& result, Mistake mistake) {
    const at::Tensor flat = out.view(-1), from = result.reshape(-1);
    const int64_t count = flat.numel();
    if (mistake == Mistake::kSwapped && count > 1) {
      flat.copy_(from);
      flat[count - 2].copy_(from[count - 1]);
      flat[count - 1].copy_(from[count - 2]);
    } else if (mistake == Mistake::kLastElement && count > 1) {
      flat.narrow(0, 0, count - 1).copy_(from.narrow(0, 0, count - 1));
    } else {
      flat.copy_(from);
    }
  }

  Group& inner_;
  CollectiveKind kind_;
  Mistake mistake_;
};

// The findings of every rank of a world whose collectives of one kind err.
std::vector<Findings> check_with(int size, CollectiveKind kind, Mistake mistake) {
  std::vector<Findings> all(static_cast<size_t>(size));
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  ThreadWorld(size).run([&](int rank, const GroupFactory& factory) {
    const std::shared_ptr<Group> inner = factory(ranks, "world");
    ErringGroup group(*inner, kind, mistake);
    all[static_cast<size_t>(rank)] = check_collectives(group, kFewCounts);
  });
  return all;
}

TEST(CollectiveCheck, RightCollectivesPassInWorldsOfSeveralSizes) {
  for (const int size : {2, 3, 5}) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    ThreadWorld(size).run([&](int, const GroupFactory& factory) {
      const std::shared_ptr<Group> group = factory(ranks, "world");
      // The largest tensors once are enough.
      const std::span<const int64_t> counts = size == 2 ? std::span<const int64_t>(kCheckedCounts) : kFewCounts;
      for (const Finding& finding : check_collectives(*group, counts)) {
        EXPECT_EQ(finding.level, FindingLevel::kOk) << size << " ranks: " << finding.found;
      }
    });
  }
}

TEST(CollectiveCheck, AGroupOfOnePasses) {
  SingleGroup group("world");
  const Findings findings = check_collectives(group);
  EXPECT_EQ(findings.size(), 7u);
  for (const Finding& finding : findings) EXPECT_EQ(finding.level, FindingLevel::kOk) << finding.found;
}

TEST(CollectiveCheck, EachMistakeIsFoundInItsCollectiveAlone) {
  using K = CollectiveKind;
  using M = Mistake;
  const std::vector<std::pair<K, M>> cases = {
      {K::kAllReduce, M::kNothing},         {K::kAllReduce, M::kMaxForSum},     {K::kAllReduce, M::kSumForAvg},
      {K::kAllReduce, M::kMissingRank},     {K::kAllReduce, M::kTwice},         {K::kAllReduce, M::kSwapped},
      {K::kAllReduce, M::kLastElement},     {K::kReduceScatter, M::kReversed},  {K::kReduceScatter, M::kShifted},
      {K::kReduceScatter, M::kMissingRank}, {K::kReduceScatter, M::kMaxForSum}, {K::kReduceScatter, M::kSumForAvg},
      {K::kAllGather, M::kReversed},        {K::kAllGather, M::kShifted},       {K::kAllGather, M::kLastElement},
      {K::kAllGather, M::kSwapped},         {K::kAllToAll, M::kSwapped},        {K::kAllToAll, M::kLastElement},
      {K::kBroadcast, M::kNothing},         {K::kBroadcast, M::kWrongRoot},     {K::kBroadcast, M::kSwapped},
      {K::kSendReceive, M::kReversed},      {K::kSendReceive, M::kLastElement}};
  for (const auto& [kind, mistake] : cases) {
    int64_t num_errors = 0;
    for (const Findings& findings : check_with(3, kind, mistake)) {
      for (const Finding& finding : findings) {
        if (finding.level == FindingLevel::kOk) continue;
        EXPECT_EQ(finding.level, FindingLevel::kError);
        EXPECT_EQ(finding.check, name_of(kind)) << "mistake " << static_cast<int>(mistake);
        EXPECT_FALSE(finding.remedy.empty());
        ++num_errors;
      }
    }
    EXPECT_GT(num_errors, 0) << name_of(kind) << ", mistake " << static_cast<int>(mistake);
  }
}

TEST(CollectiveCheck, TheMessageNamesRankIndexAndValues) {
  const std::vector<Findings> all = check_with(2, CollectiveKind::kAllGather, Mistake::kLastElement);
  const auto found =
      std::find_if(all[1].begin(), all[1].end(), [](const Finding& one) { return one.check == "all_gather"; });
  ASSERT_NE(found, all[1].end());
  // Two ranks with one element each come first: the second of two is wrong. Rank 1's only value is 101 - 125.
  EXPECT_EQ(found->found,
            "gather of float32 (2 elements): rank 1 has -1000 at index 1, expected -24; 1 of 2 are wrong");
}

TEST(CollectiveCheck, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kReduceScatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kAllToAll, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kBroadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kAllReduce, 1), 0);
}

TEST(CollectiveCheck, SizesGrowInStrides) {
  EXPECT_EQ(bandwidth_sizes(64 << 20), (std::vector<int64_t>{1024, 16384, 262144, 4194304, 67108864}));
  EXPECT_EQ(bandwidth_sizes(1023), std::vector<int64_t>{});
}

TEST(CollectiveCheck, BandwidthIsTheSameOnAllRanks) {
  std::vector<std::vector<Bandwidth>> all(3);
  ThreadWorld(3).run([&](int rank, const GroupFactory& factory) {
    const std::shared_ptr<Group> group = factory({0, 1, 2}, "world");
    const int64_t sizes[] = {1024};
    all[static_cast<size_t>(rank)] = measure_collectives(*group, sizes);
  });
  ASSERT_EQ(all[0].size(), 6u);
  for (size_t i = 0; i < all[0].size(); ++i) {
    EXPECT_EQ(all[0][i].bytes, 1032) << "the next multiple of three floats";
    EXPECT_EQ(all[0][i].seconds, all[2][i].seconds);
    EXPECT_DOUBLE_EQ(all[0][i].algorithm_bytes_per_s, 1032 / all[0][i].seconds);
    EXPECT_DOUBLE_EQ(all[0][i].bus_bytes_per_s, all[0][i].algorithm_bytes_per_s * bus_factor(all[0][i].kind, 3));
  }
  const std::string text = bandwidth_text(all[0], 3);
  EXPECT_NE(text.find("all_reduce "), std::string::npos);
  EXPECT_NE(text.find("send_receive "), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
}

}  // namespace
}  // namespace megalith
