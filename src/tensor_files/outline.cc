#include "tensor_files/outline.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/release_pages.h"

namespace megalith {
namespace {

constexpr int64_t kLeastReleased = int64_t{1} << 16;  // smaller tensors share pages with their neighbours

void forget_place(void* place) { delete static_cast<FileTensor*>(place); }

const FileTensor* place_of(const at::Tensor& tensor) {
  if (!tensor.is_meta() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &forget_place ? static_cast<const FileTensor*>(data.get_context()) : nullptr;
}

// The part of a stored tensor that a view of its outline covers.
FileTensor covered(const FileTensor& whole, const at::Tensor& view) {
  FileTensor part = whole;
  const int64_t element = bits_of(whole.dtype) / 8;
  part.shape = view.sizes().vec();
  part.strides = view.strides().vec();
  part.offset += view.storage_offset() * element;
  int64_t last = 0;
  for (size_t d = 0; d < part.shape.size(); ++d) last += (part.shape[d] - 1) * part.strides[d];
  part.num_bytes = view.numel() == 0 ? 0 : (last + 1) * element;
  return part;
}

// In pages of its own: copies that malloc frees leave holes in its heap, in which small things settle, so that the heap
// grows with every copy.
at::Tensor in_own_pages(int64_t num_bytes, at::ScalarType type) {
  const auto length = static_cast<size_t>(num_bytes);
  void* const pages = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw UserError(fmt::format("no memory for {} bytes of a tensor", num_bytes), "free memory, or use another host");
  }
  return at::from_blob(
      pages, {num_bytes / static_cast<int64_t>(c10::elementSize(type))}, [length](void* at) { ::munmap(at, length); },
      at::TensorOptions().dtype(type));
}

// Unaligned values are copied in steps, so that they are not in memory twice.
at::Tensor copied(const FileTensor& part, at::ScalarType type) {
  constexpr int64_t kStep = int64_t{16} << 20;
  const at::Tensor elements = in_own_pages(part.num_bytes, type);
  auto* out = static_cast<std::byte*>(elements.mutable_data_ptr());
  for (int64_t done = 0; done < part.num_bytes; done += kStep) {
    const int64_t count = std::min(kStep, part.num_bytes - done);
    std::memcpy(out + done, part.bytes().data() + done, static_cast<size_t>(count));
    release_pages(*part.file, part.offset + done, count);
  }
  return elements.as_strided(part.shape, part.strides);
}

}  // namespace

at::Tensor outline_of(const FileTensor& stored) {
  const std::optional<at::ScalarType> type = scalar_type_of(stored.dtype);
  if (!type) return stored.view();  // throws
  auto place = std::make_unique<FileTensor>(stored);
  at::DataPtr data(nullptr, place.get(), &forget_place, at::Device(at::kMeta));
  place.release();
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(stored.num_bytes), std::move(data));
  // Not by set_(), which asks for storage that it may enlarge.
  at::Tensor outline = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), c10::scalarTypeToTypeMeta(*type));
  outline.unsafeGetTensorImpl()->set_sizes_and_strides(stored.shape, stored.strides);
  return outline;
}

at::Tensor values_of(const at::Tensor& tensor) {
  const FileTensor* whole = place_of(tensor);
  if (whole == nullptr) return tensor;
  const FileTensor part = covered(*whole, tensor);
  if (part.num_bytes < kLeastReleased) return part.view();
  const std::byte* data = part.bytes().data();
  if (reinterpret_cast<uintptr_t>(data) % tensor.element_size() != 0) return copied(part, tensor.scalar_type());
  const auto release = [part](void*) { release_pages(*part.file, part.offset, part.num_bytes); };
  return at::from_blob(const_cast<std::byte*>(data), part.shape, part.strides, release,
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

}  // namespace megalith
