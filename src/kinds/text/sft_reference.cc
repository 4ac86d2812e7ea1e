// See sft_reference.h.
#include "kinds/text/sft_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/checksum.h"
#include "core/error.h"
#include "data/indexed_writer.h"

namespace megalith {

std::string sft_reference_prefix(const SftSet& set, const std::string& identity) {
  const std::string tokens = fmt::format("\n{} {} {}", set.report().encoder, set.report().tokens, set.report().counted);
  return fmt::format("{}_reference_{:016x}", set.prefix(), checksum64(identity + tokens));
}

bool has_sft_reference(const std::string& prefix) {
  return std::filesystem::exists(prefix + ".idx") && std::filesystem::exists(prefix + ".bin");
}

SftReferenceTable::SftReferenceTable(const SftSet& set) : begins_{0} {
  for (int64_t i = 0; i < set.num_sequences(); ++i) begins_.push_back(begins_.back() + set.sequence_length(i));
  values_.resize(static_cast<size_t>(begins_.back()), 0);
}

void SftReferenceTable::set(int64_t sequence, int64_t offset, std::span<const float> log_probs) {
  const auto place = static_cast<size_t>(sequence);
  const int64_t begin = begins_.at(place) + offset;
  MEGALITH_CHECK(begin + std::ssize(log_probs) <= begins_.at(place + 1), "{} numbers from {} on of sequence {}",
                 log_probs.size(), offset, sequence);
  std::copy(log_probs.begin(), log_probs.end(), values_.begin() + begin);
}

void SftReferenceTable::write(const std::string& prefix) const {
  IndexedDatasetWriter writer(prefix, TokenType::kInt32);
  const std::span all(values_);
  for (size_t i = 0; i + 1 < begins_.size(); ++i) {
    const auto begin = static_cast<size_t>(begins_[i]), end = static_cast<size_t>(begins_[i + 1]);
    writer.add_raw_sequence(std::as_bytes(all.subspan(begin, end - begin)));
    writer.end_document();
  }
  writer.finish();
}

SftReference::SftReference(const std::string& prefix, const SftSet& set) : values_(prefix) {
  bool fits = values_.token_type() == TokenType::kInt32 && values_.num_sequences() == set.num_sequences();
  for (int64_t i = 0; fits && i < set.num_sequences(); ++i) {
    fits = values_.sequence_length(i) == set.sequence_length(i);
  }
  if (!fits) {
    throw UserError(fmt::format("{}.bin holds no log-probabilities of the tokens in {}.bin", prefix, set.prefix()),
                    "delete it: it is made again");
  }
}

void SftReference::read(int64_t sequence, int64_t offset, int64_t count, float* log_probs) const {
  const std::span<const std::byte> bytes = values_.sequence_bytes(sequence);
  std::memcpy(log_probs, bytes.data() + static_cast<size_t>(offset) * sizeof(float),
              static_cast<size_t>(count) * sizeof(float));
}

}  // namespace megalith
