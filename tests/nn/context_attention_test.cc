// Attention over a sequence that ranks share is attention over the whole sequence: output and gradients, for every
// kind, mask and dropout. Its communication overlaps with computation.
#include "nn/context_attention.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/sequence_shard.h"
#include "comm/thread_world.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

using Kind = ContextParallelKind;

constexpr int64_t kBatch = 2, kLength = 48, kHeadDim = 4;
constexpr double kScale = 0.4;

struct Sharing {
  Kind kind = Kind::kP2p;
  int cp = 2, ulysses = 1;
  int64_t num_heads = 6, num_kv_heads = 2, value_dim = kHeadDim;
  std::string text() const { return fmt::format("{} over {} ({} together)", name_of(kind), cp, ulysses); }
};

std::vector<Sharing> every_sharing() {
  std::vector<Sharing> all;
  for (const int cp : {2, 3, 4}) {
    all.push_back({.kind = Kind::kP2p, .cp = cp});
    all.push_back({.kind = Kind::kAllGather, .cp = cp});
    all.push_back({.kind = Kind::kAllToAll, .cp = cp, .num_heads = 24, .num_kv_heads = 12});
  }
  all.push_back({.kind = Kind::kAllToAllP2p, .cp = 4, .ulysses = 2});
  all.push_back({.kind = Kind::kAllToAllP2p, .cp = 6, .ulysses = 3, .num_heads = 12, .num_kv_heads = 3});
  all.push_back({.kind = Kind::kAllToAllP2p, .cp = 2, .ulysses = 2});
  all.push_back({.kind = Kind::kAllToAllP2p, .cp = 3, .ulysses = 1});
  return all;
}

// The inputs of attention for a whole sequence on one rank.
struct Problem {
  std::string name;
  ops::AttentionMask mask;
  double dropout = 0;
};

// Documents that end within chunks, at their borders and just beside them.
at::Tensor documents() {
  const at::Tensor ids = at::zeros({kBatch, kLength}, at::kInt);
  for (const int64_t begin : {5, 13, 24, 40}) ids[0].narrow(0, begin, kLength - begin).add_(1);
  for (const int64_t begin : {1, 12, 23, 25, 47}) ids[1].narrow(0, begin, kLength - begin).add_(1);
  return ids;
}

std::vector<Problem> every_problem() {
  const at::Tensor ids = documents();
  return {{"causal", {}},
          {"both ways", {.is_causal = false}},
          {"documents", {.query_documents = ids, .key_documents = ids}},
          {"window", {.window = 7}},
          {"window both ways", {.is_causal = false, .window = 9}},
          {"lengths", {.key_lengths = at::tensor({kLength - 9, int64_t{5}}, at::kLong)}},
          {"lengths both ways", {.is_causal = false, .key_lengths = at::tensor({int64_t{30}, int64_t{0}}, at::kLong)}},
          {"dropout", {}, 0.3},
          {"all", {.window = 11, .query_documents = ids, .key_documents = ids}, 0.2}};
}

struct Tensors {
  at::Tensor q, k, v, dout;
};
Tensors make_tensors(const Sharing& sharing, at::ScalarType dtype) {
  at::manual_seed(7);
  const auto draw = [&](int64_t heads, int64_t dim) {
    return at::randn({kBatch, kLength, heads, dim}, at::TensorOptions(at::kDouble)).to(dtype);
  };
  return {draw(sharing.num_heads, kHeadDim), draw(sharing.num_kv_heads, kHeadDim),
          draw(sharing.num_kv_heads, sharing.value_dim), draw(sharing.num_heads, sharing.value_dim)};
}

ops::AttentionDropout dropout_of(const Problem& problem) {
  if (problem.dropout == 0) return {};
  const at::Tensor row_ids = at::tensor({int64_t{3}, int64_t{1}}, at::kLong).unsqueeze(1) * kLength +
                             at::arange(kLength, at::kLong).unsqueeze(0);
  return {.p = problem.dropout, .key = 99, .row_ids = row_ids, .head_start = 12};
}

struct Answer {
  at::Tensor out, dq, dk, dv;
};

Answer whole_answer(const Tensors& x, const Problem& problem) {
  const ops::AttentionDropout dropout = dropout_of(problem);
  const auto [out, lse] = ops::attention_forward(x.q, x.k, x.v, kScale, problem.mask, dropout, Kernels::kReference);
  const auto d = ops::attention_backward(x.dout, x.q, x.k, x.v, out, lse, kScale, problem.mask, dropout, false,
                                         Kernels::kReference);
  return {out, d.dq, d.dk, d.dv};
}

// A rank's masks for its part of the sequence.
ContextAttention::Masks masks_of_rank(const Problem& problem, int cp, int rank) {
  ContextAttention::Masks masks{problem.mask, dropout_of(problem)};
  masks.mask.query_positions = zigzag_indices(kLength, cp, rank);
  const auto part = [&](at::Tensor& x) {
    if (x.defined()) x = zigzag_shard(x, 1, cp, rank);
  };
  part(masks.mask.query_documents);
  part(masks.dropout.row_ids);
  return masks;
}

// The parts of all ranks, put together again.
Answer shared_answer(const Tensors& x, const Problem& problem, const Sharing& sharing, Kernels kernels) {
  std::vector<Answer> parts(static_cast<size_t>(sharing.cp));
  ThreadWorld(sharing.cp).run(Mesh({.cp = sharing.cp, .cp_ulysses = sharing.ulysses}), [&](Groups& groups) {
    const ContextAttention attention(groups, sharing.kind, "test", kScale, sharing.num_heads, sharing.num_kv_heads,
                                     kernels);
    const auto part = [&](const at::Tensor& whole) { return zigzag_shard(whole, 1, sharing.cp, groups.rank); };
    const ContextAttention::Masks masks = masks_of_rank(problem, sharing.cp, groups.rank);
    const auto heads = attention.exchange_heads(part(x.q), part(x.k), part(x.v));
    const auto result = attention.forward(heads, masks);
    const auto d = attention.backward(part(x.dout), heads, result, masks);
    parts[static_cast<size_t>(groups.rank)] = {result.out, d.dq, d.dk, d.dv};
  });
  const auto join = [&](at::Tensor Answer::*member) {
    std::vector<at::Tensor> all;
    for (const Answer& part : parts) all.push_back(part.*member);
    return zigzag_join(at::stack(all));
  };
  return {join(&Answer::out), join(&Answer::dq), join(&Answer::dk), join(&Answer::dv)};
}

void expect_same(const Answer& actual, const Answer& expected, double tolerance, const std::string& what) {
  const auto check = [&](at::Tensor Answer::*member, const char* name) {
    EXPECT_TENSOR_NEAR(actual.*member, expected.*member,
                       {.abs = tolerance, .rel_to_max = tolerance, .what = what + ", " + name});
  };
  check(&Answer::out, "out");
  check(&Answer::dq, "dq");
  check(&Answer::dk, "dk");
  check(&Answer::dv, "dv");
}

TEST(ContextAttention, EveryKindIsAttentionOverTheWholeSequence) {
  for (const Sharing& sharing : every_sharing()) {
    const Tensors x = make_tensors(sharing, at::kDouble);
    for (const Problem& problem : every_problem()) {
      const Answer expected = whole_answer(x, problem);
      const std::string what = sharing.text() + ", " + problem.name;
      expect_same(shared_answer(x, problem, sharing, Kernels::kFused), expected, 1e-12, what);
      if (problem.name != "all") continue;
      expect_same(shared_answer(x, problem, sharing, Kernels::kReference), expected, 1e-12, what + ", reference");
    }
  }
}

// As in latent attention.
TEST(ContextAttention, ValuesMayBeNarrowerOrWiderThanKeys) {
  for (const int64_t value_dim : {3, 7}) {
    for (Sharing sharing : every_sharing()) {
      sharing.value_dim = value_dim;
      const Tensors x = make_tensors(sharing, at::kDouble);
      for (const Problem& problem : every_problem()) {
        if (problem.name != "causal" && problem.name != "both ways" && problem.name != "all") continue;
        const std::string what = fmt::format("{}, {}, values of {}", sharing.text(), problem.name, value_dim);
        expect_same(shared_answer(x, problem, sharing, Kernels::kFused), whole_answer(x, problem), 1e-12, what);
      }
    }
  }
}

TEST(ContextAttention, KeepsTheDtypesPrecision) {
  // Parts are merged in fp32; in bf16 those of a ring are rounded one by one, and the sum once more.
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 2e-6}, std::pair{at::kBFloat16, 0x1p-6}}) {
    for (const Sharing& sharing : every_sharing()) {
      const Tensors x = make_tensors(sharing, dtype);
      const Tensors wide{x.q.to(at::kDouble), x.k.to(at::kDouble), x.v.to(at::kDouble), x.dout.to(at::kDouble)};
      const Problem problem = every_problem()[2];
      const Answer actual = shared_answer(x, problem, sharing, Kernels::kFused);
      EXPECT_EQ(actual.dk.scalar_type(), dtype);
      expect_same(actual, whole_answer(wide, problem), tolerance, sharing.text());
    }
  }
}

// Calls of attention's operators on this thread while it lives; each takes a while, asleep, in backward twice as long.
class SlowAttention {
 public:
  explicit SlowAttention(double seconds) {
    state() = {0, seconds};
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          const std::string_view name = function.name();
          const bool is_forward = name == "megalith::attention_forward";
          if (is_forward || name == "megalith::attention_backward") {
            ++state().num_calls;
            std::this_thread::sleep_for(std::chrono::duration<double>((is_forward ? 1 : 2) * state().seconds));
          }
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~SlowAttention() { at::removeCallback(handle_); }
  static int num_calls() { return state().num_calls; }

 private:
  struct State {
    int num_calls = 0;
    double seconds = 0;
  };
  static State& state() {
    thread_local State value;
    return value;
  }
  at::CallbackHandle handle_;
};

TEST(ContextAttention, PartsThatNobodySeesAreNotComputed) {
  // Four chunks on two ranks, a document each: what comes from the other rank is not seen by anyone.
  const at::Tensor ids = at::arange(kLength, at::kInt).div(kLength / 4, "floor").expand({kBatch, kLength}).contiguous();
  const Problem apart{"apart", {.query_documents = ids, .key_documents = ids}}, together{"together", {}};
  // A window of one chunk: rank 0 of 4 has chunks 0 and 7 and sees 6 beside them, rank 3 has 3 and 4 and sees 2.
  const Problem window{"window", {.window = kLength / 8}};
  const auto calls = [&](const Problem& problem, int cp) {
    const Tensors x = make_tensors({}, at::kDouble);
    std::vector<int> counts(static_cast<size_t>(cp));
    ThreadWorld(cp).run(Mesh({.cp = cp}), [&](Groups& groups) {
      const ContextAttention attention(groups, Kind::kP2p, "test", kScale, 6, 2, Kernels::kFused);
      const SlowAttention counting(0);
      const auto part = [&](const at::Tensor& whole) { return zigzag_shard(whole, 1, cp, groups.rank); };
      const auto masks = masks_of_rank(problem, cp, groups.rank);
      const auto heads = attention.exchange_heads(part(x.q), part(x.k), part(x.v));
      const auto result = attention.forward(heads, masks);
      attention.backward(part(x.dout), heads, result, masks);
      counts[static_cast<size_t>(groups.rank)] = SlowAttention::num_calls();
    });
    return counts;
  };
  EXPECT_EQ(calls(apart, 2), (std::vector<int>{2, 2}));
  EXPECT_EQ(calls(together, 2), (std::vector<int>{4, 4}));
  EXPECT_EQ(calls(window, 4), (std::vector<int>{4, 6, 6, 4}));
}

// Every part computes for as long as its transfers take, both asleep; a transfer is two tensors, which go one after the
// other. Waiting for each at once the ring takes the sum of both, otherwise little more than the computation: only the
// last sums of gradients have nothing beside them.
TEST(ContextAttention, TransfersHideBehindComputation) {
  constexpr int kRanks = 4;
  constexpr double kPart_s = 0.05;
  const Tensors x = make_tensors({}, at::kDouble);
  struct Seconds {
    double forward = 0, backward = 0;
  };
  const auto measure = [&](bool is_blocking) {
    std::vector<Seconds> of_ranks(kRanks);
    ThreadWorld(kRanks, {.delay = {.latency_s = kPart_s / 2}}).run(Mesh({.cp = kRanks}), [&](Groups& groups) {
      groups.cp->set_blocking(is_blocking);
      const ContextAttention attention(groups, Kind::kP2p, "test", kScale, 6, 2, Kernels::kFused);
      const SlowAttention slow(kPart_s);
      const auto part = [&](const at::Tensor& whole) { return zigzag_shard(whole, 1, kRanks, groups.rank); };
      const auto masks = masks_of_rank({}, kRanks, groups.rank);
      const auto heads = attention.exchange_heads(part(x.q), part(x.k), part(x.v));
      const auto now = [] { return std::chrono::steady_clock::now(); };
      const auto begin = now();
      const auto result = attention.forward(heads, masks);
      const auto middle = now();
      attention.backward(part(x.dout), heads, result, masks);
      const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
      of_ranks[static_cast<size_t>(groups.rank)] = {seconds(middle - begin), seconds(now() - middle)};
    });
    Seconds slowest;
    for (const Seconds& one : of_ranks) {
      slowest = {std::max(slowest.forward, one.forward), std::max(slowest.backward, one.backward)};
    }
    return slowest;
  };
  const Seconds serial = measure(/*is_blocking=*/true);
  Seconds overlapped = measure(/*is_blocking=*/false);
  // The quickest of many: the machine may be busy with other things.
  for (int attempt = 1; attempt < 20; ++attempt) {
    if (overlapped.forward < (kRanks + 1) * kPart_s && overlapped.backward < (2 * kRanks + 2.5) * kPart_s) break;
    const Seconds again = measure(/*is_blocking=*/false);
    overlapped = {std::min(overlapped.forward, again.forward), std::min(overlapped.backward, again.backward)};
  }
  EXPECT_GE(serial.forward, 0.98 * (kRanks + kRanks - 1) * kPart_s);
  EXPECT_GE(serial.backward, 0.98 * (2 * kRanks + kRanks - 1 + kRanks) * kPart_s);
  EXPECT_LT(overlapped.forward, (kRanks + 1) * kPart_s);
  EXPECT_LT(overlapped.backward, (2 * kRanks + 2.5) * kPart_s);
}

TEST(ContextAttention, RefusesHeadsThatDoNotDivide) {
  EXPECT_THROW(ThreadWorld(2).run(Mesh({.cp = 2}),
                                  [&](Groups& groups) {
                                    const ContextAttention attention(groups, Kind::kAllToAll, "test", kScale, 6, 1,
                                                                     Kernels::kFused);
                                    const at::Tensor q = at::zeros({1, 4, 6, 4}), k = at::zeros({1, 4, 1, 4});
                                    attention.exchange_heads(q, k, k);
                                  }),
               UserError);
}

}  // namespace
}  // namespace megalith
