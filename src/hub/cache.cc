#include "hub/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <thread>

#include "config/option_value.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "core/system_call.h"
#include "hub/http.h"
#include "hub/urls.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

std::string hub_variable(const EnvironmentMap& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

bool is_true_variable(const EnvironmentMap& environment, const std::string& name) {
  const std::string value = lower_case(hub_variable(environment, name));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

fs::path home_folder(const EnvironmentMap& environment) {
  if (const std::string home = hub_variable(environment, "HOME"); !home.empty()) return home;
  const passwd* user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "/";
}

// "~/x" and "$VAR/x", as huggingface_hub does.
fs::path expanded_path(std::string text, const EnvironmentMap& environment) {
  if (text == "~" || text.starts_with("~/")) text.replace(0, 1, home_folder(environment).string());
  for (size_t at = text.find('$'); at != std::string::npos; at = text.find('$', at + 1)) {
    const bool has_braces = text.compare(at, 2, "${") == 0;
    const size_t begin = at + (has_braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    const auto found = environment.find(text.substr(begin, end - begin));
    if (found == environment.end() || (has_braces && (end == text.size() || text[end] != '}'))) continue;
    text.replace(at, end + (has_braces ? 1 : 0) - at, found->second);
  }
  return text;
}

void read_timeout_variable(const EnvironmentMap& environment, const std::string& name,
                           std::chrono::milliseconds& timeout) {
  const std::string value = hub_variable(environment, name);
  if (value.empty()) return;
  const std::optional<int64_t> seconds = parse_integer(value);
  if (!seconds || *seconds < 1 || *seconds > 86400) {
    throw UserError(fmt::format("the environment variable {} is '{}'", name, value), "give whole seconds, at least 1");
  }
  timeout = std::chrono::seconds(*seconds);
}

void read_hub_token(HubSettings& settings, const EnvironmentMap& environment) {
  if (is_true_variable(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN")) return;
  settings.token_source = "HF_TOKEN";
  settings.token = trim(hub_variable(environment, "HF_TOKEN"));
  // The older name, which huggingface_hub still reads.
  if (settings.token.empty()) settings.token = trim(hub_variable(environment, "HUGGING_FACE_HUB_TOKEN"));
  std::error_code error;
  if (settings.token.empty() && fs::is_regular_file(settings.token_path, error)) {
    settings.token_source = settings.token_path.string();
    settings.token = trim(read_file(settings.token_path));
  }
  if (settings.token.empty()) settings.token_source.clear();
  const auto is_bad = [](char c) { return c <= ' ' || static_cast<uint8_t>(c) >= 0x7f; };
  if (std::any_of(settings.token.begin(), settings.token.end(), is_bad)) {
    throw UserError(
        fmt::format("the token in {} holds blanks, line breaks or letters that a token has not", settings.token_source),
        "copy it again from the hub's page settings/tokens");
  }
}

fs::path hub_lock_folder(const HubSettings& settings, const HubName& name) {
  return settings.cache / ".locks" / hub_repo_folder(settings, name).filename();
}

}  // namespace

std::string HubSettings::shown_endpoint() const { return shown_url(endpoint); }

HubSettings read_hub_settings(const EnvironmentMap& environment, const HubOptions& options) {
  HubSettings settings;
  const std::string xdg = hub_variable(environment, "XDG_CACHE_HOME");
  const fs::path base = xdg.empty() ? home_folder(environment) / ".cache" : fs::path(xdg);
  const std::string hf_home = hub_variable(environment, "HF_HOME");
  const fs::path home = expanded_path(hf_home.empty() ? (base / "huggingface").string() : hf_home, environment);
  settings.cache = home / "hub";
  settings.token_path = home / "token";
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    const std::string value = hub_variable(environment, name);
    if (value.empty()) continue;
    settings.cache = expanded_path(value, environment);
    break;
  }
  if (const std::string path = hub_variable(environment, "HF_TOKEN_PATH"); !path.empty()) {
    settings.token_path = expanded_path(path, environment);
  }
  settings.endpoint = hub_variable(environment, "HF_ENDPOINT");
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  if (url_origin(settings.endpoint).empty()) {
    throw UserError(fmt::format("the environment variable HF_ENDPOINT is '{}'", shown_url(settings.endpoint)),
                    "give the hub's address, such as https://huggingface.co");
  }
  settings.is_offline = is_true_variable(
      environment, hub_variable(environment, "HF_HUB_OFFLINE").empty() ? "TRANSFORMERS_OFFLINE" : "HF_HUB_OFFLINE");
  read_timeout_variable(environment, "HF_HUB_ETAG_TIMEOUT", settings.patience.connect_timeout);
  read_timeout_variable(environment, "HF_HUB_DOWNLOAD_TIMEOUT", settings.patience.stall_timeout);
  settings.patience.total = std::chrono::milliseconds(static_cast<int64_t>(options.hub_timeout_minutes * 60'000));
  for (const char* name : {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    if (settings.ca_file.empty()) settings.ca_file = hub_variable(environment, name);
  }
  read_hub_token(settings, environment);
  return settings;
}

fs::path hub_repo_folder(const HubSettings& settings, const HubName& name) {
  std::string folder = fmt::format("{}s--{}", name.type_word(), name.repo);
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  return settings.cache / folder;
}

fs::path hub_blob(const HubSettings& settings, const HubName& name, const std::string& hash) {
  return hub_repo_folder(settings, name) / "blobs" / hash;
}

fs::path hub_snapshot(const HubSettings& settings, const HubName& name, const std::string& commit) {
  return hub_repo_folder(settings, name) / "snapshots" / commit;
}

std::optional<std::string> cached_commit(const HubSettings& settings, const HubName& name) {
  if (is_commit(name.revision)) return name.revision;
  const fs::path ref = hub_repo_folder(settings, name) / "refs" / name.revision;
  std::error_code error;
  if (!fs::is_regular_file(ref, error)) return std::nullopt;
  const std::string commit(trim(read_file(ref)));
  if (!is_commit(commit)) return std::nullopt;
  return commit;
}

std::optional<fs::path> cached_snapshot(const HubSettings& settings, const HubName& name) {
  const std::optional<std::string> commit = cached_commit(settings, name);
  if (!commit) return std::nullopt;
  const fs::path folder = hub_snapshot(settings, name, *commit);
  std::error_code error;
  if (!fs::is_directory(folder, error)) return std::nullopt;
  return folder;
}

void write_hub_ref(const HubSettings& settings, const HubName& name, const std::string& commit) {
  if (is_commit(name.revision) || cached_commit(settings, name) == commit) return;
  const fs::path ref = hub_repo_folder(settings, name) / "refs" / name.revision;
  make_directories(ref.parent_path());
  write_file_atomic(ref, commit);
}

void link_hub_blob(const HubSettings& settings, const HubName& name, const std::string& commit, const std::string& file,
                   const std::string& hash) {
  const fs::path target = hub_snapshot(settings, name, commit) / file, blob = hub_blob(settings, name, hash);
  std::error_code error;
  if (fs::equivalent(target, blob, error)) return;
  make_directories(target.parent_path());
  // Renamed, so readers find the old link, the new one, or none. Outside the snapshot: if killed here, nothing passes
  // for one of its files.
  const fs::path locks = hub_lock_folder(settings, name), temporary = locks / fmt::format("{}.link", hash);
  make_directories(locks);
  fs::remove(temporary, error);
  fs::create_symlink(blob.lexically_relative(target.parent_path()), temporary, error);
  if (error) fs::create_hard_link(blob, temporary, error);
  if (error) fs::copy_file(blob, temporary, fs::copy_options::overwrite_existing, error);
  if (!error) fs::rename(temporary, target, error);
  if (error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw UserError(fmt::format("cannot create {}: {}", target.string(), error.message()),
                    "is the cache writable? HF_HUB_CACHE names another folder");
  }
}

HubLock::HubLock(const HubSettings& settings, const HubName& name, const std::string& key,
                 const std::function<void(std::chrono::seconds)>& on_wait) {
  const fs::path folder = hub_lock_folder(settings, name);
  make_directories(folder);
  const fs::path path = folder / fmt::format("{}.lock", key);
  const auto start = std::chrono::steady_clock::now();
  std::chrono::seconds told{0};
  for (;;) {
    fd_ = retry_interrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
    if (fd_ < 0) {
      throw UserError(fmt::format("cannot open {}: {}", path.string(), system_error_text(errno)),
                      "is the cache writable? HF_HUB_CACHE names another folder");
    }
    int error = 0;
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      error = errno;
      if (error != EWOULDBLOCK && error != EINTR && error != EACCES) break;
      error = 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
      if (waited - told >= std::chrono::seconds(10)) on_wait(told = waited);
    }
    struct stat status {};
    // The former holder may have removed the file: a lock on it guards nothing.
    if (error == 0 && ::fstat(fd_, &status) == 0 && status.st_nlink > 0) return;
    close_descriptor(fd_);
    fd_ = -1;
    if (error != 0) return;  // no locks here; at worst files are fetched twice
  }
}

HubLock::~HubLock() {
  if (fd_ >= 0) close_descriptor(fd_);
}

}  // namespace megalith
