// The front ends of `megalith launch`: scripts of examples/ or scripts/ that users of other tools know by name, rows of
// config/dialects/front_ends.table. What a script sets itself is in script_words.table, what users set in scripts.table
// (compat/variable.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/dialect.h"

namespace megalith {

// In their table's order.
enum class FrontEnd {
  kLlama2,
  kLlama3,
  kDeepseekV2,
  kDeepseekV3,
  kMixtral,
  kPrimus,
  kBenchmark,
  kBenchmarkSetup,
  kBert,
  kBertDistributed,
  kBertWithMp,
  kGpt,
  kGptDistributed,
  kGptWithMp,
  kGpt3,
  kT5,
  kT5Distributed,
  kT5WithMp,
  kIct,
};
inline constexpr size_t kNumFrontEnds = static_cast<size_t>(FrontEnd::kIct) + 1;

// A bit set.
using FrontEnds = unsigned;
constexpr FrontEnds only(FrontEnd one) { return 1U << static_cast<unsigned>(one); }
constexpr bool has(FrontEnds several, FrontEnd one) { return (several & only(one)) != 0; }

inline constexpr FrontEnds kLlamas = only(FrontEnd::kLlama2) | only(FrontEnd::kLlama3);
inline constexpr FrontEnds kDeepseeks = only(FrontEnd::kDeepseekV2) | only(FrontEnd::kDeepseekV3);
inline constexpr FrontEnds kExpertScripts = kDeepseeks | only(FrontEnd::kMixtral);
inline constexpr FrontEnds kRocmScripts = kLlamas | kExpertScripts;
inline constexpr FrontEnds kPrimusScripts = only(FrontEnd::kPrimus);
inline constexpr FrontEnds kMegatronScripts = kRocmScripts | kPrimusScripts;
inline constexpr FrontEnds kBenchmarkScripts = only(FrontEnd::kBenchmark);
inline constexpr FrontEnds kSetupScripts = only(FrontEnd::kBenchmarkSetup);
// Stanford's, by the kind of the model; and those that upstream starts as one process.
inline constexpr FrontEnds kBertScripts =
    only(FrontEnd::kBert) | only(FrontEnd::kBertDistributed) | only(FrontEnd::kBertWithMp);
inline constexpr FrontEnds kSmallGptScripts =
    only(FrontEnd::kGpt) | only(FrontEnd::kGptDistributed) | only(FrontEnd::kGptWithMp);
inline constexpr FrontEnds kGptScripts = kSmallGptScripts | only(FrontEnd::kGpt3);
inline constexpr FrontEnds kT5Scripts =
    only(FrontEnd::kT5) | only(FrontEnd::kT5Distributed) | only(FrontEnd::kT5WithMp);
inline constexpr FrontEnds kIctScripts = only(FrontEnd::kIct);
inline constexpr FrontEnds kStanfordScripts = kBertScripts | kGptScripts | kT5Scripts | kIctScripts;
inline constexpr FrontEnds kOneProcessScripts =
    only(FrontEnd::kBert) | only(FrontEnd::kGpt) | only(FrontEnd::kT5) | kIctScripts;
inline constexpr FrontEnds kTrainingScripts = kMegatronScripts | kBenchmarkScripts | kStanfordScripts;
inline constexpr FrontEnds kAllFrontEnds = kTrainingScripts | kSetupScripts;

// A value of MODEL_SIZE, without the letter after it: "8" is 8B, 8b and 8.
struct ModelSize {
  std::string size, preset;  // preset: of configs/models
  int num_layers = 0;
  int num_dense = 0;  // leading layers without experts in a mixture-of-experts model
};

struct FrontEndRow {
  FrontEnd id;
  std::string name, title;
  std::vector<std::string> scripts;
  std::vector<ModelSize> sizes;   // the first is the default
  std::vector<SaidOption> fixed;  // always passed to the trainer by the script
};

std::span<const FrontEndRow> front_ends();
const FrontEndRow& row_of(FrontEnd id);
// Null if unknown.
const FrontEndRow* find_front_end(std::string_view name);
// "llama2, llama3"
std::string names_of(FrontEnds several);
// The same for pages: "pretrain_bert…" for all scripts with that prefix.
std::string owners_of(FrontEnds several);
// "llamas+mixtral" in a row of a table: names of front ends or of groups.
FrontEnds front_ends_called(const DialectRow& row, const std::string& names);

}  // namespace megalith
