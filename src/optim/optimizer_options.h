// What the user says of the optimizer, in Megatron-LM's names.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "core/option.h"

namespace megalith {

enum class OptimizerKind { kAdam, kSgd };
enum class MomentDtype { kFp32, kBf16 };

struct OptimizerOptions {
  OptimizerKind optimizer = OptimizerKind::kAdam;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double clip_grad = 1.0;
  bool check_for_nan_in_loss_and_grad = true;
  bool log_num_zeros_in_grad = false;
  bool use_precision_aware_optimizer = false;
  MomentDtype exp_avg_dtype = MomentDtype::kFp32, exp_avg_sq_dtype = MomentDtype::kFp32;
  double sgd_momentum = 0.9;

  void visit(OptionVisitor& v);
};

// The rules between them; empty when all hold.
std::vector<UserError> check_optimizer_options(const OptimizerOptions& options);

}  // namespace megalith
