#include "nn/mlp.h"

#include "comm/groups.h"
#include "core/error.h"
#include "ops/swiglu.h"

namespace megalith {

namespace {

int64_t ffn_of_rank(int64_t ffn, int tp) {
  if (ffn % tp != 0) {
    throw UserError(fmt::format("tensor_model_parallel_size {} does not divide ffn_hidden_size {}", tp, ffn),
                    fmt::format("set tensor_model_parallel_size to a divisor of {}", ffn));
  }
  return ffn / tp;
}

}  // namespace

GatedMlp::GatedMlp(const LayerContext& context, const std::string& name, const MlpOptions& options)
    : ffn_(ffn_of_rank(options.ffn, context.groups->tp->size())),
      kernels_(context.kernels),
      gate_up_(context, name + ".gate_up_proj", options.hidden,
               {{name + ".gate_proj", options.ffn}, {name + ".up_proj", options.ffn}},
               {.role = LinearRole::kColumn, .init_std = options.init_std}),
      down_(context, name + ".down_proj", options.ffn, options.hidden,
            {.role = LinearRole::kRow, .init_std = options.output_init_std}) {
  register_module(gate_up_);
  register_module(down_);
}

at::Tensor GatedMlp::forward(const at::Tensor& x) { return down_.forward(ops::swiglu(gate_up_.forward(x), kernels_)); }

LayerCost GatedMlp::own_cost(const CostShape& shape) const {
  return {.kept_bytes = shape.b * shape.s * 2 * ffn_ * shape.activation_bytes};  // gate and up
}

}  // namespace megalith
