// Chooses a tokenizer, and decodes a stream of ids; see tokenizer.h.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/checksum.h"
#include "core/error.h"
#include "core/strings.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tiktoken.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/vocab_files.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

using Maker = std::unique_ptr<Tokenizer> (*)(const TokenizerOptions& options);

fs::path model_path(const TokenizerOptions& options, std::string_view expected) {
  if (!options.tokenizer_model) {
    throw UserError(fmt::format("tokenizer_type {} needs tokenizer_model", options.tokenizer_type.value_or("")),
                    fmt::format("give --tokenizer_model with {}", expected));
  }
  const fs::path path = *options.tokenizer_model;
  if (!fs::exists(path)) {
    throw UserError(fmt::format("tokenizer_model {}: {} does not exist", path.string(), path.string()),
                    fmt::format("name {}", expected));
  }
  return path;
}

// A file of a folder: the first existing name, or the first one, for the message that it is missing.
fs::path file_in(const fs::path& path, std::initializer_list<const char*> names) {
  if (!fs::is_directory(path)) return path;
  for (const char* name : names) {
    if (fs::exists(path / name)) return path / name;
  }
  return path / *names.begin();
}

// By contents: a tokenizer.json, a tekken.json, tiktoken's lines or SentencePiece's binary.
std::unique_ptr<Tokenizer> open_model(const fs::path& file) {
  if (file.filename() == "tekken.json" || is_tekken_file(file)) return load_tekken(file);
  if (file.extension() == ".json" || !fs::exists(file)) return load_tokenizer_json(file);
  if (is_tiktoken_file(file)) return load_llama_tiktoken(file);
  return is_sentencepiece_file(file) ? load_sentencepiece(file, SentencePieceKind::kLlama2) : load_tokenizer_json(file);
}

std::unique_ptr<Tokenizer> make_hugging_face(const TokenizerOptions& options) {
  const fs::path path = model_path(options, "a tokenizer.json or a folder that holds one");
  const fs::path file = file_in(path, {"tokenizer.json", "tokenizer.model", "tekken.json"});
  if (!fs::exists(file) && fs::exists(path / "vocab.json") && fs::exists(path / "merges.txt")) {
    return load_byte_level_folder(path);
  }
  return open_model(file);
}

std::unique_ptr<Tokenizer> make_llama2(const TokenizerOptions& options) {
  const fs::path path = model_path(options, "a SentencePiece .model or a folder with tokenizer.model");
  return open_model(file_in(path, {"tokenizer.model", "tokenizer.json"}));
}

std::unique_ptr<Tokenizer> make_llama3(const TokenizerOptions& options) {
  const fs::path path = model_path(options, "a folder with tokenizer.json, or tiktoken's tokenizer.model");
  return open_model(file_in(path, {"tokenizer.json", "tokenizer.model", "original/tokenizer.model"}));
}

std::unique_ptr<Tokenizer> make_sentencepiece(const TokenizerOptions& options) {
  const fs::path path = model_path(options, "a SentencePiece .model");
  return load_sentencepiece(file_in(path, {"tokenizer.model"}), SentencePieceKind::kMegatron, options.vocab_extra_ids);
}

std::unique_ptr<Tokenizer> make_gpt_sentencepiece(const TokenizerOptions& options) {
  const fs::path path = model_path(options, "a SentencePiece .model");
  return load_sentencepiece(file_in(path, {"tokenizer.model"}), SentencePieceKind::kGpt);
}

std::unique_ptr<Tokenizer> make_tik(const TokenizerOptions& options) {
  const fs::path path = model_path(options, "a vocabulary of tiktoken");
  const fs::path file = file_in(path, {"tokenizer.json", "tokenizer.model", "tekken.json"});
  if (is_tekken_file(file)) return load_tekken(file);
  return load_tiktoken_vocabulary(file, {.pattern = options.tiktoken_pattern,
                                         .num_special_tokens = options.tiktoken_num_special_tokens,
                                         .special_tokens = options.tiktoken_special_tokens,
                                         .vocab_size = options.vocab_size});
}

fs::path given_file(const std::optional<std::string>& file, const char* option, const TokenizerOptions& options,
                    std::initializer_list<const char*> names) {
  if (file) return *file;
  if (options.tokenizer_model) return file_in(*options.tokenizer_model, names);
  throw UserError(
      fmt::format("tokenizer_type {} needs {}", options.tokenizer_type.value_or(""), option),
      fmt::format("give --{} FILE, or --tokenizer_model with a folder that holds {}", option, *names.begin()));
}

std::unique_ptr<Tokenizer> make_gpt2(const TokenizerOptions& options) {
  return load_gpt2_files(given_file(options.vocab_file, "vocab_file", options, {"vocab.json", "gpt2-vocab.json"}),
                         given_file(options.merge_file, "merge_file", options, {"merges.txt", "gpt2-merges.txt"}));
}

template <bool lower_case>
std::unique_ptr<Tokenizer> make_bert(const TokenizerOptions& options) {
  return load_bert_vocabulary(given_file(options.vocab_file, "vocab_file", options, {"vocab.txt"}), lower_case,
                              options.vocab_extra_ids);
}

std::unique_ptr<Tokenizer> make_null(const TokenizerOptions& options) {
  if (!options.vocab_size) {
    throw UserError("tokenizer_type NullTokenizer needs vocab_size", "give --vocab_size N for the ids 0 to N");
  }
  return make_null_tokenizer(*options.vocab_size);
}

struct TokenizerType {
  const char* name;
  Maker make;
  bool has_extra_ids;  // reads vocab_extra_ids
};
constexpr TokenizerType kTypes[] = {
    {"HuggingFaceTokenizer", make_hugging_face, false},
    {"Llama2Tokenizer", make_llama2, false},
    {"Llama3Tokenizer", make_llama3, false},
    {"MixtralTokenizer", make_hugging_face, false},
    {"DeepSeekV2Tokenizer", make_hugging_face, false},
    {"DeepSeekV3Tokenizer", make_hugging_face, false},
    {"Lfm2Tokenizer", make_hugging_face, false},
    {"GPT2BPETokenizer", make_gpt2, false},
    {"BertWordPieceLowerCase", make_bert<true>, true},
    {"BertWordPieceCase", make_bert<false>, true},
    {"SentencePieceTokenizer", make_sentencepiece, true},
    {"GPTSentencePieceTokenizer", make_gpt_sentencepiece, false},
    {"TikTokenizer", make_tik, false},
    {"ByteTokenizer", [](const TokenizerOptions&) { return make_byte_tokenizer(); }, false},
    {"NullTokenizer", make_null, false},
};

}  // namespace

// Ids kept as context, and the number of ids at which earlier ones are dropped.
constexpr size_t kContext = 16, kMostIds = 64;

std::string StreamingDecoder::take(const std::string& text) {
  // Bytes that turn out to form no character can change returned text; then only the excess length is new.
  size_t from = std::min(given_.size(), text.size());
  while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
  given_ = text;
  return text.substr(from);
}

std::string StreamingDecoder::push(int32_t id) {
  if (!tokenizer_.has_token(id)) return (num_held_ > 0 ? finish() : "") + fmt::format("<|id:{}|>", id);
  window_.push_back(id);
  const std::string text = tokenizer_.decode(window_, skip_special_);
  // A final U+FFFD may be the beginning of a character; one has at most four bytes, so of a longer run most are not.
  size_t whole = text.size();
  for (int i = 0; i < 3 && std::string_view(text).substr(0, whole).ends_with("\xEF\xBF\xBD"); ++i) whole -= 3;
  if (whole < text.size() && ++num_held_ < 8) return "";
  num_held_ = 0;
  const std::string fresh = take(text.substr(0, whole));
  if (whole < text.size()) return fresh;
  if (window_.size() >= kMostIds) {
    window_.erase(window_.begin(), window_.end() - kContext);
    given_ = tokenizer_.decode(window_, skip_special_);
  }
  return fresh;
}

std::string StreamingDecoder::finish() {
  const std::string rest = take(tokenizer_.decode(window_, skip_special_));
  window_.clear();
  given_.clear();
  num_held_ = 0;
  return rest;
}

int32_t require_eod(const Tokenizer& tokenizer) {
  if (const auto eod = tokenizer.eod()) return *eod;
  throw UserError(fmt::format("the tokenizer {} names no end-of-document token", tokenizer.name()),
                  "add \"eos_token\" to the tokenizer_config.json beside it");
}

std::string tokenizer_digest(const Tokenizer& tokenizer, int64_t num_ids) {
  constexpr std::string_view kProbe =
      " The quick brown fox: 1234567 + 3.14 =\n\n\tdon't DON'T  na\u00efve cafe\u0301 \u65e5\u672c\u8a9e \u0395\u03bb "
      "\u0440\u0443\u0441 \U0001F999 \uac00 def f(x):\r\n    return x**2  # ok";
  constexpr int64_t kMostIds = 1 << 20;
  StreamingChecksum sum;
  for (int64_t id = 0; id < std::min(num_ids, kMostIds); ++id) {
    // Twice, because decoders drop leading blanks.
    const int32_t twice[] = {static_cast<int32_t>(id), static_cast<int32_t>(id)};
    sum.update(tokenizer.decode(twice));
    sum.update(std::string_view("\0", 1));
  }
  try {
    const std::vector<int32_t> ids = tokenizer.encode(kProbe);
    sum.update(std::as_bytes(std::span(ids)));
  } catch (const UserError&) {  // a NullTokenizer reads numbers only
  }
  return fmt::format("{} {}", num_ids, sum.sum128().hex());
}

void TokenizerOptions::visit(OptionVisitor& v) {
  v.group("Tokenizer", {.read_by = kTextModels, .acts_in = kWithModel});
  v.field(
      "tokenizer_type", tokenizer_type,
      "Kind of tokenizer, by Megatron-LM's names: HuggingFaceTokenizer, Llama2Tokenizer, Llama3Tokenizer, "
      "MixtralTokenizer, DeepSeekV2Tokenizer, DeepSeekV3Tokenizer, Lfm2Tokenizer, GPT2BPETokenizer, "
      "BertWordPieceLowerCase, BertWordPieceCase, SentencePieceTokenizer, GPTSentencePieceTokenizer, TikTokenizer, "
      "NullTokenizer; or ByteTokenizer. Default: HuggingFaceTokenizer with tokenizer_model, ByteTokenizer without.");
  v.field("tokenizer_model", tokenizer_model,
          "tokenizer.json, a SentencePiece or tiktoken .model, a tekken.json, or a folder that holds one of these or "
          "GPT-2's or Qwen's vocab.json and merges.txt; or a model of the Hugging Face hub: org/name.")
      .by_rank(ByRank::kSameContents);
  v.field("vocab_file", vocab_file, "vocab.json of a GPT2BPETokenizer, vocab.txt of a BertWordPiece tokenizer.")
      .by_rank(ByRank::kSameContents);
  v.field("merge_file", merge_file, "merges.txt of a GPT2BPETokenizer.").by_rank(ByRank::kSameContents);
  v.field("vocab_extra_ids", vocab_extra_ids,
          "Tokens <extra_id_0>, <extra_id_1>, ... to add to a BertWordPiece tokenizer or a SentencePieceTokenizer; T5 "
          "masks with them.")
      .within(0, 1 << 20);
  v.field("tiktoken_pattern", tiktoken_pattern,
          "How a TikTokenizer cuts text: v1 is Llama 3's pattern, v2 that of Mistral's tekken.")
      .words({"v1", "v2"});
  v.field("tiktoken_num_special_tokens", tiktoken_num_special_tokens,
          "Number of ids that a TikTokenizer keeps for special tokens, in front of all others.")
      .within(3, 1 << 20);
  v.field("tiktoken_special_tokens", tiktoken_special_tokens,
          "Special tokens of a TikTokenizer; <unk>, <s> and </s> must be among them. Default: these three.");
}

void TokenizerOptions::visit_standalone(OptionVisitor& v) {
  visit(v);
  v.field("vocab_size", vocab_size,
          "Vocabulary size without padding, for the NullTokenizer, which has one id more, and the TikTokenizer.")
      .at_least(1);
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  const std::string type =
      options.tokenizer_type.value_or(options.tokenizer_model ? "HuggingFaceTokenizer" : "ByteTokenizer");
  if (!options.tokenizer_type && !options.tokenizer_model && options.vocab_file) {
    throw UserError("vocab_file is given without tokenizer_type",
                    "add --tokenizer_type GPT2BPETokenizer, BertWordPieceLowerCase or BertWordPieceCase");
  }
  std::vector<std::string> known;
  for (const TokenizerType& candidate : kTypes) {
    known.emplace_back(candidate.name);
    if (type != candidate.name) continue;
    if (options.vocab_extra_ids > 0 && !candidate.has_extra_ids) {
      throw UserError(fmt::format("vocab_extra_ids {} with tokenizer_type {}", options.vocab_extra_ids, type),
                      "only BertWordPieceLowerCase, BertWordPieceCase and SentencePieceTokenizer add such tokens");
    }
    return candidate.make(options);
  }
  const std::string nearest = nearest_word(type, known);
  throw UserError(fmt::format("tokenizer_type {} is not supported{}", type,
                              nearest.empty() ? "" : fmt::format(". Did you mean {}?", nearest)),
                  "supported are " + join(known, ", "));
}

}  // namespace megalith
