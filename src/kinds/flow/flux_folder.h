// Pictures and captions as encoded once by `prepare flux`: a folder with
//
//   index.json               the data's properties and shards; written last: if it exists, the folder is complete
//   shard-00000.safetensors  latents (n, c, h, w) float32, or latent_means and latent_log_vars; text_states (n, l, d);
//                            pooled_text (n, p); checksums (n) int64, of each sample's bytes; in the metadata the
//                            captions, as a JSON list
//   empty.safetensors        text_states (l, d) and pooled_text (p) of the empty caption
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "data/flux_data_options.h"
#include "tensor_files/safetensors.h"

namespace megalith {

struct FluxShard {
  std::string file;
  int64_t samples = 0, bytes = 0;
  bool operator==(const FluxShard&) const = default;
};

struct FluxIndex {
  int64_t image_size = 0;                          // pixels of a side
  std::array<int64_t, 3> latent_shape = {0, 0, 0};  // channels, rows, columns
  VaeLatentMode vae_latent_mode = VaeLatentMode::kPresampled;
  double latent_scale = 1, latent_shift = 0;
  int64_t text_length = 0, context_dim = 0, vec_in_dim = 0;
  std::string encoders;  // FluxEncoders::identity() of the data's encoders
  std::vector<FluxShard> shards;

  int64_t num_samples() const;
  OrderedJson to_json() const;
  // UserError for a missing or invalid member; `where` names the file.
  static FluxIndex from_json(const Json& json, const std::string& where);
};

inline constexpr const char* kFluxIndexFile = "index.json";
inline constexpr const char* kFluxEmptyFile = "empty.safetensors";
inline constexpr const char* kFluxStateFile = "prepare.json";  // progress of `prepare flux`
std::string flux_shard_name(int64_t number);

// One sample, or several along a batch dim.
struct FluxSample {
  at::Tensor latents;          // scaled latents, or the mean of the posterior
  at::Tensor latent_log_vars;  // undefined for presampled latents
  at::Tensor text_states, pooled_text;
};

// XXH3 of the sample's bytes, tensor after tensor.
int64_t checksum_of(const FluxSample& sample);

// Atomically writes a shard of n samples and its captions to `path`.
void write_flux_shard(const std::filesystem::path& path, const FluxSample& samples,
                      const std::vector<std::string>& captions);
void write_flux_empty(const std::filesystem::path& path, const at::Tensor& text_states, const at::Tensor& pooled_text);

// An opened folder. Reading is thread-safe.
class FluxFolder {
 public:
  // UserErrors, all at once: no such folder, an index that is unfinished or of another format, shards that are missing,
  // truncated, or do not match the index.
  explicit FluxFolder(const std::filesystem::path& folder);

  const FluxIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }
  int64_t num_samples() const { return index_.num_samples(); }
  // Sample `number` of [0, num_samples()), in mapped memory. UserError, with the shard's name, if its bytes have
  // changed.
  FluxSample read(int64_t number) const;
  std::string caption(int64_t number) const;
  // The empty caption's states and pooled vector.
  std::pair<at::Tensor, at::Tensor> empty() const;

 private:
  struct Place {
    size_t shard;
    int64_t row;
  };
  Place place_of(int64_t number) const;

  std::filesystem::path folder_;
  FluxIndex index_;
  std::vector<SafetensorsFile> shards_;
  std::vector<int64_t> ends_;  // number of samples up to and including each shard
};

}  // namespace megalith
