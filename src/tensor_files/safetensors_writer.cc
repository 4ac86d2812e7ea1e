#include "tensor_files/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/machine_error.h"
#include "core/json.h"
#include "core/system_call.h"

namespace megalith {
namespace {

[[noreturn]] void fail(std::string_view action, const std::filesystem::path& path, int error_number) {
  const std::string message =
      fmt::format("cannot {} {}: {}", action, path.string(), system_error_text(error_number));
  if (!is_of_disk(error_number)) throw UserError(message);
  throw MachineError(message, "free space there or choose another folder");
}

}  // namespace

SafetensorsLayout make_safetensors_layout(std::vector<SafetensorsEntry> entries,
                                          const std::map<std::string, std::string>& metadata) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  Json texts = metadata;
  texts["format"] = "pt";
  // As text: an ordered JSON object would search all names at each insertion.
  std::string json = "{\"__metadata__\":" + dump_json(texts);

  SafetensorsLayout layout;
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    const std::optional<int64_t> bytes = safetensors_bytes(entry.dtype, entry.shape);
    MEGALITH_CHECK(bytes.has_value(), "{} [{}] has no size in bytes", entry.name, fmt::join(entry.shape, ", "));
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", dump_json(Json(entry.name)),
                        name_of(entry.dtype), fmt::join(entry.shape, ","), end, end + *bytes);
    MEGALITH_CHECK(entry.name != "__metadata__", "a tensor may not be called __metadata__");
    const bool is_new =
        layout.tensors
            .emplace(std::move(entry.name),
                     SafetensorsTensor{
                         .dtype = entry.dtype, .shape = std::move(entry.shape), .offset = end, .num_bytes = *bytes})
            .second;
    MEGALITH_CHECK(is_new, "two tensors of one name in a file");
    end += *bytes;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  for (int i = 0; i < 8; ++i) layout.header.push_back(static_cast<char>(json.size() >> (8 * i)));
  layout.header += json;
  const auto data_start = static_cast<int64_t>(layout.header.size());
  for (auto& [name, tensor] : layout.tensors) tensor.offset += data_start;
  layout.num_bytes = data_start + end;
  return layout;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, SafetensorsLayout layout, Mode mode)
    : path_(std::move(path)), layout_(std::move(layout)) {
  const int flags = mode == Mode::kCreate ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY;
  fd_ = retry_interrupted([&] { return ::open(path_.c_str(), flags | O_CLOEXEC, 0666); });
  if (fd_ < 0) fail("create", path_, errno);
  if (mode == Mode::kCreate) {
    if (retry_interrupted([&] { return ::ftruncate(fd_, layout_.num_bytes); }) != 0) {
      const int error_number = errno;
      close_descriptor(std::exchange(fd_, -1));  // no destructor runs after a throwing constructor
      fail("write", path_, error_number);
    }
    try {
      write_at(0, std::as_bytes(std::span(layout_.header)));
    } catch (...) {
      close_descriptor(std::exchange(fd_, -1));
      throw;
    }
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close_descriptor(fd_);
}

void SafetensorsWriter::write(std::string_view name, int64_t offset, std::span<const std::byte> bytes) {
  const auto found = layout_.tensors.find(name);
  MEGALITH_CHECK(found != layout_.tensors.end(), "{} is not in the layout of {}", name, path_.string());
  const SafetensorsTensor& tensor = found->second;
  const auto size = static_cast<int64_t>(bytes.size());
  MEGALITH_CHECK(offset >= 0 && size <= tensor.num_bytes - offset, "{}: bytes [{}, {}) of {}", name, offset,
                 offset + size, tensor.num_bytes);
  write_at(tensor.offset + offset, bytes);
  data_bytes_written_ += size;
}

void SafetensorsWriter::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retry_interrupted([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), offset); });
    if (written < 0) fail("write", path_, errno);
    offset += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void SafetensorsWriter::finish() {
  if (retry_interrupted([&] { return ::fsync(fd_); }) != 0) fail("flush", path_, errno);
  if (const int error = close_descriptor(std::exchange(fd_, -1))) fail("write", path_, error);
}

}  // namespace megalith
