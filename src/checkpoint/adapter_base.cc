#include "checkpoint/adapter_base.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/exchange.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kBaseKey = "base_checksum";       // in kAdapterBaseFile
constexpr const char* kBaseRecord = "adapters_base";    // in the record; no option
constexpr size_t kNumSamples = 16, kSampleBytes = 4096;  // per tensor

void add_bytes(StreamingChecksum& sum, std::span<const std::byte> bytes) {
  if (bytes.size() <= kNumSamples * kSampleBytes) return sum.update(bytes);
  // Samples include the first and last byte.
  const size_t step = (bytes.size() - kSampleBytes) / (kNumSamples - 1);
  for (size_t i = 0; i + 1 < kNumSamples; ++i) sum.update(bytes.subspan(i * step, kSampleBytes));
  sum.update(bytes.last(kSampleBytes));
}

}  // namespace

std::string checksum_of_weights(const TensorStore& store) {
  StreamingChecksum sum;
  for (const auto& [name, entry] : store.entries()) {
    sum.update(fmt::format("{} {} [{}]\n", name, name_of(entry.dtype), fmt::join(entry.shape, ", ")));
    for (const TensorStore::Part& part : entry.parts) add_bytes(sum, part.stored.bytes());
  }
  return sum.sum128().hex();
}

std::string checksum_of_base(const fs::path& folder, Group& world) {
  std::string sum;
  run_on_all(world, "checksum of the base model", [&] {
    if (world.rank() == 0) sum = checksum_of_weights(TensorStore::open_folder(folder));
  });
  return broadcast_text(world, sum, 0, "checksum of the base model");
}

std::optional<std::string> stored_base_of(const fs::path& adapters) {
  const fs::path file = adapters / kAdapterBaseFile;
  if (!fs::exists(file)) return std::nullopt;
  auto sum = json_get<std::string>(load_json(file), kBaseKey, file.string());
  if (!parse_checksum(sum)) {
    throw UserError(fmt::format("{}: {} is '{}', which is no checksum of 32 hexadecimal digits", file.string(),
                                kBaseKey, sum),
                    "delete the file if you know which model these adapters belong to");
  }
  return sum;
}

void write_base(const fs::path& adapters, const std::string& base) {
  write_file_atomic(adapters / kAdapterBaseFile, dump_json_pretty(Json{{kBaseKey, base}}));
}

std::optional<std::string> stored_base_of(const Configuration& configuration) {
  const auto found = std::find_if(configuration.begin(), configuration.end(),
                                  [](const auto& entry) { return entry.first == kBaseRecord; });
  if (found == configuration.end()) return std::nullopt;
  return plain_text(found->second);
}

void remember_base(const std::string& base, Configuration& configuration) {
  // Quoted: 32 digits could be read as a number.
  configuration.emplace_back(kBaseRecord, fmt::format("\"{}\"", base));
}

void check_base(const std::optional<std::string>& stored, const std::string& base, const std::string& adapters,
                const fs::path& folder) {
  if (!stored || *stored == base) return;
  throw UserError(fmt::format("the adapters in {} were trained beside another model: its checksum is {}, that of {} "
                              "is {}",
                              adapters, *stored, folder.string(), base),
                  "name with --load_hf the model that they were trained beside, in the dtype that it had then");
}

}  // namespace megalith
