// attention: the CPU kernels and the reference against an independent float64 composition, under every kind of mask.
#include "ops/attention/attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/error.h"
#include "core/philox.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::attention_test {
namespace {

using at::Tensor;
using Attention = testing::OnDevice;

struct Shape {
  int64_t b, sq, sk, n, g, d, dv;
};
struct Inputs {
  Tensor q, k, v, dout;
  double scale;
};

Inputs make_inputs(const Shape& s, at::ScalarType dtype) {
  const auto random = [&](at::IntArrayRef sizes) { return testing::randn(sizes).to(dtype); };
  return {random({s.b, s.sq, s.n, s.d}), random({s.b, s.sk, s.g, s.d}), random({s.b, s.sk, s.g, s.dv}),
          random({s.b, s.sq, s.n, s.dv}), 1 / std::sqrt(static_cast<double>(s.d))};
}

std::vector<int64_t> values_of(const Tensor& x, const Tensor& by_default) {
  const Tensor values = (x.defined() ? x : by_default).to(at::kCPU, at::kLong).contiguous();
  return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel()};
}

// The mask by its words, one pair at a time.
Tensor allowed_by_definition(const AttentionMask& mask, int64_t b, int64_t sq, int64_t sk) {
  const auto query = values_of(mask.query_positions, testing::arange(sk - sq, sk));
  const auto key = values_of(mask.key_positions, testing::arange(sk));
  const auto query_document = values_of(mask.query_documents, testing::zeros({b, sq}));
  const auto key_document = values_of(mask.key_documents, testing::zeros({b, sk}));
  const auto length = values_of(mask.key_lengths, testing::full({b}, sk));
  Tensor allowed = at::empty({b, 1, sq, sk}, at::kBool);
  bool* out = allowed.mutable_data_ptr<bool>();
  for (int64_t batch = 0; batch < b; ++batch) {
    for (int64_t i = 0; i < sq; ++i) {
      for (int64_t j = 0; j < sk; ++j) {
        const int64_t distance = query[i] - key[j];
        bool sees = !mask.is_causal || distance >= 0;
        if (mask.window > 0) sees = sees && distance < mask.window && (mask.is_causal || -distance < mask.window);
        *out++ = sees && query_document[batch * sq + i] == key_document[batch * sk + j] && j < length[batch];
      }
    }
  }
  return testing::here(allowed);
}

Tensor factors_by_definition(const AttentionDropout& dropout, const AttentionMask& mask, const Shape& s) {
  Tensor factors = at::ones({s.b, s.n, s.sq, s.sk}, at::kDouble);
  if (dropout.p == 0) return testing::here(factors);
  const auto row_ids = values_of(dropout.row_ids, {});
  const auto positions = values_of(mask.key_positions, testing::arange(s.sk));
  double* out = factors.mutable_data_ptr<double>();
  for (int64_t b = 0; b < s.b; ++b) {
    for (int64_t h = 0; h < s.n; ++h) {
      for (int64_t i = 0; i < s.sq; ++i) {
        for (const int64_t position : positions) {
          const auto low = (static_cast<uint64_t>(dropout.head_start + h) << 40) + static_cast<uint64_t>(position / 4);
          const auto row = static_cast<uint64_t>(row_ids[b * s.sq + i]);
          const double u = uniform_from_word(philox(dropout.key, {low, row})[static_cast<size_t>(position % 4)]);
          *out++ = u >= dropout.p ? 1 / (1 - dropout.p) : 0;
        }
      }
    }
  }
  return testing::here(factors);
}

struct Exact {
  Tensor out, lse, dq, dk, dv, dbias;
};

// Everything in float64, keys copied for each query head, gradients by autograd.
Exact compute_exact(const Inputs& in, const AttentionMask& mask, const AttentionDropout& dropout = {}) {
  const Shape s{in.q.size(0), in.q.size(1), in.k.size(1), in.q.size(2), in.k.size(2), in.q.size(3), in.v.size(3)};
  const auto leaf = [](const Tensor& x) { return x.detach().to(at::kDouble).clone().requires_grad_(true); };
  std::vector<Tensor> leaves = {leaf(in.q), leaf(in.k), leaf(in.v)};
  const auto spread = [&](const Tensor& x) { return x.repeat_interleave(s.n / s.g, 2).transpose(1, 2); };
  Tensor scores = at::matmul(leaves[0].transpose(1, 2), spread(leaves[1]).transpose(2, 3)) * in.scale;
  if (mask.softcap > 0) scores = mask.softcap * at::tanh(scores / mask.softcap);
  if (mask.bias.defined()) {
    leaves.push_back(leaf(mask.bias));
    scores = scores + leaves[3];
  }
  const Tensor allowed = allowed_by_definition(mask, s.b, s.sq, s.sk);
  const Tensor sees_any = allowed.any(-1, true);
  // A row without keys keeps its scores, so that its softmax is finite, and is cleared afterwards.
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor masked = scores.masked_fill((allowed | ~sees_any).logical_not(), -infinity);
  const Tensor p = at::softmax(masked, -1) * sees_any * factors_by_definition(dropout, mask, s);
  const Tensor out = at::matmul(p, spread(leaves[2])).transpose(1, 2);
  const auto gradients = torch::autograd::grad({out}, leaves, {in.dout.to(at::kDouble)});
  Exact exact{out.detach(), at::logsumexp(scores.detach().masked_fill(~allowed, -infinity), -1),
              gradients[0], gradients[1],
              gradients[2], {}};
  if (mask.bias.defined()) exact.dbias = gradients[3];
  return exact;
}

// Rounding of the result, and in bf16 also of P and dS before their products: three half units of 2^-8 of the largest
// element, with room for sums over many rounded terms. fp16 is computed in fp32 and rounded once.
double tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 1.0 / 64;
    case at::kHalf:
      return 1.0 / 512;
    case at::kFloat:
      return 4e-6;
    default:
      return 1e-13;
  }
}

void expect_matches(const Inputs& in, const AttentionMask& mask, const AttentionDropout& dropout, const Exact& exact,
                    Kernels kernels, const std::string& what) {
  const auto dtype = in.q.scalar_type();
  const auto [out, lse] = attention_forward(in.q, in.k, in.v, in.scale, mask, dropout, kernels);
  ASSERT_EQ(out.scalar_type(), dtype);
  const double near = tolerance_of(dtype);
  EXPECT_TENSOR_NEAR(out, exact.out, {.abs = near / 64, .rel_to_max = near, .what = what + " out"});
  // Never rounded to 16 bits: scores are sums of exact products in fp32.
  const double lse_near = dtype == at::kDouble ? 1e-13 : 3e-6;
  EXPECT_TENSOR_NEAR(lse, exact.lse, {.abs = lse_near, .rel = lse_near, .what = what + " lse"});
  const auto d = attention_backward(in.dout, in.q, in.k, in.v, out, lse, in.scale, mask, dropout, true, kernels);
  // dS = P (dP - delta) is a difference of two sums of order one, and may be 0 where they are not.
  EXPECT_TENSOR_NEAR(d.dq, exact.dq, {.abs = near, .rel_to_max = 2 * near, .what = what + " dq"});
  EXPECT_TENSOR_NEAR(d.dk, exact.dk, {.abs = near, .rel_to_max = 2 * near, .what = what + " dk"});
  EXPECT_TENSOR_NEAR(d.dv, exact.dv, {.abs = near / 64, .rel_to_max = near, .what = what + " dv"});
  ASSERT_EQ(d.dbias.defined(), mask.bias.defined()) << what;
  if (mask.bias.defined()) {
    EXPECT_TENSOR_NEAR(d.dbias, exact.dbias, {.abs = near, .rel_to_max = 2 * near, .what = what + " dbias"});
  }
}

void expect_all_match(const Shape& shape, const AttentionMask& mask, const std::string& name,
                      const AttentionDropout& dropout = {},
                      std::initializer_list<at::ScalarType> dtypes = {at::kDouble, at::kFloat, at::kBFloat16}) {
  for (const at::ScalarType dtype : dtypes) {
    const Inputs in = make_inputs(shape, dtype);
    const auto what = fmt::format("{} ({}x{} of {} heads, {} groups, {}/{}) {}", name, shape.sq, shape.sk, shape.n,
                                  shape.g, shape.d, shape.dv, c10::toString(dtype));
    const Exact exact = compute_exact(in, mask, dropout);
    expect_matches(in, mask, dropout, exact, Kernels::kFused, what);
    expect_matches(in, mask, dropout, exact, Kernels::kReference, what + " reference");
  }
}

AttentionMask full() { return {.is_causal = false}; }

TEST_P(Attention, EveryMaskMatchesFloat64) {
  at::manual_seed(1);
  const Shape shape{2, 97, 97, 4, 2, 16, 16};
  const Tensor first = at::cat({testing::zeros({31}), testing::ones({66})}),
               second = at::cat({testing::zeros({70}), testing::full({27}, 3)});
  const Tensor documents = at::stack({first, second}).to(at::kInt);
  const Tensor lengths = testing::tensor({40, 97}, at::kLong);

  expect_all_match(shape, {}, "causal");
  expect_all_match(shape, full(), "full");
  expect_all_match(shape, {.window = 9}, "causal window");
  expect_all_match(shape, {.is_causal = false, .window = 9}, "window on both sides");
  expect_all_match(shape, {.window = 1}, "only itself");
  expect_all_match(shape, {.query_documents = documents, .key_documents = documents}, "causal documents");
  expect_all_match(shape, {.is_causal = false, .query_documents = documents, .key_documents = documents}, "documents");
  expect_all_match(shape, {.is_causal = false, .key_lengths = lengths}, "key lengths");
  expect_all_match(shape,
                   {.window = 30, .query_documents = documents, .key_documents = documents, .key_lengths = lengths},
                   "all together");
  // The two halves that one of four ring ranks holds under balanced causal order.
  const Tensor zigzag = at::cat({testing::arange(0, 48), testing::arange(336, 385)});
  const Tensor shuffled = testing::randperm(400).narrow(0, 0, 97);
  expect_all_match(shape, {.query_positions = zigzag, .key_positions = shuffled}, "positions");
}

TEST_P(Attention, BiasMatchesFloat64HoweverItIsBroadcast) {
  at::manual_seed(2);
  const Shape shape{2, 67, 83, 4, 2, 8, 8};
  for (const auto& [b, n] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {1, 4}, {2, 4}}) {
    const AttentionMask mask{.is_causal = b == 1, .bias = testing::randn({b, n, 67, 83})};
    expect_all_match(shape, mask, fmt::format("bias ({}, {})", b, n), {}, {at::kFloat, at::kBFloat16});
  }
  const AttentionMask mask{.bias = testing::randn({1, 4, 67, 83}).to(at::kBFloat16)};
  expect_all_match(shape, mask, "bf16 bias", {}, {at::kBFloat16});
}

TEST_P(Attention, CappedScoresMatchFloat64) {
  at::manual_seed(7);
  // Scores of deviation 1 under a cap of 0.5 are bent hard, under one of 50 hardly.
  const Tensor documents = at::cat({testing::zeros({2, 31}), testing::ones({2, 66})}, 1).to(at::kInt);
  for (const double softcap : {0.5, 50.0}) {
    expect_all_match({2, 97, 97, 4, 2, 16, 16}, {.softcap = softcap}, fmt::format("cap {}", softcap));
    expect_all_match({2, 97, 97, 4, 2, 16, 16},
                     {.window = 9, .query_documents = documents, .key_documents = documents, .softcap = softcap},
                     fmt::format("window and documents under a cap {}", softcap));
  }
  // Over several chunks of keys, with queries that see nothing, and with dropout.
  expect_all_match({1, 600, 590, 2, 1, 8, 8}, {.softcap = 0.7}, "cap over chunks", {}, {at::kFloat, at::kBFloat16});
  expect_all_match({2, 70, 70, 2, 1, 8, 8}, {.is_causal = false, .softcap = 0.7}, "cap and dropout",
                   {.p = 0.25, .key = 3, .row_ids = testing::arange(140).view({2, 70})}, {at::kDouble, at::kBFloat16});
}

TEST_P(Attention, EveryHeadSizeMatchesFloat64) {
  at::manual_seed(3);
  for (const auto& [d, dv] :
       {std::pair<int64_t, int64_t>{64, 64}, {128, 128}, {40, 40}, {80, 80}, {1, 1}, {96, 64}, {33, 71}, {192, 128}}) {
    expect_all_match({1, 70, 70, 2, 1, d, dv}, {}, "head size", {}, {at::kFloat, at::kBFloat16, at::kHalf});
  }
}

TEST_P(Attention, EveryGroupingMatchesFloat64) {
  at::manual_seed(4);
  for (const int64_t g : {1, 2, 3, 6}) expect_all_match({2, 37, 37, 6, g, 8, 8}, {}, "groups");
}

TEST_P(Attention, AwkwardLengthsMatchFloat64) {
  at::manual_seed(5);
  // One token; a cache's single query; panels, chunks of backward (256) and of forward (512) and one past each; more
  // queries than keys, so that the first see nothing.
  for (const auto& [sq, sk] : {std::pair<int64_t, int64_t>{1, 1},
                               {1, 67},
                               {7, 131},
                               {64, 64},
                               {65, 65},
                               {257, 257},
                               {3, 513},
                               {130, 701},
                               {90, 50}}) {
    expect_all_match({1, sq, sk, 2, 1, 16, 16}, {}, "lengths", {}, {at::kFloat, at::kBFloat16});
    expect_all_match({1, sq, sk, 2, 1, 16, 16}, full(), "lengths, full", {}, {at::kBFloat16});
  }
}

// Generation: one query a sequence, under every mask that a cache knows.
TEST_P(Attention, OneQueryMatchesFloat64) {
  at::manual_seed(14);
  const Tensor query = testing::zeros({3, 1}).to(at::kInt);
  Tensor hidden = testing::zeros({3, 150}).to(at::kInt);  // the rows begin at keys 0, 67 and 149
  hidden[1].narrow(0, 0, 67).fill_(1);
  hidden[2].narrow(0, 0, 149).fill_(1);
  const Tensor lengths = testing::tensor({150, 0, 70}, at::kLong);
  const std::initializer_list<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16, at::kHalf};
  for (const Shape& shape : {Shape{3, 1, 150, 6, 2, 64, 64}, {3, 1, 150, 4, 4, 33, 71}, {3, 1, 150, 3, 1, 8, 100}}) {
    expect_all_match(shape, {}, "all", {}, dtypes);
    expect_all_match(shape, {.window = 70}, "window", {}, dtypes);
    expect_all_match(shape, {.window = 70, .query_documents = query, .key_documents = hidden, .softcap = 0.5},
                     "hidden beginnings", {}, dtypes);
    expect_all_match(shape, {.is_causal = false, .key_lengths = lengths}, "lengths", {}, dtypes);
  }
}

TEST(Attention, OneQueryIsTheSameInAnyCompany) {
  at::manual_seed(15);
  const Inputs in = make_inputs({3, 1, 150, 6, 2, 64, 64}, at::kBFloat16);
  const std::vector<int64_t> starts = {0, 67, 149};
  Tensor hidden = at::zeros({3, 150}, at::kInt);
  for (int64_t b = 0; b < 3; ++b) hidden[b].narrow(0, 0, starts[static_cast<size_t>(b)]).fill_(1);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 8}) {  // 8: tasks of a head
    at::set_num_threads(threads);
    const AttentionMask mask{.query_documents = at::zeros({3, 1}, at::kInt), .key_documents = hidden};
    const auto [out, lse] = attention_forward(in.q, in.k, in.v, in.scale, mask);
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t start = starts[static_cast<size_t>(b)];
      const auto own = [&](const Tensor& x) { return x.narrow(0, b, 1).narrow(1, start, 150 - start); };
      const auto [alone, alone_lse] = attention_forward(in.q.narrow(0, b, 1), own(in.k), own(in.v), in.scale, {});
      EXPECT_TRUE(at::equal(alone[0], out[b])) << "sequence " << b << ", " << threads << " threads";
      EXPECT_TRUE(at::equal(alone_lse[0], lse[b])) << "sequence " << b << ", " << threads << " threads";
    }
  }
  at::set_num_threads(before);
}

TEST_P(Attention, DropoutMatchesFloat64WithTheSameElements) {
  at::manual_seed(6);
  const Shape shape{2, 70, 131, 4, 2, 16, 16};
  const AttentionDropout dropout{
      .p = 0.3, .key = 0xFEDCBA9876543210, .row_ids = testing::randperm(140).view({2, 70}), .head_start = 5};
  expect_all_match(shape, full(), "dropout", dropout);
  expect_all_match(shape, {.key_positions = testing::randperm(200).narrow(0, 0, 131)}, "dropout and positions",
                   dropout);
}

TEST_P(Attention, QueriesWithoutKeysGiveZerosAndNoGradient) {
  at::manual_seed(7);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Inputs in = make_inputs({2, 5, 5, 2, 2, 8, 8}, dtype);
      const AttentionMask mask{.is_causal = false, .key_lengths = testing::tensor({0, 3}, at::kLong)};
      const auto [out, lse] = attention_forward(in.q, in.k, in.v, in.scale, mask, {}, kernels);
      EXPECT_TENSOR_NEAR(out[0], testing::zeros({5, 2, 8}), {.what = "out"});
      EXPECT_TENSOR_NEAR(lse[0], testing::full({2, 5}, -std::numeric_limits<double>::infinity()), {.what = "lse"});
      const auto d = attention_backward(in.dout, in.q, in.k, in.v, out, lse, in.scale, mask, {}, false, kernels);
      EXPECT_TENSOR_NEAR(d.dq[0], testing::zeros({5, 2, 8}), {.what = "dq"});
      EXPECT_TENSOR_NEAR(d.dk[0], testing::zeros({5, 2, 8}), {.what = "dk"});
      EXPECT_TENSOR_NEAR(d.dv[1].narrow(0, 3, 2), testing::zeros({2, 2, 8}), {.what = "dv of padding"});
    }
  }
}

TEST_P(Attention, NoKeysAtAllGiveZeros) {
  const Inputs in = make_inputs({1, 3, 0, 2, 1, 8, 8}, at::kFloat);
  const auto [out, lse] = attention_forward(in.q, in.k, in.v, in.scale, full());
  EXPECT_TENSOR_NEAR(out, testing::zeros({1, 3, 2, 8}));
  const auto d = attention_backward(in.dout, in.q, in.k, in.v, out, lse, in.scale, full());
  EXPECT_TENSOR_NEAR(d.dq, testing::zeros({1, 3, 2, 8}));
}

// As in ring attention: each block of keys gives (out, lse); joined they are the whole, and with the whole's out and
// lse each block can be differentiated by itself.
TEST_P(Attention, BlocksOfKeysAddUpToTheWhole) {
  at::manual_seed(8);
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const Inputs in = make_inputs({2, 100, 100, 4, 2, 16, 16}, dtype);
    const Exact exact = compute_exact(in, {});
    const double near = tolerance_of(dtype);
    std::vector<Tensor> outs, lses;
    const auto block_of = [&](int64_t first, int64_t count, auto&& body) {
      const AttentionMask mask{.query_positions = testing::arange(100),
                               .key_positions = testing::arange(first, first + count)};
      body(in.k.narrow(1, first, count), in.v.narrow(1, first, count), mask);
    };
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 30}, {30, 70}}) {
      block_of(first, count, [&](const Tensor& k, const Tensor& v, const AttentionMask& mask) {
        const auto [out, lse] = attention_forward(in.q, k, v, in.scale, mask);
        outs.push_back(out);
        lses.push_back(lse);
      });
    }
    const Tensor lse = at::logaddexp(lses[0], lses[1]);
    const auto weight = [&](size_t i) { return (lses[i] - lse).exp().transpose(1, 2).unsqueeze(-1); };
    const Tensor out = (outs[0] * weight(0) + outs[1] * weight(1)).to(dtype);
    EXPECT_TENSOR_NEAR(out, exact.out, {.rel_to_max = near, .what = "out"});
    Tensor dq = at::zeros_like(exact.dq);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 30}, {30, 70}}) {
      block_of(first, count, [&](const Tensor& k, const Tensor& v, const AttentionMask& mask) {
        const auto d = attention_backward(in.dout, in.q, k, v, out, lse, in.scale, mask);
        dq += d.dq;
        EXPECT_TENSOR_NEAR(d.dk, exact.dk.narrow(1, first, count), {.rel_to_max = 2 * near, .what = "dk"});
        EXPECT_TENSOR_NEAR(d.dv, exact.dv.narrow(1, first, count), {.rel_to_max = 2 * near, .what = "dv"});
      });
    }
    EXPECT_TENSOR_NEAR(dq, exact.dq, {.rel_to_max = 2 * near, .what = "dq"});
  }
}

TEST_P(Attention, SlicesOfAFusedProjectionNeedNoCopy) {
  at::manual_seed(9);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor qkv = testing::randn({2, 75, 4 + 2 + 2, 16}).to(dtype);
    const Inputs in{qkv.narrow(2, 0, 4), qkv.narrow(2, 4, 2), qkv.narrow(2, 6, 2),
                    testing::randn({2, 75, 4, 16}).to(dtype), 0.25};
    expect_matches(in, {}, {}, compute_exact(in, {}), Kernels::kFused, "slices");
  }
}

// A thread takes whole (sequence, KV head) tasks or smaller ones, depending on how many threads there are.
TEST(Attention, ResultsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(10);
  const int before = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Inputs in = make_inputs({1, 330, 600, 6, 3, 32, 16}, dtype);
    const AttentionMask mask{.bias = testing::randn({1, 1, 330, 600})};
    std::vector<std::vector<Tensor>> results;
    for (const int threads : {1, 2, 3, 5}) {
      at::set_num_threads(threads);
      const auto [out, lse] = attention_forward(in.q, in.k, in.v, in.scale, mask);
      const auto d = attention_backward(in.dout, in.q, in.k, in.v, out, lse, in.scale, mask, {}, true);
      results.push_back({out, lse, d.dq, d.dk, d.dv, d.dbias});
    }
    at::set_num_threads(before);
    for (const auto& result : results) {
      for (size_t i = 0; i < result.size(); ++i) {
        EXPECT_TRUE(at::equal(result[i], results[0][i])) << c10::toString(dtype) << ", result " << i;
      }
    }
  }
}

TEST_P(Attention, GradientsMatchDifferences) {
  at::manual_seed(11);
  const AttentionDropout dropout{.p = 0.25, .key = 7, .row_ids = testing::arange(10).view({2, 5})};
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const auto out_and_lse = [&](const std::vector<Tensor>& x) {
      return attention_forward(x[0], x[1], x[2], 0.5, {.window = 4, .bias = x[3]}, dropout, kernels);
    };
    const auto forward = [&](const std::vector<Tensor>& x) { return std::get<0>(out_and_lse(x)); };
    const auto backward = [&](const Tensor& dout, const std::vector<Tensor>& x) -> std::vector<Tensor> {
      const auto [out, lse] = out_and_lse(x);
      const AttentionGradients d = attention_backward(dout, x[0], x[1], x[2], out, lse, 0.5,
                                                      {.window = 4, .bias = x[3]}, dropout, true, kernels);
      return {d.dq, d.dk, d.dv, d.dbias};
    };
    const auto random = [](at::IntArrayRef sizes) { return testing::randn(sizes, at::kDouble); };
    testing::expect_gradients_match_differences(
        forward, backward, {random({2, 5, 2, 3}), random({2, 6, 1, 3}), random({2, 6, 1, 4}), random({1, 2, 5, 6})},
        "attention");
  }
}

TEST(Attention, WrongArgumentsAreNamed) {
  const auto message_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const UserError& error) {
      return error.message();
    }
    return std::string("no error");
  };
  const Inputs in = make_inputs({1, 4, 4, 3, 2, 8, 8}, at::kFloat);
  EXPECT_EQ(message_of([&] { attention_forward(in.q, in.k, in.v, 1, {}); }),
            "attention_forward: 3 query heads cannot be shared among 2 KV heads");
  const Inputs good = make_inputs({1, 4, 4, 4, 2, 8, 8}, at::kFloat);
  EXPECT_EQ(message_of([&] { attention_forward(good.q, good.k, good.v.narrow(1, 0, 3), 1, {}); }),
            "attention_forward: v has shape (1, 3, 2, 8), but must be (1, 4, 2, 8)");
  EXPECT_EQ(message_of([&] {
              attention_forward(good.q, good.k, good.v, 1, {.query_documents = testing::zeros({1, 4}, at::kInt)});
            }),
            "attention_forward: only one of query_documents and key_documents is set");
  EXPECT_EQ(message_of([&] { attention_forward(good.q, good.k, good.v, 1, {}, {.p = 1}); }),
            "attention_forward: dropout probability is 1, but must be in [0, 1)");
  EXPECT_EQ(message_of(
                [&] { attention_forward(good.q.transpose(2, 3).contiguous().transpose(2, 3), good.k, good.v, 1, {}); }),
            "attention_forward: the last dim of q has stride 4, but must be contiguous");
  EXPECT_EQ(message_of([&] {
              attention_forward(good.q, good.k, good.v, 1, {.key_positions = testing::full({4}, 1LL << 40)});
            }),
            "attention: key_positions[0] is 1099511627776, but must lie between -2^30 and 2^30");
}

MEGALITH_ON_EVERY_DEVICE(Attention);

}  // namespace
}  // namespace megalith::ops::attention_test
