// A vocabulary: token bytes to id and back, as flat arrays (a hundred thousand small strings in one block).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

class Vocabulary {
 public:
  // tokens  (bytes, id), ids unique and not negative; of two tokens with equal bytes, find() returns the first
  // hidden  tokens that no text can contain: bytes() knows them, find() does not
  explicit Vocabulary(const std::vector<std::pair<std::string, int32_t>>& tokens,
                      const std::vector<std::pair<std::string, int32_t>>& hidden = {});

  int32_t find(std::string_view bytes) const;  // -1 when there is no such token
  std::string_view bytes(int32_t id) const;    // "" for ids without a token
  bool has(int32_t id) const;
  int64_t end_id() const { return static_cast<int64_t>(starts_.size()); }  // one past the largest id

 private:
  struct Place {
    uint32_t offset = 0, length = 0;
    bool is_token = false;
  };
  void place(const std::string& bytes, int32_t id);

  std::string block_;
  std::vector<Place> starts_;   // by id
  std::vector<int32_t> slots_;  // open addressing; -1 is free
  uint64_t mask_ = 0;
};

}  // namespace megalith
