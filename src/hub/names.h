// Names of Hugging Face repositories, `org/name[@revision]`, and of files in them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace megalith {

enum class HubRepoType { kModel, kDataset };

struct HubName {
  HubRepoType type = HubRepoType::kModel;
  std::string repo;               // "org/name"; old repositories have no org
  std::string revision = "main";  // branch, tag, "refs/pr/1" or commit
  std::string inner;              // a path within the repository, for data; may be empty

  // For messages: "meta-llama/Llama-3.1-8B", with "@revision" unless it is main.
  std::string text() const;
  // "model" or "dataset".
  std::string_view type_word() const;
  // Its web page below the hub's address: "org/name" or "datasets/org/name".
  std::string page() const;
};

// Parses `org/name[@revision]`, for data sets also `org/name/path/within[@revision]`, or a path into any hub cache
// (…/models--org--name/snapshots/COMMIT[/path]), so that another machine's records work here. Nothing for other texts:
// those that begin with '/', '.' or '~', have no '/', or have invalid characters.
std::optional<HubName> parse_hub_name(std::string_view text, HubRepoType type);

// True for a bare repository name, with or without org: what `megalith fetch` takes.
bool is_hub_repo(std::string_view repo);
bool is_hub_revision(std::string_view revision);

// 40 hexadecimal digits.
bool is_commit(std::string_view revision);
bool is_hex_digits(std::string_view text, size_t length);

// True if the name stays within its repository: relative, without "..", empty parts and control characters.
bool is_safe_hub_file(std::string_view name);

// "s3" for "s3://…", "" for a path.
std::string url_scheme(std::string_view text);

// The error, with a remedy, if a path option's value is a URL.
std::optional<UserError> refuse_url(std::string_view option, std::string_view value);

// Glob with *, ? and [a-z], where * also matches '/', and a final '/' means everything below, as in huggingface_hub's
// include and exclude patterns (Python's fnmatch).
bool matches_glob(std::string_view name, std::string_view pattern);

// True if `include` is empty or has a match, and `exclude` has none.
bool is_included(std::string_view name, const std::vector<std::string>& include,
                 const std::vector<std::string>& exclude);

}  // namespace megalith
