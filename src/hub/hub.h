// Names of the Hugging Face hub wherever a path is taken: an existing path first, then the cache, then a download.
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

// What an option needs of a repository: which files are fetched, and when the cache's are enough.
enum class HubNeed {
  kTokenizer,    // the tokenizer's files
  kModelConfig,  // config.json, the tokenizer's files, the index of the weights, how vectors of texts are made: small
  kModel,        // these and the weights (safetensors); of a pipeline of diffusers' the transformer's
  kEncoders,     // of a pipeline of diffusers': all but the transformer's weights
  kTokenData,    // the .bin and .idx of one prefix of a data set repository
  kTextFile,     // one file of a data set repository
};

// The local path that an option's value stands for.
//
// A path that exists is returned as it is (for kTokenData a prefix whose .bin or .idx exists), and so is what is no
// name of a repository: its reader says what is wrong. A name gives the folder of its snapshot in the cache
// (kTokenData: the prefix in it, kTextFile: the file), without asking the hub when the cache has what is needed.
// Otherwise it is fetched, by one process of those that share the cache: the others wait and then find it.
//
// option  as messages call it: "load_hf"
// Throws UserError: a URL; a repository that does not exist or is refused, with what to do. HubError: one that cannot
// be had now.
std::filesystem::path resolve_hub_path(const std::string& option, const std::string& value, HubNeed need,
                                       const EnvironmentMap& environment, const HubOptions& options, Logger& log);

// A model's snapshot in the cache, or a folder in it, completed with what kModel or kEncoders says. A path that is of
// no snapshot is returned as it is.
std::filesystem::path complete_hub_folder(const std::string& option, const std::string& folder, HubNeed need,
                                          const EnvironmentMap& environment, const HubOptions& options, Logger& log);

// resolve_hub_path() for an option that may be unset.
void resolve_hub_option(const std::string& option, std::optional<std::string>& value, HubNeed need,
                        const EnvironmentMap& environment, const HubOptions& options, Logger& log);

// One error for each URL among the options that take paths.
std::vector<UserError> refuse_urls(const OptionSet& options);

// A revision's files on the way into the cache. Holds the repository's lock as long as it lives.
class HubFetch {
 public:
  // what  how messages begin
  HubFetch(const HubSettings& settings, HubName name, std::string what, Logger& log);

  // Asks the hub, and records which commit the revision names. Call it once, before the others.
  void list();
  const HubListing& listing() const { return listing_; }
  std::filesystem::path folder() const;

  // Makes these files of the listing appear in folder(), several at a time, with progress. Those that are in the cache
  // are not fetched again. HubError when one cannot be had; what has arrived stays.
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
