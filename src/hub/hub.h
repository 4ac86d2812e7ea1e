// Hugging Face hub names as paths: an existing path first, then the cache, then a download.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/log.h"
#include "hub/cache.h"
#include "hub/client.h"
#include "hub/names.h"

namespace megalith {

// An option's needs: which files are fetched, and when the cache suffices.
enum class HubNeed {
  kTokenizer,
  kModelConfig,  // config.json, tokenizer files, index of the weights, sentence-transformers' settings: small
  kModel,        // these and the weights (safetensors); of a diffusers pipeline the transformer's
  kEncoders,     // of a diffusers pipeline: all but the transformer's weights
  kTokenData,    // the .bin and .idx of one prefix of a data set repository
  kTextFile,     // one file of a data set repository
};

// The local path for an option's value.
//
// Existing paths (for kTokenData a prefix whose .bin or .idx exists) and texts that are not repository names are
// returned as they are; their reader reports errors. A name gives its snapshot's folder in the cache (kTokenData: the
// prefix in it, kTextFile: the file), without asking the hub if the cache suffices. Otherwise it is fetched, by one of
// the processes that share the cache, while others wait.
//
// option  in messages: "load_hf"
// Throws UserError: a URL; a repository that does not exist or is refused, with what to do. HubError: temporarily
// unavailable.
std::filesystem::path resolve_hub_path(const std::string& option, const std::string& value, HubNeed need,
                                       const EnvironmentMap& environment, const HubOptions& options, Logger& log);

// Completes a model's snapshot in the cache, or a folder in it, with kModel's or kEncoders' files. Other paths are
// returned as they are.
std::filesystem::path complete_hub_folder(const std::string& option, const std::string& folder, HubNeed need,
                                          const EnvironmentMap& environment, const HubOptions& options, Logger& log);

void resolve_hub_option(const std::string& option, std::optional<std::string>& value, HubNeed need,
                        const EnvironmentMap& environment, const HubOptions& options, Logger& log);

// One error for each URL among the options that take paths.
std::vector<UserError> refuse_urls(const OptionSet& options);

// Fetches a revision's files into the cache. Holds the repository's lock as long as it lives.
class HubFetch {
 public:
  // what  begins messages
  HubFetch(const HubSettings& settings, HubName name, std::string what, Logger& log);

  // Asks the hub, and records the revision's commit. Call it once, before the others.
  void list();
  const HubListing& listing() const { return listing_; }
  std::filesystem::path folder() const;

  // Makes these files of the listing appear in folder(), several at a time, with progress. Skips cached ones. HubError
  // if one is unavailable; what has arrived stays.
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

// The files of a tokenizer, and of a model beside its weights; * never matches '/' here.
const std::vector<std::string>& tokenizer_file_patterns();

}  // namespace megalith
