// Hugging Face folders: weights in and out through Placement, under any layout, without a conversion step.
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

// Fills the tensors (of key "model") from DIR/model.safetensors or its shards. Dtypes are converted, block-scaled FP8
// matrices decoded, padding becomes zero. A tied lm_head.weight may be absent, and tensors that
// HfWeights::may_be_unused() allows are skipped. UserError, before anything is changed, that lists every missing,
// misshaped and unexpected tensor. Collective over the world.
// begun_afresh  gets the names of this rank's tensors that stay as they are, because the folder's class has no heads
//               (lacks_heads()); null: they are missing
void load_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const Groups& groups,
             std::set<std::string>* begun_afresh = nullptr, NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// Whether config.json names a class without heads, such as BertModel, whose weights a training run may start from. One
// without a decoder, such as T5EncoderModel, lacks more than that.
bool lacks_heads(const std::filesystem::path& folder);

// The tensors of a folder, read as its config.json says if there is one.
struct HfWeights {
  TensorStore store;  // decodes what quantization_config says; names as the language model's own folder would have them
  bool has_bert_heads = false;  // a BERT's, which may be more than a model has
  // How names of tensors begin that nobody wants: "model.layers.61.", behind the decoder's layers
  // (num_nextn_predict_layers), or "vision_model.".
  std::vector<std::string> unused;

  // Whether a tensor that no parameter wants may be there: a buffer that versions of transformers saved although it
  // follows from the configuration, a part of a multi-token prediction layer, which transformers ignores too, a part of
  // a model that also sees images, or the classifier of sentences in the file of a BERT whose class has none.
  bool may_be_unused(std::string_view name) const;
  // Whether it belongs to a head of a BERT.
  static bool is_of_heads(std::string_view name);
};

// UserError as TensorStore::open_folder(), set_block_scales() and unpack_mxfp4() have it.
HfWeights open_hf_weights(const std::filesystem::path& folder);

struct HfExport {
  at::ScalarType dtype = at::kBFloat16;  // of the weights in the files
  // A folder whose tokenizer files (tokenizer.json, tokenizer.model, merges.txt, …) are copied, or one such file, with
  // what its folder has on special tokens and chats.
  std::optional<std::filesystem::path> tokenizer;
  // Instead: the files of a GPT-2 (vocab.json, merges.txt) or, without merges, of a BERT (vocab.txt).
  std::optional<std::filesystem::path> vocab_file, merge_file;
  std::optional<int64_t> pad_token_id;
  int64_t max_shard_bytes = 5'000'000'000;  // transformers' "5GB"
  int64_t block_bytes = int64_t{64} << 20;  // memory used for converting
  Logger* log = nullptr;                    // told how far it is, from rank 0; null: nobody
  ProgressSettings progress = {};
};

// Whether a folder holds any of the files that HfExport::tokenizer copies.
bool has_tokenizer_files(const std::filesystem::path& folder);

// Whether a folder holds a model's configuration and weights as save_hf() writes them.
bool is_exported_model(const std::filesystem::path& folder);

// Writes a folder that transformers 4 and 5 load: weights, config.json, generation_config.json, and the tokenizer. It
// appears whole or not at all, and replaces the files of one that was exported before; others stay. Every rank writes
// its own boxes into the shared files. UserError when `folder` holds something that is no model. Collective over the
// world.
void save_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const ModelFamily& family,
             const ModelConfig& config, const Groups& groups, const HfExport& settings);

}  // namespace megalith
