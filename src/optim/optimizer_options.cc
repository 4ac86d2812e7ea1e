// See optimizer_options.h.
#include "optim/optimizer_options.h"

namespace megalith {

void OptimizerOptions::visit(OptionVisitor& v) {
  v.group("Optimizer");
  v.choice("optimizer", optimizer, {"adam", "sgd"},
           "adam: AdamW with decoupled weight decay; sgd: with momentum, weight decay as a part of the gradient.");
  v.field("adam_beta1", adam_beta1, "Decay of the first moment.").at_least(0).below(1);
  v.field("adam_beta2", adam_beta2, "Decay of the second moment.").at_least(0).below(1);
  v.field("adam_eps", adam_eps, "Added to the root of the second moment.").above(0);
  v.field("clip_grad", clip_grad, "Largest global gradient norm; 0 turns clipping off.").at_least(0);
  v.field("check_for_nan_in_loss_and_grad", check_for_nan_in_loss_and_grad,
          "Stop the run when the loss or a gradient is not finite; otherwise that step is skipped and counted.");
  v.field("log_num_zeros_in_grad", log_num_zeros_in_grad, "Count the zeros in the gradient, for the record.");
  v.field("use_precision_aware_optimizer", use_precision_aware_optimizer,
          "Allows moments in a narrower dtype than the master weights'.");
  v.choice("exp_avg_dtype", exp_avg_dtype, {"fp32", "bf16"},
           "Dtype that the first moment is kept in; it is updated in fp32.");
  v.choice("exp_avg_sq_dtype", exp_avg_sq_dtype, {"fp32", "bf16"},
           "Dtype that the second moment is kept in; the same as the first one's.");
  v.field("sgd_momentum", sgd_momentum, "Decay of SGD's momentum; 0: no momentum, and no state.").at_least(0).below(1);
}

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
  } else if (options.exp_avg_dtype != MomentDtype::kFp32 && options.optimizer == OptimizerKind::kSgd) {
    errors.emplace_back(
        fmt::format("exp_avg_dtype {} with optimizer sgd, which keeps no such moments", name(options.exp_avg_dtype)),
        "leave exp_avg_dtype and exp_avg_sq_dtype out");
  }
  return errors;
}

}  // namespace megalith
