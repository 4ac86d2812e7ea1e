#include "hub/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/strings.h"
#include "hub/urls.h"

namespace megalith {
namespace {

constexpr size_t kLongestHubRepo = 96;
constexpr std::string_view kFileEndings[] = {".json", ".jsonl", ".txt", ".model", ".tiktoken",    ".bin", ".idx",
                                             ".gz",   ".xz",    ".zst", ".yaml",  ".safetensors", ".pt"};

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

// huggingface_hub's rules.
bool is_repo_word(std::string_view word) {
  if (word.empty() || word.front() == '-' || word.front() == '.' || word.back() == '-' || word.back() == '.') {
    return false;
  }
  return std::all_of(word.begin(), word.end(), is_name_character);
}

std::vector<std::string_view> parts_of_path(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t slash = text.find('/');
    parts.push_back(text.substr(0, slash));
    if (slash == std::string_view::npos) return parts;
    text.remove_prefix(slash + 1);
  }
}

std::string joined_path(const std::vector<std::string_view>& parts, size_t first) {
  std::string result;
  for (size_t i = first; i < parts.size(); ++i) result += fmt::format("{}{}", i > first ? "/" : "", parts[i]);
  return result;
}

// "models--org--name" → org/name; "models--name" → name.
std::optional<HubName> name_of_cache_folder(std::string_view folder) {
  HubName name;
  for (const auto& [prefix, type] : {std::pair<std::string_view, HubRepoType>{"models--", HubRepoType::kModel},
                                     {"datasets--", HubRepoType::kDataset}}) {
    if (!folder.starts_with(prefix)) continue;
    name.type = type;
    name.repo = folder.substr(prefix.size());
    if (const size_t at = name.repo.find("--"); at != std::string::npos) name.repo.replace(at, 2, "/");
    if (is_hub_repo(name.repo)) return name;
  }
  return std::nullopt;
}

std::optional<HubName> parse_snapshot_path(std::string_view text) {
  const std::vector<std::string_view> parts = parts_of_path(text);
  for (size_t i = 0; i + 2 < parts.size(); ++i) {
    if (parts[i + 1] != "snapshots" || !is_commit(parts[i + 2])) continue;
    std::optional<HubName> name = name_of_cache_folder(parts[i]);
    if (!name) continue;
    name->revision = parts[i + 2];
    name->inner = joined_path(parts, i + 3);
    if (name->inner.empty() || is_safe_hub_file(name->inner)) return name;
  }
  return std::nullopt;
}

// Returns the end of a "[…]" at pattern[0], and whether it holds c; npos if unclosed.
std::pair<size_t, bool> match_class(std::string_view pattern, char c) {
  size_t i = 1;
  const bool is_negated = i < pattern.size() && pattern[i] == '!';
  if (is_negated) ++i;
  bool is_found = false;
  for (bool is_first = true; i < pattern.size(); is_first = false, ++i) {
    if (pattern[i] == ']' && !is_first) return {i + 1, is_found != is_negated};
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      is_found = is_found || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 2;
    } else {
      is_found = is_found || pattern[i] == c;
    }
  }
  return {std::string_view::npos, false};
}

bool matches_from(std::string_view name, std::string_view pattern) {
  // Backtracks only to the last star: otherwise hostile patterns take exponential time.
  size_t n = 0, p = 0, star = std::string_view::npos, star_name = 0;
  while (n < name.size()) {
    bool is_match = false;
    size_t next = p + 1;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
      continue;
    }
    if (p < pattern.size()) {
      is_match = pattern[p] == '?' || pattern[p] == name[n];
      if (pattern[p] == '[') {
        const auto [end, is_found] = match_class(pattern.substr(p), name[n]);
        if (end != std::string_view::npos) {
          is_match = is_found;
          next = p + end;
        }
      }
    }
    if (is_match) {
      ++n;
      p = next;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

std::string HubName::text() const {
  return fmt::format("{}{}{}", repo, revision == "main" ? "" : "@", revision == "main" ? "" : revision);
}

std::string_view HubName::type_word() const { return type == HubRepoType::kModel ? "model" : "dataset"; }

std::string HubName::page() const { return fmt::format("{}{}", type == HubRepoType::kModel ? "" : "datasets/", repo); }

std::optional<HubName> parse_hub_name(std::string_view text, HubRepoType type) {
  if (std::optional<HubName> recorded = parse_snapshot_path(text)) return recorded;
  if (text.empty() || text.front() == '/' || text.front() == '.' || text.front() == '~') return std::nullopt;
  HubName name;
  name.type = type;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_hub_revision(name.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  const std::vector<std::string_view> parts = parts_of_path(text);
  if (parts.size() < 2) return std::nullopt;
  name.repo = fmt::format("{}/{}", parts[0], parts[1]);
  // data/wiki.jsonl is a mistyped path.
  const auto is_file = [&](std::string_view ending) { return parts[1].ends_with(ending); };
  if (!is_hub_repo(name.repo) || std::any_of(std::begin(kFileEndings), std::end(kFileEndings), is_file)) {
    return std::nullopt;
  }
  name.inner = joined_path(parts, 2);
  if (parts.size() > 2 && (type != HubRepoType::kDataset || !is_safe_hub_file(name.inner))) return std::nullopt;
  return name;
}

bool is_hub_repo(std::string_view repo) {
  const size_t slash = repo.find('/');
  if (slash != std::string_view::npos && !is_repo_word(repo.substr(0, slash))) return false;
  const std::string_view name = slash == std::string_view::npos ? repo : repo.substr(slash + 1);
  return repo.size() <= kLongestHubRepo && is_repo_word(name) && repo.find("--") == std::string_view::npos &&
         repo.find("..") == std::string_view::npos && !repo.ends_with(".git");
}

bool is_hub_revision(std::string_view revision) {
  // A file name below refs/.
  return is_safe_hub_file(revision) && revision.find_first_of(" ~^:?*[\\@") == std::string_view::npos &&
         revision.find("..") == std::string_view::npos && !revision.ends_with(".lock");
}

bool is_hex_digits(std::string_view text, size_t length) {
  return text.size() == length && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_commit(std::string_view revision) { return is_hex_digits(revision, 40); }

bool is_safe_hub_file(std::string_view name) {
  if (name.empty() || name.size() > 1024) return false;
  const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f || c == '\\'; };
  if (std::any_of(name.begin(), name.end(), is_control)) return false;
  const std::vector<std::string_view> parts = parts_of_path(name);
  return std::none_of(parts.begin(), parts.end(),
                      [](std::string_view part) { return part.empty() || part == "." || part == ".."; });
}

std::string url_scheme(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == std::string_view::npos || colon == 0) return "";
  const std::string scheme = lower_case(text.substr(0, colon));
  const bool is_scheme = scheme.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+.-") == std::string::npos;
  return is_scheme ? scheme : "";
}

std::optional<UserError> refuse_url(std::string_view option, std::string_view value) {
  const std::string scheme = url_scheme(value);
  if (scheme.empty()) return std::nullopt;
  // URLs may carry passwords and signatures.
  const std::string url = shown_url(value);
  std::string rest = url.substr(url.find("://") + 3);
  while (rest.ends_with('/')) rest.pop_back();
  const std::string message = fmt::format("{} {} is a URL, and this option takes a path", option, url);
  const auto copy = [&](std::string_view command) {
    return UserError(message, fmt::format("copy it first ('{}'), and name DIR", command));
  };
  if (scheme == "s3") return copy(fmt::format("aws s3 sync {} DIR", url));
  if (scheme == "gs") return copy(fmt::format("gcloud storage rsync -r {} DIR", url));
  if (scheme == "az" || scheme == "abfs" || scheme == "abfss") {
    return copy("azcopy copy 'https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH' DIR --recursive");
  }
  if (scheme == "file") {
    return UserError(message, fmt::format("write only the path: {}", url.substr(std::string("file://").size())));
  }
  std::string_view on_hub = rest;
  bool is_hub = scheme == "hf";
  for (const std::string_view host : {"huggingface.co/", "www.huggingface.co/", "hf.co/"}) {
    if (scheme.starts_with("http") && on_hub.starts_with(host)) {
      on_hub.remove_prefix(host.size());
      is_hub = true;
      break;
    }
  }
  if (is_hub) {
    if (on_hub.starts_with("datasets/")) on_hub.remove_prefix(std::string_view("datasets/").size());
    const std::vector<std::string_view> parts = parts_of_path(on_hub);
    std::string name = parts.size() < 2 ? "org/name" : fmt::format("{}/{}", parts[0], parts[1]);
    if (parts.size() > 3 && (parts[2] == "tree" || parts[2] == "resolve" || parts[2] == "blob")) {
      name += fmt::format("@{}", parts[3]);
    }
    return UserError(message, fmt::format("write the repository's name: {}", name));
  }
  if (scheme.starts_with("http")) {
    return UserError(message, "download it first ('curl -LO URL'), and name the file or its folder");
  }
  return UserError(message, "copy what it names to this machine, and name the path");
}

bool matches_glob(std::string_view name, std::string_view pattern) {
  return matches_from(name, pattern.ends_with('/') ? fmt::format("{}*", pattern) : std::string(pattern));
}

bool is_included(std::string_view name, const std::vector<std::string>& include,
                 const std::vector<std::string>& exclude) {
  const auto matches = [&](const std::string& pattern) { return matches_glob(name, pattern); };
  return (include.empty() || std::any_of(include.begin(), include.end(), matches)) &&
         std::none_of(exclude.begin(), exclude.end(), matches);
}

}  // namespace megalith
