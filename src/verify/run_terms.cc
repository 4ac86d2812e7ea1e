#include "verify/run_terms.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "checkpoint/manifest.h"
#include "config/option_value.h"
#include "core/checksum.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "verify/torch_build.h"
#include "verify/variable_check.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kPiece = 8192, kPieces = 8, kMostFiles = 64;

void add_file(const fs::path& path, StreamingChecksum& sum) {
  const InputFile file(path);
  sum.update(fmt::format("{} {}\n", path.extension().string(), file.size()));
  std::array<char, kPiece> piece;
  const size_t last = file.size() - std::min(kPiece, file.size());
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t at = file.size() <= kPiece * kPieces ? i * kPiece : last * i / (kPieces - 1);
    if (at >= file.size()) break;
    const ssize_t count = ::pread(file.descriptor(), piece.data(), piece.size(), static_cast<off_t>(at));
    if (count < 0) fail_file("read", path, errno);
    sum.update(std::string_view(piece.data(), static_cast<size_t>(count)));
  }
}

void add_folder(const fs::path& folder, StreamingChecksum& sum) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && entry.is_regular_file(error)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) sum.update(name + "\n");
  const size_t step = names.size() / kMostFiles + 1;
  for (size_t i = 0; i < names.size(); i += step) {
    try {
      add_file(folder / names[i], sum);
    } catch (const UserError&) {
      sum.update("unreadable\n");  // its reader will complain
    }
  }
}

// For options whose files may be elsewhere on other machines.
Term contents_term(const Option& option) {
  Term term{.kind = TermKind::kData, .name = option.name(), .value = "", .shown = ""};
  for (const std::string& word : option.words_of_value()) {
    const std::string digest = contents_digest(word);
    term.value += (digest.empty() ? word : digest) + "\n";
    term.shown += term.shown.empty() ? "" : " ";
    term.shown += digest.empty() ? word : fmt::format("contents {} of {}", digest.substr(0, 8), word);
  }
  return term;
}

// As read: hub names are cache paths, list files expanded.
void add_contents(const Resolved& resolved, std::vector<Term>& terms) {
  const Derived& d = resolved.derived;
  DataOptions data = with_listed_paths(d.data);
  CheckpointOptions checkpoint = d.checkpoint;
  TokenizerOptions tokenizer = d.tokenizer;
  FluxEncoderOptions encoders = d.encoders;
  const OptionSet read(data, checkpoint, tokenizer, encoders);
  for (const auto& option : resolved.options->options()) {
    if (option->traits().by_rank != ByRank::kSameContents) continue;
    const Option* as_read = read.find(option->name());
    const Option& shown = as_read != nullptr ? *as_read : *option;
    if (shown.words_of_value().empty()) continue;
    terms.push_back(contents_term(shown));
    // Weights, which the paths as read may lack.
    for (const std::string& word : option->words_of_value()) {
      if (parse_number(word)) terms.back().value += word + "\n";
    }
  }
}

}  // namespace

std::string contents_digest(const fs::path& path) {
  StreamingChecksum sum;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    add_folder(path, sum);
  } else if (fs::is_regular_file(path, error)) {
    add_file(path, sum);
  } else if (fs::is_regular_file(path.string() + ".idx", error)) {
    for (const char* ending : {".idx", ".bin"}) add_file(path.string() + ending, sum);
  } else {
    return "";
  }
  return sum.sum128().hex();
}

std::vector<Term> back_end_terms(const at::Device& device) {
  return {{TermKind::kProgram, "tensors", device.is_cpu() ? "in main memory" : "of GPUs"}};
}

std::vector<Term> run_terms(const Resolved& resolved, const at::Device& device,
                            const std::vector<std::pair<std::string, std::string>>& program,
                            const EnvironmentMap& environment) {
  std::vector<Term> terms = back_end_terms(device);
  for (const auto& [name, value] : program) terms.push_back({TermKind::kProgram, name, value});
  terms.push_back({TermKind::kProgram, "LibTorch", torch_build().loaded});
  for (const auto& option : resolved.options->options()) {
    if (option->traits().by_rank != ByRank::kSame) continue;
    const OptionSource& source = option->source();
    const bool is_of_checkpoint = source.layer == OptionLayer::kModel && source.where.ends_with(kManifestFile);
    terms.push_back({.kind = TermKind::kOption,
                     .name = option->name(),
                     .value = option->text(),
                     .is_of_checkpoint = is_of_checkpoint});
  }
  // One rank writes these, anywhere, but all compute them.
  const LogOptions& log = resolved.config.log;
  const auto add = [&](std::string name, bool is_given) {
    terms.push_back({TermKind::kOption, std::move(name), is_given ? "given" : "not given"});
  };
  add("record_file", log.record_file.has_value());
  add("metrics_file", log.metrics_file.has_value());
  add("tensorboard_dir", log.tensorboard_dir.has_value());
  for (const std::string& name : shared_variables()) {
    const auto found = environment.find(name);
    if (found != environment.end()) terms.push_back({TermKind::kVariable, name, found->second});
  }
  add_contents(resolved, terms);
  return terms;
}

}  // namespace megalith
