// Writes what dcp.h reads: a folder of torch.distributed.checkpoint. Bytes go to the file as they come; .metadata is
// kept, and written last. A tensor or object may have several names, which share its bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "nn/placement.h"

namespace megalith {

class DcpWriter {
 public:
  // An existing folder.
  explicit DcpWriter(std::filesystem::path folder);

  using Names = std::vector<std::string>;
  // boxes: cover the tensor; content(box) is contiguous, on the CPU, and of its extents
  void add_tensor(const Names& names, at::ScalarType dtype, const std::vector<int64_t>& shape,
                  const std::vector<Box>& boxes, const std::function<at::Tensor(const Box&)>& content);
  void add_tensor(const Names& names, const at::Tensor& whole);
  // value: as pickle_writer.h makes it
  void add_object(const Names& names, std::string_view value);
  void finish();

 private:
  std::string add_place(int64_t begin, int64_t length);

  std::filesystem::path folder_;
  AtomicFile file_;
  std::string tensors_, places_;  // entries of .metadata's dicts
};

}  // namespace megalith
