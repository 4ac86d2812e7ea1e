#include "ops/gpu/gemm_tuning.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "config/option.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace megalith::ops::gpu {
namespace {

constexpr const char* kFormat = "megalith gemm tuning 1";

// JSON numbers do not hold 64 bits everywhere.
std::string hex_text(uint64_t word) { return fmt::format("{:016x}", word); }

uint64_t hex_word(const std::string& text, const std::string& where) {
  uint64_t word = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), word, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UserError(fmt::format("{}: '{}' is no number in hexadecimal", where, text),
                    "the file has been changed by hand or cut; remove it and tune again");
  }
  return word;
}

TunedProducts read_tuned_products(const std::filesystem::path& path) {
  const std::string where = path.string();
  const Json file = load_json(path);
  if (json_get_or<std::string>(file, "format", "", where) != kFormat) {
    throw UserError(fmt::format("{} is no file of --gemm_tuning: its \"format\" is not \"{}\"", where, kFormat),
                    "name another one with --gemm_tuning_file, or make it with --gemm_tuning tune");
  }
  TunedProducts tuned{.library = json_get<std::string>(file, "library", where),
                      .device = json_get<std::string>(file, "device", where),
                      .algorithms = {}};
  for (const auto& [name, entry] : get_member(file, "products", where).items()) {
    const std::string place = where + ": " + name;
    TunedAlgorithm algorithm;
    for (const std::string& word : json_get<std::vector<std::string>>(entry, "algorithm", place)) {
      algorithm.words.push_back(hex_word(word, place));
    }
    algorithm.workspace_bytes = json_get_whole(entry, "workspace_bytes", 0, int64_t{1} << 40, place);
    algorithm.time_us = json_get<double>(entry, "time_us", place);
    algorithm.first_time_us = json_get<double>(entry, "first_time_us", place);
    tuned.algorithms.emplace(name, std::move(algorithm));
  }
  return tuned;
}

}  // namespace

void GemmTuningOptions::visit(OptionVisitor& v) {
  v.choice(
      "gemm_tuning", gemm_tuning, {"off", "tune", "use"},
      "Matrix products on a GPU. off: LibTorch's and the library's own choice of algorithm. tune: for each new shape, "
      "time the sixteen that the library thinks best on random data, take the quickest and write it to "
      "gemm_tuning_file. use: take what that file has.");
  v.field("gemm_tuning_file", gemm_tuning_file,
          "What gemm_tuning has measured. It names the library's version and the device, and is refused on others.")
      .changes_numbers(false)
      .by_rank(ByRank::kFree);
}

TunedProducts load_tuned_products(const std::filesystem::path& path, const std::string& library,
                                  const std::string& device) {
  if (!std::filesystem::exists(path)) {
    throw UserError(fmt::format("--gemm_tuning use reads {}, which is not there", path.string()),
                    "run once with --gemm_tuning tune, or name another file with --gemm_tuning_file");
  }
  TunedProducts tuned = read_tuned_products(path);
  const auto refuse = [&](const char* what, const std::string& found, const std::string& wanted) {
    throw UserError(fmt::format("{} was tuned with the {} {}, and this is {}", path.string(), what, found, wanted),
                    "tune again with --gemm_tuning tune and another --gemm_tuning_file");
  };
  if (tuned.library != library) refuse("library", tuned.library, library);
  if (tuned.device != device) refuse("device", tuned.device, device);
  return tuned;
}

void add_tuned_products(const std::filesystem::path& path, const TunedProducts& tuned) {
  TunedProducts all = tuned;
  if (std::filesystem::exists(path)) {
    TunedProducts before = load_tuned_products(path, tuned.library, tuned.device);
    all.algorithms.merge(before.algorithms);  // `tuned` overrides
  }
  OrderedJson products = OrderedJson::object();
  for (const auto& [name, algorithm] : all.algorithms) {
    std::vector<std::string> words;
    for (const uint64_t word : algorithm.words) words.push_back(hex_text(word));
    products[name] = {{"algorithm", words},
                      {"workspace_bytes", algorithm.workspace_bytes},
                      {"time_us", algorithm.time_us},
                      {"first_time_us", algorithm.first_time_us}};
  }
  const OrderedJson file = {
      {"format", kFormat}, {"library", all.library}, {"device", all.device}, {"products", products}};
  write_file_atomic(path, dump_json_pretty(file));
}

}  // namespace megalith::ops::gpu
