// The hub's HTTP interface: which files a revision has, and their bytes, checked against what the hub states of them.
//
//   GET  /api/models/{repo}/revision/{revision}?blobs=true   commit; name, size and hash of every file
//   HEAD /{repo}/resolve/{commit}/{file}                     size and hash of one, where a mirror's list has none
//   GET  /{repo}/resolve/{commit}/{file}                     its bytes, from any position; often redirected to a store
//
// Data sets have the same below /api/datasets and /datasets. Whatever does not arrive is asked for again a few times,
// with the reason in the log (retry.h); what arrives is bounded, the list by a limit, a file by the size that is
// listed. Source: the hub's API reference; huggingface_hub 0.36.
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
  int64_t size = -1;  // bytes; -1: not stated
  std::string hash;   // names the blob: SHA-256 (64 digits), git's SHA-1 (40), or a tag that cannot be checked
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

// Talks to one host about one repository. Not to be shared between threads.
class HubClient {
 public:
  // what  how messages begin: "load_hf meta-llama/Llama-3.1-8B"
  HubClient(const HubSettings& settings, HubName name, std::string what, Logger& log);

  // UserError: refused (401, 403: with the licence's page and HF_TOKEN), not there (404). HubError: not reachable, or
  // no answer that makes sense.
  HubListing list();

  // Fills in what the list did not state. Errors as list()'s; HubError when the hub does not state it either.
  void describe(const std::string& commit, HubFile& file);

  // Fetches a file to `blob`, by way of `blob`.incomplete, which an earlier try may have begun. The blob appears when
  // size and hash are right. Connections that break are taken up again, a few times without progress. HubError when the
  // file cannot be had, or differs twice from what the hub states of it: then nothing of it is kept.
  // on_bytes  receives how many bytes have arrived, negative when some had to be thrown away
  // stop      ends the transfer soon after it becomes true; the blob does not appear then
  void download(const std::string& commit, const HubFile& file, const std::filesystem::path& blob,
                const std::function<void(int64_t)>& on_bytes, const std::atomic<bool>& stop);

 private:
  struct FileTransfer;
  struct FileTry;

  HttpRequest request(std::string url) const;
  HubListing read_listing(const std::string& body, const std::string& where) const;
  // Asks once for what is missing of a file.
  FileTry try_file(FileTransfer& transfer);
  std::string resolve_url(const std::string& commit, const std::string& file) const;
  // Sends until there is an answer that is worth reading; throws for the others.
  HttpResponse send(HttpRequest request, std::string* body, const std::string& file);
  // end: why there is no further try; may be empty
  [[noreturn]] void refuse(const HttpResponse& response, const std::string& file, const std::string& end = "") const;
  [[noreturn]] void give_up(const std::string& reason) const;
  std::string without_token(std::string text) const;

  const HubSettings& settings_;
  HubName name_;
  std::string what_;
  Logger& log_;
  HttpClient http_;
};

// What to do where the hub cannot be asked: the folder to put files in. For messages.
std::string offline_remedy(const HubSettings& settings, const HubName& name);

}  // namespace megalith
