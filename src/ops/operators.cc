// Every operator, explicitly: linking never drops one.
#include "ops/operators.h"

#include "ops/activation/activation.h"
#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
#include "ops/dropout/dropout.h"
#include "ops/expert_activation/expert_activation.h"
#include "ops/fp8_cast/fp8_cast.h"
#include "ops/grad_norm/grad_norm.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/jitter/jitter.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/merge_attention/merge_attention.h"
#include "ops/nf4/nf4.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rotary/rotary.h"
#include "ops/router/router.h"
#include "ops/sinkhorn/sinkhorn.h"
#include "ops/swiglu/swiglu.h"
#include "ops/token_permutation/token_permutation.h"

namespace megalith::ops {
namespace {

template <typename Table, typename Function>
struct Member {
  const char* name;
  Function* Table::*function;
};
template <typename Table, typename Function>
Member<Table, Function> member(const char* name, Function* Table::*function) {
  return {name, function};
}

class OriginsOn {
 public:
  OriginsOn(at::Device device, Kernels kernels) : device_(device), kernels_(kernels) {}

  template <typename Table, typename... Functions>
  void add(const Operator<Table>& op, const Member<Table, Functions>&... members) {
    static_assert(sizeof...(Functions) * sizeof(void (*)()) == sizeof(Table), "a function of the table is not listed");
    (origins.push_back({members.name, op.choose(members.function, device_, kernels_).origin}), ...);
  }

  std::vector<OperatorOrigin> origins;

 private:
  at::Device device_;
  Kernels kernels_;
};

}  // namespace

std::vector<OperatorOrigin> list_operators(at::Device device, Kernels kernels) {
  OriginsOn on(device, kernels);
  on.add(kRmsNorm, member("rms_norm_forward", &RmsNormTable::forward),
         member("rms_norm_backward", &RmsNormTable::backward));
  on.add(kLayerNorm, member("layer_norm_forward", &LayerNormTable::forward),
         member("layer_norm_backward", &LayerNormTable::backward));
  on.add(kLinear, member("linear_forward", &LinearTable::forward), member("linear_dgrad", &LinearTable::dgrad),
         member("linear_wgrad_", &LinearTable::wgrad_), member("bias_grad_", &LinearTable::bias_grad_),
         member("embedding_forward", &LinearTable::embedding_forward),
         member("embedding_wgrad_", &LinearTable::embedding_wgrad_));
  on.add(kFp8Cast, member("fp8_cast", &Fp8CastTable::cast));
  on.add(kNf4, member("nf4_quantise", &Nf4Table::quantise), member("nf4_dequantise", &Nf4Table::dequantise));
  on.add(kRotary, member("rotary", &RotaryTable::forward), member("rotary_backward", &RotaryTable::backward));
  on.add(kAttention, member("attention_forward", &AttentionTable::forward),
         member("attention_backward", &AttentionTable::backward));
  on.add(kMergeAttention, member("merge_attention_", &MergeAttentionTable::merge_));
  on.add(kSwiglu, member("swiglu", &SwigluTable::forward), member("swiglu_backward", &SwigluTable::backward));
  on.add(kActivation, member("activation", &ActivationTable::forward),
         member("activation_backward", &ActivationTable::backward));
  on.add(kDropout, member("dropout", &DropoutTable::dropout));
  on.add(kJitter, member("jitter", &JitterTable::jitter));
  on.add(kSinkhorn, member("sinkhorn", &SinkhornTable::sinkhorn));
  on.add(kRouter, member("route_tokens", &RouterTable::forward),
         member("route_tokens_backward", &RouterTable::backward));
  on.add(kTokenPermutation, member("sort_by_expert", &TokenPermutationTable::sort_by_expert),
         member("permute_tokens", &TokenPermutationTable::permute_tokens),
         member("combine_tokens", &TokenPermutationTable::combine_tokens),
         member("combine_tokens_backward", &TokenPermutationTable::combine_tokens_backward));
  on.add(kGroupedLinear, member("grouped_linear_forward", &GroupedLinearTable::forward),
         member("grouped_linear_dgrad", &GroupedLinearTable::dgrad),
         member("grouped_linear_wgrad_", &GroupedLinearTable::wgrad_));
  on.add(kExpertActivation, member("expert_activation", &ExpertActivationTable::forward),
         member("expert_activation_backward", &ExpertActivationTable::backward));
  on.add(kLinearCrossEntropy, member("linear_cross_entropy", &LinearCrossEntropyTable::whole),
         member("softmax_statistics", &LinearCrossEntropyTable::statistics),
         member("cross_entropy_gradient_", &LinearCrossEntropyTable::gradient_));
  on.add(kGradNorm, member("squared_norm", &GradNormTable::squared_norm),
         member("squared_norm_and_zeros", &GradNormTable::squared_norm_and_zeros));
  on.add(kAdamw, member("adamw_", &AdamwTable::step));
  return on.origins;
}

}  // namespace megalith::ops
