// ATen's operators that make, view and copy tensors on pretend devices; fallback.cc has all others.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "pretend/accelerator/graphs.h"
#include "pretend/accelerator/memory.h"
#include "pretend/accelerator/on_host.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith::pretend {
namespace {

using at::Tensor;

Tensor empty(at::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
             std::optional<at::Device> device, std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                   format);
}

Tensor empty_strided(at::SymIntArrayRef size, at::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                     std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

void copy_now(const Tensor& to, const Tensor& from) {
  const AtWork at_work;
  const at::AutoDispatchBelowADInplaceOrView below;
  as_host(to).copy_(as_host(from));
}

// True if the host goes on at once, by the rules of CUDA's copies.
bool is_asynchronous(const Tensor& host, const Tensor& on_device, bool non_blocking) {
  return non_blocking && host.is_contiguous() && host.scalar_type() == on_device.scalar_type() &&
         host.sizes() == on_device.sizes() && (host.numel() == 0 || is_pinned(host.const_data_ptr()));
}

// Between host and device, without waiting. Host memory stays alive until then, as pinned allocators see to it; a block
// of the device is read or written by its address, even if it has another owner by then.
void copy_later(const Tensor& to, const Tensor& from) {
  const Tensor& host = to.is_cpu() ? to : from;
  const c10::DeviceIndex device = (to.is_cpu() ? from : to).device().index();
  const c10::StreamId stream = current_stream_id(device);
  if (stream != kMainStream && (to.is_cpu() ? from : to).is_contiguous()) {
    streams_of(device).push(stream, [host, to = to.mutable_data_ptr(), from = from.const_data_ptr(),
                                     bytes = host.nbytes()] { std::memcpy(to, from, bytes); });
  } else if (to.is_cpu()) {
    // The stream passes the numbers now, and the host has them when it has waited.
    Tensor passed = at::empty_like(host, at::MemoryFormat::Contiguous);
    copy_now(passed, from);
    std::memset(host.mutable_data_ptr(), 0xFF, host.nbytes());
    streams_of(device).push(
        stream, [host, passed] { std::memcpy(host.mutable_data_ptr(), passed.const_data_ptr(), host.nbytes()); });
  } else {
    wait_for_stream(device);  // it may still have to write the host memory that is read here
    copy_now(to, from);
  }
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (is_at_work()) {
    copy_now(to, from);
  } else if (from.device() == to.device() || (!from.is_cpu() && !to.is_cpu())) {
    before_operator_on(from.device());
    before_operator_on(to.device());
    note_use_of(from, /*is_written=*/false);
    note_use_of(to, /*is_written=*/true);
    copy_now(to, from);
    keep_in_graph(to.device().index(), [to = as_host(to), from = as_host(from)] { to.copy_(from); });
  } else if (is_asynchronous(from.is_cpu() ? from : to, from.is_cpu() ? to : from, non_blocking)) {
    refuse_in_graph((from.is_cpu() ? to : from).device().index(), "a copy between host and device");
    note_use_of(from, /*is_written=*/false);
    note_use_of(to, /*is_written=*/true);
    if (from.numel() > 0) copy_later(to, from);
  } else {
    note_wait(from.is_cpu() ? "copy to the device" : "copy to the host");
    note_use_of(from, /*is_written=*/false);
    note_use_of(to, /*is_written=*/true);
    host_waits_for_stream((from.is_cpu() ? to : from).device().index());
    copy_now(to, from);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const Tensor& x) {
  note_wait("item");
  note_use_of(x, /*is_written=*/false);
  host_waits_for_stream(x.device().index());
  const AtWork at_work;
  return at::_local_scalar_dense(as_host(x));
}

const Tensor& resize(const Tensor& x, at::SymIntArrayRef size, std::optional<at::MemoryFormat> /*format*/) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const size_t needed =
      at::detail::computeStorageNbytesContiguous(sizes, x.dtype().itemsize(), static_cast<size_t>(x.storage_offset()));
  if (x.storage().nbytes() < needed) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(x.storage(), needed);
  x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return x;
}

void record_stream_of(Tensor& x, c10::Stream stream) { record_stream(x.storage().data(), stream.id()); }

}  // namespace
}  // namespace megalith::pretend

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(megalith::pretend::empty));
  m.impl("empty_strided", TORCH_FN(megalith::pretend::empty_strided));
  m.impl("_copy_from", TORCH_FN(megalith::pretend::copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(megalith::pretend::copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(megalith::pretend::local_scalar_dense));
  m.impl("resize_", TORCH_FN(megalith::pretend::resize));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  // A Stream does not travel through a boxed fallback.
  m.impl("record_stream", TORCH_FN(megalith::pretend::record_stream_of));
}
