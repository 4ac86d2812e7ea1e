#include "launch/store_secret.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr size_t kShortest = 16, kLongestSecret = 4096;

std::string hex_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

}  // namespace

std::string read_store_secret(const std::filesystem::path& path) {
  const InputFile file(path);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) fail_file("read", path, errno);
  const std::string remedy =
      fmt::format("make one: rm -f {0}; umask 077; head -c 32 /dev/urandom | base64 > {0}", path.string());
  if ((status.st_mode & 077) != 0) {
    throw UserError(fmt::format("store_secret_file {} may be read or written by other users (mode {:o})", path.string(),
                                status.st_mode & 0777),
                    remedy);
  }
  std::string secret(trim(read_beginning(path, kLongestSecret)));
  if (secret.size() < kShortest) {
    throw UserError(fmt::format("store_secret_file {} holds {} characters, and a secret has at least {}", path.string(),
                                secret.size(), kShortest),
                    remedy);
  }
  return secret;
}

StoreSecretFile::StoreSecretFile() {
  std::array<char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw UserError("the system gives no random numbers for the store's secret", "give --store_secret_file FILE");
  }
  std::string name = (std::filesystem::temp_directory_path() / "megalith-secret-XXXXXX").string();
  const int fd = ::mkstemp(name.data());  // mode 0600
  if (fd < 0) fail_file("make", name, errno);
  path_ = name;
  const std::string text = hex_text({bytes.data(), bytes.size()}) + "\n";
  const bool is_written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error_number = errno;
  ::close(fd);
  if (is_written) return;
  ::unlink(name.c_str());
  fail_file("write", name, error_number);
}

StoreSecretFile::~StoreSecretFile() { ::unlink(path_.c_str()); }

}  // namespace megalith
