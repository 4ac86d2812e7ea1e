// Reads and writes Hugging Face folders through Placement, in any layout, without conversion.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/tensor_store.h"
#include "comm/groups.h"
#include "core/log.h"
#include "models/families.h"

namespace megalith {

struct ModelHead;

// Fills the tensors (key "model") from DIR/model.safetensors or its shards. Dtypes are converted, block-scaled FP8
// decoded; padding becomes zero. A tied lm_head.weight may be absent, and tensors allowed by HfWeights::may_be_unused()
// are skipped. UserError, before anything changes, listing every missing, misshaped and unexpected tensor. Collective
// over the world.
// begun_afresh  receives this rank's tensors left unchanged because the folder's class has no heads (lacks_heads()), or
//               another than the model; null: these count as missing
// head          the model's, where it is not its family's (models/model_head.h)
void load_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const Groups& groups,
             std::set<std::string>* begun_afresh = nullptr, NonfiniteWeights nonfinite = NonfiniteWeights::kRefused,
             const ModelHead* head = nullptr);

// config.json names a class without heads, such as BertModel: training may start from it. Classes without a decoder
// (T5EncoderModel) lack more.
bool lacks_heads(const std::filesystem::path& folder);

// A folder's tensors, interpreted by its config.json if any.
struct HfWeights {
  TensorStore store;            // decoded by quantization_config; names as in the language model's own folder
  bool has_bert_heads = false;  // a model may have fewer
  // Ignored prefixes: "model.layers.61.", past the decoder's layers (num_nextn_predict_layers), "vision_model.".
  std::vector<std::string> unused;

  // Unrequested tensors that may be present: derived buffers, multi-token prediction layers, parts for images, and the
  // sentence classifier of a BERT without one.
  bool may_be_unused(std::string_view name) const;
  // True of a BERT head's tensors.
  static bool is_of_heads(std::string_view name);
};

// UserError from TensorStore::open_folder(), set_block_scales(), unpack_mxfp4().
HfWeights open_hf_weights(const std::filesystem::path& folder);

struct HfExport {
  at::ScalarType dtype = at::kBFloat16;  // as stored
  // A folder whose tokenizer files (tokenizer.json, tokenizer.model, merges.txt, …) are copied, or one such file, with
  // its folder's special tokens and chat template.
  std::optional<std::filesystem::path> tokenizer;
  // Instead: GPT-2's files (vocab.json, merges.txt) or, without merges, BERT's (vocab.txt).
  std::optional<std::filesystem::path> vocab_file, merge_file;
  std::optional<int64_t> pad_token_id;
  int64_t max_shard_bytes = 5'000'000'000;  // transformers' "5GB"
  int64_t block_bytes = int64_t{64} << 20;  // of conversion
  Logger* log = nullptr;                    // for rank 0's progress; may be null
  ProgressSettings progress = {};
};

// Those of a folder, or of one such file with what its folder has beside it. UserError for a folder without any.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& source);
// True if a folder has any.
bool has_tokenizer_files(const std::filesystem::path& folder);

// Has configuration and weights as save_hf() writes.
bool is_exported_model(const std::filesystem::path& folder);

// For transformers 4 and 5: weights, config.json, generation_config.json, tokenizer. Appears atomically, replacing an
// earlier export's files; others stay. Ranks write boxes to shared files. UserError if `folder` is not a model's.
// Collective over the world.
void save_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const ModelFamily& family,
             const ModelConfig& config, const Groups& groups, const HfExport& settings);

}  // namespace megalith
