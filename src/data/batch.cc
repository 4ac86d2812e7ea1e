// See batch.h.
#include "data/batch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "comm/sequence_shard.h"
#include "core/error.h"
#include "device/transfer.h"

namespace megalith {
const BatchField* Batch::find_field(std::string_view name) const {
  const auto found = std::ranges::find(fields_, name, &BatchField::name);
  return found == fields_.end() ? nullptr : &*found;
}

void Batch::set(BatchField field) {
  MEGALITH_CHECK(field.tensor.defined(), "the field '{}' of a batch has no tensor", field.name);
  const auto found = std::ranges::find(fields_, field.name, &BatchField::name);
  if (found == fields_.end()) {
    fields_.push_back(std::move(field));
  } else {
    *found = std::move(field);
  }
}

void Batch::set(std::string_view name, at::Tensor tensor) {
  const BatchField* known = find_field(name);
  MEGALITH_CHECK(known != nullptr, "the batch has no field '{}' to replace", name);
  BatchField field = *known;
  field.tensor = std::move(tensor);
  set(std::move(field));
}

at::Tensor Batch::at(std::string_view name) const {
  const BatchField* field = find_field(name);
  if (field == nullptr) {
    std::string names;
    for (const BatchField& one : fields_) names += (names.empty() ? "" : ", ") + one.name;
    throw InternalError(fmt::format("the batch has no field '{}'; it has {}", name, names.empty() ? "none" : names));
  }
  return field->tensor;
}

at::Tensor Batch::find(std::string_view name) const {
  const BatchField* field = find_field(name);
  return field == nullptr ? at::Tensor() : field->tensor;
}

int64_t Batch::num_rows() const {
  for (const BatchField& field : fields_) {
    if (field.row_dim) return field.tensor.size(*field.row_dim);
  }
  throw InternalError("a batch without rows");
}

Batch Batch::rows(int64_t begin, int64_t count) const {
  Batch some = *this;
  for (std::vector<BatchField>* fields : {&some.fields_, &some.wholes_}) {
    for (BatchField& field : *fields) {
      if (field.row_dim) field.tensor = field.tensor.narrow(*field.row_dim, begin, count);
      field.tensor = field.tensor.clone();
    }
  }
  return some;
}

Batch Batch::part(int size, int rank) const {
  if (size == 1) return *this;
  MEGALITH_CHECK(!is_part(), "the part of rank {} of {} is to be cut again", part_rank_, part_size_);
  Batch part = *this;
  part.part_size_ = size;
  part.part_rank_ = rank;
  for (BatchField& field : part.fields_) {
    if (!field.sequence_dim) continue;
    if (field.keeps_whole) part.wholes_.push_back(field);
    field.tensor = zigzag_shard(field.tensor, *field.sequence_dim, size, rank);
  }
  return part;
}

int64_t Batch::length(std::string_view name) const {
  const BatchField* field = find_field(name);
  MEGALITH_CHECK(field != nullptr && field->sequence_dim, "the batch has no field '{}' with a sequence", name);
  return field->tensor.size(*field->sequence_dim);
}

at::Tensor Batch::row_index(std::string_view name) const {
  return is_part() ? zigzag_indices(row_length(name), part_size_, part_rank_) : at::arange(length(name), at::kLong);
}

at::Tensor Batch::whole(std::string_view name) const {
  if (!is_part()) return at(name);
  const auto found = std::ranges::find(wholes_, name, &BatchField::name);
  MEGALITH_CHECK(found != wholes_.end(), "the part of a batch does not keep the whole of '{}'", name);
  return found->tensor;
}

Batch Batch::to(at::Device device, std::span<const std::string_view> names) const {
  Batch copy = *this;
  for (std::vector<BatchField>* fields : {&copy.fields_, &copy.wholes_}) {
    std::erase_if(*fields,
                  [&](const BatchField& field) { return std::ranges::find(names, field.name) == names.end(); });
    for (BatchField& field : *fields) field.tensor = sent_to(field.tensor, device);
  }
  return copy;
}

std::vector<Batch> parts_of(const std::vector<Batch>& batches, const Group& cp) {
  std::vector<Batch> parts;
  parts.reserve(batches.size());
  for (const Batch& batch : batches) parts.push_back(batch.part(cp));
  return parts;
}

at::Tensor joined_tokens(const at::Tensor& part, Group& cp) {
  if (cp.size() == 1) return part;
  const at::Tensor all = cp.gathered(part.contiguous().to(cp.device()), "tokens of all parts");
  return zigzag_join(all.view({cp.size(), part.size(0), part.size(1)})).to(part.device());
}

}  // namespace megalith
