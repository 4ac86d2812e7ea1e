#include "foreign/dcp_writer.h"

#include "foreign/pickle_writer.h"
#include "foreign/torch_archive.h"
#include "foreign/torch_archive_writer.h"

namespace megalith {
namespace {

using namespace pickled;  // NOLINT: opcodes read like words

constexpr const char* kFile = "__0_0.distcp";
constexpr std::string_view kClasses = "torch.distributed.checkpoint.metadata";

std::string properties(at::ScalarType dtype) {
  const TorchDtype& known = torch_dtype(safetensors_dtype_of(dtype));
  return object(kClasses, "TensorProperties",
                tuple({name("torch", known.name), call("torch.serialization", "_get_layout", {text("torch.strided")}),
                       boolean(false), call(kClasses, "_MEM_FORMAT_ENCODING", {whole(0)}), boolean(false)}));
}

}  // namespace

DcpWriter::DcpWriter(std::filesystem::path folder) : folder_(std::move(folder)), file_(folder_ / kFile) {}

std::string DcpWriter::add_place(int64_t begin, int64_t length) {
  return object("torch.distributed.checkpoint.filesystem", "_StorageInfo",
                dict({{"relative_path", text(kFile)}, {"offset", whole(begin)}, {"length", whole(length)}}));
}

void DcpWriter::add_tensor(const Names& names, at::ScalarType dtype, const std::vector<int64_t>& shape,
                           const std::vector<Box>& boxes, const std::function<at::Tensor(const Box&)>& content) {
  std::vector<std::string> chunks;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Box& box = boxes[i];
    const int64_t begin = file_.size();
    const std::string place = add_place(begin, append_archive(file_, content(box)));
    for (const std::string& fqn : names) {
      places_ += object(kClasses, "MetadataIndex",
                        dict({{"fqn", text(fqn)},
                              {"offset", torch_size(box.offset)},
                              {"index", whole(static_cast<int64_t>(i))}})) +
                 place;
    }
    chunks.push_back(object(kClasses, "ChunkStorageMetadata",
                            dict({{"offsets", torch_size(box.offset)}, {"sizes", torch_size(box.extent)}})));
  }
  const std::string entry =
      object(kClasses, "TensorStorageMetadata",
             dict({{"properties", properties(dtype)}, {"size", torch_size(shape)}, {"chunks", list(chunks)}}));
  for (const std::string& fqn : names) tensors_ += text(fqn) + entry;
}

void DcpWriter::add_tensor(const Names& names, const at::Tensor& whole) {
  const std::vector<int64_t> shape = whole.sizes().vec();
  add_tensor(names, whole.scalar_type(), shape, {Box::whole(shape)}, [&](const Box&) { return whole; });
}

void DcpWriter::add_object(const Names& names, std::string_view value) {
  if (names.empty()) return;
  const int64_t begin = file_.size();
  const std::string place = add_place(begin, append_archive(file_, value));
  for (const std::string& fqn : names) {
    places_ +=
        object(kClasses, "MetadataIndex", dict({{"fqn", text(fqn)}, {"offset", none()}, {"index", none()}})) + place;
    tensors_ += text(fqn) + object(kClasses, "BytesStorageMetadata", dict({}));
  }
}

void DcpWriter::finish() {
  file_.commit();
  const std::string metadata = object(kClasses, "Metadata",
                                      dict({{"state_dict_metadata", "}(" + tensors_ + "u"},
                                            {"planner_data", none()},
                                            {"storage_data", "}(" + places_ + "u"},
                                            {"storage_meta", none()},
                                            {"version", text("1.0.0")}}));
  write_file_atomic(folder_ / ".metadata", whole_pickle(metadata));
}

}  // namespace megalith
