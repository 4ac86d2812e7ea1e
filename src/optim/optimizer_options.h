// The optimizer's options, in Megatron-LM's names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

enum class OptimizerKind { kAdam, kSgd, kMuon, kLion, kAdafactor, kAdam8bit };
enum class MomentDtype { kFp32, kBf16 };
// Kept with a bf16 weight.
enum class MasterWeights { kFp32, kRemainder, kNone };

// Factor of the orthogonal update of an (r outputs, c inputs) matrix.
enum class MuonScaleMode {
  kSpectral,      // sqrt(max(r, c)): elements move by about lr, whatever the shape
  kUnitRmsNorm,   // sqrt(r / c): outputs of root mean square 1 move by about lr
  kShapeScaling,  // sqrt(max(1, r / c)): torch.optim.Muon's own
};

struct MuonOptions {
  double muon_momentum = 0.9;
  bool muon_nesterov = false;
  bool muon_split_qkv = true;
  MuonScaleMode muon_scale_mode = MuonScaleMode::kSpectral;
  double muon_extra_scale_factor = 1.0;
  int64_t muon_num_ns_steps = 5;
  std::string muon_coefficient_type = "quintic";
  std::optional<std::string> muon_fp32_matmul_prec;

  void visit(OptionVisitor& v);
};

struct LionOptions {
  double lion_beta1 = 0.9, lion_beta2 = 0.99;

  void visit(OptionVisitor& v);
};

struct AdafactorOptions {
  double adafactor_decay_rate = -0.8;
  double adafactor_clip_threshold = 1.0;
  double adafactor_eps1 = 1e-30, adafactor_eps2 = 1e-3;
  bool adafactor_scale_parameter = true;

  void visit(OptionVisitor& v);
};

struct Adam8bitOptions {
  int64_t min_8bit_size = 4096;

  void visit(OptionVisitor& v);
};

struct OptimizerOptions {
  OptimizerKind optimizer = OptimizerKind::kAdam;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double clip_grad = 1.0;
  std::optional<double> grad_norm_skip_threshold;
  bool check_for_nan_in_loss_and_grad = true;
  bool sft_sanitize_nan_grads = false;
  bool log_num_zeros_in_grad = false;
  bool use_precision_aware_optimizer = false;
  MomentDtype exp_avg_dtype = MomentDtype::kFp32, exp_avg_sq_dtype = MomentDtype::kFp32;
  MasterWeights master_weights = MasterWeights::kFp32;
  bool stochastic_rounding = false;
  bool optimizer_cpu_offload = false, overlap_cpu_optimizer_d2h_h2d = false;
  double optimizer_offload_fraction = 1.0;
  double sgd_momentum = 0.9;
  MuonOptions muon;
  LionOptions lion;
  AdafactorOptions adafactor;
  Adam8bitOptions adam8bit;

  void visit(OptionVisitor& v);
  std::string_view word() const;  // of `optimizer`
  // AdamW's moments and masters may be narrow.
  bool has_adamw() const { return optimizer == OptimizerKind::kAdam || optimizer == OptimizerKind::kMuon; }
  // Reason why state cannot be in host memory; empty: it can.
  std::string_view needs_device() const;
};

// Broken rules between options; empty if none.
std::vector<UserError> check_optimizer_options(const OptimizerOptions& options);

}  // namespace megalith
