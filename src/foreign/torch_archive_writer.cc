#include "foreign/torch_archive_writer.h"

#include <zlib.h>

#include <span>
#include <string>

#include "foreign/pickle_writer.h"
#include "foreign/torch_archive.h"

namespace megalith {
namespace {

using pickled::little;

constexpr int64_t kAlignment = 64;
constexpr uint64_t kInExtra = UINT32_MAX;  // a size that stands among the extra fields

uint32_t checksum_of(std::string_view bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file), begin_(file.size()) {}

  void add(std::string_view name, std::string_view content) {
    const std::string path = "archive/" + std::string(name);
    const std::string fields = little(45, 2) + little(0, 8) + little(checksum_of(content), 4) + little(kInExtra, 4) +
                               little(kInExtra, 4) + little(path.size(), 2);
    const std::string sizes = little(content.size(), 8) + little(content.size(), 8);
    const std::string extra = little(1, 2) + little(16, 2) + sizes;
    // torch's own field of padding.
    const int64_t unpadded = file_.size() + 30 + static_cast<int64_t>(path.size() + extra.size()) + 4;
    const auto padding = static_cast<size_t>((kAlignment - unpadded % kAlignment) % kAlignment);
    directory_ += "PK\x01\x02" + little(45, 2) + fields + little(28, 2) + little(0, 2) + little(0, 8) +
                  little(kInExtra, 4) + path + little(1, 2) + little(24, 2) + sizes +
                  little(static_cast<uint64_t>(file_.size() - begin_), 8);
    file_.append("PK\x03\x04" + fields + little(extra.size() + 4 + padding, 2) + path + extra + "FB" +
                 little(padding, 2) + std::string(padding, 'Z'));
    file_.append(content);
    ++count_;
  }

  int64_t finish() {
    const auto start = static_cast<uint64_t>(file_.size() - begin_), end = start + directory_.size();
    const std::string counts = little(count_, 8) + little(count_, 8);
    file_.append(directory_);
    file_.append("PK\x06\x06" + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 8) + counts +
                 little(directory_.size(), 8) + little(start, 8));
    file_.append("PK\x06\x07" + little(0, 4) + little(end, 8) + little(1, 4));
    file_.append("PK\x05\x06" + little(0, 4) + little(UINT16_MAX, 2) + little(UINT16_MAX, 2) + little(kInExtra, 4) +
                 little(kInExtra, 4) + little(0, 2));
    return file_.size() - begin_;
  }

 private:
  AtomicFile& file_;
  int64_t begin_;
  std::string directory_;
  uint64_t count_ = 0;
};

}  // namespace

int64_t append_archive(AtomicFile& file, std::string_view value, std::string_view storage) {
  ZipWriter zip(file);
  zip.add("data.pkl", pickled::whole_pickle(value));
  zip.add("byteorder", "little");
  zip.add("data/0", storage);
  zip.add("version", "3\n");
  return zip.finish();
}

int64_t append_archive(AtomicFile& file, const at::Tensor& tensor) {
  const std::vector<int64_t> shape = tensor.sizes().vec();
  const std::string_view storage(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  const TorchDtype& dtype = torch_dtype(safetensors_dtype_of(tensor.scalar_type()));
  const std::string value = pickled::tensor(dtype.storage, "0", tensor.numel(), 0, shape, row_major(shape));
  return append_archive(file, value, storage);
}

}  // namespace megalith
