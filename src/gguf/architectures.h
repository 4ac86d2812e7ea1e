// llama.cpp's names of the families' models: a row of names, keys and limits for each.
//
// Names, order and meaning are those that llama.cpp's convert_hf_to_gguf.py writes. Source: ggml-org/llama.cpp,
// conversion/*.py, gguf-py/gguf/tensor_mapping.py (names), src/models/*.cpp (what the program takes for granted).
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "models/families.h"

namespace megalith {

// How a canonical tensor becomes GGUF's.
enum class GgufChange {
  kNone,
  kQueryRows,  // rows of a head in adjacent pairs, as llama.cpp's own rotation takes them
  kKeyRows,
  kPlusOne,     // a norm's weights, which files store minus 1
  kStack,       // a layer's experts, (e, out, in)
  kTranspose,   // the last two dims
  kFirstHalf,   // gate of gate|up, (e, in, 2 f) -> (e, f, in)
  kSecondHalf,  // up
  kEven,        // gate of interleaved columns, (e, in, 2 f) -> (e, f, in); biases (e, 2 f) -> (e, f)
  kOdd,
  kKeyUp,    // latent attention's (n (d + v), r) -> (n, r, d)
  kValueUp,  // -> (n, v, r)
};

struct GgufTensorRow {
  // Canonical; # is the layer's number, then the expert's. Without ".weight" and ".bias", which both keep.
  std::string_view from;
  std::string_view to;
  GgufChange change = GgufChange::kNone;
};

enum class GgufKind { kUint, kFloat, kBool, kText, kBools };

struct GgufKeyRow {
  std::string_view key;  // after the architecture's name
  GgufKind kind = GgufKind::kUint;
  std::string_view from;                        // key of config.json; null or missing: omitted
  Json (*value)(const Json& config) = nullptr;  // instead
  bool only_if_given = false;                   // by the loaded folder's own file
};

enum class GgufVocabulary {
  kBpe,            // tokenizer.json
  kSentencePiece,  // tokenizer.model, else BPE
  kLlama,          // also a tokenizer.json made of a SentencePiece model
  kGemma,          // tokenizer.model without a leading blank, else BPE
  kGlm,            // BPE with the family's own turns
};

// Taken for granted by llama.cpp: no key can say it.
struct GgufLimit {
  bool (*holds)(const ModelConfig& config);
  std::string_view what;  // of the model that it cannot run
};

struct GgufArchitecture {
  std::string_view family;  // ModelFamily's name
  std::string_view name;    // general.architecture
  GgufVocabulary vocabulary = GgufVocabulary::kBpe;
  std::vector<std::span<const GgufTensorRow>> tensors = {};  // the first row of a name counts
  std::vector<std::span<const GgufKeyRow>> keys = {};        // general.file_type follows
  std::span<const GgufKeyRow> more_keys = {};
  std::span<const GgufLimit> limits = {};
  int64_t window_period = 0;   // of n layers n - 1 have the window; 0: no windows
  bool has_rope_freqs = false;  // takes Llama 3's wavelengths as a tensor
};

// UserError for a family without one.
const GgufArchitecture& gguf_architecture(const ModelFamily& family);

// The numbers between a name's dots: of the layer, and of the expert.
std::vector<int64_t> numbers_in(std::string_view name);

// Rows of a canonical tensor, with whole names and numbers filled in ("blk.3.attn_q.weight"). Empty: it has no place.
struct GgufTarget {
  std::string name;
  GgufChange change = GgufChange::kNone;
  size_t row = 0;  // orders the stacks of a layer
};
std::vector<GgufTarget> gguf_targets(const GgufArchitecture& architecture, const std::string& name);

// UserErrors for what llama.cpp would compute otherwise. Notes what it leaves out. Returns the period of windows to
// write, 0 for none.
int64_t check_gguf_limits(const GgufArchitecture& architecture, const ModelConfig& config,
                          std::vector<std::string>& notes);

}  // namespace megalith
