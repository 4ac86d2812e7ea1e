#include "checkpoint/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// JSON has no infinities or NaN, and a best loss may be infinite.
Json number_to_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number_from_json(const Json& json, const std::string& what) {
  if (!json.is_string()) return json_as<double>(json, what);
  const auto text = json_as<std::string>(json, what);
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw UserError(fmt::format("{} is \"{}\", expected a number", what, text));
}

Json train_to_json(const TrainState& train) {
  Json numbers = Json::object();
  for (const auto& [name, value] : train.numbers) numbers[name] = number_to_json(value);
  return {{"iteration", train.iteration},
          {"consumed_train_samples", train.consumed_train_samples},
          {"optimizer_step", train.optimizer_step},
          {"skipped_iterations", train.skipped_iterations},
          {"seed", train.seed},
          {"numbers", std::move(numbers)}};
}

TrainState train_from_json(const Json& json, const std::string& where) {
  const auto count = [&](const char* name) {
    const auto value = json_get<int64_t>(json, name, where);
    if (value < 0) throw UserError(fmt::format("{}: {} is {}", where, name, value));
    return value;
  };
  TrainState train{.iteration = count("iteration"),
                   .consumed_train_samples = count("consumed_train_samples"),
                   .optimizer_step = count("optimizer_step"),
                   .skipped_iterations = count("skipped_iterations"),
                   .seed = json_get<int64_t>(json, "seed", where),
                   .numbers = {}};
  for (const auto& [name, value] : get_member(json, "numbers", where).items()) {
    train.numbers[name] = number_from_json(value, fmt::format("{}: numbers.{}", where, name));
  }
  return train;
}

// Pairs keep the order of declaration.
Json configuration_to_json(const Configuration& configuration) {
  Json json = Json::array();
  for (const auto& [name, value] : configuration) json.push_back({name, value});
  return json;
}

Configuration configuration_from_json(const Json& json, const std::string& what) {
  Configuration configuration;
  if (!json.is_array()) throw UserError(fmt::format("{} is no list", what));
  for (const Json& item : json) {
    const auto pair = json_as<std::vector<std::string>>(item, what);
    if (pair.size() != 2) throw UserError(fmt::format("{} has an entry of {} texts, expected 2", what, pair.size()));
    configuration.emplace_back(pair[0], pair[1]);
  }
  return configuration;
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && fs::path(name).filename() == name;
}

}  // namespace

std::string chunk_entry_name(const std::string& name, const std::vector<int64_t>& shape, const Box& box) {
  if (box == Box::whole(shape)) return name;
  std::vector<std::string> ranges;
  for (size_t d = 0; d < shape.size(); ++d) {
    ranges.push_back(fmt::format("{}:{}", box.offset[d], box.offset[d] + box.extent[d]));
  }
  return fmt::format("{}[{}]", name, fmt::join(ranges, ","));
}

std::string train_state_text(const TrainState& train) { return dump_json(train_to_json(train)); }

TrainState parse_train_state(const std::string& text, const std::string& where) {
  return train_from_json(parse_json(text, where), where);
}

Json chunk_to_json(const StoredChunk& chunk) {
  Json json = {{"key", chunk.key},     {"name", chunk.name}, {"dtype", name_of(chunk.dtype)},
               {"shape", chunk.shape}, {"file", chunk.file}, {"checksum", chunk.checksum.hex()}};
  if (!chunk.is_whole()) {
    json["offset"] = chunk.box.offset;
    json["extent"] = chunk.box.extent;
  }
  return json;
}

StoredChunk chunk_from_json(const Json& json, const std::string& where) {
  StoredChunk chunk;
  chunk.key = json_get<std::string>(json, "key", where);
  chunk.name = json_get<std::string>(json, "name", where);
  const std::string what = fmt::format("{}: {} {}", where, chunk.key, chunk.name);
  const auto dtype = parse_safetensors_dtype(json_get<std::string>(json, "dtype", what));
  if (!dtype) throw UserError(fmt::format("{}: unknown dtype", what));
  chunk.dtype = *dtype;
  chunk.shape = json_get<std::vector<int64_t>>(json, "shape", what);
  if (!safetensors_bytes(chunk.dtype, chunk.shape)) {
    throw UserError(fmt::format("{}: shape [{}] cannot be", what, fmt::join(chunk.shape, ", ")));
  }
  const Box whole = Box::whole(chunk.shape);
  chunk.box.offset = json_find<std::vector<int64_t>>(json, "offset", what).value_or(whole.offset);
  chunk.box.extent = json_find<std::vector<int64_t>>(json, "extent", what).value_or(whole.extent);
  bool fits = chunk.box.offset.size() == chunk.shape.size() && chunk.box.extent.size() == chunk.shape.size();
  for (size_t d = 0; fits && d < chunk.shape.size(); ++d) {
    const int64_t offset = chunk.box.offset[d], extent = chunk.box.extent[d];
    fits = offset >= 0 && extent >= 0 && offset <= chunk.shape[d] && extent <= chunk.shape[d] - offset;
  }
  if (!fits) throw UserError(fmt::format("{}: its box does not lie in shape [{}]", what, fmt::join(chunk.shape, ", ")));
  chunk.file = json_get<std::string>(json, "file", what);
  if (!is_file_name(chunk.file))
    throw UserError(fmt::format("{}: '{}' is not the name of a file in this folder", what, chunk.file));
  const auto checksum = parse_checksum(json_get<std::string>(json, "checksum", what));
  if (!checksum) throw UserError(fmt::format("{}: the checksum is not 32 hexadecimal digits", what));
  chunk.checksum = *checksum;
  return chunk;
}

std::string manifest_text(Manifest& manifest) {
  Json chunks = Json::array();
  for (const StoredChunk& chunk : manifest.chunks) chunks.push_back(chunk_to_json(chunk));
  Json json = {{"format", "megalith"},
               {"format_version", kCheckpointFormatVersion},
               {"train", train_to_json(manifest.train)},
               {"architecture", configuration_to_json(manifest.architecture)},
               {"configuration", configuration_to_json(manifest.configuration)},
               {"layout", manifest.layout},
               {"torch_version", manifest.torch_version},
               {"previous", manifest.previous},
               {"tensors", std::move(chunks)}};
  manifest.checksum = checksum128(dump_json(json)).hex();
  json["checksum"] = manifest.checksum;
  return dump_json_pretty(json);
}

Manifest load_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  const std::string where = path.string();
  if (!fs::exists(path)) {
    throw UserError(fmt::format("{} is missing", where),
                    "this is not a checkpoint of megalith; give the folder that was given to --save");
  }
  Json json = load_json(path);
  const auto format = json_get_or<std::string>(json, "format", "", where);
  if (format != "megalith") throw UserError(fmt::format("{} is not a checkpoint of megalith", where));
  const auto version = json_get<int64_t>(json, "format_version", where);
  if (version != kCheckpointFormatVersion) {
    throw UserError(
        fmt::format("{} is of format {}, this program reads format {}", where, version, kCheckpointFormatVersion),
        "use the program that wrote it");
  }
  Manifest manifest;
  manifest.checksum = json_get<std::string>(json, "checksum", where);
  json.erase("checksum");
  if (checksum128(dump_json(json)).hex() != manifest.checksum) {
    throw UserError(fmt::format("{} is damaged: its checksum does not fit", where), "use another checkpoint");
  }
  manifest.train = train_from_json(get_member(json, "train", where), where);
  manifest.architecture = configuration_from_json(get_member(json, "architecture", where), where + ": architecture");
  manifest.configuration = configuration_from_json(get_member(json, "configuration", where), where + ": configuration");
  for (const auto& [name, size] : get_member(json, "layout", where).items()) {
    manifest.layout[name] = json_as<int64_t>(size, fmt::format("{}: layout.{}", where, name));
  }
  manifest.torch_version = json_get<std::string>(json, "torch_version", where);
  manifest.previous = json_get<std::string>(json, "previous", where);
  const Json& tensors = get_member(json, "tensors", where);
  if (!tensors.is_array()) throw UserError(fmt::format("{}: tensors is no list", where));
  for (const Json& tensor : tensors) manifest.chunks.push_back(chunk_from_json(tensor, where));
  return manifest;
}

}  // namespace megalith
