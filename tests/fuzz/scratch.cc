// Files of the fuzzed readers; see target.h.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "fuzz/target.h"
#include "storage/object_mirror.h"

namespace megalith {

// No input here mirrors an object.
void fill_mirrored(const std::filesystem::path& /*file*/, int64_t /*offset*/, int64_t /*length*/) {}

}  // namespace megalith

namespace megalith::fuzz {
namespace fs = std::filesystem;

Scratch::Scratch() {
  // In memory where that is possible: thousands of files a second are written.
  std::error_code ignored;
  const fs::path parent = ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
  std::string pattern = (parent / "megalith_fuzz_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
  folder_ = pattern;
}

void Scratch::remove() const {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

fs::path Scratch::put(std::string_view name, std::string_view content) const {
  const fs::path file = folder_ / name;
  int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    fs::create_directories(file.parent_path());
    descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  require(descriptor >= 0, "a scratch file can be created");
  for (size_t done = 0; done < content.size();) {
    const ssize_t written = ::write(descriptor, content.data() + done, content.size() - done);
    require(written > 0, "a scratch file can be written");
    done += static_cast<size_t>(written);
  }
  ::close(descriptor);
  return file;
}

std::string joined(const std::vector<std::string>& files) {
  std::string text;
  for (size_t i = 0; i < files.size(); ++i) text.append(i == 0 ? "" : kBetweenFiles).append(files[i]);
  return text;
}

std::vector<std::string> divided(std::string_view input, size_t count) {
  std::vector<std::string> files(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t end = i + 1 == count ? std::string_view::npos : input.find(kBetweenFiles);
    files[i] = input.substr(0, end);
    if (end == std::string_view::npos) break;
    input.remove_prefix(end + kBetweenFiles.size());
  }
  return files;
}

}  // namespace megalith::fuzz
