// Attention on a GPU as it runs there: by the plan, through ATen's operators, with stand-ins for the vendors' libraries
// (accelerator/vendor_attention.h).
#include "pretend/accelerator/vendor_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "device/memory.h"
#include "ops/attention/attention.h"
#include "pretend/accelerator/waits.h"
#include "support/tensor_near.h"

namespace megalith::pretend {
namespace {

using at::Tensor;
using ops::AttentionLibrary;
using ops::AttentionMask;

const at::Device kGpu(at::kPrivateUse1, 0);
const ops::AttentionKernels kFlash(Kernels::kFused, {AttentionLibrary::kFlash});
const ops::AttentionKernels kCudnn(Kernels::kFused, {AttentionLibrary::kCudnn});
const ops::AttentionKernels kBoth(Kernels::kFused, {AttentionLibrary::kCudnn, AttentionLibrary::kFlash});

struct Operands {
  Tensor q, k, v, dout;
  Operands on(at::Device device) const { return {q.to(device), k.to(device), v.to(device), dout.to(device)}; }
};

Operands make_operands(int64_t b, int64_t sq, int64_t sk, int64_t d = 16, int64_t dv = 16) {
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); };
  return {random({b, sq, 4, d}), random({b, sk, 2, d}), random({b, sk, 2, dv}), random({b, sq, 4, dv})};
}

struct Results {
  Tensor out, lse, dq, dk, dv;
};

Results run_attention(const Operands& x, const AttentionMask& mask, const ops::AttentionKernels& kernels) {
  const double scale = 1 / std::sqrt(static_cast<double>(x.q.size(3)));
  const auto [out, lse] = ops::attention_forward(x.q, x.k, x.v, scale, mask, {}, kernels);
  const auto d = ops::attention_backward(x.dout, x.q, x.k, x.v, out, lse, scale, mask, {}, false, kernels);
  return {out, lse, d.dq, d.dk, d.dv};
}

AttentionMask on(at::Device device, AttentionMask mask) {
  for (Tensor* x :
       {&mask.query_positions, &mask.key_positions, &mask.query_documents, &mask.key_documents, &mask.key_lengths}) {
    if (x->defined()) *x = x->to(device);
  }
  return mask;
}

// The definition on the CPU, which also holds the mask's runs to its tensors, against the libraries. Both compute in
// fp32 from the same bf16 numbers; what differs are the roundings of results to bf16, half a unit of 2^-8, and of
// `out`, which enters the gradients through its product with dout.
void expect_served(const Operands& x, const AttentionMask& mask, const ops::AttentionKernels& kernels,
                   const VendorCalls& calls, const std::string& what) {
  const Results expected = run_attention(x, mask, Kernels::kReference);
  run_attention(x, mask, {});
  const AttentionMask there = on(kGpu, mask);
  const Operands operands = x.on(kGpu);
  const VendorCalls before = vendor_calls();
  forget_waits();
  const Results found = run_attention(operands, there, kernels);
  EXPECT_TRUE(waits().empty()) << what << ": waits for " << (waits().empty() ? "" : waits()[0].what);
  EXPECT_EQ(vendor_calls().flash - before.flash, calls.flash) << what;
  EXPECT_EQ(vendor_calls().flash_with_lengths - before.flash_with_lengths, calls.flash_with_lengths) << what;
  EXPECT_EQ(vendor_calls().cudnn - before.cudnn, calls.cudnn) << what;
  const auto near = [&](const Tensor& result, const Tensor& wanted, double bound, const char* name) {
    EXPECT_TRUE(result.is_contiguous()) << what << " " << name;
    EXPECT_TENSOR_NEAR(result.to(at::kCPU), wanted,
                       {.abs = bound / 16, .rel_to_max = bound, .what = what + " " + name});
  };
  near(found.out, expected.out, 1.0 / 128, "out");
  near(found.lse, expected.lse, 3e-6, "lse");
  near(found.dq, expected.dq, 1.0 / 64, "dq");
  near(found.dk, expected.dk, 1.0 / 64, "dk");
  near(found.dv, expected.dv, 1.0 / 128, "dv");
}

std::shared_ptr<const ops::MaskRuns> runs(ops::MaskRuns told) {
  return std::make_shared<ops::MaskRuns>(std::move(told));
}

// Two rows of 24 tokens in documents.
AttentionMask documents_mask(bool is_causal, int64_t window) {
  ops::MaskRuns told;
  told.documents = {{0, 1, 10}, {0, 20}};
  told.plans = ops::make_attention_plans();
  const Tensor first = at::cat({at::zeros({1}), at::full({9}, 1), at::full({14}, 2)}),
               second = at::cat({at::zeros({20}), at::full({4}, 1)});
  AttentionMask mask{.is_causal = is_causal, .window = window};
  mask.query_documents = mask.key_documents = at::stack({first, second}).to(at::kInt);
  mask.runs = runs(std::move(told));
  return mask;
}

// Forward and backward are a call each.
constexpr VendorCalls kOneFlash{2, 0, 0}, kOneWithLengths{0, 2, 0}, kOneCudnn{0, 0, 2};

TEST(VendorAttention, EqualsTheDefinition) {
  at::manual_seed(1);
  const Operands square = make_operands(2, 24, 24), cache = make_operands(2, 5, 24);
  for (const bool is_causal : {true, false}) {
    const std::string what = is_causal ? "causal" : "full";
    expect_served(square, {.is_causal = is_causal}, kFlash, kOneFlash, what + " by flash");
    expect_served(square, {.is_causal = is_causal}, kCudnn, kOneCudnn, what + " by cuDNN");
    expect_served(square, {.is_causal = is_causal, .window = 7}, kBoth, kOneFlash, what + " in a window");
    expect_served(cache, {.is_causal = is_causal}, kFlash, kOneFlash, what + ", few queries, by flash");
    // Causal: the keys before the square, and the square.
    expect_served(cache, {.is_causal = is_causal}, kCudnn, {0, 0, is_causal ? 4 : 2}, what + ", few queries, by cuDNN");
    expect_served(square, documents_mask(is_causal, 0), kBoth, kOneWithLengths, what + " documents");
    expect_served(square, documents_mask(is_causal, 4), kBoth, kOneWithLengths, what + " documents in a window");
  }
}

TEST(VendorAttention, ValuesNarrowerThanKeysArePadded) {
  at::manual_seed(2);
  expect_served(make_operands(2, 9, 9, 24, 16), {}, kFlash, kOneFlash, "narrow values");
  expect_served(make_operands(2, 9, 9, 16, 24), {}, kFlash, kOneFlash, "wide values");
  expect_served(make_operands(2, 9, 9, 24, 16), {}, kCudnn, kOneCudnn, "narrow values by cuDNN");
}

TEST(VendorAttention, PartsOfARing) {
  at::manual_seed(3);
  const Operands x = make_operands(2, 16, 16);
  // Chunks of 8 of a sequence of 32: rank 1 of 2 has 1 and 2, rank 0 has 0 and 3.
  const auto part = [&](std::vector<ops::PositionRun> queries, std::vector<ops::PositionRun> keys) {
    const auto positions = [](const std::vector<ops::PositionRun>& of) {
      return at::cat({at::arange(of[0].first, of[0].end()), at::arange(of[1].first, of[1].end())});
    };
    AttentionMask mask{.query_positions = positions(queries), .key_positions = positions(keys)};
    ops::MaskRuns told;
    told.queries = std::move(queries);
    told.keys = std::move(keys);
    mask.runs = runs(std::move(told));
    return mask;
  };
  const std::vector<ops::PositionRun> middle = {{8, 8}, {16, 8}}, outer = {{0, 8}, {24, 8}};
  expect_served(x, part(middle, middle), kBoth, kOneCudnn, "its own part");
  expect_served(x, part(middle, outer), kBoth, kOneCudnn, "the other's, of which the first half is seen");
  expect_served(x, part(outer, middle), kBoth, kOneCudnn, "the other's, seen by the second half");
}

TEST(VendorAttention, LengthsAreACallARow) {
  at::manual_seed(4);
  AttentionMask mask{.is_causal = false, .key_lengths = at::tensor({11, 24}, at::kLong)};
  ops::MaskRuns told;
  told.lengths = {11, 24};
  mask.runs = runs(std::move(told));
  expect_served(make_operands(2, 24, 24), mask, kBoth, {0, 4, 0}, "lengths");
}

TEST(VendorAttention, QueriesWithoutKeysGiveZeros) {
  at::manual_seed(5);
  expect_served(make_operands(1, 12, 5), {}, kBoth, kOneCudnn, "few keys");
}

TEST(VendorAttention, WhatNoLibraryTakesIsTheReferences) {
  at::manual_seed(6);
  AttentionMask untold = documents_mask(true, 0);
  untold.runs = nullptr;
  expect_served(make_operands(2, 24, 24), untold, kBoth, {}, "documents of which the host knows nothing");
  expect_served(make_operands(2, 9, 9, 20, 20), {}, kBoth, {}, "heads of 20 channels");
  expect_served(make_operands(2, 9, 9), {.window = 3}, kCudnn, {}, "a window for cuDNN");
}

TEST(VendorAttention, LayersShareThePlanOfAMicrobatch) {
  at::manual_seed(7);
  const Operands x = make_operands(2, 24, 24).on(kGpu);
  const AttentionMask mask = on(kGpu, documents_mask(true, 0));
  const auto bytes_of_a_layer = [&] {
    const int64_t before = memory_stats(kGpu).allocated_bytes;
    run_attention(x, mask, kFlash);
    return memory_stats(kGpu).allocated_bytes - before;
  };
  EXPECT_GT(bytes_of_a_layer(), 0) << "the lengths of the documents stay on the device";
  EXPECT_EQ(bytes_of_a_layer(), 0);
}

// Peak bytes of forward and backward beside the operands.
double peak_of(int64_t s, const ops::AttentionKernels& kernels) {
  const Operands x = make_operands(1, s, s).on(kGpu);
  run_attention(x, {}, kernels);  // lets the allocator have its blocks
  const int64_t before = memory_stats(kGpu).allocated_bytes;
  reset_peak_memory(kGpu);
  run_attention(x, {}, kernels);
  return static_cast<double>(memory_stats(kGpu).peak_allocated_bytes - before);
}

// Twice the sequence takes twice the memory, where a matrix of scores takes four times: half between is the bound.
TEST(VendorAttention, MemoryGrowsWithTheSequenceAndNotItsSquare) {
  for (const ops::AttentionKernels& kernels : {kFlash, kCudnn}) {
    EXPECT_LT(peak_of(256, kernels), 3 * peak_of(128, kernels));
  }
  EXPECT_GT(peak_of(256, Kernels::kReference), 3 * peak_of(128, Kernels::kReference)) << "the measure sees a square";
}

// The stand-ins are as strict as the libraries.
TEST(VendorAttention, StandInsRefuseWhatTheLibrariesDo) {
  const auto flash = [](const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& query_begins = {}, const std::optional<Tensor>& key_begins = {}) {
    return at::_flash_attention_forward(q, k, v, query_begins, key_begins, 8, 8, 0.0, true, false, 0.5);
  };
  const auto options = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  const Tensor x = at::zeros({1, 8, 2, 16}, options), tokens = x[0];
  EXPECT_NO_THROW(flash(x, x, x));
  EXPECT_THROW(flash(x.to(at::kFloat), x.to(at::kFloat), x.to(at::kFloat)), c10::Error);
  EXPECT_THROW(flash(x, x, at::zeros({1, 8, 2, 8}, options)), c10::Error);
  const Tensor odd = at::zeros({1, 8, 2, 12}, options);
  EXPECT_THROW(flash(odd, odd, odd), c10::Error);
  const Tensor strided = at::zeros({1, 8, 16, 2}, options).transpose(2, 3);
  EXPECT_THROW(flash(strided, x, x), c10::Error);
  const Tensor begins = at::tensor({0, 3, 8}, at::kInt).to(kGpu);
  EXPECT_NO_THROW(flash(tokens, tokens, tokens, begins, begins));
  EXPECT_THROW(flash(tokens, tokens, tokens), c10::Error);
  EXPECT_THROW(flash(tokens, tokens, tokens, begins), c10::Error);
  EXPECT_THROW(flash(tokens, tokens, tokens, begins.to(at::kLong), begins), c10::Error);
  EXPECT_THROW(flash(tokens, tokens, tokens, at::tensor({0, 3, 7}, at::kInt).to(kGpu), begins), c10::Error);
  const auto cudnn = [](const Tensor& q, bool with_lse) {
    return at::_cudnn_attention_forward(q, q, q, {}, {}, {}, q.size(2), q.size(2), with_lse, 0.0, true, false, 0.5);
  };
  EXPECT_NO_THROW(cudnn(x, true));
  EXPECT_THROW(cudnn(x, false), c10::Error);
  EXPECT_THROW(cudnn(at::zeros({1, 8, 2, 136}, options), true), c10::Error);
  EXPECT_THROW(cudnn(at::zeros({1, 8, 1, 16}, options), true), c10::Error);
}

}  // namespace
}  // namespace megalith::pretend
