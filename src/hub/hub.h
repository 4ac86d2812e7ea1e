// Hub names as paths: an existing path first, then the cache, then a download.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"
#include "core/log.h"
#include "hub/cache.h"
#include "hub/client.h"
#include "hub/names.h"

namespace megalith {

// Decides which files are fetched, and when the cache suffices.
enum class HubNeed {
  kTokenizer,
  kModelConfig,  // config.json, tokenizer, index of the weights, sentence-transformers' settings
  kModel,        // these and the weights (safetensors); a diffusers pipeline's transformer
  kEncoders,     // all of a diffusers pipeline but the transformer's weights
  kTokenData,    // one prefix's .bin and .idx in a data set
  kTextFile,     // one file of a data set
};

// The local path for an option's value.
//
// Existing paths (kTokenData: a prefix whose .bin or .idx exists) and texts that are no repository names are returned
// as they are. A name gives its snapshot's folder in the cache (kTokenData: the prefix in it, kTextFile: the file),
// without asking the hub if the cache suffices. Otherwise one of the processes that share the cache fetches it.
//
//   option  in messages: "load_hf"
// UserError: a URL; a repository that does not exist or is refused. HubError: temporarily unavailable.
std::filesystem::path resolve_hub_path(const std::string& option, const std::string& value, HubNeed need,
                                       const EnvironmentMap& environment, const HubOptions& options, Logger& log);

// Completes a cached snapshot, or a folder in it, with kModel's or kEncoders' files. Other paths are returned as they
// are.
std::filesystem::path complete_hub_folder(const std::string& option, const std::string& folder, HubNeed need,
                                          const EnvironmentMap& environment, const HubOptions& options, Logger& log);

void resolve_hub_option(const std::string& option, std::optional<std::string>& value, HubNeed need,
                        const EnvironmentMap& environment, const HubOptions& options, Logger& log);

// An error per URL among the path options.
//   stored  options that also take addresses of object storage, s3://bucket/prefix
std::vector<UserError> refuse_urls(const OptionSet& options, const std::set<std::string_view>& stored = {});

// Fetches a revision into the cache, holding the repository's lock.
class HubFetch {
 public:
  // what  begins messages
  HubFetch(const HubSettings& settings, HubName name, std::string what, Logger& log);

  // Asks the hub, and records the commit. Call once, first.
  void list();
  const HubListing& listing() const { return listing_; }
  std::filesystem::path folder() const;

  // Makes listed files appear in folder(), several at a time, except cached ones. HubError if one is unavailable; what
  // has arrived stays.
  void get(const std::vector<std::string>& names);

 private:
  void get_one(HubClient& client, const HubFile& file, const std::function<void(int64_t)>& on_bytes,
               const std::atomic<bool>& stop);
  void check_room(int64_t num_bytes) const;

  const HubSettings& settings_;
  HubName name_;
  std::string what_;
  Logger& log_;
  HubLock lock_;
  HubListing listing_;
};

// A tokenizer's files, and a model's beside its weights; here * never matches '/'.
const std::vector<std::string>& tokenizer_file_patterns();

}  // namespace megalith
