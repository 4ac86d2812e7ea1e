// A secret that protects the store of a run's ranks: c10d's accepts every connection and lists its keys, and any local
// user reaches its loopback port.
//
// Keys are written as HMACs, values with an HMAC of key and value that readers check. Without the secret a process
// cannot register as a rank, forge an address, or change a value unnoticed. It can still read values, disrupt the
// meeting by deleting keys or raising counters, and reach the tensors' connections: c10d encrypts nothing.
//
// Source: RFC 2104 (HMAC).
#pragma once

#include <filesystem>
#include <string>

namespace megalith {

// A secret file's text, trimmed. UserError: missing, accessible to others than its owner, or shorter than 16
// characters.
std::string read_store_secret(const std::filesystem::path& path);

// A new temporary file, readable only by this user, with 32 random bytes in hexadecimal; removed with this object.
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
