// Objects below s3://bucket/prefix. Requests are tried again after 5xx, cut connections and silence; a cut body goes on
// from its last byte. Every body sent carries its SHA-256, which the storage compares. Safe for several threads.
//
// UserError: the storage refuses (credentials, bucket, region, clock). MachineError: it has not answered in all tries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/log.h"
#include "storage/s3_settings.h"

namespace megalith {

struct StoredObject {
  std::string name;  // below the prefix
  std::string etag;
  int64_t size = 0;
  std::string modified;  // "2026-11-28T00:12:00.000Z"
};

class ObjectStore {
 public:
  // log outlives the store.
  ObjectStore(S3Settings settings, S3Url url, Logger& log);
  ~ObjectStore();
  ObjectStore(ObjectStore&&) noexcept;

  const S3Url& url() const;

  // Objects whose names begin with `beginning`, by name.
  std::vector<StoredObject> list(std::string_view beginning = "") const;
  // Bytes [offset, offset + out.size()). UserError unless the object still has this etag.
  void read(const StoredObject& object, int64_t offset, std::span<std::byte> out) const;

  void put(std::string_view name, std::string_view content) const;
  // Large files in parts, several at once. A failure leaves no object and no parts.
  void put_file(std::string_view name, const std::filesystem::path& file) const;
  void remove(std::string_view name) const;
  // Uploads in parts that killed runs left; returns how many.
  int64_t abort_uploads(std::string_view beginning) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith
