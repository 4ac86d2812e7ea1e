// A secret that the ranks of a run share, for the store in which they meet. c10d's store takes every connection, and
// tells whoever asks which keys there are: on a shared machine every user reaches a port of its loopback interface.
//
// With a secret, a key is written as its HMAC, and a value is written after an HMAC of key and value, which is checked
// when it is read. So a process without the secret cannot register as a rank, give an address in a rank's name, or
// change a value unnoticed. It can still read values, spoil the meeting by deleting keys or counting counters up, and
// reach the connections over which tensors travel: c10d encrypts nothing.
//
// Source: RFC 2104 (HMAC), FIPS 180-4 (SHA-256).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace megalith {

// HMAC-SHA256: 64 lower-case digits.
std::string hmac_sha256(std::string_view key, std::string_view text);

// The text of a secret's file without blanks at its ends. UserError: it is not there, may be read or written by others
// than its owner, or holds less than 16 characters.
std::string read_store_secret(const std::filesystem::path& path);

// A new file that only this user may read, with 32 random bytes in hexadecimal digits, in the folder for temporary
// files; removed with this object.
class StoreSecretFile {
 public:
  StoreSecretFile();
  ~StoreSecretFile();
  StoreSecretFile(const StoreSecretFile&) = delete;
  StoreSecretFile& operator=(const StoreSecretFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace megalith
