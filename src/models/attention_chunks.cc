#include "models/attention_chunks.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {
namespace {

// Chunk number of each key, (b, S) int32.
at::Tensor chunk_numbers(const at::Tensor& documents, int64_t b, int64_t length, int64_t size, at::Device device) {
  const at::Tensor places = at::arange(length, at::TensorOptions(at::kLong).device(device)).unsqueeze(0);
  if (!documents.defined()) return places.div(size, "floor").to(at::kInt).expand({b, length}).contiguous();
  const at::Tensor changes = documents.narrow(1, 1, length - 1).ne(documents.narrow(1, 0, length - 1));
  const at::Tensor begins = at::cat({at::ones({b, 1}, changes.options()), changes}, 1);
  const at::Tensor first = std::get<0>(at::cummax(places * begins, 1));  // of each key's document
  return (places - first).remainder(size).eq(0).cumsum(1).to(at::kInt);
}

std::vector<int64_t> chunk_begins(const std::vector<int64_t>& documents, int64_t length, int64_t size) {
  std::vector<int64_t> begins;
  for (size_t i = 0; i < documents.size(); ++i) {
    const int64_t end = i + 1 < documents.size() ? documents[i + 1] : length;
    for (int64_t begin = documents[i]; begin < end; begin += size) begins.push_back(begin);
  }
  return begins;
}

}  // namespace

ops::AttentionMask cut_into_chunks(const ForwardContext& context, int64_t size, at::Device device) {
  ops::AttentionMask mask = context.mask;
  const int64_t before = context.cache == nullptr ? 0 : context.cache->length;
  const int64_t length = context.row_length > 0 ? context.row_length : before + context.s;
  if (length <= size) return mask;
  if (device.is_meta()) {  // only shapes count
    const auto options = at::TensorOptions(at::kInt).device(device);
    mask.key_documents = at::empty({context.b, length}, options);
    mask.query_documents = at::empty({context.b, context.s}, options);
    return mask;
  }
  const bool has_documents = mask.key_documents.defined();
  MEGALITH_CHECK(!has_documents || context.cache == nullptr, "documents with a KV cache");
  mask.key_documents = chunk_numbers(mask.key_documents, context.b, length, size, device);
  mask.query_documents = context.row_length > 0 ? mask.key_documents.index_select(1, mask.query_positions)
                                                : mask.key_documents.narrow(1, before, context.s);
  if (!mask.runs) return mask;
  auto runs = std::make_shared<ops::MaskRuns>(*mask.runs);
  if (!has_documents) runs->documents.assign(static_cast<size_t>(context.b), {0});
  for (std::vector<int64_t>& begins : runs->documents) begins = chunk_begins(begins, length, size);
  runs->plans = ops::make_attention_plans();  // plans of other layers are for other documents
  mask.runs = std::move(runs);
  return mask;
}

}  // namespace megalith
