// Reads and writes Hugging Face folders through Placement, in any layout, without a conversion step.
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

// True if config.json names a class without heads, such as BertModel, from which training may start. Classes without a
// decoder, such as T5EncoderModel, lack more.
bool lacks_heads(const std::filesystem::path& folder);

// A folder's tensors, interpreted by its config.json if any.
struct HfWeights {
  TensorStore store;            // decoded as quantization_config says; names as in the language model's own folder
  bool has_bert_heads = false;  // of BERT; a model may have fewer
  // Prefixes of ignored tensors: "model.layers.61.", after the decoder's layers (num_nextn_predict_layers), or
  // "vision_model.".
  std::vector<std::string> unused;

  // True for unrequested tensors that may be present: buffers that follow from the configuration, multi-token
  // prediction layers, parts for images, and the sentence classifier of a BERT whose class has none.
  bool may_be_unused(std::string_view name) const;
  // True if it belongs to a BERT head.
  static bool is_of_heads(std::string_view name);
};

// UserError from TensorStore::open_folder(), set_block_scales() and unpack_mxfp4().
HfWeights open_hf_weights(const std::filesystem::path& folder);

struct HfExport {
  at::ScalarType dtype = at::kBFloat16;  // of the stored weights
  // A folder whose tokenizer files (tokenizer.json, tokenizer.model, merges.txt, …) are copied, or one such file, with
  // its folder's special tokens and chat template.
  std::optional<std::filesystem::path> tokenizer;
  // Alternatively the files of GPT-2 (vocab.json, merges.txt) or, without merges, of BERT (vocab.txt).
  std::optional<std::filesystem::path> vocab_file, merge_file;
  std::optional<int64_t> pad_token_id;
  int64_t max_shard_bytes = 5'000'000'000;  // transformers' "5GB"
  int64_t block_bytes = int64_t{64} << 20;  // for converting
  Logger* log = nullptr;                    // for progress on rank 0; may be null
  ProgressSettings progress = {};
};

// True if the folder has any of the files copied by HfExport::tokenizer.
bool has_tokenizer_files(const std::filesystem::path& folder);

// True if the folder has configuration and weights as written by save_hf().
bool is_exported_model(const std::filesystem::path& folder);

// Writes a folder that transformers 4 and 5 load: weights, config.json, generation_config.json, tokenizer. It appears
// atomically, replacing an earlier export's files; others stay. Ranks write their boxes to shared files. UserError when
// `folder` is not a model's. Collective over the world.
void save_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const ModelFamily& family,
             const ModelConfig& config, const Groups& groups, const HfExport& settings);

}  // namespace megalith
