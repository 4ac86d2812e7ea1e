// Writes Hugging Face folders; see hf.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/export_folder.h"
#include "checkpoint/hf.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kModelStem = "model", kDiffusersStem = "diffusion_pytorch_model";
constexpr std::array kWeightStems = {kModelStem, kDiffusersStem};
constexpr std::array<std::string_view, 12> kTokenizerFiles = {"tokenizer.json",
                                                              "tokenizer_config.json",
                                                              "special_tokens_map.json",
                                                              "added_tokens.json",
                                                              "tokenizer.model",
                                                              "vocab.json",
                                                              "merges.txt",
                                                              "vocab.txt",
                                                              "spiece.model",
                                                              "chat_template.jinja",
                                                              "chat_template.json",
                                                              "tekken.json"};

// Metadata beside the tokenizer's file.
constexpr std::array<std::string_view, 5> kBesideTokenizer = {"tokenizer_config.json", "special_tokens_map.json",
                                                              "added_tokens.json", "chat_template.jinja",
                                                              "chat_template.json"};

void write_configuration(const fs::path& folder, const ModelFamily& family, const ModelConfig& config,
                         const HfExport& settings) {
  Json json = make_hf_config(family, config, settings.dtype);
  // transformers gives the pad token's embedding no gradient, wrong for an end-of-text token.
  const auto& ends = config.eos_token_ids;
  const bool is_only_padding = settings.pad_token_id && settings.pad_token_id != config.bos_token_id &&
                               std::find(ends.begin(), ends.end(), *settings.pad_token_id) == ends.end();
  if (is_only_padding && !json.contains("pad_token_id")) json["pad_token_id"] = *settings.pad_token_id;
  write_file_atomic(folder / "config.json", dump_json_pretty(json));
  if (config.is_of_diffusers()) return;
  Json generation = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "transformers_version"}) {
    const auto found = json.find(key);
    if (found != json.end() && !found->is_null()) generation[key] = *found;
  }
  if (settings.pad_token_id) generation["pad_token_id"] = *settings.pad_token_id;
  write_file_atomic(folder / "generation_config.json", dump_json_pretty(generation));
}

}  // namespace

bool is_exported_model(const fs::path& folder) {
  return fs::is_directory(folder) && fs::exists(folder / "config.json") &&
         std::ranges::any_of(kWeightStems, [&](std::string_view stem) {
           const std::string file = std::string(stem) + ".safetensors";
           return fs::exists(folder / file) || fs::exists(folder / (file + ".index.json"));
         });
}

std::vector<fs::path> tokenizer_files(const fs::path& source) {
  std::vector<fs::path> files;
  if (fs::is_directory(source)) {
    for (const std::string_view name : kTokenizerFiles) {
      if (fs::exists(source / name)) files.push_back(source / name);
    }
    if (files.empty()) {
      throw UserError(fmt::format("{} holds no tokenizer file", source.string()),
                      fmt::format("expected one of {}", fmt::join(kTokenizerFiles, ", ")));
    }
  } else {
    files.push_back(source);
    for (const std::string_view name : kBesideTokenizer) {
      if (const fs::path beside = source.parent_path() / name; beside != source && fs::exists(beside))
        files.push_back(beside);
    }
  }
  return files;
}

bool has_tokenizer_files(const fs::path& folder) {
  return std::any_of(kTokenizerFiles.begin(), kTokenizerFiles.end(),
                     [&](std::string_view name) { return fs::exists(folder / name); });
}

void save_hf(const fs::path& folder, std::span<const CheckpointTensor> tensors, const ModelFamily& family,
             const ModelConfig& config, const Groups& groups, const HfExport& settings) {
  write_export({.folder = folder,
                .option = "--save_hf",
                .stem = std::string(config.is_of_diffusers() ? kDiffusersStem : kModelStem),
                .kind = "a Hugging Face model",
                .is_replaceable = is_exported_model,
                .write_rest =
                    [&](const fs::path& place) {
                      write_configuration(place, family, config, settings);
                      const auto copy = [&](const fs::path& file, const fs::path& name) {
                        write_file_atomic(place / name, MappedFile(file).bytes());
                      };
                      if (settings.tokenizer) {
                        for (const fs::path& file : tokenizer_files(*settings.tokenizer)) copy(file, file.filename());
                      }
                      if (settings.vocab_file) {
                        copy(*settings.vocab_file, settings.merge_file ? "vocab.json" : "vocab.txt");
                      }
                      if (settings.merge_file) copy(*settings.merge_file, "merges.txt");
                    }},
               tensors, groups, settings);
}

}  // namespace megalith
