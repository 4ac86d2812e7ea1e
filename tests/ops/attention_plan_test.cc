// plan_attention(): its calls, executed one by one by the definition, are attention under the whole mask.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "ops/attention/plan.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::attention_plan_test {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const AttentionLibraries kFlashOnly = {AttentionLibrary::kFlash};
const AttentionLibraries kCudnnFirst = {AttentionLibrary::kCudnn, AttentionLibrary::kFlash};

class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

struct Case {
  std::string name;
  MaskForm form;
  int64_t b = 2, n = 2, g = 1, d = 8, dv = 8;

  int64_t num_queries() const { return count(form.runs.queries); }
  int64_t num_keys() const { return count(form.runs.keys); }
  AttentionShape shape() const {
    return {b, num_queries(), num_keys(), n, g, d, dv, at::kBFloat16, /*has_bias=*/false, /*has_dropout=*/false};
  }
  static int64_t count(const std::vector<PositionRun>& runs) {
    int64_t sum = 0;
    for (const PositionRun& run : runs) sum += run.count;
    return sum;
  }
};

using Runs = std::vector<PositionRun>;
using Documents = std::vector<std::vector<int64_t>>;

// Chunks r and 2 p - 1 - r of a sequence: what a rank of p has of it.
Runs zigzag(int64_t p, int64_t r, int64_t chunk) { return {{r * chunk, chunk}, {(2 * p - 1 - r) * chunk, chunk}}; }

Case make_case(std::string name, bool is_causal, int64_t window, Runs queries, Runs keys, Documents documents = {},
               std::vector<int64_t> lengths = {}) {
  return {
      .name = std::move(name),
      .form = {is_causal, window, {std::move(queries), std::move(keys), std::move(documents), std::move(lengths), {}}}};
}

std::vector<Case> every_case() {
  const Documents documents = {{0, 1, 2, 11, 30}, {0, 17}};
  std::vector<Case> cases;
  for (const bool is_causal : {true, false}) {
    const std::string kind = is_causal ? "causal" : "full";
    for (const int64_t window : {0, 1, 5, 16}) {
      const std::string name = fmt::format("{}, window {}", kind, window);
      const auto add = [&](const std::string& what, Runs queries, Runs keys, const Documents& of = {},
                           const std::vector<int64_t>& lengths = {}) {
        cases.push_back(
            make_case(name + ", " + what, is_causal, window, std::move(queries), std::move(keys), of, lengths));
      };
      add("whole", {{0, 37}}, {{0, 37}});
      add("one token", {{0, 1}}, {{0, 1}});
      add("one query of a cache", {{36, 1}}, {{0, 37}});
      add("five queries of a cache", {{32, 5}}, {{0, 37}});
      add("more queries than keys", {{-13, 50}}, {{0, 37}});
      add("keys that end early", {{10, 20}}, {{0, 15}});
      add("documents", {{0, 37}}, {{0, 37}}, documents);
      add("lengths", {{0, 37}}, {{0, 37}}, {}, {20, 37});
      add("documents and lengths", {{0, 37}}, {{0, 37}}, documents, {29, 37});
      for (const int64_t p : {2, 4}) {
        const int64_t chunk = 10 - p;
        for (int64_t rank = 0; rank < p; rank += p / 2) {  // of four, the first and a middle one
          const Runs queries = zigzag(p, rank, chunk);
          const auto part = fmt::format("rank {} of {}, ", rank, p);
          add(part + "gathered keys", queries, {{0, 2 * p * chunk}});
          add(part + "gathered keys and documents", queries, {{0, 2 * p * chunk}}, documents);
          for (int64_t source = 0; source < p; ++source) {
            const auto ring = part + fmt::format("keys of rank {}", source);
            add(ring, queries, zigzag(p, source, chunk));
            add(ring + ", documents", queries, zigzag(p, source, chunk), documents);
            add(ring + ", lengths", queries, zigzag(p, source, chunk), {}, {9, 2 * p * chunk});
            // Ring attention leaves out the halves of which nothing is seen.
            add(ring + ", second half of the queries", {queries[1]}, zigzag(p, source, chunk), documents);
          }
        }
      }
    }
  }
  return cases;
}

// ---- The mask's tensors, by what the form says ----

std::vector<int64_t> positions_of(const Runs& runs) {
  std::vector<int64_t> positions;
  for (const PositionRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) positions.push_back(run.first + i);
  }
  return positions;
}

Tensor documents_of(const Documents& begins, const Runs& runs) {
  std::vector<int32_t> ids;
  for (const auto& row : begins) {
    for (const int64_t position : positions_of(runs)) {
      int32_t number = 0;
      for (const int64_t begin : row) number += position >= begin ? 1 : 0;
      ids.push_back(number);
    }
  }
  return at::tensor(ids, at::kInt).view({std::ssize(begins), -1});
}

AttentionMask mask_of(const MaskForm& form) {
  const Runs& keys = form.runs.keys;
  AttentionMask mask{.is_causal = form.is_causal, .window = form.window};
  mask.query_positions = at::tensor(positions_of(form.runs.queries), at::kLong);
  mask.key_positions = at::tensor(positions_of(keys), at::kLong);
  if (!form.runs.documents.empty()) {
    mask.query_documents = documents_of(form.runs.documents, form.runs.queries);
    mask.key_documents = documents_of(form.runs.documents, keys);
  }
  if (!form.runs.lengths.empty()) {
    std::vector<int64_t> lengths;
    for (const int64_t length : form.runs.lengths) {
      const auto positions = positions_of(keys);
      lengths.push_back(std::ranges::count_if(positions, [&](int64_t position) { return position < length; }));
    }
    mask.key_lengths = at::tensor(lengths, at::kLong);
  }
  return mask;
}

// ---- Calls by the definition ----

struct Operands {
  Tensor q, k, v, dout;
};

// A call's sequence: which queries and keys of which rows.
struct Part {
  IndexRange rows, queries, keys;
  Tensor query(const Tensor& x) const { return of(x, queries); }
  Tensor key(const Tensor& x) const { return of(x, keys); }
  Tensor of(const Tensor& x, const IndexRange& range) const {
    return x.narrow(0, rows.first, rows.count).narrow(1, range.first, range.count);
  }
};

std::vector<Part> parts_of(const VendorCall& call, int64_t sq, int64_t sk) {
  if (!call.has_lengths()) return {{call.rows, call.queries, call.keys}};
  std::vector<Part> parts;
  for (size_t i = 1; i < call.query_begins.size(); ++i) {
    const int64_t query = call.queries.first + call.query_begins[i - 1], key = call.keys.first + call.key_begins[i - 1];
    const int64_t row = query / sq;
    EXPECT_EQ(row, key / sk) << "a sequence over two rows";
    parts.push_back({{row, 1},
                     {query - row * sq, call.query_begins[i] - call.query_begins[i - 1]},
                     {key - row * sk, call.key_begins[i] - call.key_begins[i - 1]}});
    EXPECT_LE(parts.back().queries.count, call.max_queries);
    EXPECT_LE(parts.back().keys.count, call.max_keys);
  }
  return parts;
}

// A library's bounds as a bias. cuDNN's causal mask begins at the first key.
AttentionMask mask_of_call(const VendorCall& call, const Part& part) {
  const int64_t sq = part.queries.count, sk = part.keys.count;
  const bool is_top_left = call.library == AttentionLibrary::kCudnn;
  Tensor bias = at::zeros({1, 1, sq, sk}, at::kDouble);
  auto to = bias.accessor<double, 4>();
  for (int64_t i = 0; i < sq; ++i) {
    const int64_t own = i + (is_top_left ? 0 : sk - sq);
    for (int64_t j = 0; j < sk; ++j) {
      const bool sees = (call.left < 0 || j >= own - call.left) && (call.right < 0 || j <= own + call.right);
      if (!sees) to[0][0][i][j] = -kInfinity;
    }
  }
  return {.is_causal = false, .bias = bias};
}

struct Results {
  Tensor out, lse, dq, dk, dv;
};

Results run_calls(const std::vector<VendorCall>& calls, const Operands& x, double scale) {
  const int64_t b = x.q.size(0), sq = x.q.size(1), sk = x.k.size(1), n = x.q.size(2);
  Results all{at::zeros_like(x.dout), at::full({b, n, sq}, -kInfinity, at::kDouble), at::zeros_like(x.q),
              at::zeros_like(x.k), at::zeros_like(x.v)};
  for (const VendorCall& call : calls) {
    for (const Part& part : parts_of(call, sq, sk)) {
      const auto [out, lse] = attention_forward(part.query(x.q), part.key(x.k), part.key(x.v), scale,
                                                mask_of_call(call, part), {}, Kernels::kReference);
      const Tensor to_out = part.query(all.out), to_lse = part.query(all.lse.transpose(1, 2)).transpose(1, 2);
      if (call.merges) {
        const Tensor both = at::logaddexp(to_lse, lse);
        const auto weight = [&](const Tensor& one) { return (one - both).exp().transpose(1, 2).unsqueeze(-1); };
        to_out.copy_(to_out * weight(to_lse) + out * weight(lse));
        to_lse.copy_(both);
      } else {
        EXPECT_TRUE(to_lse.eq(-kInfinity).all().item<bool>()) << "queries of an earlier call, not to be merged";
        to_out.copy_(out);
        to_lse.copy_(lse);
      }
    }
  }
  for (const VendorCall& call : calls) {
    for (const Part& part : parts_of(call, sq, sk)) {
      const Tensor lse = part.query(all.lse.transpose(1, 2)).transpose(1, 2);
      const AttentionGradients d =
          attention_backward(part.query(x.dout), part.query(x.q), part.key(x.k), part.key(x.v), part.query(all.out),
                             lse, scale, mask_of_call(call, part), {}, false, Kernels::kReference);
      part.query(all.dq).add_(d.dq);
      part.key(all.dk).add_(d.dk);
      part.key(all.dv).add_(d.dv);
    }
  }
  return all;
}

Operands make_operands(const Case& c) {
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  return {random({c.b, c.num_queries(), c.n, c.d}), random({c.b, c.num_keys(), c.g, c.d}),
          random({c.b, c.num_keys(), c.g, c.dv}), random({c.b, c.num_queries(), c.n, c.dv})};
}

Results run_whole(const Case& c, const Operands& x, double scale) {
  const AttentionMask mask = mask_of(c.form);
  const auto [out, lse] = attention_forward(x.q, x.k, x.v, scale, mask, {}, Kernels::kReference);
  const AttentionGradients d =
      attention_backward(x.dout, x.q, x.k, x.v, out, lse, scale, mask, {}, false, Kernels::kReference);
  return {out, lse, d.dq, d.dk, d.dv};
}

// The largest difference of any result, infinite where only one is finite.
double difference(const Results& x, const Results& y) {
  double most = 0;
  for (const auto member : {&Results::out, &Results::lse, &Results::dq, &Results::dk, &Results::dv}) {
    const Tensor a = x.*member, b = y.*member;
    const Tensor distance = (a - b).abs().masked_fill(a == b, 0).nan_to_num(kInfinity);
    if (distance.numel() > 0) most = std::max(most, distance.max().item<double>());
  }
  return most;
}

// Sums of some forty products of order one, in fp64, in another order.
constexpr double kNear = 1e-12;

TEST(AttentionPlan, CallsTogetherAreTheWholeMask) {
  const OneThread one_thread;  // the products are tiny
  at::manual_seed(1);
  int64_t num_served = 0;
  for (const Case& c : every_case()) {
    for (const AttentionLibraries& libraries : {kFlashOnly, kCudnnFirst}) {
      if (c.form.window > 0 && libraries == kCudnnFirst) continue;  // flash attention's too
      const AttentionPlan plan = plan_attention(c.form, c.shape(), libraries);
      ASSERT_EQ(plan.reason, "") << c.name;
      const Operands x = make_operands(c);
      EXPECT_LT(difference(run_calls(plan.calls, x, 0.4), run_whole(c, x, 0.4)), kNear) << c.name;
      ++num_served;
    }
  }
  EXPECT_GT(num_served, 300);
}

TEST(AttentionPlan, GroupsAndWidthsOfHeadsAreNoMatter) {
  at::manual_seed(2);
  for (const int64_t g : {1, 2, 3, 6}) {
    Case c = make_case("groups", true, 0, {{5, 20}}, {{0, 25}});
    c.n = 6;
    c.g = g;
    c.d = 16;
    const AttentionPlan plan = plan_attention(c.form, c.shape(), kCudnnFirst);
    const Operands x = make_operands(c);
    EXPECT_LT(difference(run_calls(plan.calls, x, 0.4), run_whole(c, x, 0.4)), kNear) << g;
  }
}

// Each of these changes is one that a planner could make.
TEST(AttentionPlan, WrongCallsAreCaught) {
  at::manual_seed(3);
  using Mistake = std::function<void(VendorCall&)>;
  const std::vector<std::pair<std::string, Mistake>> mistakes = {
      {"causal is full", [](VendorCall& call) { call.right = -1; }},
      {"one key less", [](VendorCall& call) { --call.keys.count; }},
      {"the keys begin one later", [](VendorCall& call) { ++call.keys.first, --call.keys.count; }},
      {"the queries begin one later", [](VendorCall& call) { ++call.queries.first, --call.queries.count; }},
      {"the window is one wider", [](VendorCall& call) { ++call.left; }},
      {"the second of two is not merged", [](VendorCall& call) { call.rows.count = 1; }},
  };
  const Case cases[] = {make_case("causal", true, 0, {{0, 12}}, {{0, 12}}),
                        make_case("window", true, 4, {{0, 12}}, {{0, 12}}),
                        make_case("gathered", true, 0, zigzag(2, 1, 6), {{0, 24}})};
  for (const auto& [what, mistake] : mistakes) {
    bool is_caught = false;
    for (const Case& c : cases) {
      AttentionPlan plan = plan_attention(c.form, c.shape(), kFlashOnly);
      mistake(plan.calls.back());
      const Operands x = make_operands(c);
      is_caught = is_caught || !(difference(run_calls(plan.calls, x, 0.4), run_whole(c, x, 0.4)) < 1e-3);
    }
    EXPECT_TRUE(is_caught) << what;
  }
}

TEST(AttentionPlan, CommonMasksAreOneCall) {
  const auto calls_of = [](const Case& c, const AttentionLibraries& libraries = kFlashOnly) {
    return plan_attention(c.form, c.shape(), libraries).calls;
  };
  const Runs whole = {{0, 64}};
  const auto causal = calls_of(make_case("", true, 0, whole, whole), kCudnnFirst);
  ASSERT_EQ(causal.size(), 1);
  EXPECT_TRUE(causal[0].is_causal());
  EXPECT_EQ(causal[0].library, AttentionLibrary::kCudnn);
  EXPECT_EQ(causal[0].rows, (IndexRange{0, 2}));

  const auto window = calls_of(make_case("", true, 9, whole, whole), kCudnnFirst);
  ASSERT_EQ(window.size(), 1);
  EXPECT_EQ(window[0].library, AttentionLibrary::kFlash) << "cuDNN has no windows";
  EXPECT_EQ(window[0].left, 8);

  const auto documents = calls_of(make_case("", true, 0, whole, whole, {{0, 5, 40}, {0, 63}}), kCudnnFirst);
  ASSERT_EQ(documents.size(), 1);
  EXPECT_EQ(documents[0].library, AttentionLibrary::kFlash) << "cuDNN makes a graph for each new shape";
  EXPECT_EQ(documents[0].query_begins, (std::vector<int32_t>{0, 5, 40, 64, 127, 128}));
  EXPECT_EQ(documents[0].query_begins, documents[0].key_begins);
  EXPECT_EQ(documents[0].max_keys, 63);
  EXPECT_EQ(calls_of(make_case("", true, 9, whole, whole, {{0, 5, 40}, {0, 63}})).size(), 1) << "and in a window";

  // A rank's own part of a ring, and a part of which every query sees all.
  EXPECT_EQ(calls_of(make_case("", true, 0, zigzag(2, 1, 8), zigzag(2, 1, 8))).size(), 1);
  const auto later = calls_of(make_case("", true, 0, zigzag(2, 1, 8), zigzag(2, 0, 8)));
  ASSERT_EQ(later.size(), 1);
  EXPECT_FALSE(later[0].is_causal());
  EXPECT_EQ(later[0].keys, (IndexRange{0, 8}));

  // Keys before the square are a call of their own for cuDNN, whose causal mask begins at the first key.
  const auto cache = calls_of(make_case("", true, 0, {{32, 32}}, whole), kCudnnFirst);
  ASSERT_EQ(cache.size(), 2);
  EXPECT_FALSE(cache[0].is_causal());
  EXPECT_TRUE(cache[1].is_causal() && cache[1].merges);
  EXPECT_EQ(cache[1].keys, (IndexRange{32, 32}));
}

TEST(AttentionPlan, WhatNoLibraryTakesHasAReason) {
  const Case c = make_case("", true, 0, {{0, 8}}, {{0, 8}});
  const auto reason_of = [&](const std::function<void(AttentionShape&)>& change) {
    AttentionShape shape = c.shape();
    change(shape);
    return plan_attention(c.form, shape, kCudnnFirst).reason;
  };
  EXPECT_EQ(reason_of([](AttentionShape&) {}), "");
  EXPECT_EQ(reason_of([](AttentionShape& s) { s.dtype = at::kFloat; }),
            "the libraries take bf16 and fp16, and these are Float");
  EXPECT_EQ(reason_of([](AttentionShape& s) { s.d = 20; }),
            "the libraries take heads of up to 256 channels, in eights, and these have 20 and 8");
  EXPECT_EQ(reason_of([](AttentionShape& s) { s.has_bias = true; }), "a bias is added to the scores");
  EXPECT_EQ(reason_of([](AttentionShape& s) { s.has_softcap = true; }), "scores are capped by a tanh");
  EXPECT_EQ(reason_of([](AttentionShape& s) { s.has_dropout = true; }),
            "dropped attention weights are the same on every device, and the libraries draw others");
  EXPECT_EQ(plan_attention(std::nullopt, c.shape(), kCudnnFirst).reason,
            "the host was not told what the mask's tensors hold");
  EXPECT_EQ(plan_attention(c.form, c.shape(), {}).reason, "no library was chosen");
  EXPECT_EQ(
      plan_attention(make_case("", true, 3, {{0, 8}}, {{0, 8}}).form, c.shape(), {AttentionLibrary::kCudnn}).reason,
      "cuDNN does not take such a mask");
  EXPECT_EQ(plan_attention(make_case("", true, 0, {{0, 8}}, {{4, 4}, {0, 4}}).form, c.shape(), kCudnnFirst).reason,
            "the keys are not in the order of their positions");
}

TEST(MaskForm, IsKnownWhereEveryTensorIs) {
  AttentionMask mask;
  const auto form = MaskForm::of(mask, 3, 8);
  ASSERT_TRUE(form.has_value());
  EXPECT_EQ(form->runs.queries, (Runs{{5, 3}})) << "a cache's queries come last";
  EXPECT_EQ(form->runs.keys, (Runs{{0, 8}}));

  mask.query_positions = at::arange(3);
  EXPECT_FALSE(MaskForm::of(mask, 3, 8).has_value());
  mask.runs = std::make_shared<MaskRuns>(
      MaskRuns{.queries = {{0, 3}}, .keys = {}, .documents = {}, .lengths = {}, .plans = {}});
  EXPECT_TRUE(MaskForm::of(mask, 3, 8).has_value());
  mask.query_documents = mask.key_documents = at::zeros({1, 8}, at::kInt);
  EXPECT_FALSE(MaskForm::of(mask, 3, 8).has_value());
}

// On the CPU every call holds what the host was told to the tensors.
TEST(MaskRuns, ThatDifferFromTheTensorsAreAnError) {
  const Case good = make_case("", true, 0, zigzag(2, 1, 4), {{0, 16}}, {{0, 3, 9}}, {15});
  const auto check = [&](const std::function<void(MaskRuns&)>& mistake) {
    AttentionMask mask = mask_of(good.form);
    auto runs = std::make_shared<MaskRuns>(good.form.runs);
    mistake(*runs);
    mask.runs = runs;
    check_runs(mask, good.num_queries(), good.num_keys());
  };
  EXPECT_NO_THROW(check([](MaskRuns&) {}));
  EXPECT_THROW(check([](MaskRuns& runs) { runs.queries[1].first = 9; }), InternalError);
  EXPECT_THROW(check([](MaskRuns& runs) { runs.keys[0].count = 15; }), InternalError);
  EXPECT_THROW(check([](MaskRuns& runs) { runs.documents[0][1] = 4; }), InternalError);
  EXPECT_THROW(check([](MaskRuns& runs) { runs.documents[0].pop_back(); }), InternalError);
  EXPECT_THROW(check([](MaskRuns& runs) { runs.lengths[0] = 14; }), InternalError);
}

}  // namespace
}  // namespace megalith::ops::attention_plan_test
