// adamw_ with narrow states: remainders are fp32 masters to the bit, rounding at random is unbiased and the same
// however tensors are divided, and every kernel is the reference.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "ops/adamw/adamw.h"
#include "ops/adamw/narrow_master.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::adamw_narrow_test {
namespace {

using at::Tensor;
using AdamwNarrow = testing::OnDevice;

constexpr AdamwOptions kNarrowOptions{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3};
constexpr Tensor AdamwShard::*kTensors[] = {&AdamwShard::model,     &AdamwShard::master,  &AdamwShard::grad,
                                            &AdamwShard::remainder, &AdamwShard::exp_avg, &AdamwShard::exp_avg_sq};

struct Form {
  MasterForm master;
  at::ScalarType moments;
  bool is_random;
  at::ScalarType model = at::kBFloat16;

  std::string text() const {
    return fmt::format("master form {}, model {}, moments {}, {}", static_cast<int>(master), c10::toString(model),
                       c10::toString(moments), is_random ? "random" : "nearest");
  }
};

const std::vector<Form> kForms = {{MasterForm::kRemainder, at::kFloat, false},
                                  {MasterForm::kRemainder, at::kBFloat16, false},
                                  {MasterForm::kRemainder, at::kBFloat16, true},
                                  {MasterForm::kNone, at::kFloat, false},
                                  {MasterForm::kNone, at::kFloat, true},
                                  {MasterForm::kNone, at::kBFloat16, false},
                                  {MasterForm::kNone, at::kBFloat16, true},
                                  {MasterForm::kWhole, at::kBFloat16, true},
                                  {MasterForm::kWhole, at::kBFloat16, true, at::kHalf},
                                  {MasterForm::kWhole, at::kBFloat16, true, at::kFloat}};

AdamwShard narrow_shard(const Form& form, int64_t count, const DrawnRun& drawn = {.key = 5, .columns = 1 << 30}) {
  const Tensor master = testing::randn({count});
  AdamwShard shard;
  shard.grad = testing::randn({count});
  shard.exp_avg = (testing::randn({count}) / 10).to(form.moments);
  shard.exp_avg_sq = (testing::rand({count}) / 100).to(form.moments);
  shard.lr = 1e-2;
  shard.weight_decay = 0.1;
  if (form.model != at::kFloat) shard.model = master.to(form.model);
  if (form.master == MasterForm::kWhole) shard.master = master;
  if (form.master == MasterForm::kRemainder) {
    shard.remainder = at::empty({count}, master.options().dtype(at::kShort));
    split_master(master, shard.model, shard.remainder, shard.exp_avg_sq);
  }
  if (form.is_random) shard.drawn = drawn;
  return shard;
}

AdamwShard clone_of(const AdamwShard& shard) {
  AdamwShard copy = shard;
  for (const auto member : kTensors) {
    if ((copy.*member).defined()) copy.*member = (copy.*member).clone();
  }
  return copy;
}

// A shard's weights in fp32.
Tensor weight_of(const AdamwShard& shard) {
  if (shard.master.defined()) return shard.master;
  if (shard.remainder.defined()) return join_master(shard.model, shard.remainder, shard.exp_avg_sq);
  return shard.model.to(at::kFloat);
}

// Two kernels differ by a few units of fp32; where a number is rounded to bf16 they may fall to either side, which a
// unit of fp32 makes one in 2^16 do.
void expect_as_rounded(const Tensor& found, const Tensor& expected, bool is_narrow, const std::string& what) {
  const double fp32 = 1e-6;
  EXPECT_TENSOR_NEAR(found, expected, {.abs = fp32, .rel = fp32 + (is_narrow ? 0x1p-7 : 0), .what = what});
  if (!is_narrow) return;
  const double share = (found != expected).to(at::kDouble).mean().item<double>();
  EXPECT_LE(share, 0x1p-9) << what;  // a hundred times as many as the units of fp32 let us expect
}

TEST_P(AdamwNarrow, FusedIsTheReferenceForEveryForm) {
  at::manual_seed(1);
  const DrawnRun odd{.key = 77, .first = 5, .columns = 37, .row_stride = 91, .column_stride = 1};
  const DrawnRun transposed{.key = 78, .first = 2, .columns = 300, .row_stride = 1, .column_stride = 29};
  for (const Form& form : kForms) {
    for (const DrawnRun& drawn : {odd, transposed}) {
      std::vector<AdamwShard> fused;
      // One larger than a thread's piece, in the form that draws most.
      const bool draws_all = form.master == MasterForm::kNone && form.moments == at::kBFloat16 && form.is_random;
      for (const int64_t count : {1, 7, 255, 1031, draws_all ? 70001 : 515})
        fused.push_back(narrow_shard(form, count, drawn));
      std::vector<AdamwShard> reference;
      for (const AdamwShard& shard : fused) reference.push_back(clone_of(shard));
      const Tensor scale = testing::scalar_tensor(0.5, at::kDouble);
      adamw_(fused, scale, kNarrowOptions);
      adamw_(reference, scale, kNarrowOptions, Kernels::kReference);
      for (size_t i = 0; i < fused.size(); ++i) {
        const auto what = fmt::format("{}, {} elements", form.text(), fused[i].grad.numel());
        const bool has_narrow_weight = form.master == MasterForm::kNone, has_narrow = form.moments == at::kBFloat16;
        expect_as_rounded(weight_of(fused[i]), weight_of(reference[i]), has_narrow_weight, what);
        expect_as_rounded(fused[i].exp_avg.to(at::kFloat), reference[i].exp_avg.to(at::kFloat), has_narrow, what);
        expect_as_rounded(fused[i].exp_avg_sq.to(at::kFloat).abs(), reference[i].exp_avg_sq.to(at::kFloat).abs(),
                          has_narrow, what);
      }
      if (!form.is_random) break;
    }
  }
}

TEST_P(AdamwNarrow, ABf16GradientIsItsFp32FormToTheBit) {
  std::vector<Form> forms = kForms;
  forms.push_back({MasterForm::kWhole, at::kFloat, false});
  forms.push_back({MasterForm::kWhole, at::kBFloat16, false, at::kFloat});
  for (const Form& form : forms) {
    std::vector<AdamwShard> wide;
    for (const int64_t count : {1, 7, 259}) {
      wide.push_back(narrow_shard(form, count));
      wide.back().grad = wide.back().grad.to(at::kBFloat16).to(at::kFloat);
    }
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      std::vector<AdamwShard> expected, found;
      for (const AdamwShard& shard : wide) {
        expected.push_back(clone_of(shard));
        found.push_back(clone_of(shard));
        found.back().grad = shard.grad.to(at::kBFloat16);
      }
      const Tensor scale = testing::scalar_tensor(0.37, at::kDouble);
      adamw_(expected, scale, kNarrowOptions, kernels);
      adamw_(found, scale, kNarrowOptions, kernels);
      for (size_t i = 0; i < wide.size(); ++i) {
        for (const auto member : kTensors) {
          if (member == &AdamwShard::grad || !(found[i].*member).defined()) continue;
          EXPECT_TRUE(at::equal(found[i].*member, expected[i].*member)) << form.text() << " of " << wide[i].grad.numel();
        }
      }
    }
  }
}

// 30 steps of 70,001 elements make about 15 masters that are halfway between two bf16 numbers and above the one that
// they round to: those need the mark.
TEST_P(AdamwNarrow, RemaindersAreFp32MastersToTheBit) {
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(2);
      AdamwShard whole = narrow_shard({MasterForm::kWhole, moments, false}, 70001), narrow = clone_of(whole);
      narrow.remainder = at::empty({70001}, whole.master.options().dtype(at::kShort));
      split_master(whole.master, narrow.model, narrow.remainder, narrow.exp_avg_sq);
      narrow.master = Tensor();
      int64_t num_marks = 0;
      const bool is_fast = kernels == Kernels::kFused && GetParam().is_cpu();  // no reference, no emulation
      const int64_t num_steps = is_fast ? 30 : 3;
      for (int64_t step = 1; step <= num_steps; ++step) {
        const Tensor grad = testing::randn({70001}), scale = testing::scalar_tensor(0.5, at::kDouble);
        for (AdamwShard* shard : {&whole, &narrow}) {
          shard->grad.copy_(grad);
          adamw_({*shard}, scale, {.beta1 = 0.9, .beta2 = 0.95, .step = step}, kernels);
        }
        ASSERT_TRUE(at::equal(weight_of(narrow).view(at::kInt), whole.master.view(at::kInt))) << step;
        ASSERT_TRUE(at::equal(narrow.model, whole.model)) << step;
        ASSERT_TRUE(at::equal(narrow.exp_avg, whole.exp_avg)) << step;
        ASSERT_TRUE(at::equal(narrow.exp_avg_sq.abs(), whole.exp_avg_sq)) << step;
        num_marks += at::signbit(narrow.exp_avg_sq).sum().item<int64_t>();
      }
      if (is_fast) {
        EXPECT_GE(num_marks, 3);
      }
    }
  }
}

// The upper half runs over everything, the lower over what matters to rounding: beside 0, beside the tie, the last.
TEST_P(AdamwNarrow, EveryMasterButNanComesBackFromItsRemainder) {
  const Tensor high = testing::here(at::arange(0, 1 << 16, at::kLong)).unsqueeze(1);
  const Tensor low =
      testing::here(at::tensor({0x0000, 0x0001, 0x3456, 0x7FFF, 0x8000, 0x8001, 0xC000, 0xFFFF}, at::kLong));
  const Tensor master = (high * 65536 + low).to(at::kInt).view(at::kFloat).reshape({-1});
  for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
    const Tensor weight = at::zeros(master.sizes(), master.options().dtype(at::kBFloat16));
    const Tensor remainder = at::zeros(master.sizes(), master.options().dtype(at::kShort));
    const Tensor square = at::arange(master.numel(), master.options()).remainder(3).to(moments);  // zeros among them
    const Tensor before = square.clone();
    split_master(master, weight, remainder, square);
    const Tensor found = join_master(weight, remainder, square);
    const Tensor is_nan = at::isnan(master);
    EXPECT_TRUE(at::equal(at::isnan(found), is_nan));
    EXPECT_TRUE(at::equal(found.view(at::kInt).masked_fill(is_nan, 0), master.view(at::kInt).masked_fill(is_nan, 0)));
    EXPECT_TRUE(at::equal(weight.masked_fill(is_nan, 0), master.to(at::kBFloat16).masked_fill(is_nan, 0)));
    EXPECT_TRUE(at::equal(square.abs(), before));
    // Marked: the ties above an even upper half, of every number but NaN.
    const int64_t num_marks = at::signbit(square).sum().item<int64_t>();
    EXPECT_EQ(num_marks, 2 * (0x7F80 / 2));
  }
}

TEST_P(AdamwNarrow, RoundingAtRandomIsUnbiased) {
  constexpr int64_t kCount = 1 << 16;
  const DrawnRun drawn{.key = make_philox_key(0, "w"), .columns = kCount};
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    AdamwShard shard;
    shard.model = testing::ones({kCount}, at::kBFloat16);
    shard.grad = testing::ones({kCount});
    shard.exp_avg = testing::zeros({kCount}, at::kBFloat16);
    shard.exp_avg_sq = testing::zeros({kCount}, at::kBFloat16);
    shard.lr = 1e-4;
    shard.drawn = drawn;
    // The first step moves every weight by lr; below 1, bf16 numbers are 2^-8 apart, so nearest would leave all at 1.
    const AdamwOptions options{.beta1 = 0.9, .beta2 = 0.999, .step = 1};
    adamw_({shard}, testing::scalar_tensor(0.7, at::kDouble), options, kernels);
    struct Claim {
      const char* what;
      Tensor found;
      double expected, unit;
    };
    for (const Claim& claim :
         {Claim{"weight", shard.model, 1 - 1e-4, 0x1p-8}, Claim{"exp_avg", shard.exp_avg, 0.07, 0x1p-11},
          Claim{"exp_avg_sq", shard.exp_avg_sq, 0.00049, 0x1p-18}}) {
      const Tensor found = claim.found.to(at::kDouble);
      const double p = std::fmod(claim.expected, claim.unit) / claim.unit;  // of the upper neighbour
      // Five standard deviations of the mean of independent choices between two neighbours, and fp32's own rounding.
      const double bound = 5 * claim.unit * std::sqrt(p * (1 - p) / kCount) + 1e-6 * claim.expected;
      EXPECT_NEAR(found.mean().item<double>(), claim.expected, bound) << claim.what;
      EXPECT_EQ((found - claim.expected).abs().ge(claim.unit).sum().item<int64_t>(), 0) << claim.what;
      EXPECT_GT(found.max().item<double>(), found.min().item<double>()) << claim.what;
    }
    // The draws for an element's three numbers are independent.
    const Tensor up_w = shard.model.eq(1).to(at::kDouble), mean = shard.exp_avg.to(at::kDouble).mean();
    const Tensor up_m = shard.exp_avg.to(at::kDouble).gt(mean).to(at::kDouble);
    const double both = (up_w * up_m).mean().item<double>(),
                 apart = up_w.mean().item<double>() * up_m.mean().item<double>();
    EXPECT_NEAR(both, apart, 5 * 0.5 / std::sqrt(static_cast<double>(kCount)));
  }
}

TEST_P(AdamwNarrow, EveryStepAndEveryNameDrawsAnew) {
  const auto drawn_by = [](uint64_t key, int64_t step) {
    AdamwShard shard;
    shard.model = testing::ones({4096}, at::kBFloat16);
    shard.grad = testing::ones({4096});
    shard.exp_avg = testing::zeros({4096});
    shard.exp_avg_sq = testing::zeros({4096});
    shard.lr = 2e-3;  // half a unit below 1
    shard.drawn = DrawnRun{.key = key, .columns = 4096};
    adamw_({shard}, testing::scalar_tensor(1.0, at::kDouble), {.beta1 = 0, .beta2 = 0, .step = step});
    return shard.model.ne(1);
  };
  const Tensor first = drawn_by(1, 1);
  EXPECT_TRUE(at::equal(first, drawn_by(1, 1)));
  for (const Tensor& other : {drawn_by(2, 1), drawn_by(1, 2)}) {
    // Independent choices with p about 1/2 agree in half of the elements: 4096 of them within five deviations of 32.
    EXPECT_NEAR(first.eq(other).sum().item<double>(), 2048, 5 * 32);
  }
}

TEST_P(AdamwNarrow, HoweverATensorIsDividedItDrawsTheSame) {
  at::manual_seed(3);
  constexpr int64_t kRows = 24, kColumns = 50;
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const Form& form : kForms) {
      if (!form.is_random) continue;
      const AdamwShard start = narrow_shard(form, kRows * kColumns, {.key = 9, .columns = kRows * kColumns});
      const AdamwShard whole = clone_of(start);
      const Tensor scale = testing::scalar_tensor(1.0, at::kDouble);
      adamw_({whole}, scale, kNarrowOptions, kernels);
      // A rank's columns [13, 50) of all rows: the first eleven rows and the rest as shards of their own. Then the same
      // columns transposed, in one.
      for (const bool is_transposed : {false, true}) {
        const auto taken = [&](const Tensor& x) {
          if (!x.defined()) return x;
          const Tensor part = x.view({kRows, kColumns}).narrow(1, 13, 37);
          return (is_transposed ? part.t() : part).reshape({-1}).clone();
        };
        AdamwShard mine = start;
        for (const auto member : kTensors) mine.*member = taken(start.*member);
        mine.drawn = DrawnRun{.key = 9, .first = 13, .columns = kRows, .row_stride = 1, .column_stride = kColumns};
        std::vector<AdamwShard> parts = {mine};
        if (!is_transposed) {
          parts = {mine, mine};
          for (const auto member : kTensors) {
            if (!(mine.*member).defined()) continue;
            parts[0].*member = (mine.*member).narrow(0, 0, 11 * 37);
            parts[1].*member = (mine.*member).narrow(0, 11 * 37, 13 * 37);
          }
          parts[0].drawn = DrawnRun{.key = 9, .first = 13, .columns = 37, .row_stride = kColumns};
          parts[1].drawn = DrawnRun{.key = 9, .first = 11 * kColumns + 13, .columns = 37, .row_stride = kColumns};
        }
        adamw_(parts, scale, kNarrowOptions, kernels);
        for (const auto member : kTensors) {
          if (!(whole.*member).defined()) continue;
          EXPECT_TRUE(at::equal(mine.*member, taken(whole.*member))) << form.text() << is_transposed;
        }
      }
    }
  }
}

// The emulated kernels compute with the host's own arithmetic, so nothing may differ from the CPU's loops.
TEST_P(AdamwNarrow, TheEmulatedKernelIsTheCpusToTheBit) {
  if (GetParam().type() != at::kPrivateUse1) GTEST_SKIP() << "only the pretend accelerator has emulated kernels";
  at::manual_seed(4);
  for (const Form& form : kForms) {
    const AdamwShard there = narrow_shard(form, 1031, {.key = 3, .first = 1, .columns = 100, .row_stride = 300});
    AdamwShard here = there;
    for (const auto member : kTensors) {
      if ((here.*member).defined()) here.*member = (there.*member).cpu();
    }
    adamw_({there}, testing::scalar_tensor(0.5, at::kDouble), kNarrowOptions);
    adamw_({here}, at::scalar_tensor(0.5, at::kDouble), kNarrowOptions);
    for (const auto member : kTensors) {
      if (!(here.*member).defined()) continue;
      EXPECT_TRUE(at::equal((there.*member).cpu(), here.*member)) << form.text();
    }
  }
}

TEST_P(AdamwNarrow, AStepThatIsNotMadeChangesNothing) {
  at::manual_seed(7);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const Form& form : kForms) {
      const AdamwShard start = narrow_shard(form, 1031), shard = clone_of(start);
      shard.grad.fill_(std::nan(""));
      adamw_({shard}, testing::scalar_tensor(std::nan(""), at::kDouble), {}, kernels,
             {.step = testing::scalar_tensor(0.0, at::kDouble), .is_made = testing::zeros({}, at::kBool)});
      for (const auto member : kTensors) {
        if (member == &AdamwShard::grad || !(shard.*member).defined()) continue;
        EXPECT_TRUE(at::equal(shard.*member, start.*member)) << form.text();
      }
    }
  }
}

TEST(AdamwNarrow, WrongShardsAreNamed) {
  const Tensor scale = testing::scalar_tensor(1.0, at::kDouble);
  const auto refused = [&](const Form& form, const auto& change, const char* what) {
    AdamwShard shard = narrow_shard(form, 8);
    change(shard);
    try {
      adamw_({shard}, scale, kNarrowOptions);
      ADD_FAILURE() << "taken: " << what;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  const Form remainder = kForms[0], none = kForms[3];
  refused(
      remainder, [](AdamwShard& s) { s.remainder = s.remainder.to(at::kInt); }, "remainder");
  refused(
      remainder, [](AdamwShard& s) { s.remainder = s.remainder.narrow(0, 0, 7); }, "remainder");
  refused(
      remainder, [](AdamwShard& s) { s.model = s.model.to(at::kHalf); }, "model");
  refused(
      remainder, [](AdamwShard& s) { s.master = testing::ones({8}); }, "in its place");
  refused(
      remainder, [](AdamwShard& s) { s.drawn = DrawnRun{}; }, "keeps nothing in bfloat16");
  refused(
      none, [](AdamwShard& s) { s.model = s.model.to(at::kHalf); }, "model");
  refused(
      none, [](AdamwShard& s) { s.grad = s.grad.to(at::kHalf); }, "grad");
}

MEGALITH_ON_EVERY_DEVICE(AdamwNarrow);

}  // namespace
}  // namespace megalith::ops::adamw_narrow_test
