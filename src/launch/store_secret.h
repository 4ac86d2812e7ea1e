// A secret for the ranks' store: c10d's accepts every connection and lists its keys, and any local user reaches its
// loopback port.
//
// Keys are written as HMACs (RFC 2104), values with an HMAC of key and value that readers check. Without the secret a
// process cannot register as a rank, forge an address, or change a value unnoticed. It can still read values, delete
// keys, raise counters, and reach the tensors' connections: c10d encrypts nothing.
#pragma once

#include <filesystem>
#include <string>

namespace megalith {

// Trimmed. UserError: missing, open to others than its owner, or under 16 characters.
std::string read_store_secret(const std::filesystem::path& path);

// A temporary file with 32 random bytes in hexadecimal, mode 0600; removed by the destructor.
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
