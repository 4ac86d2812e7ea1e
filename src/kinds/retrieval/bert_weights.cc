#include "kinds/retrieval/bert_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/configuration.h"
#include "checkpoint/folder_kind.h"
#include "checkpoint/hf.h"
#include "checkpoint/load_store.h"
#include "checkpoint/manifest.h"
#include "models/architecture.h"
#include "models/biencoder.h"
#include "models/families.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

ModelConfig stored_bert(const fs::path& folder) {
  if (kind_of_folder(folder) == FolderKind::kHuggingFace) return read_hf_config(folder).config;
  if (auto error = check_checkpoint_path("bert_load", folder, /*may_be_absent=*/false)) throw std::move(*error);
  const bool is_one = fs::exists(folder / kManifestFile);
  const Manifest manifest = load_manifest(is_one ? folder : checkpoint_folder(folder, list_checkpoints(folder).back()));
  return model_config_of(manifest.architecture, manifest.configuration);
}

// A BERT encoder whose incompatible tensors start fresh.
ModelConfig encoder_of(const ModelConfig& biencoder, const ModelConfig& bert) {
  ModelConfig encoder = biencoder;
  static_cast<RetrievalOptions&>(encoder) = {};
  encoder.model_type = ModelType::kBert;
  encoder.bert_binary_head = bert.bert_binary_head;
  encoder.untie_embeddings_and_output_weights = bert.untie_embeddings_and_output_weights;
  return encoder;
}

std::vector<UserError> compare_with_bert(const Resolved& resolved, const std::string& folder) {
  const ModelConfig bert = stored_bert(checkpoints_of(folder));
  if (bert.model_type != ModelType::kBert) {
    return {UserError(fmt::format("bert_load {} holds another model than a BERT", folder),
                      "a trained biencoder is loaded with ict_load, or with load to go on")};
  }
  ModelConfig biencoder = resolved.config.model;
  if (resolved.derived.vocab_size > 0) biencoder.vocab_size = resolved.derived.vocab_size;
  std::vector<std::string> differences;
  for (const ConfigurationDifference& one :
       compare_configuration(meaning_of(bert), meaning_of(encoder_of(biencoder, bert)))) {
    differences.push_back(fmt::format("{} is {} there and {} here", one.name, one.stored, one.present));
  }
  if (differences.empty()) return {};
  return {UserError(
      fmt::format("bert_load {}: its BERT is not as the encoders are: {}", folder, fmt::join(differences, "; ")),
      "give the run that BERT's options, or take another BERT")};
}

// The weights in their most precise stored form.
TensorStore open_trained_bert(const fs::path& folder) {
  std::map<std::string, TensorStore> stores = open_checkpoint(folder, load_manifest(folder));
  const auto master = stores.find(std::string(kMasterKey));
  const bool has_master = master != stores.end() && !master->second.entries().empty();
  return std::move(has_master ? master->second : stores.at(std::string(kModelKey)));
}

}  // namespace

std::vector<UserError> check_bert_load(const Resolved& resolved) {
  const std::optional<std::string>& folder = resolved.derived.checkpoint.bert_load;
  if (!folder || resolved.config.model.model_type != ModelType::kBiencoder) return {};
  ModelConfig architecture = resolved.config.model;
  architecture.vocab_size.reset();
  if (!check_model_config(architecture).empty()) return {};  // reported already
  try {
    return compare_with_bert(resolved, *folder);
  } catch (const UserErrors& several) {
    return several.errors();
  } catch (const UserError& error) {
    return {error};
  }
}

void load_bert(const std::string& named, std::span<const CheckpointTensor> tensors, const Groups& groups, Logger& log,
               NonfiniteWeights nonfinite) {
  fs::path folder = checkpoints_of(named);
  const bool is_hf = kind_of_folder(folder) == FolderKind::kHuggingFace;
  if (!is_hf) {
    const auto found = find_checkpoint(folder, std::nullopt, *groups.world, log);
    if (!found) {
      throw UserError(fmt::format("{} (bert_load) holds no checkpoint", named),
                      "give the folder that was given to --save, or a Hugging Face folder");
    }
    folder = found->folder;
  }
  std::vector<CheckpointTensor> wanted(tensors.begin(), tensors.end());
  std::erase_if(wanted, [](const CheckpointTensor& tensor) {
    return std::ranges::any_of(tensor.placement->pieces,
                               [](const Piece& piece) { return is_of_projection(piece.name); });
  });
  HfWeights weights;
  load_store({.what = folder.string(),
              .open =
                  [&] {
                    if (!is_hf) return open_trained_bert(folder);
                    weights = open_hf_weights(folder);
                    return weights.store;
                  },
              .may_be_unused =
                  [&](std::string_view name) { return HfWeights::is_of_heads(name) || weights.may_be_unused(name); },
              .remedy = [] { return std::string("give the run the options of this BERT"); },
              .nonfinite = nonfinite},
             wanted, groups);
  log.info("each encoder starts from the BERT in {}", folder.string());
}

}  // namespace megalith
