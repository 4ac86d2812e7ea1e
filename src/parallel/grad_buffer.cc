#include "parallel/grad_buffer.h"

namespace megalith {

GradBuffer::GradBuffer(const std::vector<Parameter*>& params, const Groups& groups, const GradBufferOptions& options)
    : params_(params),
      groups_(groups),
      reducer_(plan_buckets(params, {.bucket_elements = options.bucket_elements}), groups,
               GradReducer::Form::kAllReduce, options, params.empty() ? at::kCPU : params[0]->value().device()) {
  model_parts_ = whole_parameters(params);
  for (Parameter* param : params) {
    if (!param->is_trainable()) continue;
    parts_.push_back({.parameter = param,
                      .range = std::nullopt,
                      .model = param->data(),
                      .grad = param->grad(),
                      .replica_axes = param->placement().replica_axes});
  }
}

void GradBuffer::initialise(uint64_t seed, bool only_adapters) {
  for (Parameter* param : params_) {
    if (!only_adapters || param->options().is_adapter) param->initialise(seed);
  }
}

void GradBuffer::finish_step() {
  reducer_.finish_step();
  sum_over_model_ranks(parts_, groups_);
}

int64_t GradBuffer::parameter_bytes() const {
  int64_t bytes = 0;
  for (const Parameter* param : params_) bytes += param->num_bytes();
  return bytes;
}

}  // namespace megalith
