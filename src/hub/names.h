// Names of repositories on the Hugging Face hub, `org/name[@revision]`, and which files of one are meant.
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

  // "meta-llama/Llama-3.1-8B", with "@revision" when it is not main: what messages call it.
  std::string text() const;
  // "model" or "dataset".
  std::string_view type_word() const;
  // Where its web page lies below the hub's address: "org/name" or "datasets/org/name".
  std::string page() const;
};

// Reads `org/name[@revision]`, for data sets also `org/name/path/within[@revision]`. Also reads a path into some hub
// cache (…/models--org--name/snapshots/COMMIT[/path]), so that what another machine recorded is found on this one.
// Nothing when the text is no such name: it begins with '/', '.' or '~', has no '/', or has characters no name has.
std::optional<HubName> parse_hub_name(std::string_view text, HubRepoType type);

// Whether a text is only a repository's name, with or without org: what `megalith fetch` takes.
bool is_hub_repo(std::string_view repo);
bool is_hub_revision(std::string_view revision);

// 40 hexadecimal digits.
bool is_commit(std::string_view revision);
bool is_hex_digits(std::string_view text, size_t length);

// A file's name that stays within its repository: relative, without "..", empty parts and control characters.
bool is_safe_hub_file(std::string_view name);

// "s3" for "s3://…", "" for a path.
std::string url_scheme(std::string_view text);

// What is wrong with a URL as the value of a path option, and what to do instead; nothing for a path or a name.
std::optional<UserError> refuse_url(std::string_view option, std::string_view value);

// Whether a name matches a pattern with *, ? and [a-z], where * also matches '/', and a pattern that ends in '/' means
// all below it: as the include and exclude patterns of huggingface_hub (Python's fnmatch).
bool matches_glob(std::string_view name, std::string_view pattern);

// Whether a file is wanted: it matches one of `include`, or there are none, and none of `exclude`.
bool is_included(std::string_view name, const std::vector<std::string>& include,
                 const std::vector<std::string>& exclude);

}  // namespace megalith
