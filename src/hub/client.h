// The hub's HTTP interface: a revision's files, checked against what the hub states.
//
//   GET  /api/models/{repo}/revision/{revision}?blobs=true   commit; name, size and hash of every file
//   HEAD /{repo}/resolve/{commit}/{file}                     size and hash of one, if a mirror's list has none
//   GET  /{repo}/resolve/{commit}/{file}                     its bytes, from any position; often redirected to a store
//
// Data sets: below /api/datasets and /datasets. Failures are retried (retry.h); lists are bounded by a limit, files by
// their listed size. Source: the hub's API reference; huggingface_hub 0.36.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/log.h"
#include "hub/cache.h"
#include "hub/http.h"
#include "hub/names.h"
#include "hub/retry.h"

namespace megalith {

struct HubFile {
  std::string name;   // within the repository
  int64_t size = -1;  // bytes; -1: unstated
  std::string hash;   // the blob's name: SHA-256 (64 digits), git's SHA-1 (40), or a tag that cannot be checked
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

// For one repository. Not thread-safe.
class HubClient {
 public:
  // what  begins messages: "load_hf meta-llama/Llama-3.1-8B"
  HubClient(const HubSettings& settings, HubName name, std::string what, Logger& log);

  // UserError: refused (401, 403: with the licence's page and HF_TOKEN), not found (404). HubError: unreachable, or a
  // senseless answer.
  HubListing list();

  // Fills in what the list lacks. Errors as list()'s; HubError if the hub does not state it either.
  void describe(const std::string& commit, HubFile& file);

  // Fetches through `blob`.incomplete, perhaps begun earlier; the blob appears once size and hash are right. Broken
  // connections are resumed, a few times without progress. HubError if unavailable, or twice different from what the
  // hub states; then nothing is kept.
  //   on_bytes  receives bytes arrived, negative if discarded
  //   stop      ends the transfer soon, without a blob
  void download(const std::string& commit, const HubFile& file, const std::filesystem::path& blob,
                const std::function<void(int64_t)>& on_bytes, const std::atomic<bool>& stop);

 private:
  struct FileTransfer;
  struct FileTry;

  HttpRequest request(std::string url) const;
  HubListing read_listing(const std::string& body, const std::string& where) const;
  // One request for what is missing.
  FileTry try_file(FileTransfer& transfer);
  std::string resolve_url(const std::string& commit, const std::string& file) const;
  // Retries until an answer is usable; throws for others.
  HttpResponse send(HttpRequest request, std::string* body, const std::string& file);
  // end: why no try follows; may be empty
  [[noreturn]] void refuse(const HttpResponse& response, const std::string& file, const std::string& end = "") const;
  [[noreturn]] void give_up(const std::string& reason) const;
  std::string without_token(std::string text) const;

  const HubSettings& settings_;
  HubName name_;
  std::string what_;
  Logger& log_;
  HttpClient http_;
};

// The folder for files, in messages.
std::string offline_remedy(const HubSettings& settings, const HubName& name);

}  // namespace megalith
