#include "models/prediction_module.h"

#include <ATen/ATen.h>

#include "comm/groups.h"
#include "comm/sequence_shard.h"

namespace megalith {
namespace {

std::string module_name(const ModelConfig& config, const TransformerNames& names, int64_t depth) {
  return fmt::format("{}.{}", names.layers, config.num_layers + depth - 1);
}

}  // namespace

PredictionModule::PredictionModule(const LayerContext& context, const ModelConfig& config,
                                   const TransformerNames& names, int64_t depth)
    : layer_(config.num_layers + depth - 1),
      loss_name_(fmt::format("mtp_{} loss", depth)),
      embedding_norm_(context, module_name(config, names, depth) + ".enorm", config.hidden_size, config),
      hidden_norm_(context, module_name(config, names, depth) + ".hnorm", config.hidden_size, config),
      projection_(context, module_name(config, names, depth) + ".eh_proj", 2 * config.hidden_size, config.hidden_size,
                  {.role = LinearRole::kReplicated, .init_std = config.init_method_std}),
      block_(context, module_name(config, names, depth), config, decoder_site(config, names, layer_)),
      final_norm_(context, module_name(config, names, depth) + ".shared_head.norm", config.hidden_size, config) {
  register_module(embedding_norm_);
  register_module(hidden_norm_);
  register_module(projection_);
  register_module(block_);
  register_module(final_norm_);
}

at::Tensor PredictionModule::forward(const at::Tensor& hidden, const at::Tensor& embedded,
                                     const ForwardContext& forward, const RotaryAngles& angles) {
  const at::Tensor joined = at::cat({embedding_norm_.forward(embedded), hidden_norm_.forward(hidden)}, -1);
  ResidualStream stream{projection_.forward(joined), {}};
  stream = block_.forward(std::move(stream), forward, angles);
  return final_norm_.forward(stream);
}

at::Tensor rolled_left(const at::Tensor& x, double fill, const ForwardContext& forward, Group& cp) {
  const auto roll = [&](const at::Tensor& whole) {
    const int64_t length = whole.size(1);
    at::Tensor next = whole.narrow(1, 1, length - 1);
    if (const at::Tensor& documents = forward.mask.key_documents; documents.defined()) {
      next = next.masked_fill(documents.narrow(1, 0, length - 1) != documents.narrow(1, 1, length - 1), fill);
    }
    return at::cat({next, at::full({whole.size(0), 1}, fill, whole.options())}, 1);
  };
  if (forward.row_length == 0 || cp.size() == 1) return roll(x);
  const at::Tensor parts = cp.gathered(x.contiguous(), "labels of prediction modules");
  const at::Tensor whole = zigzag_join(parts.view({cp.size(), x.size(0), x.size(1)}));
  return zigzag_shard(roll(whole), 1, cp.size(), cp.rank());
}

}  // namespace megalith
