#include "cli/text_reading.h"

#include <algorithm>
#include <utility>

#include "checkpoint/tensor_store.h"

namespace megalith {
namespace {

bool has_pooler(const CheckpointOptions& checkpoint, const ModelConfig& model) {
  if (!checkpoint.load_hf) return model.bert_binary_head;
  const TensorStore store = TensorStore::open_folder(*checkpoint.load_hf);
  return store.find("bert.pooler.dense.weight") != nullptr || store.find("pooler.dense.weight") != nullptr;
}

std::optional<UserError> check_pooler(const Resolved& resolved) {
  const ModelConfig& model = resolved.config.model;
  if (!model.is_of_encoders() || model.is_biencoder()) {
    return UserError("pooling pooler is a BERT's, and this model is another", "use mean, cls or last");
  }
  const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  if (has_pooler(checkpoint, model)) return std::nullopt;
  return UserError(fmt::format("pooling is pooler, and {} has none",
                               checkpoint.load_hf ? *checkpoint.load_hf : checkpoint.load.value_or("the checkpoint")),
                   "use cls or mean: poolers come with the classifier of sentences");
}

void choose_pooling(const Resolved& resolved, const VectorOptions& options,
                    const std::optional<SentenceFolder>& sentences, VectorSettings& settings,
                    std::vector<UserError>& errors) {
  const ModelConfig& model = resolved.config.model;
  settings.normalise = options.normalise.value_or(sentences && sentences->normalises);
  if (options.pooling != PoolingChoice::kOfModel) {
    settings.pooling = static_cast<Pooling>(static_cast<int>(options.pooling) - 1);
  } else if (sentences && sentences->pooling) {
    settings.pooling = *sentences->pooling;
  } else if (sentences) {
    errors.emplace_back(fmt::format("{} makes vectors with {}, which there is not here",
                                    *resolved.derived.checkpoint.load_hf, sentences->other_form),
                        "give --pooling cls, mean or last for vectors of another kind");
  } else if (model.is_causal() && !model.has_encoder()) {
    errors.emplace_back("this model is a decoder, whose tokens see only those before them, and pooling is not given",
                        "say what a vector is made of: --pooling last, mean or cls");
  }
  if (settings.pooling != Pooling::kPooler) return;
  if (std::optional<UserError> error = check_pooler(resolved)) errors.push_back(std::move(*error));
}

// Tokens read of a text: seq_length, else the folder's setting, bounded by the model's positions.
int64_t longest_text(const Resolved& resolved, const std::optional<SentenceFolder>& sentences) {
  const ModelConfig& model = resolved.config.model;
  if (resolved.config.train.seq_length || !sentences || !sentences->max_seq_length) return resolved.derived.seq_length;
  const bool is_bounded = model.position_embedding() != PositionEmbedding::kRelative;
  return is_bounded ? std::min(*sentences->max_seq_length, model.max_position_embeddings) : *sentences->max_seq_length;
}

// A text goes through the model whole, and only tensor- and expert-parallel ranks share one.
void check_layout(const Resolved& resolved, std::vector<UserError>& errors) {
  const ParallelOptions& parallel = resolved.config.parallel;
  const std::pair<const char*, int64_t> sizes[] = {
      {"pipeline_model_parallel_size", parallel.pipeline_model_parallel_size},
      {"context_parallel_size", parallel.context_parallel_size}};
  for (const auto& [name, size] : sizes) {
    if (size == 1) continue;
    errors.emplace_back(fmt::format("{} is {}, and every text is read on one stage, whole", name, size),
                        fmt::format("set {} to 1; tensor_model_parallel_size spreads the model, and more ranks share "
                                    "the texts",
                                    name));
  }
}

}  // namespace

void VectorOptions::visit(OptionVisitor& v) {
  v.choice("pooling", pooling, {"auto", "cls", "mean", "last", "pooler"},
           "How the states of a text's tokens become one vector: the first token's, the mean, the last token's, or "
           "what a BERT's pooler makes of the first. auto: as the folder of a sentence-transformers model says it; "
           "else the mean, but a decoder must be told.");
  v.field("normalise", normalise,
          "Give every vector the length 1. Default: as the folder of a sentence-transformers model says it, else "
          "off.")
      .alias("normalize");
}

std::optional<SentenceFolder> find_sentence_folder(const Resolved& resolved) {
  const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  if (!checkpoint.load_hf || checkpoint.load) return std::nullopt;
  return read_sentence_folder(*checkpoint.load_hf);
}

TextReading choose_reading(const Resolved& resolved, const VectorOptions& options, std::vector<UserError>& errors) {
  TextReading reading;
  check_layout(resolved, errors);
  if (resolved.config.model.num_layers == 0) return reading;  // the rest depends on the model
  try {
    const std::optional<SentenceFolder> sentences = find_sentence_folder(resolved);
    choose_pooling(resolved, options, sentences, reading.settings, errors);
    reading.longest = longest_text(resolved, sentences);
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  return reading;
}

}  // namespace megalith
