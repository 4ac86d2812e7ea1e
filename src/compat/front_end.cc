// See front_end.h.
#include "compat/front_end.h"

#include <algorithm>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

FrontEnds read_names(const std::vector<FrontEndRow>& rows, const DialectRow& row, std::string names) {
  std::replace(names.begin(), names.end(), '+', ' ');
  FrontEnds several = 0;
  for (const std::string& name : split_words(names)) {
    const auto one = std::find_if(rows.begin(), rows.end(), [&](const FrontEndRow& each) { return each.name == name; });
    several |= one != rows.end() ? only(one->id)
                                 : row.choose<FrontEnds>(name, {{"all", kAllFrontEnds},
                                                                {"training", kTrainingScripts},
                                                                {"megatron", kMegatronScripts},
                                                                {"rocm", kRocmScripts},
                                                                {"llamas", kLlamas},
                                                                {"deepseeks", kDeepseeks},
                                                                {"experts", kExpertScripts},
                                                                {"berts", kBertScripts},
                                                                {"gpts", kGptScripts},
                                                                {"small_gpts", kSmallGptScripts},
                                                                {"t5s", kT5Scripts},
                                                                {"one_process", kOneProcessScripts},
                                                                {"stanford", kStanfordScripts}});
  }
  return several;
}

std::vector<FrontEndRow> read_front_ends() {
  std::vector<FrontEndRow> rows;
  for (const DialectRow& row : dialect_rows("front_ends", {"name", "title", "scripts", "sizes"})) {
    std::vector<ModelSize> sizes;
    for (const std::string& entry : split_words(row.cells[3])) {
      const auto [size, facts] = split_entry(entry);
      sizes.push_back({size, facts.at(0), std::stoi(facts.at(1)), facts.size() > 2 ? std::stoi(facts[2]) : 0});
    }
    const auto id = static_cast<FrontEnd>(rows.size());
    rows.push_back({id, row.cells[0], row.cells[1], split_words(row.cells[2]), std::move(sizes), {}});
  }
  MEGALITH_CHECK(rows.size() == kNumFrontEnds, "front_ends.table has {} rows", rows.size());
  for (const DialectRow& row : dialect_rows("script_words", {"scripts", "options"})) {
    const std::vector<SaidOption> words = option_words(row, row.cells[1]);
    const FrontEnds several = read_names(rows, row, row.cells[0]);
    for (FrontEndRow& one : rows) {
      if (has(several, one.id)) one.fixed.insert(one.fixed.end(), words.begin(), words.end());
    }
  }
  return rows;
}

const std::vector<FrontEndRow>& table() {
  static const std::vector<FrontEndRow> rows = read_front_ends();
  return rows;
}

}  // namespace

std::span<const FrontEndRow> front_ends() { return table(); }

const FrontEndRow& row_of(FrontEnd id) { return table().at(static_cast<size_t>(id)); }

const FrontEndRow* find_front_end(std::string_view name) {
  const auto found =
      std::find_if(table().begin(), table().end(), [&](const FrontEndRow& row) { return row.name == name; });
  return found == table().end() ? nullptr : &*found;
}

FrontEnds front_ends_called(const DialectRow& row, const std::string& names) { return read_names(table(), row, names); }

std::string names_of(FrontEnds several) {
  std::string names;
  for (const FrontEndRow& row : table()) {
    if (has(several, row.id)) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}

std::string owners_of(FrontEnds several) {
  constexpr std::pair<FrontEnds, std::string_view> kFamilies[] = {{kStanfordScripts, "pretrain_…"},
                                                                  {kBertScripts, "pretrain_bert…"},
                                                                  {kGptScripts, "pretrain_gpt…"},
                                                                  {kT5Scripts, "pretrain_t5…"}};
  std::string families;
  for (const auto& [family, name] : kFamilies) {
    if ((several & family) != family) continue;
    several &= ~family;
    families += (families.empty() ? "" : ", ") + std::string(name);
  }
  const std::string names = names_of(several);
  return names.empty() || families.empty() ? names + families : names + ", " + families;
}

}  // namespace megalith
