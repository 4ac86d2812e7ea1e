// The local cache, in huggingface_hub's layout, so each finds what the other fetched:
//
//   CACHE/models--org--name/blobs/HASH                  a file's bytes, by SHA-256 (large) or git's SHA-1 (small)
//                          /blobs/HASH.incomplete       a blob's first bytes
//                          /refs/main                   the commit of a branch or tag when last asked
//                          /snapshots/COMMIT/file       a relative link to its blob
//   CACHE/datasets--org--name/…
//   CACHE/.locks/models--org--name/HASH.lock            held (flock) while a blob is fetched
//
// Source: huggingface_hub 0.36, file_download.py; its documentation, "Understand caching".
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "config/yaml_document.h"
#include "hub/names.h"
#include "hub/options.h"

namespace megalith {

// Limits for a hub's answers. Only `total` is an option; tests lower the others.
struct HubPatience {
  std::chrono::milliseconds connect_timeout{10'000};  // HF_HUB_ETAG_TIMEOUT
  std::chrono::milliseconds stall_timeout{10'000};    // HF_HUB_DOWNLOAD_TIMEOUT
  std::chrono::milliseconds first_pause{1'000};       // between tries; doubles
  std::chrono::milliseconds total{600'000};           // hub_timeout_minutes
  std::chrono::milliseconds answer{30'000};           // to a list or header, plus a second per 64 KiB
  // About 130 000 files; the hub advises against over 100 000.
  size_t most_list_bytes = size_t{32} << 20;
};

// No message or file may hold the token.
struct HubSettings {
  std::filesystem::path cache;       // HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub
  std::filesystem::path token_path;  // HF_TOKEN_PATH, else $HF_HOME/token
  std::string endpoint;              // HF_ENDPOINT, else https://huggingface.co
  std::string token;                 // HF_TOKEN, else the file's; may be empty
  std::string token_source;          // "HF_TOKEN" or the file; may be empty
  bool is_offline = false;           // HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE
  HubPatience patience;
  std::string ca_file;  // REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE

  std::string shown_endpoint() const;  // without a password
};

// UserError: a malformed endpoint, a token that no header can carry, a timeout that is no number.
HubSettings read_hub_settings(const EnvironmentMap& environment, const HubOptions& options = {});

// CACHE/models--org--name.
std::filesystem::path hub_repo_folder(const HubSettings& settings, const HubName& name);
std::filesystem::path hub_blob(const HubSettings& settings, const HubName& name, const std::string& hash);

// The revision's, as far as the cache knows.
std::optional<std::string> cached_commit(const HubSettings& settings, const HubName& name);
// May be incomplete.
std::optional<std::filesystem::path> cached_snapshot(const HubSettings& settings, const HubName& name);
std::filesystem::path hub_snapshot(const HubSettings& settings, const HubName& name, const std::string& commit);

// Does nothing for a commit.
void write_hub_ref(const HubSettings& settings, const HubName& name, const std::string& commit);

// By a relative link, else a hard link or copy. The caller holds the blob's lock.
void link_hub_blob(const HubSettings& settings, const HubName& name, const std::string& commit, const std::string& file,
                   const std::string& hash);

// A lock between processes, including huggingface_hub's: flock below CACHE/.locks.
class HubLock {
 public:
  //   key       name, without ".lock"
  //   on_wait   called about every ten seconds while another process has it
  HubLock(const HubSettings& settings, const HubName& name, const std::string& key,
          const std::function<void(std::chrono::seconds)>& on_wait);
  ~HubLock();
  HubLock(const HubLock&) = delete;
  HubLock& operator=(const HubLock&) = delete;

 private:
  int fd_ = -1;  // -1: no locks on this file system
};

}  // namespace megalith
