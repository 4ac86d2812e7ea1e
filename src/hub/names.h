// Names of hub repositories, `org/name[@revision]`, and of files in them.
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
  std::string repo;               // "org/name"; old ones have no org
  std::string revision = "main";  // branch, tag, "refs/pr/1" or commit
  std::string inner;              // path within the repository; may be empty

  // "meta-llama/Llama-3.1-8B", with "@revision" unless main.
  std::string text() const;
  // "model" or "dataset".
  std::string_view type_word() const;
  // Below the hub's address: "org/name", "datasets/org/name".
  std::string page() const;
};

// Parses `org/name[@revision]`, for data sets also `org/name/path/within[@revision]`, or a path into any hub cache
// (…/models--org--name/snapshots/COMMIT[/path]), so other machines' records work. Null if the text begins with '/', '.'
// or '~', has no '/', or invalid characters.
std::optional<HubName> parse_hub_name(std::string_view text, HubRepoType type);

// A bare name, with or without org, as `megalith fetch` takes.
bool is_hub_repo(std::string_view repo);
bool is_hub_revision(std::string_view revision);

// 40 hexadecimal digits.
bool is_commit(std::string_view revision);
bool is_hex_digits(std::string_view text, size_t length);

// Within the repository: relative, without "..", empty parts and control characters.
bool is_safe_hub_file(std::string_view name);

// "s3" for "s3://…"; "" for a path.
std::string url_scheme(std::string_view text);

// For a path option's value; null unless a URL.
std::optional<UserError> refuse_url(std::string_view option, std::string_view value);

// Python's fnmatch, as huggingface_hub: *, ? and [a-z]; * also matches '/', and a final '/' means everything below.
bool matches_glob(std::string_view name, std::string_view pattern);

// An empty `include` matches all.
bool is_included(std::string_view name, const std::vector<std::string>& include,
                 const std::vector<std::string>& exclude);

}  // namespace megalith
