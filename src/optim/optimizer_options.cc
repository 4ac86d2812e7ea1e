#include "optim/optimizer_options.h"

#include <array>
#include <string_view>

#include "optim/newton_schulz.h"

namespace megalith {
namespace {

constexpr std::array<const char*, 6> kOptimizerWords = {"adam", "sgd", "muon", "lion", "adafactor", "adam8bit"};

std::string_view word_of(OptimizerKind kind) { return kOptimizerWords[static_cast<size_t>(kind)]; }

}  // namespace

void OptimizerOptions::visit(OptionVisitor& v) {
  v.group("Optimizer", {.in_toy = InToy::kKept});
  v.choice(
      "optimizer", optimizer, {kOptimizerWords.begin(), kOptimizerWords.end()},
      "Rule of the update. adam: AdamW with decoupled weight decay. sgd: SGD with momentum, where weight decay is "
      "added to the gradient. muon: Muon for matrices, AdamW for embedding, head, norms and biases. lion: the sign "
      "of a momentum, with decoupled weight decay. adafactor: Adafactor, whose second moment of a matrix is its "
      "rows' and columns' means. adam8bit: AdamW with moments in eight bits.");
  v.field("adam_beta1", adam_beta1, "Decay of the first moment, the running mean of the gradient.")
      .at_least(0)
      .below(1);
  v.field("adam_beta2", adam_beta2, "Decay of the second moment, the running mean of the squared gradient.")
      .at_least(0)
      .below(1);
  v.field("adam_eps", adam_eps, "Added to the root of the second moment.").above(0).in_toy(InToy::kMade);
  v.field("clip_grad", clip_grad,
          "Largest global gradient norm; larger gradients are scaled down to it. 0 turns clipping off.")
      .at_least(0)
      .in_toy(InToy::kMade);
  v.field(
       "grad_norm_skip_threshold", grad_norm_skip_threshold,
       "Largest gradient norm, before clipping, of a step that is made; one that is larger or not finite is left out "
       "and counted, instead of ending the run.")
      .above(0);
  v.field("check_for_nan_in_loss_and_grad", check_for_nan_in_loss_and_grad,
          "Stop the run when the loss or a gradient is not finite. With false, that step is skipped and counted.");
  v.field("sft_sanitize_nan_grads", sft_sanitize_nan_grads,
          "Set elements of the gradient that are not finite to 0 once it is summed over all ranks, and count them, "
          "instead of leaving the step out: for benchmarks whose numbers do not matter.");
  v.field("log_num_zeros_in_grad", log_num_zeros_in_grad, "Log the number of zeros in the gradient.");
  v.field("use_precision_aware_optimizer", use_precision_aware_optimizer,
          "Allow moments in a narrower dtype than the master weights'.");
  v.choice("exp_avg_dtype", exp_avg_dtype, {"fp32", "bf16"},
           "Dtype that the first moment is kept in; it is updated in fp32.")
      .in_toy(InToy::kSetAside);
  v.choice("exp_avg_sq_dtype", exp_avg_sq_dtype, {"fp32", "bf16"},
           "Dtype that the second moment is kept in; it must be exp_avg_dtype.")
      .in_toy(InToy::kDefault);
  v.choice("master_weights", master_weights, {"fp32", "remainder", "none"},
           "What AdamW keeps beside a bf16 weight. fp32: a copy of 4 bytes. remainder: the 16 bits that the weight "
           "lacks, with the same results to the bit. none: nothing; steps smaller than half a unit of bf16 need "
           "stochastic_rounding.")
      .in_toy(InToy::kSetAside);
  v.field("stochastic_rounding", stochastic_rounding,
          "Round what AdamW keeps in bf16, moments and weights without masters, up or down at random, so that the "
          "expected value is exact. The same under every layout.")
      .in_toy(InToy::kDefault);
  v.field(
       "optimizer_cpu_offload", optimizer_cpu_offload,
       "Keep master weights and moments in host memory, where the CPU moves them: gradients travel there, and updated "
       "weights back. On the CPU nothing changes.")
      .changes_numbers(false);
  v.field(
       "optimizer_offload_fraction", optimizer_offload_fraction,
       "With optimizer_cpu_offload, the part of this rank's elements whose state lies in host memory, in the order of "
       "the parameters; the device keeps and moves the rest.")
      .within(0, 1)
      .changes_numbers(false);
  v.field(
       "overlap_cpu_optimizer_d2h_h2d", overlap_cpu_optimizer_d2h_h2d,
       "With optimizer_cpu_offload, fetch the next gradients and send back the last weights while the CPU moves what "
       "lies between.")
      .changes_numbers(false);
  v.field("sgd_momentum", sgd_momentum, "Decay of SGD's momentum; 0 means no momentum and no optimizer state.")
      .at_least(0)
      .below(1);
  muon.visit(v);
  lion.visit(v);
  adafactor.visit(v);
  adam8bit.visit(v);
}

void MuonOptions::visit(OptionVisitor& v) {
  v.group("Muon", {.in_toy = InToy::kKept});
  v.field("muon_momentum", muon_momentum, "Decay of Muon's momentum, a running mean of the gradient.")
      .at_least(0)
      .below(1);
  v.field("muon_nesterov", muon_nesterov,
          "Nesterov's momentum: the update is made from the gradient and the new momentum.")
      .alias("muon_use_nesterov");
  v.field("muon_split_qkv", muon_split_qkv,
          "Treat queries, keys and values as three matrices. With false they are one matrix, stacked.")
      .opposite("muon_no_split_qkv");
  v.choice(
      "muon_scale_mode", muon_scale_mode, {"spectral", "unit_rms_norm", "shape_scaling"},
      "What the orthogonal update of a matrix with r rows (outputs) and c columns (inputs) is multiplied by. spectral: "
      "sqrt(max(r, c)). unit_rms_norm: sqrt(r / c). shape_scaling: sqrt(max(1, r / c)), as in torch.optim.Muon.");
  v.field("muon_extra_scale_factor", muon_extra_scale_factor,
          "Another factor of the update; with spectral, 0.2 makes it about as large as AdamW's.")
      .above(0);
  v.field("muon_num_ns_steps", muon_num_ns_steps, "Newton-Schulz steps that make the update orthogonal.").within(1, 99);
  v.field("muon_coefficient_type", muon_coefficient_type,
          "Coefficients of the Newton-Schulz steps; simple has one set for all steps, as torch.optim.Muon does.")
      .words(newton_schulz_words());
  v.field("muon_fp32_matmul_prec", muon_fp32_matmul_prec,
          "Compute the Newton-Schulz steps of fp32 momentum in bf16 (medium) or fp32 (high). Default: high for an fp32 "
          "model, otherwise medium.")
      .words({"medium", "high"})
      .in_toy(InToy::kSetAside);
}

void LionOptions::visit(OptionVisitor& v) {
  v.group("Lion", {.in_toy = InToy::kKept});
  v.field("lion_beta1", lion_beta1, "Weight of Lion's momentum in the direction, beside the gradient's.")
      .at_least(0)
      .below(1);
  v.field("lion_beta2", lion_beta2, "Decay of Lion's momentum, a running mean of the gradient.").at_least(0).below(1);
}

void AdafactorOptions::visit(OptionVisitor& v) {
  v.group("Adafactor", {.in_toy = InToy::kKept});
  v.field("adafactor_decay_rate", adafactor_decay_rate,
          "Power of the step that is the second moment's 1 - decay, which therefore grows towards 1.")
      .within(-1, -0.1);
  v.field("adafactor_clip_threshold", adafactor_clip_threshold,
          "Largest root mean square of a matrix's or vector's update, before the learning rate.")
      .above(0);
  v.field("adafactor_eps1", adafactor_eps1, "Added to squared gradients.").above(0).in_toy(InToy::kMade);
  v.field("adafactor_eps2", adafactor_eps2, "Smallest root mean square that a weight counts with.").above(0);
  v.field("adafactor_scale_parameter", adafactor_scale_parameter,
          "Multiply the learning rate by the root mean square of the weight.");
}

void Adam8bitOptions::visit(OptionVisitor& v) {
  v.group("8-bit Adam", {.in_toy = InToy::kKept});
  v.field("min_8bit_size", min_8bit_size, "Least size of a tensor whose moments have eight bits; others are fp32.")
      .unit("elements")
      .at_least(1)
      .in_toy(InToy::kMade);
}

std::string_view OptimizerOptions::word() const { return word_of(optimizer); }

std::string_view OptimizerOptions::needs_device() const {
  if (optimizer == OptimizerKind::kMuon) return "whose matrix products belong on the device";
  if (optimizer == OptimizerKind::kAdafactor) return "which needs whole matrices on the device";
  if (optimizer == OptimizerKind::kAdam8bit) return "which needs its blocks on the device";
  return "";
}

namespace {

template <typename RuleOptions>
void append_unread(const OptimizerOptions& options, OptimizerKind reader, RuleOptions given,
                   std::vector<UserError>& errors) {
  if (options.optimizer == reader) return;
  RuleOptions fresh;
  const OptionSet all(given), defaults(fresh);
  for (const auto& untouched : defaults.options()) {
    const Option& option = *all.find(untouched->name());
    if (option.text() == untouched->text()) continue;
    errors.emplace_back(
        fmt::format("{} is for optimizer {}, which is {}", option.name(), word_of(reader), options.word()),
        fmt::format("set optimizer to {}, or leave {} out", word_of(reader), option.name()));
  }
}

void append_narrow_errors(const OptimizerOptions& options, std::vector<UserError>& errors) {
  const bool is_narrow = options.master_weights != MasterWeights::kFp32;
  if (is_narrow && !options.has_adamw()) {
    errors.emplace_back(
        fmt::format("master_weights {} with optimizer {}, which moves fp32 masters only",
                    options.master_weights == MasterWeights::kNone ? "none" : "remainder", options.word()),
        "leave master_weights out, or use optimizer adam");
  }
  if (options.stochastic_rounding && options.exp_avg_dtype == MomentDtype::kFp32 &&
      options.master_weights != MasterWeights::kNone) {
    errors.emplace_back("stochastic_rounding has nothing to round: moments and master weights are exact",
                        "add --use_precision_aware_optimizer --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16, or "
                        "--master_weights none, or leave stochastic_rounding out");
  }
}

void append_offload_errors(const OptimizerOptions& options, std::vector<UserError>& errors) {
  if (options.optimizer_cpu_offload) {
    if (const std::string_view reason = options.needs_device(); !reason.empty()) {
      errors.emplace_back(fmt::format("optimizer_cpu_offload with optimizer {}, {}", options.word(), reason),
                          "use optimizer adam or sgd, or divide the state with use_distributed_optimizer");
    }
    return;
  }
  if (options.overlap_cpu_optimizer_d2h_h2d) {
    errors.emplace_back("overlap_cpu_optimizer_d2h_h2d needs optimizer_cpu_offload",
                        "add --optimizer_cpu_offload, or leave overlap_cpu_optimizer_d2h_h2d out");
  }
  if (options.optimizer_offload_fraction != 1.0) {
    errors.emplace_back(
        fmt::format("optimizer_offload_fraction {} needs optimizer_cpu_offload", options.optimizer_offload_fraction),
        "add --optimizer_cpu_offload, or leave optimizer_offload_fraction out");
  }
}

}  // namespace

std::vector<UserError> check_optimizer_options(const OptimizerOptions& options) {
  std::vector<UserError> errors;
  const auto name = [](MomentDtype dtype) { return dtype == MomentDtype::kBf16 ? "bf16" : "fp32"; };
  if (options.exp_avg_dtype != options.exp_avg_sq_dtype) {
    errors.emplace_back(fmt::format("exp_avg_dtype {} and exp_avg_sq_dtype {} differ", name(options.exp_avg_dtype),
                                    name(options.exp_avg_sq_dtype)),
                        "give both moments one dtype");
  } else if (options.exp_avg_dtype != MomentDtype::kFp32 && !options.use_precision_aware_optimizer) {
    errors.emplace_back(
        fmt::format("exp_avg_dtype {} needs use_precision_aware_optimizer", name(options.exp_avg_dtype)),
        "add --use_precision_aware_optimizer, or keep the moments in fp32");
  } else if (options.exp_avg_dtype != MomentDtype::kFp32 && !options.has_adamw()) {
    errors.emplace_back(fmt::format("exp_avg_dtype {} with optimizer {}, which keeps no such moments",
                                    name(options.exp_avg_dtype), options.word()),
                        "leave exp_avg_dtype and exp_avg_sq_dtype out");
  }
  append_narrow_errors(options, errors);
  append_offload_errors(options, errors);
  append_unread(options, OptimizerKind::kLion, options.lion, errors);
  append_unread(options, OptimizerKind::kAdafactor, options.adafactor, errors);
  append_unread(options, OptimizerKind::kAdam8bit, options.adam8bit, errors);
  return errors;
}

}  // namespace megalith
