// A model's architecture, in Megatron-LM's option names; from a preset, a Hugging Face folder or flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "models/flux_options.h"
#include "nn/classifier_options.h"
#include "nn/layer_options.h"
#include "nn/retrieval_options.h"

namespace megalith {

enum class PositionEmbedding { kLearnedAbsolute, kRope, kNone, kRelative };

struct ModelConfig : LayerOptions, RetrievalOptions, FluxOptions, ClassifierOptions {
  ModelType model_type = ModelType::kGpt;
  int64_t num_layers = 0;                     // kT5: the encoder's; kBiencoder: each encoder's
  std::optional<int64_t> decoder_num_layers;  // kT5; default: num_layers
  std::optional<int64_t> vocab_size;
  int64_t make_vocab_size_divisible_by = 128;
  int64_t max_position_embeddings = 0;

  PositionEmbedding position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  bool use_rotary_position_embeddings = false;  // Megatron's old spelling of rope; read position_embedding()
  std::optional<bool> causal;                   // is_causal as given; read is_causal()
  int64_t relative_attention_num_buckets = 32, relative_attention_max_distance = 128;  // of kRelative
  std::vector<int64_t> window_size;         // tokens visible before and after; read attention_window()
  std::string window_attn_skip_freq;        // which layers have it; read layers_with_window()
  std::string no_rope_freq;                 // unrotated layers; read layers_without_rotation()
  std::optional<double> rotary_base_local;  // of windowed layers; default: as the others
  double attn_logit_softcapping = 0, final_logit_softcapping = 0;  // 0: none
  int64_t attention_chunk_size = 0;   // tokens that a rotated layer attends within; 0: no chunks
  double attn_temperature_scale = 0;  // of queries in unrotated layers; 0: none
  int64_t attn_temperature_floor = 8192;
  std::optional<int64_t> num_token_types;  // read token_types()
  bool embedding_norm = false;
  bool bert_binary_head = true;        // BERT only
  bool scale_embeddings = false;       // by sqrt(hidden_size), rounded to the model's dtype
  bool scale_decoder_outputs = false;  // divides a tied head's input by sqrt(hidden_size) (T5)
  bool untie_embeddings_and_output_weights = false;
  std::optional<double> embedding_init_method_std;

  std::optional<int64_t> mtp_num_layers;  // multi-token prediction modules; 0: none
  double mtp_loss_scaling_factor = 0.1;

  // From a Hugging Face config, for export and generation.
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;

  void visit(OptionVisitor& v);

  // Derived.
  bool is_causal() const { return causal.value_or(!kEncoders.contains(model_type)); }
  int64_t token_types() const { return num_token_types.value_or(is_of_encoders() ? 2 : 0); }
  PositionEmbedding position_embedding() const;
  bool is_of_encoders() const { return kEncoders.contains(stack_type()); }
  // A classifier has the layers of a decoder, or of an encoder if not causal.
  ModelType stack_type() const {
    if (model_type != ModelType::kClassifier) return model_type;
    return is_causal() ? ModelType::kGpt : ModelType::kBert;
  }
  bool is_biencoder() const { return model_type == ModelType::kBiencoder; }
  int64_t num_towers() const {  // encoders with their own weights
    return is_biencoder() && !biencoder_shared_query_context_model ? 2 : 1;
  }
  int64_t vector_size() const { return biencoder_projection_dim > 0 ? biencoder_projection_dim : hidden_size; }
  bool has_vocabulary() const { return !is_diffusion(); }  // reads and writes tokens
  bool has_sentence_head() const { return model_type == ModelType::kBert && bert_binary_head; }
  // Logits, not padded: of each of a sequence's s tokens, or of a whole sequence's class.
  int64_t output_rows(int64_t s) const { return model_type == ModelType::kClassifier ? 1 : s; }
  int64_t output_width() const {
    if (model_type == ModelType::kClassifier) return num_labels;
    return has_vocabulary() ? *vocab_size : in_channels;
  }
  bool is_of_diffusers() const { return is_diffusion(); }  // the library whose folders such models are published in
  bool is_diffusion() const { return model_type == ModelType::kDiffusion; }
  bool has_encoder() const { return model_type == ModelType::kT5; }                       // beside its decoder
  int64_t num_decoder_layers() const { return decoder_num_layers.value_or(num_layers); }  // with an encoder
  int64_t num_stacks() const { return has_encoder() || is_diffusion() ? 2 : 1; }  // of unlike layers, one after another
  int64_t num_first_layers() const { return is_diffusion() ? num_joint_layers : num_layers; }  // of the first stack
  // In the whole model, without prediction modules.
  int64_t num_all_layers() const {
    if (is_diffusion()) return num_joint_layers + num_single_layers;
    return num_towers() * num_layers + (has_encoder() ? num_decoder_layers() : 0);
  }
  // A token attends to those less than so many positions away, in layers where layers_with_window() (one entry a layer)
  // has 1; 0: no window, all entries 0. Prediction modules attend as the last layer does.
  int64_t attention_window() const;
  std::vector<int64_t> layers_with_window() const;
  bool has_windows() const;
  // By layer: 1 where queries and keys are not rotated; all 0 without rotary positions.
  std::vector<int64_t> layers_without_rotation() const;
  int64_t num_prediction_modules() const { return mtp_num_layers.value_or(0); }
  // layer: in the whole model; prediction modules are as the last layer.
  bool has_experts_at(int64_t layer) const;
  int64_t padded_vocab_size(int64_t tp) const;  // rounded up to make_vocab_size_divisible_by * tp
};

// All errors of the architecture: missing sizes, divisibility, what no family supports.
std::vector<UserError> check_model_config(const ModelConfig& config);

// Errors for what does not divide over tp ranks of dense layers, ep of experts and etp of each expert.
struct ModelSplit {
  int64_t tp = 1, ep = 1, etp = 1;
};
std::vector<UserError> check_model_layout(const ModelConfig& config, const ModelSplit& split);

}  // namespace megalith
