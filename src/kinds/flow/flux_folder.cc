#include "kinds/flow/flux_folder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/checksum.h"
#include "core/error.h"
#include "core/strings.h"
#include "data/throw_errors.h"
#include "tensor_files/safetensors_writer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFluxFormat = "megalith flux 1";
constexpr int64_t kMostOfAnything = int64_t{1} << 24;  // elements of a dim: products stay within 64 bits

std::span<const std::byte> bytes_of_tensor(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Written to a hidden name, then renamed.
void write_tensors(const fs::path& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  const fs::path unfinished = path.parent_path() / fmt::format(".{}.unfinished", path.filename().string());
  SafetensorsWriter writer(unfinished, make_safetensors_layout(entries, metadata));
  for (const auto& [name, tensor] : tensors) writer.write(name, 0, bytes_of_tensor(tensor));
  writer.finish();
  std::error_code code;
  fs::rename(unfinished, path, code);
  if (code) {
    throw UserError(fmt::format("cannot rename {} to {}: {}", unfinished.string(), path.string(), code.message()));
  }
  sync_path(path.parent_path());
}

std::string shape_text(std::span<const int64_t> shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return fmt::format("({})", join(sizes, ", "));
}

void check_tensor(const SafetensorsFile& file, const std::string& name, std::vector<int64_t> shape, bool is_text,
                  std::vector<UserError>& errors) {
  const SafetensorsTensor* tensor = file.find(name);
  constexpr const char* kRemedy = "the folder was changed since it was prepared: prepare it again";
  if (tensor == nullptr) {
    errors.emplace_back(fmt::format("{} has no tensor {}", file.path().string(), name), kRemedy);
    return;
  }
  const bool is_number =
      tensor->dtype == SafetensorsDtype::kF32 || (is_text && tensor->dtype == SafetensorsDtype::kBf16);
  if (tensor->shape != shape || (!is_number && name != "checksums")) {
    errors.emplace_back(fmt::format("{}: {} is {} {}, and index.json says {}", file.path().string(), name,
                                    name_of(tensor->dtype), shape_text(tensor->shape), shape_text(shape)),
                        kRemedy);
  } else if (name == "checksums" && tensor->dtype != SafetensorsDtype::kI64) {
    errors.emplace_back(fmt::format("{}: checksums is {}, not I64", file.path().string(), name_of(tensor->dtype)),
                        kRemedy);
  }
}

std::string_view latents_name(VaeLatentMode mode) {
  return mode == VaeLatentMode::kPresampled ? "latents" : "latent_means";
}

std::vector<int64_t> joined_shape(int64_t rows, std::initializer_list<int64_t> rest) {
  std::vector<int64_t> shape = {rows};
  shape.insert(shape.end(), rest);
  return shape;
}

void check_shard(const SafetensorsFile& file, const FluxIndex& index, const FluxShard& shard,
                 std::vector<UserError>& errors) {
  const auto& [c, h, w] = index.latent_shape;
  const int64_t n = shard.samples;
  check_tensor(file, std::string(latents_name(index.vae_latent_mode)), joined_shape(n, {c, h, w}), false, errors);
  if (index.vae_latent_mode == VaeLatentMode::kResample) {
    check_tensor(file, "latent_log_vars", joined_shape(n, {c, h, w}), false, errors);
  }
  check_tensor(file, "text_states", joined_shape(n, {index.text_length, index.context_dim}), true, errors);
  check_tensor(file, "pooled_text", joined_shape(n, {index.vec_in_dim}), true, errors);
  check_tensor(file, "checksums", {n}, false, errors);
}

}  // namespace

std::string flux_shard_name(int64_t number) { return fmt::format("shard-{:05}.safetensors", number); }

int64_t FluxIndex::num_samples() const {
  return std::accumulate(shards.begin(), shards.end(), int64_t{0},
                         [](int64_t sum, const FluxShard& shard) { return sum + shard.samples; });
}

OrderedJson FluxIndex::to_json() const {
  OrderedJson list = OrderedJson::array();
  for (const FluxShard& shard : shards) {
    list.push_back({{"file", shard.file}, {"samples", shard.samples}, {"bytes", shard.bytes}});
  }
  return {{"format", kFluxFormat},
          {"samples", num_samples()},
          {"image_size", image_size},
          {"latent_shape", std::vector<int64_t>(latent_shape.begin(), latent_shape.end())},
          {"vae_latent_mode", name_of(vae_latent_mode)},
          {"latent_scale", latent_scale},
          {"latent_shift", latent_shift},
          {"text_length", text_length},
          {"context_dim", context_dim},
          {"vec_in_dim", vec_in_dim},
          {"encoders", encoders},
          {"shards", list}};
}

FluxIndex FluxIndex::from_json(const Json& json, const std::string& where) {
  if (const std::string format = json_get<std::string>(json, "format", where); format != kFluxFormat) {
    throw UserError(fmt::format("{}: its format is '{}', and '{}' is read", where, format, kFluxFormat),
                    "prepare the pictures again with this version");
  }
  FluxIndex index;
  const auto size = [&](const char* key) { return json_get_whole(json, key, 1, kMostOfAnything, where); };
  index.image_size = size("image_size");
  index.text_length = size("text_length");
  index.context_dim = size("context_dim");
  index.vec_in_dim = size("vec_in_dim");
  const auto shape = json_get<std::vector<int64_t>>(json, "latent_shape", where);
  if (shape.size() != 3 ||
      std::any_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < 1 || dim > kMostOfAnything; })) {
    throw UserError(
        fmt::format("{}: latent_shape is {}, expected channels, rows and columns", where, shape_text(shape)));
  }
  std::copy_n(shape.begin(), 3, index.latent_shape.begin());
  const auto mode = json_get<std::string>(json, "vae_latent_mode", where);
  if (mode != name_of(VaeLatentMode::kPresampled) && mode != name_of(VaeLatentMode::kResample)) {
    throw UserError(fmt::format("{}: vae_latent_mode is '{}', expected presampled or resample", where, mode));
  }
  index.vae_latent_mode =
      mode == name_of(VaeLatentMode::kPresampled) ? VaeLatentMode::kPresampled : VaeLatentMode::kResample;
  index.latent_scale = json_get<double>(json, "latent_scale", where);
  index.latent_shift = json_get<double>(json, "latent_shift", where);
  index.encoders = json_get<std::string>(json, "encoders", where);
  const Json& list = get_member(json, "shards", where);
  if (!list.is_array()) throw UserError(fmt::format("{}: shards is no list", where));
  for (const Json& entry : list) {
    FluxShard shard;
    shard.file = json_get<std::string>(entry, "file", where);
    if (shard.file != flux_shard_name(std::ssize(index.shards))) {
      throw UserError(fmt::format("{}: shard {} is called '{}', expected {}", where, index.shards.size(), shard.file,
                                  flux_shard_name(std::ssize(index.shards))));
    }
    shard.samples = json_get_whole(entry, "samples", 1, kMostOfAnything, where);
    shard.bytes = json_get_whole(entry, "bytes", 1, int64_t{1} << 52, where);
    index.shards.push_back(std::move(shard));
  }
  if (json_get<int64_t>(json, "samples", where) != index.num_samples()) {
    throw UserError(fmt::format("{}: its shards have {} samples, and it says {}", where, index.num_samples(),
                                json_get<int64_t>(json, "samples", where)));
  }
  return index;
}

int64_t checksum_of(const FluxSample& sample) {
  StreamingChecksum sum;
  for (const at::Tensor& tensor : {sample.latents, sample.latent_log_vars, sample.text_states, sample.pooled_text}) {
    if (tensor.defined()) sum.update(bytes_of_tensor(tensor.contiguous()));
  }
  return static_cast<int64_t>(sum.sum64());
}

void write_flux_shard(const fs::path& path, const FluxSample& samples, const std::vector<std::string>& captions) {
  const int64_t n = samples.latents.size(0);
  MEGALITH_CHECK(std::ssize(captions) == n, "{} captions of {} samples", captions.size(), n);
  const at::Tensor checksums = at::empty({n}, at::kLong);
  const auto row_of = [](const at::Tensor& tensor, int64_t row) {
    return tensor.defined() ? tensor.select(0, row) : tensor;
  };
  for (int64_t row = 0; row < n; ++row) {
    checksums.mutable_data_ptr<int64_t>()[row] =
        checksum_of({row_of(samples.latents, row), row_of(samples.latent_log_vars, row),
                     row_of(samples.text_states, row), row_of(samples.pooled_text, row)});
  }
  const bool is_posterior = samples.latent_log_vars.defined();
  std::map<std::string, at::Tensor> tensors = {{"text_states", samples.text_states.contiguous()},
                                               {"pooled_text", samples.pooled_text.contiguous()},
                                               {"checksums", checksums}};
  const VaeLatentMode mode = is_posterior ? VaeLatentMode::kResample : VaeLatentMode::kPresampled;
  tensors[std::string(latents_name(mode))] = samples.latents.contiguous();
  if (is_posterior) tensors["latent_log_vars"] = samples.latent_log_vars.contiguous();
  write_tensors(path, tensors, {{"captions", dump_json(Json(captions))}});
}

void write_flux_empty(const fs::path& path, const at::Tensor& text_states, const at::Tensor& pooled_text) {
  write_tensors(path, {{"text_states", text_states.contiguous()}, {"pooled_text", pooled_text.contiguous()}}, {});
}

FluxFolder::FluxFolder(const fs::path& folder) : folder_(folder) {
  std::error_code code;
  const fs::path index = folder / kFluxIndexFile;
  if (!fs::exists(index, code)) {
    const bool has_shards = fs::exists(folder / flux_shard_name(0), code);
    throw UserError(fmt::format("{} holds no prepared pictures: there is no {}", folder.string(), kFluxIndexFile),
                    has_shards ? "its preparation was stopped: run the same 'megalith prepare flux' again to finish it"
                               : "make them with 'megalith prepare flux --input PICTURES --output FOLDER'");
  }
  index_ = FluxIndex::from_json(load_json(index), index.string());
  if (index_.shards.empty()) throw UserError(fmt::format("{} lists no shards", index.string()), "prepare it again");
  std::vector<UserError> errors;
  int64_t end = 0;
  for (const FluxShard& shard : index_.shards) {
    ends_.push_back(end += shard.samples);
    const fs::path path = folder / shard.file;
    try {
      if (const int64_t bytes = file_bytes(path); bytes != shard.bytes) {
        throw UserError(fmt::format("{} has {} bytes, and index.json says {}", path.string(), bytes, shard.bytes),
                        "it was probably cut while copying: copy it again");
      }
      shards_.emplace_back(path);
      check_shard(shards_.back(), index_, shard, errors);
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  throw_errors(errors);
}

FluxFolder::Place FluxFolder::place_of(int64_t number) const {
  MEGALITH_CHECK(number >= 0 && number < num_samples(), "sample {} of {}", number, num_samples());
  const auto shard = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), number) - ends_.begin());
  return {shard, number - (shard == 0 ? 0 : ends_[shard - 1])};
}

FluxSample FluxFolder::read(int64_t number) const {
  const auto [shard, row] = place_of(number);
  const SafetensorsFile& file = shards_[shard];
  const auto row_of = [&](std::string_view name) { return file.view(*file.find(name)).select(0, row); };
  FluxSample sample{row_of(latents_name(index_.vae_latent_mode)), {}, row_of("text_states"), row_of("pooled_text")};
  if (index_.vae_latent_mode == VaeLatentMode::kResample) sample.latent_log_vars = row_of("latent_log_vars");
  const int64_t expected = *row_of("checksums").const_data_ptr<int64_t>();
  if (checksum_of(sample) != expected) {
    throw UserError(fmt::format("{} is damaged: sample {} of it has another checksum than when it was written",
                                file.path().string(), row),
                    "copy the file again, or prepare the pictures again");
  }
  return sample;
}

std::string FluxFolder::caption(int64_t number) const {
  const auto [shard, row] = place_of(number);
  const SafetensorsFile& file = shards_[shard];
  const std::string where = fmt::format("{}: captions", file.path().string());
  const auto found = file.metadata().find("captions");
  if (found == file.metadata().end()) throw UserError(fmt::format("{} are not there", where), "prepare it again");
  const auto captions = json_as<std::vector<std::string>>(parse_json(found->second, where), where);
  if (row >= std::ssize(captions)) throw UserError(fmt::format("{} are too few", where), "prepare it again");
  return captions[static_cast<size_t>(row)];
}

std::pair<at::Tensor, at::Tensor> FluxFolder::empty() const {
  const SafetensorsFile file(folder_ / kFluxEmptyFile);
  std::vector<UserError> errors;
  check_tensor(file, "text_states", {index_.text_length, index_.context_dim}, true, errors);
  check_tensor(file, "pooled_text", {index_.vec_in_dim}, true, errors);
  throw_errors(errors);
  return {file.view(*file.find("text_states")), file.view(*file.find("pooled_text"))};
}

}  // namespace megalith
