// SGD, Lion, Adafactor, 8-bit Adam and Muon on one rank against the formulas, step by step; and which rule takes what.
#include "optim/update_rules.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "optim/adam8bit.h"
#include "optim/muon.h"
#include "optim/optimizer.h"
#include "optim/state_layout.h"
#include "optim/update_rule.h"
#include "parallel/grad_buffer.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

constexpr double kLr = 0.02, kDecay = 0.3;
constexpr OptimizerKind kAllRules[] = {OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kMuon,
                                       OptimizerKind::kLion, OptimizerKind::kAdafactor,
                                       OptimizerKind::kAdam8bit};

// A parameter of every role, and an optimizer over them.
struct Roles {
  explicit Roles(const OptimizerOptions& options, at::ScalarType dtype = at::kDouble, bool has_narrow_grads = false) {
    add("matrix", {6, 4}, ParameterRole::kMatrix, dtype);
    add("tall", {9, 2}, ParameterRole::kRouter, dtype);
    Placement qkv;
    qkv.local_shape = {8, 4};
    qkv.pieces.push_back({"q", {4, 4}, Box::whole({4, 4}), Box{{0, 0}, {4, 4}}});
    qkv.pieces.push_back({"k", {2, 4}, Box::whole({2, 4}), Box{{4, 0}, {2, 4}}});
    qkv.pieces.push_back({"v", {2, 4}, Box::whole({2, 4}), Box{{6, 0}, {2, 4}}});
    add("qkv", qkv, ParameterRole::kQkv, dtype);
    add("norm", {5}, ParameterRole::kVector, dtype, /*decay_mult=*/0);
    add("embedding", {7, 4}, ParameterRole::kEmbedding, dtype);
    add("head", {7, 4}, ParameterRole::kHead, dtype);
    std::vector<Parameter*> pointers;
    for (const auto& one : params) pointers.push_back(one.get());
    for (Parameter* param : pointers) {
      if (has_narrow_grads) param->narrow_grad();
    }
    buffer = std::make_unique<GradBuffer>(pointers, groups, GradBufferOptions{});
    optimizer = std::make_unique<Optimizer>(*buffer, groups, options, Kernels::kReference);
  }

  void add(const std::string& name, std::vector<int64_t> shape, ParameterRole role, at::ScalarType dtype,
           double decay_mult = 1) {
    add(name, Placement::whole(name, std::move(shape)), role, dtype, decay_mult);
  }
  void add(const std::string& name, const Placement& placement, ParameterRole role, at::ScalarType dtype,
           double decay_mult = 1) {
    params.push_back(std::make_unique<Parameter>(
        name, placement,
        ParameterOptions{.dtype = dtype, .init = Init::normal(0.5), .decay_mult = decay_mult, .role = role}));
    params.back()->initialise(3);
  }
  Parameter& operator[](const std::string& name) {
    return **std::find_if(params.begin(), params.end(), [&](const auto& one) { return one->name() == name; });
  }
  static at::Tensor gradient(const Parameter& param, int step) {
    const int64_t count = param.placement().num_local_elements();
    const auto seed = static_cast<double>(param.name().size() + 10 * static_cast<size_t>(step));
    const at::Tensor i = at::arange(count, at::kDouble);
    return at::sin(0.37 * i * i + seed).view(param.placement().local_shape);  // of full rank
  }
  void step(int number) {
    for (const auto& one : params) one->grad().copy_(gradient(*one, number));
    optimizer->step(kLr, kDecay);
  }
  std::vector<std::string> keys(const std::string& name) {
    std::vector<std::string> found;
    for (const OptimizerTensor& entry : optimizer->state()) {
      if (entry.part->parameter->name() == name) found.push_back(entry.key);
    }
    return found;
  }

  Groups groups = Groups::single();
  std::vector<std::unique_ptr<Parameter>> params;
  std::unique_ptr<GradBuffer> buffer;
  std::unique_ptr<Optimizer> optimizer;
};

// The update of one matrix, written with the singular value decomposition.
at::Tensor orthogonal_by_svd(const at::Tensor& matrix, const MuonOptions& options) {
  auto [u, s, vh] = at::linalg_svd(matrix, /*full_matrices=*/false);
  at::Tensor x = s / matrix.norm();
  for (const auto& [a, b, c] : newton_schulz_steps(options.muon_coefficient_type, options.muon_num_ns_steps)) {
    x = a * x + b * x.pow(3) + c * x.pow(5);
  }
  const auto r = static_cast<double>(matrix.size(0)), k = static_cast<double>(matrix.size(1));
  const double scale = options.muon_scale_mode == MuonScaleMode::kSpectral      ? std::sqrt(std::max(r, k))
                       : options.muon_scale_mode == MuonScaleMode::kUnitRmsNorm ? std::sqrt(r / k)
                                                                                : std::sqrt(std::max(1.0, r / k));
  return (u * x).matmul(vh) * scale * options.muon_extra_scale_factor;
}

TEST(UpdateRules, MuonTakesMatricesAndAdamwTheRest) {
  Roles f({.optimizer = OptimizerKind::kMuon});
  const std::vector<std::string> muon = {"momentum_buffer"}, adamw = {"exp_avg", "exp_avg_sq"};
  for (const char* name : {"matrix", "tall", "qkv"}) EXPECT_EQ(f.keys(name), muon) << name;
  for (const char* name : {"norm", "embedding", "head"}) EXPECT_EQ(f.keys(name), adamw) << name;
  EXPECT_EQ(f.optimizer->rules_text(), "Muon 3, AdamW 3");
  EXPECT_EQ(Roles({}).optimizer->rules_text(), "AdamW 6");
  Roles narrow({.optimizer = OptimizerKind::kMuon}, at::kBFloat16);
  EXPECT_EQ(narrow.keys("matrix"), (std::vector<std::string>{"master", "momentum_buffer"}));
  // AdamW's parameters move as if AdamW had all of them.
  Roles alone({});
  for (int step = 0; step < 3; ++step) {
    f.step(step);
    alone.step(step);
  }
  for (const char* name : {"norm", "embedding", "head"}) EXPECT_TRUE(at::equal(f[name].data(), alone[name].data()));
  EXPECT_FALSE(at::equal(f["matrix"].data(), alone["matrix"].data()));
}

// A bf16 buffer's numbers move masters and states as the same numbers in fp32 do: nothing after it is rounded.
TEST(UpdateRules, ABf16GradientIsWidenedFirst) {
  for (const OptimizerKind kind : kAllRules) {
    const OptimizerOptions options{.optimizer = kind, .muon = {.muon_nesterov = true}};
    Roles wide(options, at::kBFloat16), narrow(options, at::kBFloat16, /*has_narrow_grads=*/true);
    EXPECT_EQ(narrow["matrix"].grad().scalar_type(), at::kBFloat16);
    for (int step = 0; step < 3; ++step) {
      for (Roles* roles : {&wide, &narrow}) {
        for (const auto& one : roles->params) one->grad().copy_(Roles::gradient(*one, step).to(at::kBFloat16));
        roles->optimizer->step(kLr, kDecay);
      }
    }
    ASSERT_EQ(narrow.optimizer->state().size(), wide.optimizer->state().size());
    for (size_t i = 0; i < wide.optimizer->state().size(); ++i) {
      const OptimizerTensor &found = narrow.optimizer->state()[i], &expected = wide.optimizer->state()[i];
      EXPECT_TRUE(at::equal(found.tensor, expected.tensor)) << found.part->parameter->name() << " " << found.key;
    }
  }
}

TEST(UpdateRules, MuonIsItsFormulaInEveryMode) {
  for (const MuonScaleMode mode :
       {MuonScaleMode::kSpectral, MuonScaleMode::kUnitRmsNorm, MuonScaleMode::kShapeScaling}) {
    for (const bool is_nesterov : {false, true}) {
      for (const bool splits : {false, true}) {
        const MuonOptions muon{.muon_momentum = 0.8,
                               .muon_nesterov = is_nesterov,
                               .muon_split_qkv = splits,
                               .muon_scale_mode = mode,
                               .muon_extra_scale_factor = 0.7,
                               .muon_num_ns_steps = 4};
        for (const char* name : {"matrix", "tall", "qkv"}) {
          Roles fresh({.optimizer = OptimizerKind::kMuon, .clip_grad = 0, .muon = muon});
          at::Tensor weight = fresh[name].data().clone(), momentum = at::zeros_like(weight);
          for (int step = 0; step < 3; ++step) {
            fresh.step(step);
            const at::Tensor g = Roles::gradient(fresh[name], step);
            momentum = 0.8 * momentum + 0.2 * g;
            const at::Tensor direction = is_nesterov ? 0.8 * momentum + 0.2 * g : momentum;
            const bool is_three = splits && std::string(name) == "qkv";
            const std::vector<int64_t> rows =
                is_three ? std::vector<int64_t>{4, 2, 2} : std::vector<int64_t>{direction.size(0)};
            std::vector<at::Tensor> updates;
            for (const at::Tensor& matrix : direction.split_with_sizes(rows)) {
              updates.push_back(orthogonal_by_svd(matrix, muon));
            }
            weight = (1 - kLr * kDecay) * weight - kLr * at::cat(updates);
          }
          EXPECT_TENSOR_NEAR(fresh[name].data(), weight, {.abs = 1e-11, .what = name});
        }
      }
    }
  }
}

// Two of the modes agree with a number that anybody can check.
TEST(UpdateRules, MuonsScalesAreThePublishedOnes) {
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kSpectral, 16, 64), 8);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kSpectral, 64, 16), 8);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kUnitRmsNorm, 16, 64), 0.5);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kUnitRmsNorm, 64, 16), 2);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kShapeScaling, 16, 64), 1);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kShapeScaling, 64, 16), 2);
}

TEST(UpdateRules, MuonSeesTheClippedGradientAndWithoutTheLossScale) {
  Roles free({.optimizer = OptimizerKind::kMuon, .clip_grad = 0}), clipped({.optimizer = OptimizerKind::kMuon});
  free.step(0);
  clipped.step(0);
  const auto momentum = [](Roles& f) {
    return std::find_if(f.optimizer->state().begin(), f.optimizer->state().end(),
                        [](const OptimizerTensor& one) { return one.key == "momentum_buffer"; })
        ->tensor;
  };
  double square = 0;
  for (const auto& one : free.params) square += Roles::gradient(*one, 0).square().sum().item<double>();
  ASSERT_GT(square, 1);
  EXPECT_TENSOR_NEAR(momentum(clipped), momentum(free) / (std::sqrt(square) + 1e-6), {.rel = 1e-12});
  Roles scaled({.optimizer = OptimizerKind::kMuon, .clip_grad = 0});
  for (const auto& one : scaled.params) one->grad().copy_(Roles::gradient(*one, 0) * 64);
  scaled.optimizer->step(kLr, kDecay, /*loss_scale=*/64);
  EXPECT_TENSOR_NEAR(momentum(scaled), momentum(free), {.what = "a power of two changes no bit"});
}

// bf16 or fp32, as the model or the option says: they differ by the rounding of bf16, and not at all otherwise.
TEST(UpdateRules, MuonComputesInThePrecisionThatIsAskedFor) {
  const auto moved = [](std::optional<std::string> precision, at::ScalarType dtype) {
    const MuonOptions muon{.muon_fp32_matmul_prec = std::move(precision)};
    Roles f({.optimizer = OptimizerKind::kMuon, .muon = muon}, dtype);
    for (const auto& one : f.params) one->data().zero_();
    f.optimizer->reset_masters();
    f.step(0);
    for (const OptimizerTensor& entry : f.optimizer->state()) {
      if (entry.key == "master" && entry.part->parameter->name() == "matrix") return entry.tensor.clone();
    }
    return f["matrix"].data().clone();
  };
  const at::Tensor exact = moved({}, at::kDouble);
  // An element moves by lr times about 1. The steps enlarge what fp32 rounds, 2^-24, by up to 500.
  EXPECT_TENSOR_NEAR(moved({}, at::kFloat), exact, {.abs = 500.0 / (1 << 24) * kLr, .what = "fp32 model"});
  EXPECT_TENSOR_NEAR(moved("high", at::kBFloat16), exact, {.abs = 500.0 / (1 << 24) * kLr, .what = "bf16 model, high"});
  const at::Tensor narrow = moved({}, at::kBFloat16);
  EXPECT_TENSOR_NEAR(narrow, exact, {.abs = 0.1 * kLr, .what = "bf16 model"});
  EXPECT_FALSE(at::allclose(narrow, exact.to(at::kFloat), 0, 1e-4 * kLr));
  EXPECT_TRUE(at::equal(moved("medium", at::kFloat), narrow));
  EXPECT_TRUE(at::equal(moved("medium", at::kDouble), exact));
}

TEST(UpdateRules, SgdIsItsFormula) {
  for (const double momentum : {0.0, 0.9}) {
    Roles f({.optimizer = OptimizerKind::kSgd, .clip_grad = 0, .sgd_momentum = momentum});
    std::vector<at::Tensor> weights, buffers;
    for (const auto& one : f.params) {
      weights.push_back(one->data().clone());
      buffers.push_back(at::zeros_like(weights.back()));
    }
    for (int step = 0; step < 3; ++step) {
      f.step(step);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double decay = f.params[i]->options().decay_mult * kDecay;
        buffers[i] = momentum * buffers[i] + Roles::gradient(*f.params[i], step) + decay * weights[i];
        weights[i] = weights[i] - kLr * buffers[i];
      }
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TENSOR_NEAR(f.params[i]->data(), weights[i], {.abs = 1e-13, .what = f.params[i]->name()});
    }
    EXPECT_EQ(f.optimizer->state().size(), momentum == 0 ? 0 : f.params.size());
  }
}

TEST(UpdateRules, LionIsItsFormula) {
  Roles f({.optimizer = OptimizerKind::kLion, .clip_grad = 0, .lion = {.lion_beta1 = 0.8, .lion_beta2 = 0.95}});
  std::vector<at::Tensor> weights, means;
  for (const auto& one : f.params) {
    weights.push_back(one->data().clone());
    means.push_back(at::zeros_like(weights.back()));
  }
  for (int step = 0; step < 4; ++step) {
    f.step(step);
    for (size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor g = Roles::gradient(*f.params[i], step);
      const at::Tensor direction = at::sign(0.8 * means[i] + 0.2 * g);
      weights[i] = weights[i] - kLr * (direction + f.params[i]->options().decay_mult * kDecay * weights[i]);
      means[i] = 0.95 * means[i] + 0.05 * g;
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TENSOR_NEAR(f.params[i]->data(), weights[i], {.abs = 1e-13, .what = f.params[i]->name()});
    EXPECT_TENSOR_NEAR(f.optimizer->state()[i].tensor, means[i], {.abs = 1e-13, .what = f.params[i]->name()});
  }
}

// Written as transformers does, for each canonical tensor by itself.
TEST(UpdateRules, AdafactorIsItsFormula) {
  const AdafactorOptions adafactor{.adafactor_decay_rate = -0.7, .adafactor_clip_threshold = 0.6};
  Roles f({.optimizer = OptimizerKind::kAdafactor, .clip_grad = 0, .adafactor = adafactor});
  struct Tensor {
    Parameter* parameter;
    int64_t first, size;  // rows
    at::Tensor weight, square, row, column;
  };
  std::vector<Tensor> tensors;
  for (const auto& one : f.params) {
    for (const Piece& piece : one->placement().pieces) {
      const int64_t first = piece.local.offset[0], size = piece.local.extent[0];
      tensors.push_back({one.get(), first, size, one->data().narrow(0, first, size).clone(), {}, {}, {}});
    }
  }
  ASSERT_EQ(tensors.size(), f.params.size() + 2);  // q, k and v
  const auto rms = [](const at::Tensor& x) { return x.square().mean().sqrt().item<double>(); };
  for (int step = 1; step <= 4; ++step) {
    f.step(step);
    const double beta = 1 - std::pow(step, -0.7);
    const auto mean = [&](at::Tensor& kept, const at::Tensor& now) {
      kept = kept.defined() ? beta * kept + (1 - beta) * now : (1 - beta) * now;
    };
    for (Tensor& one : tensors) {
      const at::Tensor g = Roles::gradient(*one.parameter, step).narrow(0, one.first, one.size);
      const at::Tensor square = g.square() + 1e-30;
      at::Tensor update;
      if (g.dim() == 1) {
        mean(one.square, square);
        update = g / one.square.sqrt();
      } else {
        mean(one.row, square.mean(1));
        mean(one.column, square.mean(0));
        update = g / at::outer(one.row / one.row.mean(), one.column).sqrt();
      }
      update = update / std::max(1.0, rms(update) / 0.6);
      const double lr = kLr * std::max(1e-3, rms(one.weight));
      one.weight = one.weight - lr * (one.parameter->options().decay_mult * kDecay * one.weight + update);
      EXPECT_TENSOR_NEAR(one.parameter->data().narrow(0, one.first, one.size), one.weight,
                         {.abs = 1e-13, .what = one.parameter->name()});
    }
  }
  EXPECT_EQ(f.keys("qkv"), (std::vector<std::string>{"exp_avg_sq_row", "exp_avg_sq_col"}));
  EXPECT_EQ(f.keys("norm"), (std::vector<std::string>{"exp_avg_sq"}));
  // Rows and columns of six matrices and a vector of five.
  EXPECT_EQ(f.optimizer->num_bytes(), 8 * (6 + 4 + 9 + 2 + 8 + 3 * 4 + 2 * (7 + 4) + 5));
}

// Written as bitsandbytes does, for each canonical tensor by itself; AdamW has the vector, which is too small.
TEST(UpdateRules, Adam8bitIsItsFormula) {
  const Adam8bitOptions eight_bits{.min_8bit_size = 8};
  Roles f({.optimizer = OptimizerKind::kAdam8bit, .clip_grad = 0, .adam8bit = eight_bits}), adamw({.clip_grad = 0});
  std::vector<std::pair<at::Tensor, at::Tensor>> expected;  // with the weight
  for (const auto& one : f.params) {
    if (one->name() == "norm") continue;
    for (const Piece& piece : one->placement().pieces) {
      const auto taken = [&](const at::Tensor& x) { return x.narrow(0, piece.local.offset[0], piece.local.extent[0]); };
      at::Tensor weight = taken(one->data()).clone();
      at::Tensor moments[2] = {at::zeros_like(weight), at::zeros_like(weight)};
      for (int step = 1; step <= 4; ++step) {
        const at::Tensor g = taken(Roles::gradient(*one, step));
        moments[0] = 0.9 * moments[0] + 0.1 * g;
        moments[1] = 0.999 * moments[1] + 0.001 * g.square();
        const at::Tensor size = (moments[1] / (1 - std::pow(0.999, step))).sqrt() + 1e-8;
        weight = (1 - kLr * kDecay) * weight - kLr * moments[0] / (1 - std::pow(0.9, step)) / size;
        for (at::Tensor& moment : moments) {
          const at::Tensor map = dynamic_map(/*is_signed=*/&moment == moments);
          const at::Tensor absmax = moment.abs().max().to(at::kFloat);
          moment = map.take((moment / absmax).unsqueeze(-1).sub(map).abs().argmin(-1)).to(at::kDouble) * absmax;
        }
      }
      expected.emplace_back(weight, taken(one->data()));
    }
  }
  for (int step = 1; step <= 4; ++step) {
    f.step(step);
    adamw.step(step);
  }
  for (const auto& [weight, found] : expected) EXPECT_TENSOR_NEAR(found, weight, {.abs = 1e-13});
  EXPECT_TRUE(at::equal(f["norm"].data(), adamw["norm"].data()));
  EXPECT_EQ(f.optimizer->rules_text(), "AdamW 8-bit 5, AdamW 1");
  // Two bytes an element and two scales a tensor; two fp64 moments of a vector of five.
  EXPECT_EQ(f.optimizer->num_bytes(), 2 * (24 + 18 + 32 + 28 + 28) + 2 * 4 * 7 + 2 * 8 * 5);
}

// The rules of an optimizer on slots of their own, as on a device whose decision the host does not read.
struct DecidedRules {
  DecidedRules(Roles& roles, const OptimizerOptions& options) : rules(make_update_rules(options, Kernels::kReference)) {
    slots.resize(rules.size());
    for (const OwnedPart& part : roles.buffer->parts()) {
      const size_t rule = rule_of(rules, *part.parameter);
      UpdateSlot slot{.part = &part, .model = part.model, .master = part.model.to(at::kFloat), .grad = part.grad};
      for (const StateSpec& spec : rules[rule]->state(*part.parameter)) {
        const bool is_whole = spec.shape != StateShape::kElements;
        const std::vector<int64_t> sizes =
            is_whole ? StateLayout(*part.parameter, spec.shape).placement().local_shape : part.model.sizes().vec();
        slot.state.push_back(at::full(sizes, 0.25, at::TensorOptions(spec.dtype)));
      }
      slot.lr = kLr;
      slot.weight_decay = kDecay;
      slots[rule].push_back(slot);
    }
    for (const auto& rule : rules) rule->prepare(*roles.buffer, roles.groups);
  }
  void update(const UpdateStep& step) {
    for (size_t rule = 0; rule < rules.size(); ++rule) rules[rule]->update(slots[rule], step);
  }
  // The model, the master and the state of every slot.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const auto& of_rule : slots) {
      for (const UpdateSlot& slot : of_rule) {
        all.push_back(slot.model.clone());
        all.push_back(slot.master.clone());
        for (const at::Tensor& state : slot.state) all.push_back(state.clone());
      }
    }
    return all;
  }

  std::vector<std::unique_ptr<UpdateRule>> rules;
  std::vector<std::vector<UpdateSlot>> slots;
};

TEST(UpdateRules, AStepThatIsNotMadeOnTheDeviceChangesNothing) {
  for (const OptimizerKind kind : kAllRules) {
    const OptimizerOptions options{.optimizer = kind, .sgd_momentum = 0.9};
    Roles roles(options, at::kBFloat16);
    DecidedRules decided(roles, options);
    const std::vector<at::Tensor> before = decided.values();
    for (const auto& one : roles.params) one->grad().fill_(std::nan(""));
    const at::Tensor nan = at::scalar_tensor(std::nan(""), at::kDouble);
    decided.update({.grad_scale = nan, .number = at::zeros({}, at::kDouble), .is_made = at::zeros({}, at::kBool)});
    const std::vector<at::Tensor> after = decided.values();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << i;
  }
}

TEST(UpdateRules, AStepThatIsMadeOnTheDeviceIsThatOfTheHost) {
  for (const OptimizerKind kind : kAllRules) {
    const OptimizerOptions options{.optimizer = kind, .sgd_momentum = 0.9};
    std::vector<std::vector<at::Tensor>> outcomes;
    for (const at::Tensor& is_made : {at::Tensor(), at::ones({}, at::kBool)}) {
      Roles roles(options, at::kBFloat16);
      DecidedRules decided(roles, options);
      const std::vector<at::Tensor> before = decided.values();
      for (const auto& one : roles.params) one->grad().copy_(Roles::gradient(*one, 1));
      decided.update(
          {.grad_scale = at::full({}, 0.5, at::kDouble), .number = at::full({}, 3.0, at::kDouble), .is_made = is_made});
      outcomes.push_back(decided.values());
      for (size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(at::equal(outcomes.back()[i], before[i])) << i;
    }
    for (size_t i = 0; i < outcomes[0].size(); ++i) EXPECT_TRUE(at::equal(outcomes[0][i], outcomes[1][i])) << i;
  }
}

TEST(UpdateRules, Adam8bitMovesAFewElementsAtOnceAsItMovesAll) {
  const OptimizerOptions options{.optimizer = OptimizerKind::kAdam8bit, .adam8bit = {.min_8bit_size = 8}};
  std::vector<std::vector<at::Tensor>> outcomes;
  for (const int64_t most : {3, 1000}) {
    Roles roles(options, at::kBFloat16);
    DecidedRules decided(roles, options);
    decided.rules[0] = std::make_unique<Adam8bitRule>(options, most);
    decided.rules[0]->prepare(*roles.buffer, roles.groups);
    for (const auto& one : roles.params) one->grad().copy_(Roles::gradient(*one, 1));
    decided.update({.grad_scale = at::ones({}, at::kDouble), .number = at::ones({}, at::kDouble), .is_made = {}});
    outcomes.push_back(decided.values());
  }
  for (size_t i = 0; i < outcomes[0].size(); ++i) EXPECT_TRUE(at::equal(outcomes[0][i], outcomes[1][i])) << i;
}

TEST(UpdateRules, SgdKeepsWhatBf16WouldLose) {
  Roles f({.optimizer = OptimizerKind::kSgd, .clip_grad = 0, .sgd_momentum = 0}, at::kBFloat16);
  f["norm"].data().fill_(1.0);
  f.optimizer->reset_masters();
  for (int step = 0; step < 100; ++step) {
    for (const auto& one : f.params) one->grad().fill_(1.0);
    f.optimizer->step(/*lr=*/1e-4, 0);
  }
  EXPECT_NEAR(f["norm"].data()[0].item<float>(), 0.99, 1.0 / 256);
}

TEST(UpdateRules, BucketsAreCutBetweenTheMatricesOfMuonOnly) {
  const BucketCutFunction muon = bucket_cut({.optimizer = OptimizerKind::kMuon}), adam = bucket_cut({});
  Roles f({});
  EXPECT_EQ(muon(f["matrix"]), BucketCut::kBetweenMatrices);
  EXPECT_EQ(muon(f["qkv"]), BucketCut::kBetweenMatrices);
  EXPECT_EQ(muon(f["embedding"]), BucketCut::kAnywhere);
  EXPECT_EQ(muon(f["norm"]), BucketCut::kAnywhere);
  for (const auto& one : f.params) EXPECT_EQ(adam(*one), BucketCut::kAnywhere);
}

TEST(UpdateRules, TheBytesForecastAreThoseThatAreHeld) {
  for (const OptimizerKind kind : kAllRules) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const OptimizerOptions options{.optimizer = kind};
      const Roles f(options, dtype);
      std::vector<Parameter*> params;
      for (const auto& one : f.params) params.push_back(one.get());
      EXPECT_EQ(optimizer_bytes(params, options), f.optimizer->num_bytes());
    }
  }
}

TEST(UpdateRules, OptionsThatAnOptimizerCannotFollowAreRefused) {
  OptimizerOptions options{.optimizer = OptimizerKind::kSgd,
                           .use_precision_aware_optimizer = true,
                           .exp_avg_dtype = MomentDtype::kBf16,
                           .exp_avg_sq_dtype = MomentDtype::kBf16};
  ASSERT_EQ(check_optimizer_options(options).size(), 1u);
  options.optimizer = OptimizerKind::kMuon;
  EXPECT_TRUE(check_optimizer_options(options).empty());
}

TEST(UpdateRules, OptionsOfAnotherRuleAreRefused) {
  OptimizerOptions options{.lion = {.lion_beta2 = 0.95}};
  const std::vector<UserError> errors = check_optimizer_options(options);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_STREQ(errors[0].what(),
               "lion_beta2 is for optimizer lion, which is adam\n  set optimizer to lion, or leave lion_beta2 out");
  options.optimizer = OptimizerKind::kLion;
  EXPECT_TRUE(check_optimizer_options(options).empty());
}

}  // namespace
}  // namespace megalith
