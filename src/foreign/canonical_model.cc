#include "foreign/canonical_model.h"

#include "comm/groups.h"
#include "core/error.h"
#include "models/families.h"
#include "models/transformer.h"

namespace megalith {
namespace {

// Null: the family's own names serve.
std::unique_ptr<Model> with_common_names(const ModelConfig& config, const LayerContext& context) {
  if (config.has_encoder()) return nullptr;
  TransformerNames names;
  if (config.is_of_encoders()) names.head_bias = {"lm_head.bias"};
  const std::vector<Unit> units = transformer_units(config, names);
  return std::make_unique<Transformer>(config, std::move(names), context, ModelPart::whole(units));
}

}  // namespace

// Models without storage: one of the family, and one with Llama's names whose parameters come in the same order.
CanonicalModel::CanonicalModel(const ModelConfig& config) : config_(config) {
  const Groups groups = Groups::single();
  LayerContext context;
  context.groups = &groups;
  context.device = at::kMeta;
  const auto model = family_for(config).build_whole(config, context), named = with_common_names(config, context);
  const std::vector<Parameter*> parameters = model->parameters(),
                                names = named != nullptr ? named->parameters() : parameters;
  if (names.size() != parameters.size()) {
    throw UserError("other trainers' checkpoints of this kind of model are not read",
                    "export it to Hugging Face's format with the tools of its trainer, for --load_hf");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    placements_.push_back(&parameters_.emplace(names[i]->name(), parameters[i]->placement()).first->second);
    MEGALITH_CHECK(names[i]->placement().local_shape == parameters[i]->placement().local_shape, "{} and {}",
                   names[i]->name(), parameters[i]->name());
  }
  for (const Placement* placement : placements_) {
    for (const Piece& piece : placement->pieces) {
      pieces_[piece.name] = &piece;
      for (const std::string& alias : piece.aliases) pieces_.try_emplace(alias, &piece);
    }
  }
}

const Piece* CanonicalModel::piece(std::string_view name) const {
  const auto found = pieces_.find(name);
  return found == pieces_.end() ? nullptr : found->second;
}

const Placement* CanonicalModel::find(std::string_view name) const {
  const auto found = parameters_.find(name);
  return found == parameters_.end() ? nullptr : &found->second;
}

}  // namespace megalith
