#include "compat/benchmark_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "compat/benchmark_wikitext.h"
#include "compat/script_values.h"
#include "config/dialect.h"
#include "config/resolve.h"
#include "core/json.h"
#include "core/strings.h"
#include "hub/hub.h"

namespace megalith {
namespace {

constexpr const char *kFluxRepo = "black-forest-labs/FLUX.1-dev", *kPicturesRepo = "bghira/pseudo-camera-10k";

struct SetupItem {
  std::string repo;
  HubRepoType type;
  bool is_gated;
  std::string why, size;
  std::vector<std::string> models;  // of -m
  std::vector<std::string> include, exclude;
};

const std::vector<SetupItem>& setup_items() {
  static const std::vector<SetupItem> items = [] {
    std::vector<SetupItem> all;
    for (const DialectRow& row :
         dialect_rows("benchmark_setup", {"repo", "type", "what", "size", "models", "files"})) {
      SetupItem& item = all.emplace_back();
      item.repo = row.cells[0];
      item.is_gated = row.cells[1].starts_with("gated ");
      item.type = row.choose<HubRepoType>(
          row.cells[1], {{"gated model", HubRepoType::kModel}, {"dataset", HubRepoType::kDataset}});
      item.why = row.cells[2];
      item.size = row.cells[3];
      item.models = split_words(row.cells[4]);
      for (const std::string& file : split_words(row.cells[5])) {
        file.starts_with('-') ? item.exclude.push_back(file.substr(1)) : item.include.push_back(file);
      }
    }
    return all;
  }();
  return items;
}

std::string setup_models() {
  std::vector<std::string> names;
  for (const SetupItem& item : setup_items()) {
    for (const std::string& model : item.models) {
      if (std::find(names.begin(), names.end(), model) == names.end()) names.emplace_back(model);
    }
  }
  return join(names, ", ");
}

// Items of a model, by name or tag; all if none is given.
std::vector<const SetupItem*> chosen_items(const ScriptValue* given, std::vector<UserError>& errors) {
  std::vector<const SetupItem*> chosen;
  const BenchmarkTag* tag = given == nullptr ? nullptr : find_benchmark_tag(given->value);
  for (const SetupItem& item : setup_items()) {
    const bool is_meant =
        given == nullptr || std::any_of(item.models.begin(), item.models.end(), [&](const std::string& model) {
          return lower_case(model) == lower_case(tag != nullptr ? tag->model : given->value);
        });
    if (is_meant) chosen.push_back(&item);
  }
  if (chosen.empty() && tag == nullptr) {
    errors.emplace_back(fmt::format("{} is no model that is set up{}", given->text(), nearest_benchmark(given->value)),
                        fmt::format("write one of {}, or nothing for all", setup_models()));
  }
  return chosen;
}

// Refuses gated repositories that are not in the cache when there is no token.
void check_token(const HubSettings& settings, const std::vector<const SetupItem*>& items,
                 std::vector<UserError>& errors) {
  if (!settings.token.empty() || settings.is_offline) return;
  for (const SetupItem* item : items) {
    const HubName name{item->type, item->repo};
    if (!item->is_gated || cached_snapshot(settings, name)) continue;
    errors.emplace_back(
        fmt::format("{} is gated, and there is no token", item->repo),
        fmt::format("accept its licence at {}/{}, then set HF_TOKEN", settings.shown_endpoint(), name.page()));
  }
}

void print_items(const HubSettings& settings, const std::vector<const SetupItem*>& items, bool as_json) {
  OrderedJson list = OrderedJson::array();
  for (const SetupItem* item : items) {
    const HubName name{item->type, item->repo};
    const std::string from = fmt::format("{}/{}", settings.shown_endpoint(), name.page());
    const bool is_cached = cached_snapshot(settings, name).has_value();
    if (as_json) {
      list.push_back({{"repo", item->repo},
                      {"type", name.type_word()},
                      {"from", from},
                      {"size", item->size},
                      {"for", item->models},
                      {"include", item->include},
                      {"exclude", item->exclude},
                      {"gated", item->is_gated},
                      {"cached", is_cached}});
      continue;
    }
    fmt::print("{}: {}, {}, for {}{}{}\n", from, item->why, item->size, fmt::join(item->models, ", "),
               item->is_gated ? "; gated: needs its licence and HF_TOKEN" : "",
               is_cached ? "; in the cache, what is missing is fetched" : "");
  }
  if (as_json) fmt::print("{}", dump_json_pretty(list));
}

std::filesystem::path fetch_item(const HubSettings& settings, const SetupItem& item, Logger& log) {
  const HubName name{item.type, item.repo};
  if (settings.is_offline) {
    if (const auto folder = cached_snapshot(settings, name)) return *folder;
    throw UserError(
        fmt::format("{}: HF_HUB_OFFLINE is set, and the cache {} lacks it", name.text(), settings.cache.string()),
        offline_remedy(settings, name));
  }
  HubFetch fetch(settings, name, fmt::format("setup {}", name.text()), log);
  fetch.list();
  std::vector<std::string> wanted;
  for (const HubFile& file : fetch.listing().files) {
    if (is_included(file.name, item.include, item.exclude)) wanted.push_back(file.name);
  }
  fetch.get(wanted);
  return fetch.folder();
}

}  // namespace

std::optional<FetchedPictures> set_up_benchmarks(const LaunchInputs& inputs, Logger& log) {
  std::vector<UserError> errors;
  const ScriptValues values(inputs, errors);
  for (const std::string& word : values.options()) {
    errors.emplace_back(fmt::format("unexpected argument '{}'", word), "the setup takes -m MODEL, and variables");
  }
  const std::vector<const SetupItem*> items = chosen_items(values.given("-m"), errors);
  EnvironmentMap environment = inputs.environment;
  for (const char* name : {"HF_HOME", "HF_TOKEN"}) {
    if (const ScriptValue* said = values.given(name)) environment[name] = said->value;
  }
  const HubSettings settings = read_hub_settings(environment);
  const std::string dry_run = values.text("DRY_RUN");
  const bool is_dry = dry_run != "0" && dry_run != "false";
  if (!is_dry) check_token(settings, items, errors);
  throw_if_any(errors);
  log.info("libraries: there is nothing to install, this program has what the benchmarks use");
  if (items.empty()) log.info("this benchmark trains on made-up tokens: there is nothing to fetch");
  if (is_dry) {
    print_items(settings, items, dry_run == "json");
    return std::nullopt;
  }
  FetchedPictures fetched;
  for (const SetupItem* item : items) {
    log.info("{}: {}, {}", item->repo, item->why, item->size);
    const std::filesystem::path folder = fetch_item(settings, *item, log);
    fmt::print("{}\n", folder.string());
    if (item->repo == kFluxRepo) fetched.model = folder;
    if (item->repo == kPicturesRepo) fetched.pictures = folder;
    if (item->repo == kWikitextRepo) ensure_wikitext(kWikitextFile, environment, log);
    std::fflush(stdout);
  }
  if (fetched.pictures.empty()) return std::nullopt;
  return fetched;
}

}  // namespace megalith
