// megalith fetch: models, tokenizers and data sets from the Hugging Face hub into the hub's cache.
#include <cstdio>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/strings.h"
#include "hub/hub.h"

namespace megalith {
namespace {

struct FetchOptions {
  std::string repo_type = "model";
  std::optional<std::string> revision;
  std::vector<std::string> include, exclude;
  bool dry_run = false;
  HubOptions hub;

  void visit(OptionVisitor& v) {
    v.group("Fetching");
    v.field("repo_type", repo_type, "What the names stand for: model or dataset.").words({"model", "dataset"});
    v.field("revision", revision, "Branch, tag or commit, for names without @revision; default: main.");
    v.field("include", include, "Fetch only the files that match one of these patterns (*, ?, [a-z]).");
    v.field("exclude", exclude, "Leave out the files that match one of these patterns.");
    v.field("dry_run", dry_run, "Print names and sizes of the files instead of fetching them.");
    hub.visit(v);
  }
};

HubName fetch_name(const std::string& text, const FetchOptions& options) {
  if (const std::optional<UserError> refusal = refuse_url("fetch", text)) throw *refusal;
  HubName name;
  name.type = options.repo_type == "dataset" ? HubRepoType::kDataset : HubRepoType::kModel;
  const size_t at = text.find('@');
  name.repo = text.substr(0, at);
  if (at != std::string::npos) {
    name.revision = text.substr(at + 1);
  } else if (options.revision) {
    name.revision = *options.revision;
  }
  if (!is_hub_repo(name.repo)) {
    throw UserError(fmt::format("fetch: '{}' is no name of a repository", text),
                    "write org/name or org/name@revision, as on the hub's page");
  }
  if (!is_hub_revision(name.revision)) {
    throw UserError(fmt::format("fetch: '{}' is no name of a revision", name.revision),
                    "give a branch, a tag, a commit or refs/pr/NUMBER");
  }
  return name;
}

// Files from the cache, without asking the hub.
std::filesystem::path fetch_offline(const HubSettings& settings, const HubName& name) {
  if (const auto folder = cached_snapshot(settings, name)) return *folder;
  throw UserError(
      fmt::format("fetch {}: HF_HUB_OFFLINE is set, and the cache {} lacks it", name.text(), settings.cache.string()),
      offline_remedy(settings, name));
}

}  // namespace

int run_fetch(CommandContext& context) {
  FetchOptions options;
  OptionSet set(options);
  const auto words =
      context.read_words(set,
                         "usage: megalith fetch NAME[@revision] ... [--repo_type dataset] [--include PATTERN ...]\n\n"
                         "Prints the folder of each repository in the cache.");
  if (!words) return kExitSuccess;
  if (words->empty()) throw UserError("nothing to fetch is named", "give names: megalith fetch org/name");
  std::vector<HubName> names;
  std::vector<UserError> errors;
  for (const std::string& text : *words) {
    try {
      names.push_back(fetch_name(text, options));
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  throw_if_any(errors);

  const HubSettings settings = read_hub_settings(context.environment, options.hub);
  for (const HubName& name : names) {
    if (settings.is_offline) {
      print_out("{}\n", fetch_offline(settings, name).string());
      continue;
    }
    const std::string what = fmt::format("fetch {}", name.text());
    HubListing listing;
    const auto wanted = [&](const HubListing& all) {
      std::vector<std::string> chosen;
      for (const HubFile& file : all.files) {
        if (is_included(file.name, options.include, options.exclude)) chosen.push_back(file.name);
      }
      if (chosen.empty() && !all.files.empty()) {
        throw UserError(fmt::format("{}: include and exclude leave none of its {} files", what, all.files.size()),
                        "'--dry_run' without them prints the files");
      }
      return chosen;
    };
    if (options.dry_run) {
      HubClient client(settings, name, what, context.log);
      listing = client.list();
      for (const std::string& file : wanted(listing)) {
        for (HubFile& known : listing.files) {
          if (known.name != file) continue;
          client.describe(listing.commit, known);
          print_out("{:>10}  {}/{}\n", format_bytes(known.size), name.text(), file);
        }
      }
      continue;
    }
    HubFetch fetch(settings, name, what, context.log);
    fetch.list();
    fetch.get(wanted(fetch.listing()));
    print_out("{}\n", fetch.folder().string());
    std::fflush(stdout);
  }
  return kExitSuccess;
}

std::vector<CommandOptions> fetch_options() { return {options_of<FetchOptions>("fetch")}; }

}  // namespace megalith
