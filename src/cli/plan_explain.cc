// megalith plan --cluster … --explain: the answer again, with one thing changed at a time.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/plan_cluster.h"
#include "core/collect_errors.h"
#include "train/alter_run.h"

namespace megalith {
namespace {

struct Change {
  std::string_view words;
  void (*of_chip)(ChipRates& chip);
  double batch = 1;  // times as large
};
constexpr Change kChanges[] = {
    {"links within nodes twice as fast", [](ChipRates& chip) { chip.link_gb_per_s *= 2; }},
    {"the network twice as fast", [](ChipRates& chip) { chip.network_gb_per_s *= 2; }},
    {"memory a fifth larger", [](ChipRates& chip) { chip.memory_gib *= 1.2; }},
    {"memory twice as fast", [](ChipRates& chip) { chip.memory_tb_per_s *= 2; }},
    {"attention at the products' rate",
     [](ChipRates& chip) { chip.attention_share = chip.attention_backward_share = 1; }},
    {"half the batch", [](ChipRates&) {}, 0.5},
    {"twice the batch", [](ChipRates&) {}, 2},
};

// Null if a rule forbids the batch.
std::unique_ptr<Resolved> with_batch(const Resolved& run, double times) {
  const auto batch = static_cast<int64_t>(times * static_cast<double>(run.derived.global_batch_size));
  const auto messages_of = [&](const std::function<void(Resolved&)>& change, std::unique_ptr<Resolved>& copy) {
    std::vector<UserError> errors;
    collect(errors, [&] { copy = alter_run(run, change, run.derived.world_size, errors); });
    std::set<std::string> messages;
    for (const UserError& error : errors) messages.insert(error.message());
    return messages;
  };
  std::unique_ptr<Resolved> same, other;
  const std::set<std::string> known = messages_of([](Resolved&) {}, same);
  const std::set<std::string> found =
      messages_of([&](Resolved& changed) { changed.config.train.global_batch_size = batch; }, other);
  return batch > 0 && std::ranges::includes(known, found) ? std::move(other) : nullptr;
}

}  // namespace

std::vector<PlanChange> explain_plan(const Resolved& run, const Cluster& cluster, const PlanAnswerer& answer) {
  const std::optional<PlanAnswer> now = answer(run, cluster);
  MEGALITH_CHECK(now, "a plan without an answer is explained");
  std::vector<PlanChange> changes;
  for (const Change& change : kChanges) {
    PlanChange& row = changes.emplace_back(PlanChange{.words = std::string(change.words), .answer = {}});
    Cluster other = cluster;
    change.of_chip(other.chip);
    const std::unique_ptr<Resolved> batched = change.batch == 1 ? nullptr : with_batch(run, change.batch);
    if (change.batch != 1 && batched == nullptr) continue;
    row.answer = answer(batched == nullptr ? run : *batched, other);
    if (!row.answer) continue;
    row.gain = row.answer->tokens_per_s / now->tokens_per_s - 1;
    row.is_same_layout = row.answer->layout == now->layout;
  }
  std::ranges::stable_sort(changes, std::greater<>(), &PlanChange::gain);
  return changes;
}

std::string changes_text(const std::vector<PlanChange>& changes) {
  if (changes.empty()) return "";
  std::string text = "\nwhat would change the tokens per second\n";
  for (const PlanChange& one : changes) {
    text += fmt::format("  {:<34} ", one.words);
    text += one.answer ? fmt::format("{:>+7.1f} %{}\n", 100 * one.gain,
                                     one.is_same_layout ? "" : fmt::format("  with {}", one.answer->layout))
                       : "  not possible: a rule forbids it, or nothing fits\n";
  }
  return text;
}

OrderedJson changes_json(const std::vector<PlanChange>& changes) {
  OrderedJson rows = OrderedJson::array();
  for (const PlanChange& one : changes) {
    OrderedJson row{{"change", one.words}, {"is_possible", one.answer.has_value()}};
    if (one.answer) {
      row["gain"] = one.gain;
      row["tokens_per_s"] = one.answer->tokens_per_s;
      if (!one.answer->layout.empty()) row["layout"] = one.answer->layout;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace megalith
