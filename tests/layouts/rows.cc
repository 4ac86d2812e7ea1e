#include "layouts/rows.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <sstream>

#include "core/error.h"
#include "support/source_dir.h"

namespace megalith::test {
namespace {

using Words = std::vector<std::string>;

struct RowsFile {
  std::map<std::string, Words> names;
  std::vector<std::pair<std::string, std::string>> rows;  // section, words
};

Words split(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

const RowsFile& rows_file() {
  static const RowsFile file = [] {
    std::ifstream in(source_dir() / "tests/layouts/rows.txt");
    RowsFile read;
    std::string section;
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line.starts_with("#")) continue;
      if (line.starts_with("[")) {
        section = line.substr(1, line.size() - 2);
      } else if (section.empty()) {
        const size_t mark = line.find(" = ");
        MEGALITH_CHECK(mark != std::string::npos, "rows.txt: neither a name nor a row: {}", line);
        read.names[line.substr(0, mark)] = split(line.substr(mark + 3));
      } else {
        read.rows.emplace_back(section, line);
      }
    }
    return read;
  }();
  return file;
}

// Adds a word's options; `ranks` grows with sizes.
void expand(const std::string& word, Words& options, int64_t& ranks) {
  static const std::map<std::string, std::string> kSizes = {{"tp", "tensor_model_parallel_size"},
                                                            {"cp", "context_parallel_size"},
                                                            {"pp", "pipeline_model_parallel_size"},
                                                            {"dp", ""},
                                                            {"ep", "expert_model_parallel_size"},
                                                            {"etp", "expert_tensor_parallel_size"}};
  const auto named = rows_file().names.find(word);
  if (named != rows_file().names.end()) {
    for (const std::string& part : named->second) expand(part, options, ranks);
    return;
  }
  const size_t digits = word.find_first_of("0123456789");
  const auto size = kSizes.find(word.substr(0, digits));
  if (digits != std::string::npos && size != kSizes.end()) {
    const std::string number = word.substr(digits);
    if (!word.starts_with("e")) ranks *= std::stoll(number);
    if (!size->second.empty()) options.push_back(fmt::format("--{}={}", size->second, number));
    return;
  }
  MEGALITH_CHECK(word.starts_with("--"), "rows.txt: '{}' is no option, and no name", word);
  options.push_back(word);
}

// Eight-bit products have numbers of each microbatch, and with delayed scales of all ranks'.
void read_in_microbatches(const Resolved& layout, Resolved& one) {
  const bool is_delayed = one.config.fp8.fp8_recipe == "delayed";
  const int64_t ranks = is_delayed ? layout.derived.global_batch_size /
                                         (layout.derived.num_microbatches * layout.derived.micro_batch_size)
                                   : 1;
  one.derived.micro_batch_size = layout.derived.micro_batch_size * ranks;
  one.derived.num_microbatches = one.derived.global_batch_size / one.derived.micro_batch_size;
}

void put_back(const Resolved& user, Resolved& toy) {
  for (const auto& option : toy.options->options()) {
    const auto& asked = *user.options->find(option->name());
    if (option->traits().in_toy == InToy::kSetAside && !asked.is_default()) option->take(asked);
  }
  toy.config.fp8 = user.config.fp8;
  if (user.config.lora.quantization != BaseQuantization::kNone) {  // rows of a block and a part of one
    toy.config.model.hidden_size = 72;
    toy.config.model.ffn_hidden_size = 256;
    toy.config.model.kv_channels = 32;
    if (toy.config.model.has_experts()) toy.config.model.moe_ffn_hidden_size = 128;
  }
}

}  // namespace

LayoutRow::LayoutRow(std::string words) : text_(std::move(words)) {
  Words options;
  world_.world_size = 1;
  for (const std::string& word : split(text_)) {
    if (word != "!") expand(word, options, world_.world_size);
  }
  options.push_back(fmt::format("--dry_run_world_size={}", world_.world_size));
  ConfigInputs inputs;
  inputs.arguments = options;
  inputs.config_root = source_dir() / "configs";
  user_ = std::move(resolve_for_check(inputs, /*launched_ranks=*/1).resolved);
  world_.parallel = user_->config.parallel;
  check_ = fresh_check();
}

std::unique_ptr<ParallelCheck> LayoutRow::fresh_check() const {
  auto check = std::make_unique<ParallelCheck>(*user_, world_);
  ToyConfig& toy = check->toy();
  if (toy.set_aside.empty()) return check;
  for (Resolved* resolved : {toy.layout.get(), toy.one_rank.get()}) put_back(*user_, *resolved);
  if (!user_->config.fp8.is_on()) return check;
  read_in_microbatches(*toy.layout, *toy.one_rank);
  // Scales that are delayed by three steps change with the fourth.
  for (Resolved* resolved : {toy.layout.get(), toy.one_rank.get()}) resolved->derived.train_iters = 5;
  return check;
}

std::optional<OptimizerKind> LayoutRow::rule() const {
  const OptimizerKind kind = user_->config.optimizer.optimizer;
  const bool exchanges =
      kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdafactor || kind == OptimizerKind::kAdam8bit;
  return exchanges ? std::optional(kind) : std::nullopt;
}

void LayoutRow::read_as_the_ranks() { read_in_microbatches(layout(), one_rank()); }

void LayoutRow::compute_in(at::ScalarType dtype, Kernels kernels) {
  expected_.reset();
  for (Resolved* resolved : {&layout(), &one_rank()}) {
    resolved->derived.dtype = dtype;
    resolved->derived.train_iters = 1;
    resolved->config.runtime.kernels = kernels;
  }
}

const RankOutcome& LayoutRow::expected() {
  if (!expected_) expected_ = run_as_threads(one_rank())[0];
  return *expected_;
}

std::string LayoutRow::difference(const CheckHooks& hooks, double tolerance) {
  try {
    RankOutcome one = expected();
    if (one_rank().derived.dtype != at::kDouble) one.parameters.clear();  // they follow only the gradient's sign
    const CheckTolerance near{.relative = tolerance, .floor = tolerance < 1e-6 ? 1e-4 : 1e-2};
    return compare_with_one_rank(run_as_threads(layout(), hooks), 0, one, near).first_failure;
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::vector<LayoutRow> rows_of(std::string_view section) {
  std::vector<LayoutRow> rows;
  for (const auto& [of, words] : rows_file().rows) {
    if (section == "!" ? words.ends_with(" !") : of == section) rows.emplace_back(words);
  }
  MEGALITH_CHECK(!rows.empty(), "rows.txt has no rows '{}'", section);
  return rows;
}

}  // namespace megalith::test
